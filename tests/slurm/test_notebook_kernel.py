"""`hotlap.slurm` in a real Jupyter kernel: views renew themselves in place, nothing is printed."""

from __future__ import annotations

import os
import queue
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel
from slurm_cluster import Cluster

ANSWER_S = 60
SUBMIT = """
from hotlap import slurm
(job,) = slurm.submit(
    "bash -c 'echo \\"<b>first\\"; until [ -e go ]; do sleep 0.2; done; echo second'",
    hours=0.1, gpu="v100", account="abc@v100", name="from a cell",
)
job.id
"""

pytestmark = pytest.mark.timeout(170)

Message = dict[str, Any]


class Notebook:
    """A kernel, and all that it has told so far."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        own = {name: str(folder / name) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR")}
        # The kernel starts in a folder of its own: paths as '../src' would lead elsewhere.
        path = os.pathsep.join(str(Path(one).resolve()) for one in sys.path if one)
        env = cluster.environment({**own, "PYTHONPATH": path})
        self.manager, self.client = start_new_kernel(env=env, cwd=str(folder))
        self.told: list[Message] = []

    def run(self, cell: str) -> Message:
        """The reply to a cell; its displays are among what was told."""
        number = self.client.execute(cell)
        reply: Message = self.client.get_shell_msg(timeout=ANSWER_S)
        assert reply["content"]["status"] == "ok", reply["content"]
        self.wait(lambda: any(is_idle(one, number) for one in self.told))
        return reply

    def wait(self, is_true: Callable[[], bool]) -> None:
        """Read what the kernel tells until something is true."""
        end = time.monotonic() + ANSWER_S
        while not is_true():
            assert time.monotonic() < end, self.told[-5:]
            try:
                self.told.append(self.client.get_iopub_msg(timeout=1))
            except queue.Empty:
                continue

    def views(self, kind: str) -> list[tuple[str, str, str]]:
        """Id, HTML and text of each display so far."""
        told = [one["content"] for one in self.told if one["msg_type"] == kind]
        return [
            (one["transient"]["display_id"], one["data"]["text/html"], one["data"]["text/plain"])
            for one in told
        ]

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def is_idle(message: Message, number: str) -> bool:
    is_state = message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
    return is_state and message["parent_header"].get("msg_id") == number


@pytest.fixture
def notebook(cluster: Cluster, tmp_path: Path) -> Iterator[Notebook]:
    started = Notebook(cluster, tmp_path)
    try:
        yield started
    finally:
        started.stop()


def test_the_queue_and_a_log_renew_themselves_while_other_cells_run(
    notebook: Notebook, tmp_path: Path
) -> None:
    notebook.run(SUBMIT)
    notebook.run("slurm.queue(every_s=0.3)")
    ((table, first, _),) = notebook.views("display_data")
    assert "from a cell" in first
    notebook.wait(lambda: any("running" in text for _, text, _ in shown(notebook, table)))
    notebook.run("slurm.logs(job, which='out', every_s=0.3)")
    (log,) = {one for one, *_ in notebook.views("display_data")} - {table}
    notebook.wait(lambda: any("first" in text for _, text, _ in shown(notebook, log)))
    reply = notebook.run("1 + 1")  # the kernel is free for other cells
    assert reply["content"]["status"] == "ok"
    (tmp_path / "go").touch()
    notebook.wait(lambda: any("second" in text for _, text, _ in shown(notebook, log)))
    notebook.wait(lambda: "from a cell" not in shown(notebook, table)[-1][1])
    assert "<pre>&lt;b&gt;first" in shown(notebook, log)[-1][1]
    assert len(notebook.views("display_data")) == 2
    assert [one for one in notebook.told if one["msg_type"] in ("stream", "error")] == []
    alive = "[t.name for t in __import__('threading').enumerate() if 'hotlap' in t.name]"
    notebook.run(f"import time; time.sleep(1.5); assert {alive} == [], {alive}")


def shown(notebook: Notebook, display: str) -> list[tuple[str, str, str]]:
    """What one display showed, the latest last."""
    every = notebook.views("display_data") + notebook.views("update_display_data")
    return [one for one in every if one[0] == display]


def test_slurm_that_is_gone_is_a_sentence_in_the_view_and_the_next_look_mends_it(
    notebook: Notebook,
) -> None:
    notebook.run(SUBMIT)
    notebook.run("import os; path = os.environ['PATH']; slurm.queue(every_s=0.3)")
    notebook.run("os.environ['PATH'] = '/nonexistent'")
    latest = lambda: notebook.views("update_display_data")[-1:]  # noqa: E731
    notebook.wait(lambda: any("no Slurm here" in text for _, text, _ in latest()))
    notebook.run("os.environ['PATH'] = path")
    notebook.wait(lambda: any("from a cell" in text for _, text, _ in latest()))
    notebook.run("from hotlap.slurm.find import cancel; cancel(job.id); None")
    assert [one for one in notebook.told if one["msg_type"] in ("stream", "error")] == []
