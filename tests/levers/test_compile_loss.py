"""compile on a model whose loss has millions of logits."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lever_runs import run_with
from running import SCRIPTS, run_hotlap
from torch import Tensor
from torch.nn import functional as F

from hotlap.levers import compile
from hotlap.levers.common.autocast import to_fp32
from hotlap.levers.common.compiled_loss import MIN_LOGITS, compile_loss
from hotlap.levers.common.edits import apply_edits
from hotlap.levers.common.halves import halves
from hotlap.levers.common.inside import Orders
from hotlap.levers.common.process import Process
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


@pytest.mark.timeout(300)
def test_half_precision_and_a_compiled_loss_go_together(tmp_path: Path) -> None:
    plain, _ = run(SCRIPT, tmp_path / "plain")
    levers = {"bf16": "autocast", "compile": "default", "onednn_isa": "AVX512_CORE_BF16"}
    result, events = run_with(tmp_path / "levers", SCRIPT, **levers)
    assert "cross_entropy is compiled, of half-precision logits" in events.done["compile"]
    assert result.run["loss"] == pytest.approx(plain["loss"], rel=2e-2)


# Logits that autocast gave, and that the script sees in fp32 --------------------------------------

N_TOKENS, N_WORDS = 4, MIN_LOGITS // 4


def a_training(use: Callable[[Tensor], Tensor], process: Process | None) -> tuple[float, Tensor]:
    """The loss of such logits after `use`, and the gradient of what they come from."""
    torch.manual_seed(0)
    source = torch.randn(2, 2, N_WORDS, requires_grad=True)
    if process is not None:
        compile_loss(torch, process, {"backend": "aot_eager"})
    logits = to_fp32(torch, source.to(torch.bfloat16) * 3)
    assert logits.dtype == torch.float32
    targets = torch.arange(N_TOKENS)
    loss = F.cross_entropy(use(logits), targets)
    loss.backward()
    assert source.grad is not None
    return float(loss.detach()), source.grad


def add_one(logits: Tensor) -> Tensor:
    logits.add_(1.0)
    return logits.view(N_TOKENS, N_WORDS)


def hooked(logits: Tensor) -> Tensor:
    logits.register_hook(lambda gradient: gradient * 2)
    return logits.view(N_TOKENS, N_WORDS)


def kept(logits: Tensor) -> Tensor:
    logits.retain_grad()
    return logits.view(N_TOKENS, N_WORDS)


@pytest.mark.parametrize(
    ("use", "is_half"),
    [
        (lambda logits: logits.view(N_TOKENS, N_WORDS), True),
        (lambda logits: logits.flatten(0, 1), True),
        (lambda logits: logits.transpose(0, 1).reshape(N_TOKENS, N_WORDS), False),
        (lambda logits: (logits * 2).flatten(0, 1), False),
        (lambda logits: logits.flatten(0, 1).flip(0), False),
        (add_one, False),
        (hooked, False),
        (kept, False),
    ],
)
def test_a_loss_takes_the_half_behind_logits_that_are_as_they_were(
    use: Callable[[Tensor], Tensor], is_half: bool
) -> None:
    plain_loss, plain = a_training(use, None)
    done: list[str] = []
    process = Process(torch, SimpleNamespace(), lambda **event: done.append(event["what"]))
    loss, gradient = a_training(use, process)
    process.undo()
    assert done == ["cross_entropy is compiled" + ", of half-precision logits" * is_half]
    assert loss == plain_loss
    assert torch.equal(gradient, plain)


def test_two_losses_of_the_same_logits_add_up() -> None:
    def use(logits: Tensor) -> Tensor:
        (logits.square().mean() * 8).backward(retain_graph=True)
        return logits.view(N_TOKENS, N_WORDS)

    _, plain = a_training(use, None)
    process = Process(torch, SimpleNamespace(), lambda **event: None)
    _, gradient = a_training(use, process)
    process.undo()
    assert torch.equal(gradient, plain)


def test_without_such_a_loss_no_half_is_kept() -> None:
    half = torch.ones(2, dtype=torch.bfloat16, requires_grad=True) * 2
    weak = weakref.ref(half)
    full = to_fp32(torch, half)
    del half
    assert weak() is None
    assert halves(torch).behind(full) is None
