"""Power and energy of one GPU, read from NVML by a thread in the rank's own process.

The energy counter is the measure: A100 and H100 sample their power only a quarter of the time.
The power reading is kept for its peak.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotlap.chronometer.clock import now_ns

PERIOD_S = 0.2
NVML_VARIABLE = "HOTLAP_NVML"
"""Where the launcher's own nvidia-ml-py lies, for a command whose environment has none."""


class PowerSampler:
    """A daemon thread that writes a line a sample: clock ns, energy mJ, power mW."""

    def __init__(self, facts: Path, index: int, uuid: str, note: Callable[[str], None]) -> None:
        self._stop = threading.Event()
        self._path = facts.with_suffix(".power")
        try:
            self._nvml = _load_nvml()
            self._nvml.nvmlInit()
            self._handle = self._find(index, uuid)
            self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except Exception as error:
            note(f"power and energy were not measured: {error or type(error).__name__}")
            return
        threading.Thread(target=self._run, name="hotlap-power", daemon=True).start()

    def _find(self, index: int, uuid: str) -> Any:
        # CUDA_VISIBLE_DEVICES renumbers devices for CUDA and not for NVML: the UUID is the same.
        if uuid:
            name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
            return self._nvml.nvmlDeviceGetHandleByUUID(name)
        return self._nvml.nvmlDeviceGetHandleByIndex(index)

    def _run(self) -> None:
        try:
            with self._path.open("w", buffering=1, encoding="ascii") as stream:
                while True:
                    energy = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
                    power = self._nvml.nvmlDeviceGetPowerUsage(self._handle)
                    stream.write(f"{now_ns()} {energy} {power}\n")
                    if self._stop.wait(PERIOD_S):
                        return
        except Exception:
            return  # a driver or a disk that stops answering ends the samples, nothing else

    def stop(self) -> None:
        """Take no more samples."""
        self._stop.set()


def read_power(facts: Path) -> tuple[tuple[int, ...], ...]:
    """The samples of a process, empty if it took none."""
    try:
        lines = facts.with_suffix(".power").read_text(encoding="ascii").splitlines()
    except OSError:
        return ()
    rows = (line.split() for line in lines)
    return tuple(tuple(map(int, row)) for row in rows if len(row) == 3)


def _load_nvml() -> Any:
    """The process's own pynvml, or the launcher's under a private name."""
    try:
        import pynvml

        return pynvml
    except ImportError:
        path = os.environ.get(NVML_VARIABLE)
        if not path:
            raise ImportError("nvidia-ml-py is not installed") from None
    spec = importlib.util.spec_from_file_location("_hotlap_pynvml", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
