"""`hotlap.slurm` in a notebook: submit jobs, see the queue, read logs.

    jobs = hotlap.slurm.submit("train.py --lr 0.1", gpus=[1, 4], hours=2, gpu="h100")
    hotlap.slurm.queue(every_s=30)      a table that renews itself until no job is left
    hotlap.slurm.logs(jobs[0], search="loss")

Each returns an object that shows itself: nothing is printed in a loop. Where IPython is not there,
`every_s` changes nothing.
"""

from __future__ import annotations

import html
import shlex
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.errors import UsageError
from hotlap.records.job import Job, QueuedJob

CELLS = ("job", "name", "state", "GPUs", "GPU hours", "start", "why it waits")


@dataclass(frozen=True)
class QueueView:
    """The queue at one moment."""

    jobs: tuple[QueuedJob, ...]

    def _rows(self) -> list[tuple[str, ...]]:
        from hotlap.slurm.states import reason_in_words, state_in_words

        return [
            (
                *(job.id, job.name, state_in_words(job.state), str(job.gpus)),
                *(f"{job.gpu_hours:.2f}", job.start or "", reason_in_words(job.reason)),
            )
            for job in self.jobs
        ]

    def __repr__(self) -> str:
        return "\n".join("  ".join(row) for row in (CELLS, *self._rows()))

    def _repr_html_(self) -> str:
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self._rows()]
        head = "".join(f"<th>{cell}</th>" for cell in CELLS)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><tr>{head}</tr>{body}</table>"


@dataclass(frozen=True)
class Sentence:
    """What stood in the way of a view."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.text)}</p>"


@dataclass(frozen=True)
class LogView:
    """What jobs printed up to one moment: a heading and a text each."""

    parts: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return "\n".join(f"==> {heading}\n{text}" for heading, text in self.parts)

    def _repr_html_(self) -> str:
        return "".join(
            f"<b>{html.escape(heading)}</b><pre>{html.escape(text)}</pre>"
            for heading, text in self.parts
        )


def submit(
    commands: str | Sequence[str],
    *,
    hours: float,
    gpus: int | Sequence[int] = 1,
    cluster: str | None = None,
    modules: Sequence[str] = (),
    conda: str | None = None,
    venv: str | None = None,
    container: str | None = None,
    env: Mapping[str, str] | None = None,
    gpu: str | None = None,
    gpus_per_node: int | None = None,
    partition: str | None = None,
    qos: str | None = None,
    account: str | None = None,
    constraint: str | None = None,
    name: str | None = None,
    array: str | None = None,
    after: str | None = None,
    mail: str | None = None,
    directives: Sequence[str] = (),
    requeue: bool = False,
    measure: str | None = None,
    measure_options: Sequence[str] = (),
    runs_dir: str | Path | None = None,
) -> list[Job]:
    """Send each command with each number of GPUs; the jobs, in that order.

    A command is one text, as it would be typed. The rest is as the options of `hotlap submit`;
    `measure` is 'time' or 'tune', and `measure_options` that command's own.
    """
    from hotlap.records.job import Ask, Requeue, Surroundings
    from hotlap.records.store import default_runs_dir
    from hotlap.slurm.build import Wish, build_all
    from hotlap.slurm.here import cluster_meant, is_here
    from hotlap.slurm.rights import own_rights
    from hotlap.slurm.send import send

    around = Surroundings(tuple(modules), conda, venv, container, environment=dict(env or {}))
    wanted = Wish(
        ask=Ask(1, hours, gpu, gpus_per_node, partition, qos, account, constraint),
        cwd=Path.cwd(),
        runs_dir=Path(runs_dir or default_runs_dir()).absolute(),
        surroundings=around,
        name=name,
        array=array,
        after=after,
        mail=mail,
        directives=tuple(directives),
        requeue=Requeue() if requeue else None,
        measure=measure,
        measure_options=tuple(measure_options),
    )
    meant = cluster_meant(cluster)
    rights = own_rights() if is_here(meant) else None
    texts = [commands] if isinstance(commands, str) else list(commands)
    counts = [gpus] if isinstance(gpus, int) else list(gpus)
    jobs = build_all(meant, wanted, [shlex.split(text) for text in texts], counts, rights)
    return [send(ways[0], meant.name) for ways in jobs]


def queue(every_s: float | None = None) -> QueueView | None:
    """The queue; with `every_s`, a table below this cell that renews itself until it is empty."""
    if every_s is None or not _is_notebook():
        return _queue_now()
    renew("queue", _queue_now, every_s, lambda: bool(_queue_now().jobs))
    return None


def _queue_now() -> QueueView:
    from hotlap.slurm.own_jobs import own_jobs

    return QueueView(tuple(own_jobs()))


def logs(
    job: Job | str | int,
    *,
    search: str | None = None,
    which: str = "both",
    every_s: float | None = None,
    runs_dir: str | Path | None = None,
) -> LogView | None:
    """What a job printed, or the lines that hold a text; with `every_s`, as it comes."""
    from hotlap.records.store import default_runs_dir
    from hotlap.slurm.find import find_logs
    from hotlap.slurm.follow import is_over, read, streams

    word = job.id if isinstance(job, Job) else str(job)
    folder = Path(runs_dir or default_runs_dir()).absolute()

    def now() -> LogView:
        parts = []
        for heading, path in streams(find_logs(word, folder), which):
            lines = read(path).splitlines()
            kept = [line for line in lines if search is None or search in line]
            parts.append((heading, "\n".join(kept)))
        return LogView(tuple(parts))

    if every_s is None or not _is_notebook():
        return now()
    numbers = [one.id for one in find_logs(word, folder)]
    renew("logs", now, every_s, lambda: not all(map(is_over, numbers)))
    return None


def _is_notebook() -> bool:
    """Whether this is a kernel; IPython is not imported to find out."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


_renewed: dict[str, threading.Event] = {}
"""By what is shown: an event that ends the thread that renews it."""


def renew(
    what: str, make: Callable[[], Any], every_s: float, goes_on: Callable[[], bool]
) -> threading.Thread:
    """Show what `make` gives, and renew it in place from a thread as long as it goes on.

    What the same function showed before stays as it is: its cell may be gone.
    """
    from IPython.display import display

    if what in _renewed:
        _renewed[what].set()
    over = _renewed[what] = threading.Event()
    handle = display(make(), display_id=True)

    def work() -> None:
        going = True
        while going and not over.wait(every_s):
            # Asked before the last look: what came in between is in it.
            try:
                going = goes_on()
                view = make()
            except UsageError as error:  # Slurm may answer again
                view = Sentence(f"{error}")
            handle.update(view)

    thread = threading.Thread(target=work, name=f"hotlap {what}", daemon=True)
    thread.start()
    return thread
