"""compile on a model whose loss has millions of logits."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import SCRIPTS, run_hotlap

from hotlap.levers import compile
from hotlap.levers.common.edits import apply_edits
from hotlap.levers.common.inside import Orders
from hotlap.levers.common.workload import read_events, workload_from

SCRIPT = SCRIPTS / "many_logits.py"


def run(script: Path, folder: Path, **levers: str):  # type: ignore[no-untyped-def]
    folder.mkdir()
    env = Orders(dict(levers)).to_environment()
    result = run_hotlap(
        str(script), folder=folder, cwd=folder, options=("--quiet", "--warmup", "0"), env=env
    )
    assert result.code == 0, result.stderr.decode()
    return result.run, read_events(result.folder)


@pytest.mark.timeout(300)
def test_the_loss_is_compiled_and_the_training_is_the_same(tmp_path: Path) -> None:
    plain, events = run(SCRIPT, tmp_path / "plain")
    workload = workload_from(events, plain["phases_s"], 2, 1, [])
    assert workload.backwards[0].facts["n_logits"] == 128 * 40_000

    compiled, events = run(SCRIPT, tmp_path / "lever", compile="default")
    assert "cross_entropy is compiled" in events.done["compile"]
    assert events.failed == {}
    assert compiled["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert compiled["loss"] != plain["loss"]  # summed in another order

    edited = tmp_path / "edited.py"
    edited.write_text(apply_edits(compile.LEVER.edit("default", workload))[str(SCRIPT)])
    by_edit, _ = run(edited, tmp_path / "edit")
    assert by_edit["loss"] == compiled["loss"]
