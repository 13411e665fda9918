"""Every style of training loop: its steps, samples, losses, validations and phases are right."""

from __future__ import annotations

from typing import Any

import pytest
from running import Command, Result, RunCache

PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")


def command(*words: str, stdin: bytes = b"") -> Command:
    return Command(words, stdin=stdin)


STYLES: dict[str, Command] = {
    "plain": command("plain.py"),
    "loader": command("loader.py"),
    "loader-fork": command("loader.py", "--workers", "2"),
    "loader-spawn": command("loader.py", "--workers", "2", "--start", "spawn"),
    "generator": command("generator.py"),
    "generator-validate": command("generator.py", "--validate"),
    "amp-scaler": command("amp_scaler.py"),
    "accumulate": command("accumulate.py"),
    "gan": command("gan.py"),
    "gan-critic": command("gan.py", "--critic", "3"),
    "lbfgs": command("lbfgs.py"),
    "compiled-module": command("compiled_model.py", "--style", "module"),
    "compiled-method": command("compiled_model.py", "--style", "method"),
    "compiled-step": command("compiled_model.py", "--style", "step"),
    "compiled-sequential": command("compiled_model.py", "--style", "sequential"),
    "no-module": command("no_module.py"),
    "reentrant": command("reentrant.py"),
    "torch-func": command("torch_func.py"),
    "detection": command("detection.py"),
    "detection-list": command("detection.py", "--without-loader"),
    "acting": command("acting.py"),
    "acting-episodes": command("acting.py", "--episodes"),
    "lightning": command("lightning_fit.py"),
    "accelerate": command("accelerate_loop.py"),
    "accelerate-accumulate": command("accelerate_loop.py", "--accumulate", "2"),
    "hf": command("hf_trainer.py"),
    "hf-accumulate": command("hf_trainer.py", "--accumulate", "2"),
    "ddp": command("torchrun", "--standalone", "--nproc_per_node", "2", "ddp.py"),
    "ddp-spawn": command("ddp_spawn.py"),
    "package": command("python", "-m", "pkg.train"),
    "validate": command("validate.py"),
    "validate-with-grad": command("validate.py", "--no-grad-off"),
    "awkward": command("awkward.py", stdin=b"first\nsecond\n"),
}
BACKWARDS_A_STEP = {
    "accumulate": 4,
    "gan": 2,
    "gan-critic": 4,
    "lbfgs": 4,
    "accelerate-accumulate": 2,
}
N_RANKS = {"ddp": 2, "ddp-spawn": 2}
WITHOUT_SAMPLES = {
    "compiled-step",  # inside one compiled function neither a loader nor a module call is seen
    "torch-func",  # inside a vmap a tensor has no dimension for what is mapped over
    "acting-episodes",  # how many rows into one backward are a batch, and how many the same sample
}
# The Trainer logs the sum over the micro-batches: what each backward was called on is not printed.
WITHOUT_PRINTED_LOSSES = {"hf-accumulate"}


def styles(*without: str) -> pytest.MarkDecorator:
    """Run a test on the styles; those to leave out are named."""
    kept = {name: made for name, made in STYLES.items() if name not in without}
    return pytest.mark.parametrize(("style", "command"), kept.items(), ids=list(kept))


def column(result: Result, name: str) -> list[Any]:
    """One column of the step tables of all ranks."""
    return [value for rank in result.ranks for value in rank["steps"][name]]


@styles()
def test_the_command_ends_well(runs: RunCache, style: str, command: Command) -> None:
    result = runs(command)
    assert (result.code, result.run["status"], result.run["exit_code"]) == (0, "ok", 0)
    assert len(result.ranks) == len(result.run["ranks"]) == N_RANKS.get(style, 1)
    assert result.run["world_size"] == N_RANKS.get(style, 1)


@styles()
def test_every_step_is_found(runs: RunCache, style: str, command: Command) -> None:
    result = runs(command)
    assert result.n_steps == result.truth["steps"]
    assert [len(rank["steps"]["total_ns"]) for rank in result.ranks] == [result.n_steps] * len(
        result.ranks
    )


@styles(*WITHOUT_SAMPLES)
def test_every_sample_is_counted(runs: RunCache, style: str, command: Command) -> None:
    result = runs(command)
    assert sum(column(result, "samples")) == result.truth["samples"]
    assert result.run["samples_per_s"] > 0


@pytest.mark.parametrize("command", [STYLES[name] for name in WITHOUT_SAMPLES])
def test_samples_that_cannot_be_seen_are_null(runs: RunCache, command: Command) -> None:
    result = runs(command)
    assert result.run["samples_per_s"] is None
    assert set(column(result, "samples")) == {None}
    assert result.run["steps_per_s"] > 0
    assert any("samples of some steps are unknown" in note for note in result.run["notes"])


@styles(*WITHOUT_PRINTED_LOSSES)
def test_losses_are_the_printed_ones_bit_for_bit(
    runs: RunCache, style: str, command: Command
) -> None:
    result = runs(command)
    n = BACKWARDS_A_STEP.get(style, 1)
    for rank in result.ranks:
        printed = result.printed_losses(rank=rank["rank"] if style in N_RANKS else None)
        groups = [printed[k : k + n] for k in range(0, len(printed), n)]
        assert len(printed) == n * result.truth["steps"]
        assert rank["steps"]["loss"] == [sum(group) / len(group) for group in groups]
    if style not in N_RANKS:
        assert result.run["loss"] == result.ranks[0]["steps"]["loss"]


@styles()
def test_every_loss_could_be_read(runs: RunCache, style: str, command: Command) -> None:
    assert [note for note in runs(command).run["notes"] if "could not be kept" in note] == []


@styles()
def test_validation_is_reported_apart(runs: RunCache, style: str, command: Command) -> None:
    result = runs(command)
    found = result.run["validation"] or {"n": 0, "batches": 0}
    truth = result.truth
    assert (found["n"], found["batches"]) == (truth["validations"], truth["val_batches"])


@styles()
def test_phases_add_up_to_the_step(runs: RunCache, style: str, command: Command) -> None:
    result = runs(command)
    phases = result.run["phases_s"]
    assert set(phases) == set(PHASES)
    assert min(phases.values()) >= 0
    assert sum(phases.values()) == pytest.approx(result.run["step_s"]["mean"], rel=0.01)
    columns = [column(result, f"{phase}_ns") for phase in PHASES]
    assert min(map(min, columns)) >= 0
    assert [sum(row) for row in zip(*columns, strict=True)] == column(result, "total_ns")
