"""Levers on every style of training loop that the chronometer knows: it trains on, and the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import Command, RunCache, run_hotlap

from hotlap.levers import ddp, pure_bf16
from hotlap.levers.common.edits import unified_diff
from hotlap.levers.common.inside import Orders
from hotlap.levers.common.workload import Workload, read_events, workload_from

LEVERS = {"workers": "1", "channels_last": "on", "fused_optimizer": "on", "gc_pauses": "freeze"}
RANKS = ("torchrun", "--standalone", "--nproc_per_node", "2", "ddp.py")
DDP_EDITS = (
    (ddp.LEVER, "bucket_view", "gradient_as_bucket_view=True"),
    (pure_bf16.LEVER, "on", ".to(torch.bfloat16)"),
)
STYLES = {
    "plain": Command(("plain.py",)),
    "loader": Command(("loader.py",)),
    "generator": Command(("generator.py",)),
    "amp-scaler": Command(("amp_scaler.py",)),
    "accumulate": Command(("accumulate.py",)),
    "gan": Command(("gan.py",)),
    "lbfgs": Command(("lbfgs.py",)),
    "compiled": Command(("compiled_model.py", "--style", "module")),
    "lightning": Command(("lightning_fit.py",)),
    "accelerate": Command(("accelerate_loop.py",)),
    "hf": Command(("hf_trainer.py",)),
    "ddp": Command(RANKS),
    "ddp-spawn": Command(("ddp_spawn.py",)),
    "package": Command(("python", "-m", "pkg.train")),
}
WITHOUT_LOADER = {"plain", "amp-scaler", "lbfgs", "compiled"}
WITHOUT_CHOICE = {"lbfgs", "hf"}
"""Whose optimizer has no fused form, or is made by a framework that asks for it itself."""
WITH_CONVOLUTIONS = {"loader"}


def effective_in(style: str) -> set[str]:
    """Those of the levers that have something to change there."""
    without = {"workers"} if style in WITHOUT_LOADER else set()
    without |= {"fused_optimizer"} if style in WITHOUT_CHOICE else set()
    without |= set() if style in WITH_CONVOLUTIONS else {"channels_last"}
    return LEVERS.keys() - without


@pytest.mark.parametrize(("style", "command"), STYLES.items(), ids=list(STYLES))
def test_a_loop_of_this_style_trains_the_same(
    runs: RunCache, tmp_path: Path, style: str, command: Command
) -> None:
    plain = runs(command)
    orders = Orders(LEVERS, is_trial=True).to_environment()
    result = run_hotlap(*command.words, folder=tmp_path, options=("--quiet",), env=orders)
    assert result.code == 0, result.stderr.decode()
    assert result.n_steps == plain.n_steps
    losses = [loss for loss in result.run["loss"] if loss is not None]
    expected = [loss for loss in plain.run["loss"] if loss is not None]
    assert losses == pytest.approx(expected, rel=1e-3, abs=1e-5)
    events = read_events(result.folder)
    assert events.failed == {}
    assert events.done.keys() == effective_in(style)
    assert events.fingerprints
    workload = workload_from(events, {}, 2, 2, ())
    assert bool(workload.ddps) is style.startswith("ddp")
    for lever, value, new in DDP_EDITS if workload.ddps else ():
        assert new in unified_diff(lever.edit(value, workload))


@pytest.mark.parametrize("value", ddp.LEVER.values(Workload()))
def test_two_ranks_train_the_same_with_each_argument_of_ddp(
    runs: RunCache, tmp_path: Path, value: str
) -> None:
    plain = runs(Command(RANKS))
    orders = Orders({"ddp": value}).to_environment()
    result = run_hotlap(*RANKS, folder=tmp_path, options=("--quiet",), env=orders)
    assert result.code == 0, result.stderr.decode()
    for rank in range(2):
        losses, expected = result.printed_losses(rank), plain.printed_losses(rank)
        assert len(losses) == plain.n_steps
        assert losses == pytest.approx(expected, rel=ddp.LEVER.bound)
    assert plain.printed_losses(0) != plain.printed_losses(1)  # each has data of its own
    events = read_events(result.folder)
    assert events.failed == {}
    assert events.done.keys() == {"ddp"}
    assert len(events.done["ddp"]) == 2, "both ranks tell of it"
