"""The state of the chronometer inside one measured process.

Hooks call `begin` and `end`; everything here fails open. A hook that breaks is switched off and
named in the Run, the training goes on. A process makes no file before its first mark, so the many
processes that merely import torch (loader workers, launchers, trackers) leave none.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from threading import get_ident
from typing import Any

from hotlap.chronometer import marks
from hotlap.chronometer.clock import now_ns
from hotlap.chronometer.device import DeviceClock
from hotlap.chronometer.facts import FactsWriter
from hotlap.chronometer.flops import ModuleSnapshots
from hotlap.chronometer.period import smallest_period
from hotlap.chronometer.tape import Tape

HEARTBEAT_NS = 1_000_000_000
CUT_SUFFIX = ".cut"
"""A file by which a process tells the launcher that it is ending after the steps asked for."""
_HOOK_NAMES = {
    marks.ITER_BEGIN: "data",
    marks.FETCH_BEGIN: "data",
    marks.TRANSFER_BEGIN: "transfer",
    marks.FORWARD_BEGIN: "forward",
    marks.BACKWARD_BEGIN: "backward",
    marks.OPTIMIZER_BEGIN: "optimizer",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the launcher asks of the measured processes."""

    folder: str
    steps: int | None = None
    """End the process after this many steps, warm-up included."""

    VARIABLE = "HOTLAP_SESSION"

    def to_environment(self) -> str:
        """The value of the environment variable that carries the settings."""
        return json.dumps({"folder": self.folder, "steps": self.steps})

    @staticmethod
    def from_environment() -> Settings | None:
        """The settings of this process, None where no launcher asked for anything."""
        text = os.environ.get(Settings.VARIABLE)
        return Settings(**json.loads(text)) if text else None


class Session:
    """One measured process."""

    def __init__(self, torch: Any, settings: Settings) -> None:
        self.torch = torch
        self.settings = settings
        self.early_notes: list[str] = []
        self._reset()

    def _reset(self) -> None:
        self.tape: Tape | None = None
        self.facts: FactsWriter | None = None
        self.device: DeviceClock | None = None
        self.modules: ModuleSnapshots | None = None
        self.thread = 0
        self.off = False
        self.inside_module = False
        self.broken: set[int] = set()
        self.noted: set[str] = set()
        self.unscaled: tuple[Any, Any] | None = None
        self.open_optimizers: list[bool] = []
        self.optimizers: dict[int, int] = {}
        self.boundaries: list[int] = []
        self.backwards = 0
        self.serials: dict[int, int] = {}
        self.n_iterators = 0
        self.last_length = -1
        self.last_samples: int | None = None
        self.last_inputs: dict[int, tuple[int, int]] = {}
        self.last_beat_ns = 0
        self.cut = False

    def after_fork(self) -> None:
        """A forked child starts a tape of its own, if it trains at all."""
        if self.device is not None:
            self.device.abandon()
        self._reset()

    # Scopes ---------------------------------------------------------------------------------

    def begin(self, code: int, value: int = 0) -> bool:
        """Open a scope; False where this call is not recorded."""
        if self.thread != get_ident() and not self._adopt_thread(code & 0xFF):
            return False
        if self.broken and code & 0xFF in self.broken:
            return False
        try:
            assert self.tape is not None
            place = self.tape.mark(code, value)
            if self.device is not None:
                self.device.mark(self.tape.words, place)
            return True
        except Exception as error:
            self.fault(code & 0xFF, error)
            return False

    def end(self, code: int, value: int = 0) -> None:
        """Close a scope that `begin` opened."""
        if self.thread != get_ident():
            return
        try:
            assert self.tape is not None
            place = self.tape.mark(code, value)
            if self.device is not None:
                self.device.mark(self.tape.words, place)
        except Exception as error:
            self.fault(marks.OPENED_BY.get(code & 0xFF, 0), error)

    def _adopt_thread(self, kind: int) -> bool:
        """Marks come from one thread, the one that trains; loaders fed by another are not its wait."""
        if self.off:
            return False
        try:
            if self.tape is None:
                return self._open()
        except Exception as error:
            self.off = True
            self.note(f"nothing was measured in process {os.getpid()}: {error}")
            return False
        if kind in (marks.BACKWARD_BEGIN, marks.OPTIMIZER_BEGIN) and not self.backwards:
            self.thread = get_ident()
            return True
        return False

    def _open(self) -> bool:
        worker = sys.modules.get("torch.utils.data._utils.worker")
        if worker is not None and worker._worker_info is not None:
            self.off = True
            return False
        host = socket.gethostname()
        stem = Path(self.settings.folder) / f"{host}-{os.getpid()}"
        self.facts = FactsWriter(stem.with_name(stem.name + ".facts"))
        self.tape = Tape(stem.with_name(stem.name + ".tape"))
        self.facts.write(
            host=host,
            pid=os.getpid(),
            python=sys.version.split()[0],
            torch=self.torch.__version__,
            cuda=self.torch.version.cuda,
            hip=self.torch.version.hip,
            threads=self.torch.get_num_threads(),
        )
        for text in self.early_notes:
            self.note(text)
        self.modules = ModuleSnapshots(self.torch)
        self.thread = get_ident()
        # atexit does not run in children of multiprocessing, which have finalizers of their own;
        # in a main process those run too late, after torch has taken its operators down.
        atexit.register(self.close)
        multiprocessing_util.Finalize(None, self.close, exitpriority=-1)
        return True

    # Faults and notes -----------------------------------------------------------------------

    def fault(self, kind: int, error: Exception) -> None:
        """Switch off the hook of a kind of mark, or everything if the tape itself has failed."""
        name = _HOOK_NAMES.get(kind, "chronometer")
        if isinstance(error, OSError):
            self.off, self.thread = True, 0
            self.note(f"measuring stopped after {len(self.boundaries)} steps: {error}")
            return
        self.broken.add(kind)
        self.note(f"the {name} hook broke and was switched off: {type(error).__name__}: {error}")

    def note(self, text: str) -> None:
        """Say something once in the Run."""
        if text in self.noted:
            return
        self.noted.add(text)
        if self.facts is not None:
            self.facts.write(note=text)

    def guarded(self, look: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """A look at a returned value that can fail without losing the value."""

        def guarded_look(scope: Any, value: Any) -> Any:
            try:
                return look(scope, value)
            except Exception as error:
                self.note(f"a look at a loader failed: {type(error).__name__}: {error}")
                return value

        return guarded_look

    # Data -----------------------------------------------------------------------------------

    def samples_of(self, batch: Any) -> int:
        """The first dimension of the first tensor of a batch, -1 if there is none."""
        try:
            tensor = first_tensor(batch, self.torch.Tensor)
            return tensor.shape[0] if tensor is not None and tensor.dim() else -1
        except Exception as error:
            self.note(f"samples could not be counted: {type(error).__name__}: {error}")
            return -1

    # Forward --------------------------------------------------------------------------------

    def begin_forward(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Open the scope of an outermost module call."""
        if self.thread != get_ident() and not self._adopt_thread(marks.FORWARD_BEGIN):
            return False
        flags = size = index = 0
        try:
            grad = self.torch.is_grad_enabled()
            flags = (marks.GRAD if grad else 0) | (marks.TRAINING if module.training else 0)
            tensor = first_tensor(args or tuple(kwargs.values()), self.torch.Tensor)
            if tensor is not None:
                size = marks.pack_input(tensor.shape[0] if tensor.dim() else 0, tensor.numel())
                this_input = (id(tensor), 0 if tensor.is_inference() else tensor._version)
                if self.last_inputs.get(id(module)) != this_input:
                    flags |= marks.FRESH
                    self.last_inputs[id(module)] = this_input
            if grad and self.modules is not None:
                index = self.modules.index_of(module, args, kwargs)
        except Exception as error:
            self.note(f"a forward was only timed: {type(error).__name__}: {error}")
        opened = self.begin(marks.code_word(marks.FORWARD_BEGIN, flags, index), size)
        self.inside_module |= opened
        return opened

    # Backward -------------------------------------------------------------------------------

    def begin_backward(self, outputs: Any, by_grad: bool) -> bool:
        """Open the scope of a backward and keep the loss it starts from."""
        if self.thread != get_ident() and not self._adopt_thread(marks.BACKWARD_BEGIN):
            return False
        if self.open_optimizers and not self.open_optimizers[-1]:
            # A backward inside an optimizer step that was given no closure: that step has raised.
            self.open_optimizers.clear()
            self.end(marks.OPTIMIZER_RAISED)
        self.backwards += 1
        code = marks.code_word(marks.BACKWARD_BEGIN, marks.GRAD if by_grad else 0)
        if not self.begin(code, marks.NO_LOSS):
            return False
        try:
            self._keep_loss(outputs[0] if isinstance(outputs, (tuple, list)) else outputs)
        except Exception as error:
            self.note(f"losses could not be kept: {type(error).__name__}: {error}")
        return True

    def _keep_loss(self, loss: Any) -> None:
        scaled, unscaled = self.unscaled or (None, None)
        self.unscaled = None
        if loss is scaled:
            loss = unscaled
        if type(loss) is not self.torch.Tensor or loss.numel() != 1:
            return
        assert self.tape is not None
        place = self.tape.cursor - marks.WORDS
        if loss.device.type == "cpu":
            self.tape.doubles[place + 2] = loss.item()
        elif loss.device.type == "cuda":
            if self.device is None:
                self.device = DeviceClock(self.torch, self)
            self.device.keep_loss(loss, self.tape, place + 2)
        else:
            self.note(
                f"the training runs on a '{loss.device.type}' device, which is timed on the host's "
                "clock: phases of an asynchronous device are not valid"
            )

    # Optimizer ------------------------------------------------------------------------------

    def begin_optimizer(self, optimizer: Any, has_closure: bool) -> bool:
        """Open the scope of an optimizer step or of a scaler's step."""
        if self.thread != get_ident() and not self._adopt_thread(marks.OPTIMIZER_BEGIN):
            return False
        index = self.optimizers.setdefault(id(optimizer), len(self.optimizers))
        opened = self.begin(marks.code_word(marks.OPTIMIZER_BEGIN, 0, index))
        if opened:
            self.open_optimizers.append(has_closure)
        return opened

    def end_optimizer(self, optimizer: Any) -> None:
        """Close it; the end of the outermost one may be the end of the run."""
        if self.thread != get_ident() or not self.open_optimizers:
            return
        index = self.optimizers.get(id(optimizer), 0)
        self.end(marks.code_word(marks.OPTIMIZER_END, 0, index))
        self.open_optimizers.pop()
        if not self.open_optimizers:
            self.boundary(index)

    def boundary(self, index: int) -> None:
        """An update was made: the place for all that is done once a step."""
        try:
            self.boundaries.append(index)
            if self.device is not None:
                self.device.step_ended()
            elif self.torch.cuda.is_initialized():
                self.device = DeviceClock(self.torch, self)
            if now_ns() - self.last_beat_ns > HEARTBEAT_NS:
                self._beat()
        except Exception as error:
            self.note(f"the step's end hook broke: {type(error).__name__}: {error}")
        if self.settings.steps is not None and self._n_steps() >= self.settings.steps:
            self._cut_run()

    def _n_steps(self) -> int:
        if len(self.optimizers) < 2:
            return len(self.boundaries)
        return len(self.boundaries) // smallest_period(self.boundaries)

    def _beat(self) -> None:
        if not self.last_beat_ns:
            self._identify()
        self.last_beat_ns = now_ns()
        assert self.tape is not None
        self.tape.mark(marks.HOST_PEAK, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        if self.device is not None:
            peak, reserved = self.device.memory()
            self.tape.mark(marks.DEVICE_PEAK, peak)
            self.tape.mark(marks.DEVICE_RESERVED, reserved)

    def _identify(self) -> None:
        """Which rank this is: torch.distributed knows best, a launcher's variables come next."""
        distributed = self.torch.distributed
        rank, world_size = None, None
        if distributed.is_available() and distributed.is_initialized():
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
        elif "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if rank is not None and self.facts is not None:
            self.facts.write(rank=rank, world_size=world_size)

    # The end --------------------------------------------------------------------------------

    def _cut_run(self) -> None:
        """End the process as a script ends itself; if something swallows that, end it for good."""
        on_main_thread = threading.current_thread() is threading.main_thread()
        if not self.cut and self.tape is not None:
            self.cut = True
            self.tape.mark(marks.CUT)
            if self.facts is not None:
                self.facts.path.with_suffix(CUT_SUFFIX).touch()
            if on_main_thread:
                raise SystemExit(0)
        self.close()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # noqa: S110 (a closed stream is no reason to stay)
                pass
        os._exit(0)

    def close(self) -> None:
        """Write the rank file. Called once, at the end of the process."""
        tape, facts = self.tape, self.facts
        if tape is None or facts is None:
            return
        self.thread, self.off, self.tape = 0, True, None
        try:
            self._close(tape, facts)
        except Exception as error:
            facts.write(note=f"the end of process {os.getpid()} broke: {error}")

    def _close(self, tape: Tape, facts: FactsWriter) -> None:
        if self.device is not None:
            self.device.finish()
            peak, reserved = self.device.memory()
            tape.mark(marks.DEVICE_PEAK, peak)
            tape.mark(marks.DEVICE_RESERVED, reserved)
        tape.mark(marks.HOST_PEAK, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        self._identify()
        if is_out_of_memory(self.torch):
            facts.write(out_of_memory=True)
        if self.modules is not None and facts.rank == 0 and self.boundaries:
            facts.write(flops=self.modules.count())
        tape.mark(marks.ENDED)
        tape.close()
        from hotlap.chronometer.steps import fold_rank  # only needed here: keep the start light

        fold_rank(facts.path)


def first_tensor(value: Any, tensor_type: type, depth: int = 4) -> Any:
    """The first tensor in nested lists, tuples and mappings."""
    if isinstance(value, tensor_type):
        return value
    if depth and not isinstance(value, str):
        items = value.values() if hasattr(value, "values") else value
        if isinstance(items, (list, tuple)) or hasattr(value, "values"):
            for item in items:
                found = first_tensor(item, tensor_type, depth - 1)
                if found is not None:
                    return found
    return None


def is_out_of_memory(torch: Any) -> bool:
    """Whether the exception that is ending this process says that memory ran out."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    while error is not None:
        text = str(error)
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
            isinstance(error, RuntimeError) and "DefaultCPUAllocator" in text
        ):
            return True
        error = error.__context__
    return False
