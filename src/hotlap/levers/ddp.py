"""ddp: arguments of DistributedDataParallel that its default leaves out.

When: training on several processes through DistributedDataParallel. Values:

    bucket_view    gradients are views into the communication buckets: one copy and one set less
    static_graph   the same parameters are used in every step: what is found in the first is kept
    bucket_50mb    larger buckets: fewer messages, which start later; also bucket_100mb

Arguments that the script gives itself are kept. static_graph is wrong where the graph changes from
step to step. Rounding: buckets of another size can be summed over the ranks in another order;
bucket_view changes nothing.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any
from weakref import WeakSet

from hotlap.levers.common.edits import Edit, change_arguments
from hotlap.levers.common.lever import Decision, Lever, Takes
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload


def apply(torch: Any, value: str, process: Process) -> None:
    """Have every DistributedDataParallel made with the argument."""
    kind = torch.nn.parallel.DistributedDataParallel
    original = kind.__init__
    signature = inspect.signature(original)
    name, wanted = _argument(value)
    changed: WeakSet[Any] = WeakSet()

    @functools.wraps(original)
    def constructor(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            is_unset = name not in signature.bind(self, *args, **kwargs).arguments
        except TypeError:  # a wrong call raises as it would without us
            is_unset = False
        if is_unset:
            kwargs[name] = wanted
        original(self, *args, **kwargs)
        if is_unset:
            changed.add(self)

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        if any(part in changed for part in module.modules()):
            process.did(f"DistributedDataParallel is made with {name}={wanted}")

    process.replace(kind, "__init__", constructor)
    process.on_model(meet)


def _argument(value: str) -> tuple[str, bool | int]:
    """Name and value of the argument that a lever's value stands for."""
    if value == "bucket_view":
        return "gradient_as_bucket_view", True
    if value == "static_graph":
        return "static_graph", True
    size = re.fullmatch(r"bucket_(\d+)mb", value)
    if size is None:
        raise ValueError(f"there is no value '{value}'")
    return "bucket_cap_mb", int(size[1])


def _accepts(value: str) -> bool:
    try:
        return bool(_argument(value)[1])
    except ValueError:
        return False


TAKES = Takes("'bucket_view', 'static_graph' or a size such as 'bucket_50mb'", _accepts)


def applies(workload: Workload) -> Decision:
    """A model in DistributedDataParallel, on several processes."""
    if not any(one.facts.get("is_ddp") for one in workload.models):
        return Decision(False, "the model is not in DistributedDataParallel")
    if workload.world_size < 2:
        return Decision(False, "there is one process only, which sends nothing")
    return Decision(True, "DistributedDataParallel runs with its careful defaults")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """The argument, where DistributedDataParallel is made."""
    name, wanted = _argument(value)
    sites = [one.site for one in workload.ddps] or [None]
    kind = "DistributedDataParallel"
    return tuple(change_arguments(site, kind, **{name: str(wanted)}) for site in sites)


LEVER = Lever(
    name="ddp",
    summary="an argument of DistributedDataParallel for less copying or fewer messages",
    changes="rounding",
    bound=1e-5,
    risk="safe",
    phases=("backward",),
    saves=lambda workload: 0.1,
    values=lambda workload: ("bucket_view", "static_graph", "bucket_50mb", "bucket_100mb"),
    takes=TAKES,
    applies=applies,
    apply=apply,
    edit=edit,
)
