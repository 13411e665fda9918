"""cudnn_benchmark: cuDNN times its convolution algorithms at each new shape and keeps the fastest.

When: convolutions on an NVIDIA GPU, with inputs of few shapes. Costs a search at every new shape:
inputs of ever new sizes make it slower. A script that turns it off itself, or asks for
deterministic algorithms, is left alone. Rounding: another algorithm sums in another order, and
which one wins can differ from run to run.
"""

from __future__ import annotations

from typing import Any

from hotlap.levers.common.edits import Edit, insert_after_import
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

CONVOLUTIONS = tuple(f"Conv{kind}{n}d" for kind in ("", "Transpose") for n in (1, 2, 3))


def apply(torch: Any, value: str, process: Process) -> None:
    """Turn it on at once; the script, which comes later, may turn it off again."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark
    if before:
        return
    cudnn.benchmark = True
    process.on_undo(lambda: setattr(cudnn, "benchmark", before))

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        is_on = cudnn.benchmark and not cudnn.deterministic
        kinds = {type(part).__name__ for part in module.modules()}
        is_cuda = any(p.is_cuda for p in module.parameters())
        if is_on and is_cuda and kinds & set(CONVOLUTIONS):
            process.did("cuDNN searches the fastest convolution of each shape")

    process.on_model(meet)


def applies(workload: Workload) -> Decision:
    """Convolutions on a CUDA device, not asked to be deterministic."""
    if workload.device != "cuda" or workload.is_rocm:
        return Decision(False, "cuDNN is for NVIDIA GPUs; the model is not on one")
    if not workload.n_modules(*CONVOLUTIONS):
        return Decision(False, "the model has no convolutions")
    if workload.flags.get("cudnn_benchmark"):
        return Decision(False, "the script has turned it on itself")
    if workload.flags.get("cudnn_deterministic") or workload.flags.get("deterministic"):
        return Decision(False, "the script asks for deterministic algorithms")
    return Decision(True, "cuDNN chooses its convolutions by a rule, without timing them")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """One line behind the imports."""
    site = workload.model_site
    return (insert_after_import(site, "torch.backends.cudnn.benchmark = True"),)


LEVER = Lever(
    name="cudnn_benchmark",
    summary="cuDNN times its convolution algorithms and keeps the fastest",
    changes="rounding",
    bound=2e-3,
    risk="safe",
    phases=("forward", "backward"),
    saves=lambda workload: workload.on_device(0.05),
    values=lambda workload: ("on",),
    takes=one_of("on"),
    applies=applies,
    apply=apply,
    edit=edit,
)
