"""The state of the chronometer inside one measured process.

Hooks put their marks into a buffer; at the end of a step, of every one at first and then every
20 ms, the buffer goes to the tape. Everything here fails open: what breaks is switched off and
named in the Run, the training goes on. A process makes no file before its first mark, so the many
processes that merely import torch (loader workers, launchers, trackers) leave none.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import socket
import struct
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
from hotlap.wording import n_of

BACKWARDS_ALONE = 32
"""After so many backwards without an optimizer step, a backward is taken for the end of a step."""
CHORE_EVERY_STEP = 200
"""So many steps at the start reach the tape one by one; later ones by the period."""
CHORE_PERIOD_NS = 20_000_000
"""How much of the time before a SIGKILL can be lost."""
HEARTBEAT_NS = 1_000_000_000
NO_DEVICE = 1 << 60
"""Steps without events, where there is no device to make any."""
BUFFER_WORDS = 4096
"""A buffer this long goes to the tape although no step has ended: a long validation."""
FOLD_WORDS = 1 << 21
"""A longer tape is left to the launcher: reading it takes memory that the training may not have."""
SKIP_FLOPS_VARIABLE = "HOTLAP_SKIP_FLOPS"
"""Set for trials, of which there are many: the count takes seconds at a process's end."""
CUT_SUFFIX = ".cut"
"""A file by which a process tells the launcher that it is ending after the steps asked for."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the launcher asks of the measured processes."""

    folder: str
    """Empty in a process that records itself, until it is told: see `Session.record_into`."""
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

    # Slots, because hooks read these in every step: as a dict of this size they would be looked up.
    __slots__ = (
        "around_call",
        "backwards",
        "begin_optimizer",
        "boundaries",
        "buffer",
        "counts_inputs",
        "cut",
        "device",
        "early_notes",
        "end_flags",
        "end_optimizer",
        "facts",
        "has_events",
        "inside_module",
        "keep_loss",
        "module_indices",
        "modules",
        "n_iterators",
        "needs_all_marks",
        "new_module",
        "next_beat_ns",
        "next_chore_ns",
        "noted",
        "off",
        "on_close",
        "on_step",
        "on_training_call",
        "open_optimizers",
        "optimizers",
        "quiet_flag",
        "serials",
        "settings",
        "steps",
        "switches",
        "tape",
        "thread",
        "torch",
        "unprobed_left",
        "unscaled",
    )

    def __init__(self, torch: Any, settings: Settings) -> None:
        self.torch = torch
        self.settings = settings
        self.steps = settings.steps
        self.early_notes: list[str] = []
        self.begin_optimizer: Callable[[Any, Any, Any], Any] = lambda *arguments: None
        self.end_optimizer: Callable[[Any, Any, Any], None] = lambda *arguments: None
        self.around_call: Callable[[Any, Any, Any], Any] | None = None
        """Called in the place of an outermost module call, with module, args and kwargs."""
        self.new_module: Callable[[Any, Any, Any], None] | None = None
        """Told of every module that the loop calls, once, before its first training call."""
        self.on_training_call: Callable[[Any, Any, Any], None] | None = None
        """Told of every outermost call with gradients, before it is made."""
        self.switches: list[Callable[[bool], None]] = []
        """Each puts in hooks that make fewer marks, or those that make them all."""
        self.quiet_flag = 0
        """Flags of a mark, while there are few: see `be_quiet`."""
        self.on_close: Callable[[], None] | None = None
        """Called first of all at the end of the process."""
        self.on_step: Callable[[], None] | None = None
        """Called at the end of every update."""
        self.buffer: list[int] = []
        self.serials: dict[int, int] = {}
        self.module_indices: dict[int, int] = {}
        self.optimizers: dict[int, int] = {}
        self._reset()

    def _reset(self) -> None:
        del self.buffer[:]
        self.serials.clear()
        self.module_indices.clear()
        self.optimizers.clear()
        self.tape: Tape | None = None
        self.facts: FactsWriter | None = None
        self.device: Any = None
        """The DeviceClock, once there is a device: it sets this and the four that follow."""
        self.has_events = False
        """Whether this step's marks get events of the device."""
        self.end_flags = 0
        """For the mark at the end of this step."""
        self.needs_all_marks = False
        self.be_quiet(False)
        self.unprobed_left = NO_DEVICE
        """Steps still to come without events; counted down by the hook that ends a step."""
        self.keep_loss: Callable[[Any], None] = self._keep_first_loss
        self.modules: ModuleSnapshots | None = None
        self.thread = 0
        self.off = False
        self.inside_module: int = False
        self.noted: set[str] = set()
        self.open_optimizers: list[bool] = []
        self.boundaries: list[int] = []
        self.backwards = 0
        self.unscaled: tuple[Any, Any] | None = None
        """What a scaler returned last, and what it was given."""
        self.n_iterators = 0
        self.counts_inputs = True
        """Whether the model's input tells the samples: of a training whose batches come from no
        loader, though its validation's may."""
        self.next_chore_ns = 0
        self.next_beat_ns = 0
        self.cut = False

    def after_fork(self) -> None:
        """A forked child starts a tape of its own, if it trains at all."""
        self._reset()

    def record_into(self, folder: Path) -> None:
        """This process records itself from now on; ranks agree on the folder once they have met."""
        self.settings = Settings(str(folder))
        self.off = False

    def adopt_thread(self, kind: int) -> bool:
        """Whether marks of this thread are recorded, now that it is not the one they came from.

        They come from one thread, the one that trains: a loader that another thread empties is not
        a wait of the training.
        """
        if self.off:
            return False
        if self.tape is None:
            return self._open()
        if kind in (marks.BACKWARD_BEGIN, marks.OPTIMIZER_BEGIN) and not self.backwards:
            self.thread = get_ident()
            return True
        return False

    def _open(self) -> bool:
        worker = sys.modules.get("torch.utils.data._utils.worker")
        is_worker = worker is not None and worker._worker_info is not None
        if is_worker or not self.settings.folder:
            self.off = True
            return False
        try:
            self._open_files()
        except Exception as error:
            self.off = True
            self.note(f"nothing was measured in process {os.getpid()}: {error}")
            return False
        self.modules = ModuleSnapshots(self.torch, self.module_indices)
        self.thread = get_ident()
        # atexit does not run in children of multiprocessing, which have finalizers of their own;
        # in a main process those run too late, after torch has taken its operators down.
        atexit.register(self.close)
        multiprocessing_util.Finalize(None, self.close, exitpriority=-1)
        return True

    def _open_files(self) -> None:
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

    # Faults and notes -----------------------------------------------------------------------

    def fault(self, hook: str, error: Exception) -> None:
        """Something of ours broke: stop measuring here, say so, and leave the training alone."""
        self.off, self.thread = True, 0
        text = f"{type(error).__name__}: {error}"
        n_steps = n_of(len(self.boundaries), "step")
        self.note(f"measuring stopped after {n_steps}, the {hook} broke: {text}")

    def note(self, text: str) -> None:
        """Say something once in the Run."""
        if text not in self.noted:
            self.noted.add(text)
            if self.facts is not None:
                self.facts.write(note=text)

    # Quiet steps ----------------------------------------------------------------------------

    def be_quiet(self, is_quiet: bool) -> None:
        """Make no marks that only split a step into its phases, or make them all again.

        Closures and scalers nest scopes into each other, and a loop without an optimizer ends its
        steps with the ends of backwards: they have all marks always.
        """
        is_quiet = is_quiet and bool(self.optimizers) and not self.needs_all_marks
        if is_quiet != bool(self.quiet_flag):
            self.quiet_flag = marks.QUIET << 8 if is_quiet else 0
            for switch in self.switches:
                switch(is_quiet)

    def have_all_marks(self) -> None:
        """From now on."""
        if not self.needs_all_marks:
            self.needs_all_marks = True
            self.be_quiet(False)

    # Losses ---------------------------------------------------------------------------------

    def _keep_first_loss(self, loss: Any) -> None:
        """A loss on a device: from now on its clock brings them to the marks, some steps later."""
        if loss.is_cuda:
            DeviceClock(self.torch, self)
            self.keep_loss(loss)
        else:
            self.note(
                f"the training runs on a '{loss.device.type}' device, which is timed on the host's "
                "clock: phases of an asynchronous device are not valid"
            )

    # The end of a step ----------------------------------------------------------------------

    def flush(self) -> None:
        """Bring the buffer to the tape."""
        if self.tape is not None:
            try:
                self.tape.write(self.buffer)
            except Exception as error:
                self.fault("tape", error)
            del self.buffer[:]

    def amend(self, word: int, value: int | float) -> None:
        """Fill in a word of a mark that has been made, on the tape or still in the buffer."""
        assert self.tape is not None
        place = word - self.tape.n_words
        if place < 0:
            self.tape.amend(word, value)
        elif isinstance(value, float):
            (self.buffer[place],) = struct.unpack("=q", struct.pack("=d", value))
        else:
            self.buffer[place] = value

    def step_ended(self, now: int) -> None:
        """An update was made, or the backward that stands for it, and there is something to do."""
        if self.unprobed_left <= 0:
            self.device.step_ended()
        if now > self.next_chore_ns:
            self._do_chores(now)
        if self.on_step is not None:
            self.on_step()
        if self.steps is not None and self._is_last_step():
            self.cut_run()

    def _do_chores(self, now: int) -> None:
        """What has to be done now and then, at the end of a step."""
        try:
            # A short run is kept to its last step, whatever ends it.
            if len(self.boundaries) > CHORE_EVERY_STEP:
                self.next_chore_ns = now + CHORE_PERIOD_NS
            self.flush()
            if now > self.next_beat_ns:
                self._beat(now)
            if self.device is None and self.torch.cuda.is_initialized():
                DeviceClock(self.torch, self)
        except Exception as error:
            self.fault("hook at the step's end", error)

    def _is_last_step(self) -> bool:
        """Whether the steps that were asked for have been made."""
        n_updates = len(self.boundaries)
        if len(self.optimizers) > 1:
            n_updates //= smallest_period(self.boundaries)
        return self.steps is not None and n_updates >= self.steps

    def _beat(self, now: int) -> None:
        if not self.next_beat_ns:
            self._identify()
        self.next_beat_ns = now + HEARTBEAT_NS
        self._log_memory()

    def log(self, code: int, value: int = 0) -> None:
        """Make a mark that is none of the hot ones."""
        self.buffer.extend((now_ns(), code, value, 0))
        if self.has_events and (code & 0xFF in marks.SCOPES or code & 0xFF in marks.OPENED_BY):
            self.device.mark()
        if len(self.buffer) > BUFFER_WORDS:
            self.flush()

    def _log_memory(self) -> None:
        self.log(marks.HOST_PEAK, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        if self.device is not None:
            peak, reserved = self.device.memory()
            self.log(marks.DEVICE_PEAK, peak)
            self.log(marks.DEVICE_RESERVED, reserved)

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

    # The end of the process -----------------------------------------------------------------

    def cut_run(self) -> None:
        """End the process as a script ends itself; if something swallows that, end it for good."""
        on_main_thread = threading.current_thread() is threading.main_thread()
        if not self.cut and self.facts is not None:
            self.cut = True
            self.log(marks.CUT)
            self.flush()
            self.facts.path.with_suffix(CUT_SUFFIX).touch()
            if on_main_thread:
                raise SystemExit(0)
        self.close()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # a closed stream is no reason to stay
                continue
        os._exit(0)

    def close(self, however_long: bool = False) -> None:
        """Write the rank file. Called at the end of the process, acts once.

        A tape of a long training is left to the launcher, unless there is none to read it.
        """
        tape, facts = self.tape, self.facts
        if tape is None or facts is None:
            return
        self.thread, self.off = 0, True
        try:
            if self.on_close is not None:
                self.on_close()
            self._close(tape, facts, however_long)
        except Exception as error:
            facts.write(note=f"the end of process {os.getpid()} broke: {error}")
        self.tape = None
        if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
            _remind_of_interrupt()

    def _close(self, tape: Tape, facts: FactsWriter, however_long: bool) -> None:
        self.flush()
        if self.device is not None:
            self.device.finish()
        self._log_memory()
        self._identify()
        if is_out_of_memory(self.torch):
            facts.write(out_of_memory=True)
        wants_flops = SKIP_FLOPS_VARIABLE not in os.environ
        if self.modules is not None and facts.rank == 0 and self.backwards and wants_flops:
            facts.write(flops=self.modules.count())
        self.log(marks.ENDED)
        self.flush()
        tape.close()
        if however_long or tape.n_words <= FOLD_WORDS:
            from hotlap.chronometer.steps import fold_rank  # only needed here: keep the start light

            fold_rank(facts.path)


def _remind_of_interrupt() -> None:
    """Have Python end by SIGINT, as it does after an interrupt that nothing caught.

    It remembers that in a flag which any `exec` of a string clears, and imports of ours exec.
    """
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        return


def first_tensor(value: Any, tensor_type: type, depth: int = 4) -> Any:
    """The first tensor in nested lists, tuples and mappings."""
    if isinstance(value, tensor_type):
        return value
    if not isinstance(value, (list, tuple)):
        if not hasattr(value, "values"):
            return None
        value = value.values()
    if depth:
        for item in value:
            found = first_tensor(item, tensor_type, depth - 1)
            if found is not None:
                return found
    return None


def is_out_of_memory(torch: Any) -> bool:
    """Whether the exception that is ending this process says that memory ran out."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    while error is not None:
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
            isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
        ):
            return True
        error = error.__context__
    return False
