"""System, Software and Stack. Whatever cannot be looked at is a note, and never a failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from hotlap.machine.container import find_container
from hotlap.machine.cpu import find_cpu
from hotlap.machine.environment import find_environment
from hotlap.machine.files import read_word
from hotlap.machine.gpus import Gpus, find_gpus, with_torch
from hotlap.machine.memory import find_memory
from hotlap.machine.network import find_network
from hotlap.machine.scheduler import find_scheduler
from hotlap.machine.software import (
    Found,
    find_compilers,
    find_packages,
    find_python,
    find_torch,
)
from hotlap.machine.stack import find_stack
from hotlap.machine.storage import Effort, find_storage
from hotlap.records.software import Software, Stack
from hotlap.records.system import Cpu, HostMemory, Network, Scheduler, Storage, System

T = TypeVar("T")
ROOT = Path("/")


class Prober:
    """Looks at one subject after the other and keeps notes of what went wrong."""

    def __init__(
        self, environ: Mapping[str, str] = os.environ, progress: Callable[[str], None] = print
    ) -> None:
        self._environ = environ
        self.progress = progress
        self.notes: list[str] = []

    def probe(self, data: Path, effort: Effort | None) -> tuple[System, Software, Stack]:
        """System, Software and Stack; `data` is the path whose storage is looked at."""
        self.progress("looking at the hardware")
        gpus = self._guarded("the GPUs", lambda: find_gpus(ROOT, self._environ), Gpus((), (), ""))
        self.progress("looking at torch in a process of its own")
        nothing = Found(None, "it could not be looked at", None)
        found = self._guarded("torch", lambda: find_torch(self._environ), nothing)
        gpus = with_torch(gpus, found.torch.devices if found.torch else ())
        self.progress(f"looking at the storage under {data}")
        system = self._system(gpus, data, effort)
        software = self._software(gpus, found)
        stack = find_stack(system, software)
        return system, software, stack

    def _system(self, gpus: Gpus, data: Path, effort: Effort | None) -> System:
        environ = self._environ
        no_cpu = Cpu(None, None, None, None, None, None, {}, None, None, None, (), ())
        no_memory = HostMemory(None, None, None, None, None, None)
        no_storage: Storage | None = None
        no_scheduler: Scheduler | None = None
        no_container: str | None = None
        return System(
            hostname=read_word(ROOT / "proc/sys/kernel/hostname"),
            kernel=read_word(ROOT / "proc/sys/kernel/osrelease"),
            gpus=gpus.gpus,
            gpus_from=gpus.told_by,
            gpu_pairs=gpus.pairs,
            cpu=self._guarded("the CPU", lambda: find_cpu(ROOT, environ), no_cpu),
            memory=self._guarded("the memory", find_memory, no_memory),
            storage=self._guarded("the storage", lambda: find_storage(data, effort), no_storage),
            network=self._guarded("the network", find_network, Network((), (), None)),
            container=self._guarded(
                "the container", lambda: find_container(ROOT, environ), no_container
            ),
            scheduler=self._guarded("the scheduler", lambda: find_scheduler(environ), no_scheduler),
        )

    def _software(self, gpus: Gpus, found: Found) -> Software:
        no_names: dict[str, str] = {}
        return Software(
            python=find_python(),
            torch=found.torch,
            why_no_torch=found.why_no_torch,
            driver=gpus.driver or read_word(ROOT / "sys/module/nvidia/version"),
            driver_cuda=gpus.driver_cuda,
            packages=self._guarded("the packages", find_packages, no_names),
            compilers=self._guarded(
                "the compilers", lambda: find_compilers(self._environ), no_names
            ),
            image=found.image,
            environment=find_environment(self._environ),
        )

    def _guarded(self, subject: str, find: Callable[[], T], otherwise: T) -> T:
        try:
            return find()
        except Exception as error:
            self.notes.append(f"{subject} could not be looked at: {type(error).__name__}: {error}")
            return otherwise
