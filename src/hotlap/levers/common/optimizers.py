"""The arguments of an optimizer: which implementation was asked for, and of which parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from hotlap.levers.common.edits import Edit, change_arguments
from hotlap.levers.common.workload import Seen, Workload

CHOICES = ("fused", "foreach")


def is_unset(arguments: Mapping[str, Any], name: str) -> bool:
    """Whether this class has the choice, and the script left all of them to torch."""
    asked = any(arguments.get(choice) is not None for choice in CHOICES)
    return name in arguments and not asked and not arguments.get("differentiable")


def unset_optimizers(workload: Workload, kinds: Collection[str]) -> list[Seen]:
    """The optimizers of these classes whose implementation the script left to torch."""
    return [
        one
        for one in workload.optimizers
        if one.facts.get("kind") in kinds
        and all(one.facts.get(choice) is None for choice in CHOICES)
        and not one.facts.get("differentiable")
    ]


def parameters_of(optimizer: Any) -> list[Any]:
    """The parameters of all groups of an optimizer that is made."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def numbers_of_gradient(parameter: Any) -> Any:
    """What a gradient holds; of a sparse one, one number for each place."""
    if not parameter.grad.is_sparse:
        return parameter.grad
    if not parameter.grad.is_coalesced():
        parameter.grad = parameter.grad.coalesce()
    return parameter.grad._values()


def edit_optimizers(optimizers: Iterable[Seen], **arguments: str) -> tuple[Edit, ...]:
    """The same keyword arguments for each of these optimizers, where it is made."""
    return tuple(change_arguments(one.site, one.facts["kind"], **arguments) for one in optimizers)


def choice_kept(process: Any, name: str) -> Callable[[Any], None]:
    """Have an optimizer keep a lever's choice when it loads a state that leaves it open.

    Torch takes the choice from the checkpoint, which was written without the lever, while a
    GradScaler goes on as it was told when the optimizer was made.
    """

    def choose(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
        groups = [
            {**group, name: True} if all(group.get(one) is None for one in CHOICES) else group
            for group in state["param_groups"]
        ]
        return {**state, "param_groups": groups}  # the script's own stays as it is

    def see(optimizer: Any) -> None:
        process.on_undo(optimizer.register_load_state_dict_pre_hook(choose).remove)

    return see


def has_tensor_options(torch: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether a rate, or another number, is given as a tensor, for all parameters or a group."""
    params = arguments.get("params")
    groups = params if isinstance(params, (list, tuple)) else ()
    options = [
        option
        for group in (arguments, *(one for one in groups if isinstance(one, dict)))
        for name, option in group.items()
        if name != "params"
    ]
    parts = [part for one in options for part in (one if isinstance(one, (list, tuple)) else [one])]
    return any(isinstance(part, torch.Tensor) for part in parts)


def has_group_rates(arguments: Mapping[str, Any]) -> bool:
    """Whether a group of parameters has a learning rate of its own."""
    params = arguments.get("params")
    groups = params if isinstance(params, (list, tuple)) else ()
    return any(isinstance(group, dict) and "lr" in group for group in groups)


def keep_parameters(arguments: dict[str, Any]) -> None:
    """Turn generators and views of parameters into lists, to be looked at and still be used.

    Sets, dicts and bare tensors are left for torch: it refuses them in its own words.
    """
    if _is_listed(arguments["params"]):
        arguments["params"] = list(arguments["params"])
    if isinstance(arguments["params"], list):
        for group in arguments["params"]:
            if isinstance(group, dict) and _is_listed(group.get("params")):
                group["params"] = list(group["params"])


def _is_listed(params: Any) -> bool:
    """Whether torch makes a list of it: an iterator, `values()` of a dict, a ParameterList."""
    is_tensor = hasattr(params, "grad_fn")  # which can be iterated over as well
    is_known = isinstance(params, (list, tuple, set, dict, str))
    return isinstance(params, Iterable) and not is_tensor and not is_known


def all_tensors(arguments: Mapping[str, Any]) -> list[Any]:
    """The parameters of all groups; none where a group chooses its implementation itself."""
    if not isinstance(arguments["params"], (list, tuple)):
        return []
    tensors: list[Any] = []
    for group in arguments["params"]:
        if isinstance(group, dict) and any(group.get(name) is not None for name in CHOICES):
            return []
        tensors += _members(group)
    return tensors


def _members(group: Any) -> list[Any]:
    members = group.get("params", ()) if isinstance(group, dict) else [group]
    if not isinstance(members, (list, tuple)):
        members = [members]
    # Named parameters are pairs.
    return [one[1] if isinstance(one, tuple) else one for one in members]
