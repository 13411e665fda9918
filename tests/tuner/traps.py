"""Levers that do harm and claim to be honest: the guard has to catch every one of them.

A file of levers as a user may write one; the tests put it in with `--lever-file`.
"""

from __future__ import annotations

from typing import Any

from hotlap.levers.common.lever import Decision, Lever


def drop_batches(torch: Any, value: str, process: Any) -> None:
    """Every tenth batch is fetched and thrown away."""
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    fetch, n_fetched = iterator.__next__, [0]

    def fetch_and_drop(self: Any) -> Any:
        n_fetched[0] += 1
        if n_fetched[0] % 10 == 0:
            fetch(self)
        return fetch(self)

    process.replace(iterator, "__next__", fetch_and_drop)
    process.did("every tenth batch is dropped")


def scale_gradients(torch: Any, value: str, process: Any) -> None:
    """Gradients are 1 % too large."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def scale(optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(1.01)

    process.on_undo(register_optimizer_step_pre_hook(scale).remove)
    process.did("gradients are scaled")


def stale_data(torch: Any, value: str, process: Any) -> None:
    """Every batch is handed out a step late, the first one twice."""
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    fetch, last = iterator.__next__, [None]

    def fetch_late(self: Any) -> Any:
        batch = fetch(self)
        late, last[0] = last[0], batch
        return batch if late is None else late

    process.replace(iterator, "__next__", fetch_late)
    process.did("batches come late")


def skip_work(torch: Any, value: str, process: Any) -> None:
    """Every fourth update is not made."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    n_made = [0]

    def skip(optimizer: Any, args: Any, kwargs: Any) -> None:
        n_made[0] += 1
        if n_made[0] % 4 == 0:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    process.on_undo(register_optimizer_step_pre_hook(skip).remove)
    process.did("updates are left out")


def freeze_layer(torch: Any, value: str, process: Any) -> None:
    """The first layer does not learn."""

    def freeze(module: Any, args: Any, kwargs: Any) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        frozen = next(iter(module.parameters()))

        def keep(optimizer: Any, args: Any, kwargs: Any) -> None:
            frozen.grad = None

        process.on_undo(register_optimizer_step_pre_hook(keep).remove)
        process.did("a layer is frozen")

    process.on_model(freeze)


def honest(torch: Any, value: str, process: Any) -> None:
    """Nothing is changed."""
    process.did("nothing")


def _lever(name: str, apply: Any, **claims: Any) -> Lever:
    return Lever(
        name=name,
        summary=apply.__doc__,
        risk="safe",
        phases=("data", "forward", "backward", "optimizer", "other"),
        saves=lambda workload: 0.1,
        values=lambda workload: ("on",),
        applies=lambda workload: Decision(True, "it is a test"),
        edit=lambda value, workload: (),
        apply=apply,
        **claims,
    )


def other_masks(torch: Any, value: str, process: Any) -> None:
    """Dropout draws its masks from elsewhere, as other kernels do."""
    original = torch.nn.functional.dropout
    generator = torch.Generator().manual_seed(7)

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training:
            return original(input, p, training, inplace)
        return input * torch.bernoulli(torch.full_like(input, 1 - p), generator=generator) / (1 - p)

    process.replace(torch.nn.functional, "dropout", dropout)
    process.did("masks are others")


def with_other_masks(trap: Any) -> Any:
    """A trap in a lever that has a reason to draw other masks."""

    def apply(torch: Any, value: str, process: Any) -> None:
        other_masks(torch, value, process)
        trap(torch, value, process)

    apply.__doc__ = trap.__doc__
    return apply


TRAPS = (drop_batches, scale_gradients, stale_data, skip_work, freeze_layer)
ROUNDING = {"changes": "rounding", "bound": 2e-2}
BEHIND_DROPOUT = {"new_dropout": True, **ROUNDING}
LEVERS = (
    *(_lever(f"{trap.__name__}_claims_rounding", trap, **ROUNDING) for trap in TRAPS),
    *(_lever(f"{trap.__name__}_claims_nothing", trap, changes="nothing") for trap in TRAPS),
    *(
        _lever(f"{trap.__name__}_behind_dropout", with_other_masks(trap), **BEHIND_DROPOUT)
        for trap in TRAPS
        if trap is not scale_gradients  # by 1 %, less than what masks do: see docs/tuning.md
    ),
    _lever("honest_masks", other_masks, **BEHIND_DROPOUT),
    _lever("honest_rounding", honest, **ROUNDING),
    _lever("honest_nothing", honest, changes="nothing"),
)
