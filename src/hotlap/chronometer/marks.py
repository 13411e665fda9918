"""What a mark on the tape means: shared by the hooks that write and the analysis that reads.

A mark is four 64-bit words: host clock (ns), code word, value, device clock (ns, 0 if none).
The code word packs the kind (8 bits), flags (8 bits) and an argument (the rest).
"""

from __future__ import annotations

from typing import NamedTuple

WORDS = 4
BYTES = 8 * WORDS

# Kinds that open and close a scope.
ITER_BEGIN, ITER_END = 1, 2
"""`iter(loader)`: argument is the iterator's serial; END's value is the number of batches or -1."""
FETCH_BEGIN, FETCH_END = 3, 4
"""`next(iterator)`: argument is the serial; END's value is the samples, -1 unknown."""
TRANSFER_BEGIN, TRANSFER_END = 5, 6
FORWARD_BEGIN, FORWARD_END = 7, 8
"""Outermost module call: argument is the module's index, BEGIN's value what it is given."""
BACKWARD_BEGIN, BACKWARD_END = 9, 10
"""BEGIN's value is the loss, as the bits of a double, or PENDING or NO_LOSS."""
OPTIMIZER_BEGIN, OPTIMIZER_END = 11, 12
"""Optimizer or scaler step: argument is the optimizer's index."""

# Kinds that stand alone.
OPTIMIZER_RAISED = 20
"""The open optimizer scopes ended in an exception."""
DEVICE_PEAK, DEVICE_RESERVED, HOST_PEAK = 21, 22, 23
CUT, ENDED = 24, 25

# Flags.
GRAD = 1
"""FORWARD: with gradients. BACKWARD: by `autograd.grad`, not by `backward`."""
TRAINING = 2
"""FORWARD: the module is in training mode."""
FRESH = 4
"""FORWARD: its first tensor is not the one of the forward before."""
PROBE = 1
"""OPTIMIZER_END: the events of this step have made it longer than the others."""
PROFILED = 2
"""OPTIMIZER_END: a profiler ran in this step, so neither its length nor its phases count."""
STOP = 1
"""FETCH_END: no batch came (the loader was at its end, or raised). BACKWARD_END: it raised."""
QUIET = 8
"""FETCH_END, BACKWARD_BEGIN, OPTIMIZER_END: it stands for both ends of its scope. Made in steps of
a device that are not probed for their phases."""

PENDING = -1
NO_LOSS = -2

SCOPES = {
    ITER_BEGIN: ITER_END,
    FETCH_BEGIN: FETCH_END,
    TRANSFER_BEGIN: TRANSFER_END,
    FORWARD_BEGIN: FORWARD_END,
    BACKWARD_BEGIN: BACKWARD_END,
    OPTIMIZER_BEGIN: OPTIMIZER_END,
}
OPENED_BY = {end: begin for begin, end in SCOPES.items()}


SAMPLES_SHIFT = 40
"""FORWARD_BEGIN's value: elements of the first tensor, and above them the samples."""


def unpack_input(value: int) -> tuple[int, int]:
    """Samples, and elements of the first tensor; 0 where they are unknown."""
    return value >> SAMPLES_SHIFT, value & (1 << SAMPLES_SHIFT) - 1


class Mark(NamedTuple):
    """One mark, unpacked."""

    host_ns: int
    kind: int
    flags: int
    argument: int
    value: int
    device_ns: int

    def both_ends(self) -> tuple[Mark, Mark]:
        """The two that a quiet mark stands for: at its time, with no time between them."""
        mark = self._replace(flags=self.flags & ~QUIET)
        bare = mark._replace(flags=0, value=0)
        if self.kind in SCOPES:
            return mark, bare._replace(kind=SCOPES[self.kind])
        return bare._replace(kind=OPENED_BY[self.kind]), mark
