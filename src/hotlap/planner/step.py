"""The time of a step by cause, from its work and a calibration."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.planner.calibration import Calibration
from hotlap.planner.counting import Pass, StageWork
from hotlap.planner.links import Sending
from hotlap.planner.work import StepWork

COMPILED_KERNELS = 0.85
"""Of the host's time for launches, what is left when a model is compiled, beside casts, which
become part of other kernels: fewer of them, each from Python. ResNet-50 on an H200, in small
batches."""
BETWEEN_KERNELS_S = 2.5e-6
"""From the end of a kernel to where the next one is at its pace, for each operation that a trace
counts; where models are known by their sizes, the fitted numbers have it."""
EAGER_CLOCKS = 1.15
"""Kernels that wait for memory between the products leave them power: clocks are higher."""
JITTER, PLAIN_JITTER = 4, 12
"""How sharply the slower of GPU and host decides: 4 makes two that are equal 19 % slower, 12 6 %.
Trainers of large models wait for their GPU in every step, for norms and scales; a plain loop has
its host always ahead."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step; they add up."""

    products: float
    """Products of matrices and attention."""
    streams: float
    """What is bound by memory bandwidth, the update included."""
    communication: float
    """That nothing hides, or that slows what hides it."""
    bubble: float
    """Waiting for the other stages of a pipeline."""
    host: float
    """The GPU waits for its host."""
    offload: float = 0.0
    """Ways to the host's memory that nothing hides, and updates by the host."""
    data: float = 0.0

    @property
    def total(self) -> float:
        """The whole step."""
        moving = self.streams + self.communication + self.offload
        return self.products + moving + self.bubble + self.host + self.data


@dataclass(frozen=True, slots=True)
class _Micro:
    """One micro-batch through a stage, forward and backward."""

    products: float
    streams: float
    communication: float
    offload: float
    host: float
    backward: float
    weights: float
    """Of backward, the gradients of weights, which nobody waits for."""

    @property
    def total(self) -> float:
        return self.products + self.streams + self.communication + self.offload + self.host


def step_time(work: StepWork, by: Calibration) -> StepTime:
    """The slowest stage sets the pace; the others' first and last micro-batches are the bubble."""
    micros = [_micro(stage, work, by) for stage in work.stages]
    slowest = max(range(len(micros)), key=lambda i: micros[i].total)
    micro, stage = micros[slowest], work.stages[slowest]
    bubble = _bubble(micros, micro, work) if work.pp > 1 else 0.0
    n = work.n_micro
    neighbour = 2 * _seconds(stage.neighbour, by) * work.v
    waits = neighbour * (n + (work.pp - 1) / work.v) if work.pp > 1 else 0.0
    gradients = _hidden(_seconds(stage.gradients, by), micro.backward, work.overlaps, by)
    update_s = max(one.update_stream_s for one in work.stages)
    update = by.gpu_pace * update_s / _stream_reach(work, by)
    return StepTime(
        products=n * micro.products,
        streams=n * micro.streams + update,
        communication=n * micro.communication + gradients + waits,
        bubble=bubble,
        host=n * micro.host + by.host_pace * by.step_s,
        offload=n * micro.offload + stage.update_host_s / by.host_link_reach,
    )


def _micro(stage: StageWork, work: StepWork, by: Calibration) -> _Micro:
    other = by.other_reach_of.get(work.generation, by.other_reach)
    reach = by.product_reach.get(work.generation, other)
    convolution = reach * by.convolution_reach[work.convolution_rate]
    if work.rate == "fp32":
        reach = by.fp32_reach
    elif work.is_eager:
        reach *= EAGER_CLOCKS
    attention = by.attention_reach.get(work.generation, by.other_attention)
    passes = (stage.forward, stage.backward)
    products = [
        by.gpu_pace
        * (p.product_s / reach + p.convolution_s / convolution + p.attention_s / attention)
        for p in passes
    ]
    launched = COMPILED_KERNELS * work.compiled_share if work.is_compiled else 1.0
    between_s = BETWEEN_KERNELS_S * launched if work.is_traced else 0.0
    streams = [
        by.gpu_pace * (p.stream_s / _stream_reach(work, by) + p.n_kernels * between_s)
        for p in passes
    ]
    kernel_s = by.host_pace * by.kernel_s_of.get(work.generation, by.kernel_s)
    busy = [a + b for a, b in zip(products, streams, strict=True)]
    waits = [_waits(p, seconds, work, by) for p, seconds in zip(passes, busy, strict=True)]
    # The engines that copy need no multiprocessors: what is hidden costs nothing.
    copies = [
        max(0.0, p.host_s / by.host_link_reach - (seconds if work.overlaps else 0.0))
        for p, seconds in zip(passes, busy, strict=True)
    ]
    launches = sum(p.n_kernels for p in passes) * launched
    on_gpu, on_host = sum(busy) + sum(waits) + sum(copies), launches * kernel_s
    return _Micro(
        sum(products),
        sum(streams),
        sum(waits),
        sum(copies),
        _with_host(on_gpu, on_host, PLAIN_JITTER if work.is_traced else JITTER) - on_gpu,
        busy[1],
        by.gpu_pace * stage.forward.product_s / reach,
    )


def _bubble(micros: list[_Micro], slowest: _Micro, work: StepWork) -> float:
    """The other stages' micro-batch; gradients of weights fill it where they may wait."""

    def idle(one: _Micro) -> float:
        # Forward, and backward without them: F + B - 2 W (https://arxiv.org/abs/2401.10241).
        return max(0.0, one.total - 3 * one.weights) if work.is_zero_bubble else one.total / work.v

    return sum(n * idle(m) for n, m in zip(work.n_alike, micros, strict=True)) - idle(slowest)


def _stream_reach(work: StepWork, by: Calibration) -> float:
    return by.stream_reach_of.get(work.generation, by.stream_reach)


def _with_host(on_gpu: float, on_host: float, jitter: int) -> float:
    """The later of the two at every moment of a micro-batch: more than the larger sum of both."""
    larger = max(on_gpu, on_host)
    ratio = min(on_gpu, on_host) / larger
    return float(larger * (1 + ratio**jitter) ** (1 / jitter))


def _waits(one: Pass, busy_s: float, work: StepWork, by: Calibration) -> float:
    sharded = _hidden(_seconds(one.shard, by), busy_s, work.overlaps, by)
    tensor = _hidden(_seconds(one.tensor, by), busy_s, work.overlaps_tensor, by)
    return tensor + sharded + _seconds(one.first_shard, by)


def _hidden(sent_s: float, behind_s: float, overlaps: bool, by: Calibration) -> float:
    """What of a communication shows that runs beside computing."""
    if not overlaps:
        return sent_s
    hidden = min(sent_s, behind_s)
    return sent_s - hidden + by.contention * hidden


def _seconds(sent: Sending, by: Calibration) -> float:
    # Links and network work at the same time on different parts of a message.
    moving = max(sent.link_s / by.link_reach, sent.net_s / by.net_reach)
    hops = sent.link_hops * by.link_latency_s + sent.net_hops * by.net_latency_s
    return by.gpu_pace * (moving + hops)
