"""Applies levers to the torch of this process, one after the other, and takes each back.

Run by the contract's test with a JSON object as its argument: by lever, the values of it and of
those it needs beside it. Writes a JSON line for each lever, so that one that ends the process is
known by its missing line.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from example_training import Net, Stripes
from torch.utils.data import DataLoader

from hotlap.levers import LEVERS
from hotlap.levers.common.process import Process

OWNERS = {
    "torch": torch,
    "Module": torch.nn.Module,
    "Tensor": torch.Tensor,
    "DataLoader": DataLoader,
    "torch.utils.data": torch.utils.data,
    "torch.utils.data.dataloader": torch.utils.data.dataloader,
    "functional": torch.nn.functional,
    "autograd": torch.autograd,
    "GradScaler": torch.amp.GradScaler,
    "DistributedDataParallel": torch.nn.parallel.DistributedDataParallel,
    "Sequential": torch.nn.Sequential,
    "Conv2d": torch.nn.Conv2d,
    "Linear": torch.nn.Linear,
    "optim": torch.optim,
    **{
        f"optim.{name}": kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    },
}
SETTINGS: dict[str, Callable[[], Any]] = {
    "matmul precision": torch.get_float32_matmul_precision,
    "cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
    "cudnn.allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
    "cuda.matmul.allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "mkldnn": lambda: torch.backends.mkldnn.enabled,
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "anomaly": torch.is_anomaly_enabled,
    "default dtype": torch.get_default_dtype,
    "threads": torch.get_num_threads,
    "threads between operations": torch.get_num_interop_threads,
    "autocast": lambda: (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
    "grad": torch.is_grad_enabled,
    "denormals": lambda: float(torch.tensor(1e-41) * 1.0),
    "sharing": torch.multiprocessing.get_sharing_strategy,
    "start method": multiprocessing.get_start_method,
    "distributions": lambda: torch.distributions.Distribution._validate_args,
    "gc threshold": gc.get_threshold,
    "gc enabled": gc.isenabled,
    "gc frozen": lambda: gc.get_freeze_count() > 0,
    "environment": lambda: dict(os.environ),
    "affinity": lambda: sorted(os.sched_getaffinity(0)),
    "switch interval": sys.getswitchinterval,
}
N_STEPS = 3


class Reports(list[dict[str, Any]]):
    """Keeps what levers report."""

    def __call__(self, **event: Any) -> None:
        self.append(event)

    def of(self, kind: str) -> list[str]:
        """The texts of all events of a kind."""
        return [event[{"done": "what", "failed": "why"}[kind]] for event in self if kind in event]


def snapshot() -> dict[str, Any]:
    """Everything that a lever might change in torch and beside it."""
    attributes = {
        f"{label}.{name}": value
        for label, owner in OWNERS.items()
        for name, value in vars(owner).items()
        if not isinstance(value, types.ModuleType)  # submodules come with their first import
    }
    return {**attributes, **{name: get() for name, get in SETTINGS.items()}}


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """What is not as it was."""
    missing = object()
    for name in before.keys() | after.keys():
        old, new = before.get(name, missing), after.get(name, missing)
        is_same = old == new if name in SETTINGS else old is new
        if not is_same and not name.endswith(("__annotations__", "__doc__")):
            yield name


def train(session: types.SimpleNamespace) -> list[float]:
    """Some steps of the example, with the calls that the chronometer's hooks make."""
    torch.manual_seed(0)
    model, criterion = Net(), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step, (images, labels) in enumerate(DataLoader(Stripes(N_STEPS * 8), batch_size=8)):
        optimizer.zero_grad()
        if step == 0:
            session.new_module(model, (images,), {})
        call = session.around_call
        output = call(model, (images,), {}) if call else model(images)
        loss = criterion(output, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def use_once(session: types.SimpleNamespace) -> None:
    """What torch changes in itself at the first use of something is no lever's doing."""
    train(session)
    torch.amp.GradScaler("cpu")
    torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))


def check(settings: Mapping[str, str], process: Process, session: Any, reports: Reports) -> Any:
    """Apply levers and take them back, two times, and say what came of it."""
    plain, before = train(session), snapshot()
    rounds = [apply_and_undo(settings, before, process, session, reports) for _ in range(2)]
    reports.clear()
    again = train(session)
    return {
        "rounds": rounds,
        "plain": plain,
        "after_undo": again,
        "reports_after_undo": [event for event in reports if "seen" not in event],
    }


def apply_and_undo(
    settings: Mapping[str, str],
    before: Mapping[str, Any],
    process: Process,
    session: Any,
    reports: Reports,
) -> dict[str, Any]:
    """What levers did and reported, and what is left of them behind their undo."""
    reports.clear()
    for lever in LEVERS:
        if lever.name in settings:
            process.apply(lever, settings[lever.name])
            process.apply(lever, settings[lever.name])
    losses = train(session)
    told = {kind: reports.of(kind) for kind in ("done", "failed")}
    process.undo()
    left = sorted(changed(before, snapshot()))
    hook = [] if session.around_call is None else ["around_call"]
    return {**told, "loss": losses, "left": left + hook}


def main(wanted: dict[str, dict[str, str]], results: Path) -> None:
    """All levers in one process: the import of torch takes longer than they do."""
    session = types.SimpleNamespace(around_call=None, new_module=None)
    reports = Reports()
    process = Process(torch, session, reports)
    process.watch()
    use_once(session)
    torch.compiler.set_stance("force_eager")  # compiled or not: here only the change counts
    for name, settings in wanted.items():
        result = check(settings, process, session, reports)
        with results.open("a") as stream:
            stream.write(json.dumps({"lever": name, **result}) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
