"""Steps of which fewer marks are made, as on a device that waits for its host: nothing is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from running import run_hotlap
from test_loop_styles import BACKWARDS_A_STEP, STYLES

HERE = Path(__file__).parent
QUIETLY = {
    "HOTLAP_INSTALL": "quietly",
    "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
}
ARE_NEVER_QUIET = {"lbfgs", "amp-scaler"}


@pytest.mark.parametrize(
    "style",
    ["plain", "loader-fork", "accumulate", "gan", "validate", "no-module", "lbfgs", "amp-scaler"],
)
def test_steps_samples_losses_and_validations_are_found(style: str, tmp_path: Path) -> None:
    result = run_hotlap(
        *STYLES[style].words, folder=tmp_path, options=STYLES[style].options, env=QUIETLY
    )
    assert (result.code, result.run["status"]) == (0, "ok")
    assert ("there were quiet steps" in result.run["notes"]) == (style not in ARE_NEVER_QUIET)
    steps, truth = result.ranks[0]["steps"], result.truth
    assert len(steps["total_ns"]) == truth["steps"]
    assert sum(steps["samples"]) == truth["samples"]
    n, printed = BACKWARDS_A_STEP.get(style, 1), result.printed_losses()
    groups = [printed[k : k + n] for k in range(0, len(printed), n)]
    assert steps["loss"] == [sum(group) / len(group) for group in groups]
    found = result.run["validation"] or {"n": 0, "batches": 0}
    assert (found["n"], found["batches"]) == (truth["validations"], truth["val_batches"])


def test_a_backward_that_raises_in_a_quiet_step_is_no_loss(tmp_path: Path) -> None:
    script = tmp_path / "raises_once.py"
    script.write_text(RAISES_ONCE)
    result = run_hotlap(
        str(script), folder=tmp_path, cwd=tmp_path, options=("--quiet",), env=QUIETLY
    )
    assert result.code == 0, result.stderr.decode()
    assert "there were quiet steps" in result.run["notes"]
    assert result.ranks[0]["steps"]["loss"] == result.printed_losses()


RAISES_ONCE = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    loss = model(torch.ones(2, 4) * step).square().mean()
    if step == 4:
        output = model(torch.ones(2, 4)).sum()
        output.register_hook(lambda gradient: 1 / 0)
        try:
            output.backward()
        except ZeroDivisionError:
            pass
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
"""
