"""channels_last: images and the weights of convolutions with the channels innermost in memory.

When: models of two-dimensional convolutions, most of all in half precision on tensor cores, and on
CPUs. Parameters stay the same objects, only their strides change, so that an optimizer made before
is fine; state that it has, as from a checkpoint, gets the same strides. Costs a copy of each input.
Can be slower in fp32 and for grouped convolutions. Rounding: other kernels sum in another order.
"""

from __future__ import annotations

import functools
from collections.abc import MutableMapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from hotlap.levers.common.edits import Edit, tell, wrap_call
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.model_edits import before_optimizer, models_to_edit
from hotlap.levers.common.optimizers import parameters_of
from hotlap.levers.common.process import Process, is_channels_last
from hotlap.levers.common.workload import Seen, Workload
from hotlap.wording import n_of

FIRST_IN_ORDER = "{function}({first}.to(memory_format=torch.channels_last){rest})"


def apply(torch: Any, value: str, process: Process) -> None:
    """Reorder the weights of each model with convolutions, and the images that go into it."""
    changed: WeakSet[Any] = WeakSet()
    in_ddp: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
    _reorder_before_ddp(torch, process, in_ddp)
    in_order = _reorder_states(torch, process)

    def reorder(tensor: Any) -> Any:
        is_image = isinstance(tensor, torch.Tensor) and tensor.dim() == 4
        if not is_image or not tensor.is_floating_point():
            return tensor
        return tensor.to(memory_format=torch.channels_last)

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        ddp = [part for part in module.modules() if _is_ddp(torch, part)]
        n = sum(in_ddp.get(part, 0) for part in ddp)
        if not ddp:
            weights = _reorder_weights(torch, module)
            process.on_undo(lambda: _put_back(torch, weights))
            n = len(weights)
        if n:
            in_order.clear()
            changed.add(module)
            are = "is" if n == 1 else "are"
            name = type(module).__name__
            process.did(f"{n_of(n, 'convolution')} of {name} {are} channels last")

    def images(module: Any, args: Any, kwargs: Any) -> Any:
        if module not in changed:
            return args, kwargs
        return tuple(map(reorder, args)), {name: reorder(one) for name, one in kwargs.items()}

    process.on_model(meet)
    process.on_input(images)


def _is_ddp(torch: Any, part: Any) -> bool:
    return isinstance(part, torch.nn.parallel.DistributedDataParallel)


def _reorder_before_ddp(torch: Any, process: Process, in_ddp: MutableMapping[Any, int]) -> None:
    """Reorder a model before DistributedDataParallel lays out its buckets.

    Where the order of a weight changes after that, the first gradient comes out scrambled. For the
    same reason these weights are not put back on undo: their order matters to nothing else.
    """
    kind = torch.nn.parallel.DistributedDataParallel
    original = kind.__init__

    @functools.wraps(original)
    def constructor(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        n = len(_reorder_weights(torch, module))
        original(self, module, *args, **kwargs)
        in_ddp[self] = n

    process.replace(kind, "__init__", constructor)


def _reorder_weights(torch: Any, module: Any) -> list[Any]:
    """The weights that have their channels innermost now and had not before."""
    kinds = (torch.nn.Conv2d, torch.nn.ConvTranspose2d)
    parts = [part for part in module.modules() if isinstance(part, kinds)]
    # One that is computed from others is no parameter, and to look at it is to compute it.
    found = (part._parameters.get("weight") for part in parts)
    weights = [weight for weight in found if weight is not None]
    # A sharded weight is no plain tensor: it belongs to who sharded it.
    weights = [w for w in weights if w.dim() == 4 and type(w.data) is torch.Tensor]
    # Of one input channel, they are in both orders at once: what kernels go by is their strides.
    weights = [w for w in weights if not is_channels_last(torch, [w])]
    for weight in weights:
        weight.data = weight.data.to(memory_format=torch.channels_last)
    return weights


def _reorder_states(torch: Any, process: Process) -> WeakSet[Any]:
    """Have the states of optimizers follow their weights; gives those of which this is done.

    States of a checkpoint lie as they were made: fused kernels take the elements of both as they
    come, on a CPU without a word.
    """
    from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

    lever, in_order = process.lever, WeakSet[Any]()
    load = Optimizer.load_state_dict

    def before_update(optimizer: Any, args: Any, kwargs: Any) -> None:
        if optimizer not in in_order:
            in_order.add(optimizer)
            process.as_lever(lever, _reorder_state, torch, optimizer)

    @functools.wraps(load)
    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        in_order.discard(self)
        return load(self, *args, **kwargs)

    process.on_undo(register_optimizer_step_pre_hook(before_update).remove)
    process.replace(Optimizer, "load_state_dict", load_state_dict)
    return in_order


def _reorder_state(torch: Any, optimizer: Any) -> None:
    """Give what belongs to a convolution's weight, element by element, the strides of it."""
    for weight in parameters_of(optimizer):
        if weight.dim() == 4 and type(weight.data) is torch.Tensor:
            for one in (weight.grad, *optimizer.state.get(weight, {}).values()):
                if isinstance(one, torch.Tensor) and _lies_otherwise(torch, one, weight):
                    kind = {"dtype": one.dtype, "device": one.device}
                    like = torch.empty_strided(weight.shape, weight.stride(), **kind)
                    one.data = like.copy_(one.data)


def _lies_otherwise(torch: Any, one: Any, weight: Any) -> bool:
    is_like = one.layout == torch.strided and one.shape == weight.shape
    return bool(is_like and one.stride() != weight.stride())


def _put_back(torch: Any, weights: list[Any]) -> None:
    for weight in weights:
        weight.data = weight.data.to(memory_format=torch.contiguous_format)


def applies(workload: Workload) -> Decision:
    """Two-dimensional convolutions that are in torch's default order."""
    if not workload.n_modules("Conv2d", "ConvTranspose2d"):
        return Decision(False, "the model has no two-dimensional convolutions")
    if all(one.facts.get("is_channels_last") for one in workload.models):
        return Decision(False, "the model is channels last already")
    return Decision(True, "the convolutions are in torch's default memory order")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Models before the optimizer is made, images where the models are called.

    In DistributedDataParallel, buckets have the order that weights had before: there it is earlier.
    """
    models = models_to_edit(workload, _has_order_to_change)
    in_ddp = [one for one in models if one.facts.get("is_ddp")]
    sites = [one.site for one in workload.ddps] or [None] if in_ddp else []
    reorder = "{model}.to(memory_format=torch.channels_last)"
    return (
        *(wrap_call(site, FIRST_IN_ORDER, "DistributedDataParallel") for site in sites),
        *(before_optimizer(workload, one, reorder) for one in models if one not in in_ddp),
        *(_edit_of_call(one, workload) for one in models),
    )


def _has_order_to_change(facts: dict[str, Any]) -> bool:
    kinds = facts.get("kinds", {})
    has_convolutions = "Conv2d" in kinds or "ConvTranspose2d" in kinds
    return has_convolutions and not facts.get("is_channels_last")


def _edit_of_call(model: Seen, workload: Workload) -> Edit:
    """In words where the first argument was not seen to be images, or it is not known whose."""
    if _takes_images(model) and workload.is_alone_on_its_line(model):
        return wrap_call(model.site, FIRST_IN_ORDER)
    words = "images that go into the model .to(memory_format=torch.channels_last)"
    return tell(model.site, words)


def _takes_images(model: Seen) -> bool:
    """Whether the first argument of the model's call was seen to be one."""
    if not model.facts.get("takes_tensor_first"):
        return False
    shape, dtype, _ = model.facts["inputs"][0]
    return len(shape) == 4 and "float" in dtype


LEVER = Lever(
    name="channels_last",
    summary="images and convolutions with the channels innermost in memory",
    changes="rounding",
    bound=1e-3,
    risk="safe",
    phases=("forward", "backward"),
    saves=lambda workload: workload.on_device(0.3),
    values=lambda workload: ("on",),
    takes=one_of("on"),
    applies=applies,
    apply=apply,
    edit=edit,
    new_dropout=True,
)
