"""The watch: a rank that stands still ends the job, and is named.

Collectives give up after `mesh.timeout_s`. That has to be long, for a first step may be compiled
for minutes; and it names no rank. So each rank says every second where it is, from a thread that no
kernel and no collective holds up, and rank 0 compares (judge.py). The loop goes through the same
sections on all ranks: who has counted fewer of them is behind, and the others wait for it. After
`mesh.stall_s` of that, or without a sign, all ranks leave, and the last checkpoint is there.

A rank may take `mesh.timeout_s` in its first steps, where programs are compiled, and in sections
that are known to be long. Where all ranks are in one step and none leaves it, for several times as
long as any took, the one is named whose source line is not one of torch's at which ranks wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import torch.distributed as dist

from hotlap.chronometer.clock import now_ns
from hotlap.distributed.judge import AWAY_S, BEAT_S, Judge, Sign, Verdict
from hotlap.distributed.launch import Started

N_SLOW_STEPS = 3
"""Steps in which things are compiled, tuned and opened."""
LAST_WORD_S = 30.0
"""For the last sign of a rank, on a node that is busy."""
WAITING = ("/torch/distributed/", "/torch/autograd/graph.py", "/torch/_ops.py")
"""Files in which a thread waits for other ranks: collectives, and backward, which holds them."""
FAILED = 1
JUDGE = 0
"""The rank that compares what all ranks say; the others keep an eye on it."""


class Watch:
    """This rank's part of it; in one process it only counts."""

    def __init__(self, started: Started, stall_s: float, timeout_s: float) -> None:
        launch = started.launch
        self._rank, self._world_size = launch.rank, launch.world_size
        self._meeting = f"{launch.master_addr} port {launch.master_port}, where ranks meet"
        self._judge = Judge(stall_s, timeout_s)
        self._store = started.store
        self._where = ("starting", 0, True, True)
        self._n_sections = self._n_signs = 0
        self._fast_from: int | None = None
        self._talking: threading.Thread | None = None
        self._state = "running"
        self._is_over = threading.Event()
        self._answered_s = _now_s()

    def expect_slow_steps(self) -> None:
        """What comes next may be compiled anew."""
        self._fast_from = None

    def at(self, section: str, step: int, is_long: bool = False) -> None:
        """The loop enters a section; called by all ranks alike. It costs nothing."""
        if self._fast_from is None:
            self._fast_from = step + N_SLOW_STEPS
        self._n_sections += 1
        self._where = (section, step, step < self._fast_from, is_long)

    def __enter__(self) -> Watch:
        if self._store is not None:
            # A connection of its own: one that waits for a key makes others wait for it.
            store = dist.PrefixStore("watch", self._store.clone())
            self._answered_s = _now_s()
            self._talking = threading.Thread(target=self._talk, args=(store,), daemon=True)
            self._talking.start()
            threading.Thread(target=self._mind_the_store, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._state = "left" if kind is None else f"{kind.__name__}: {error}"
        self._is_over.set()
        if self._talking is not None:
            # It says so to the others. A thread that is still inside the store when Python takes
            # itself down is torn out of it, which aborts the process.
            self._talking.join(timeout=LAST_WORD_S)

    def _talk(self, store: dist.Store) -> None:
        try:
            while True:
                is_over = self._is_over.is_set()
                self._say(store)
                self._listen(store, is_over)
                self._answered_s = _now_s()
                if is_over:
                    return
                self._is_over.wait(BEAT_S)
        except dist.DistError:
            return  # the store is gone, which is not minded for as long as a rank may be silent

    def _say(self, store: dist.Store) -> None:
        self._n_signs += 1
        pid = os.getpid()
        where = (*self._where, self._state, pid, _name(pid), *_line_of_the_loop())
        sign = Sign(self._n_signs, self._n_sections, *where)
        store.set(str(self._rank), json.dumps(asdict(sign)))

    def _listen(self, store: dist.Store, is_over: bool) -> None:
        if store.check(["verdict"]):
            verdict = Verdict(**json.loads(store.get("verdict")))
        else:
            ranks = range(self._world_size) if self._rank == JUDGE else (JUDGE,)
            keys = [str(rank) for rank in ranks]
            if is_over or not store.check(keys):  # some have not begun: the collectives mind them
                return
            texts = store.multi_get(keys)
            signs = {
                rank: Sign(**json.loads(text)) for rank, text in zip(ranks, texts, strict=True)
            }
            found = self._judge.look(signs, _now_s())
            if found is None:
                return
            verdict = found
            _tell(verdict.reason)
            store.set("verdict", json.dumps(asdict(verdict)))
            self._is_over.wait(2 * BEAT_S)  # the others hear of it
        self._end(verdict)

    def _end(self, verdict: Verdict) -> None:
        """Leave at once: the loop is in a collective that nobody will end.

        A process that was stopped does not hear a launcher that asks it to leave; from the same
        node it can be killed.
        """
        is_here = verdict.process and verdict.process == _name(verdict.pid)
        if is_here and verdict.pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(verdict.pid, signal.SIGKILL)
        _leave()

    def _mind_the_store(self) -> None:
        last_s = _now_s()
        while not self._is_over.wait(BEAT_S):
            last_s, before_s = _now_s(), last_s
            if last_s - before_s > AWAY_S:
                self._answered_s = last_s
            _, _, is_first, _ = self._where
            limit_s = self._judge.limit_s(is_first)
            if last_s - self._answered_s > limit_s:
                _tell(f"rank {self._rank} had no answer for {limit_s:g} s from {self._meeting}")
                _leave()


def _tell(reason: str) -> None:
    print(f"hotlap train: {reason}", file=sys.stderr, flush=True)


def _leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED)


def _name(pid: int) -> str:
    """What no other process has, of any node, container or time; empty if there is none here."""
    try:
        born = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')} {pid} {born}"
    except OSError:
        return ""


def _line_of_the_loop() -> tuple[str, bool]:
    """The line that the main thread is at, and whether it waits there for other ranks."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "", False
    code = frame.f_code
    is_waiting = any(part in code.co_filename for part in WAITING)
    name = Path(code.co_filename).name
    return f"{name}:{frame.f_lineno} in {code.co_name}", is_waiting


def _now_s() -> float:
    return now_ns() * 1e-9
