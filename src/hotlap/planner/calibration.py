"""What hardware and software reach of their nominal rates: a few numbers with a meaning.

They are fitted by `benchmarks/planner` on published measurements; none belongs to one cluster.
Those measurements are of 2021 to 2023. The H200's numbers are of 2026, from single GPUs with torch
2.11: products alone at 790 of 989 TFLOP/s, a copy at 4,300 of 4,800 GB/s, GPT-2 124M compiled at
528,000 to 572,000 tokens/s, and 24 trainings of ResNet-50, ViT-B and GPT-2 (`benchmarks/planner`).
"""

from __future__ import annotations

from dataclasses import dataclass, field


def _reaches() -> dict[str, float]:
    return {"ampere": 0.81, "hopper": 0.67, "h200": 0.78}


def _vendors() -> dict[str, float]:
    # AMD's own 708 (MI300X) and 843 (MI325X) of 1,307 TFLOP/s in bf16, hipBLASLt at stable clocks:
    # https://rocm.blogs.amd.com/software-tools-optimization/measuring-max-achievable-flops-part2
    return {"cdna3": 0.57}


def _attention() -> dict[str, float]:
    return {"ampere": 0.30, "hopper": 0.173, "h200": 0.26}


def _convolutions() -> dict[str, float]:
    return {"16bit": 0.91, "fp8": 0.91, "tf32": 0.91, "fp32": 0.91}


def _streams() -> dict[str, float]:
    return {"h200": 0.80}


def _hosts() -> dict[str, float]:
    return {"h200": 42e-6}


@dataclass(frozen=True, slots=True)
class Calibration:
    """Shares of nominal rates, and times that no data sheet has."""

    product_reach: dict[str, float] = field(default_factory=_reaches)
    """By generation: the share of the peak that large products reach, with clocks under load."""
    fp32_reach: float = 0.87
    """The same of products in fp32: ViT-B and GPT-2 on one H200."""
    other_reach: float = 0.7
    """Of a generation that was not measured."""
    other_reach_of: dict[str, float] = field(default_factory=_vendors)
    """The same, where products alone are known."""
    attention_reach: dict[str, float] = field(default_factory=_attention)
    """By generation: the share of the peak that fused attention reaches, of what is computed."""
    other_attention: float = 0.25
    """Of a generation that was not measured."""
    convolution_reach: dict[str, float] = field(default_factory=_convolutions)
    """Convolutions, of what products reach, by the arithmetic: ResNet-50 on one H200."""
    stream_reach: float = 0.67
    """Element-wise kernels, of the memory's bandwidth."""
    stream_reach_of: dict[str, float] = field(default_factory=_streams)
    """The same by generation, where it was seen apart: a copy reaches 0.9 on an H200."""
    link_reach: float = 0.87
    """Collectives inside a node, of the links' bandwidth."""
    net_reach: float = 0.67
    """Collectives between nodes, of the network's bandwidth."""
    link_latency_s: float = 6.6e-6
    """A hop inside a node."""
    net_latency_s: float = 8.2e-6
    """A hop between nodes."""
    contention: float = 0.44
    """How much of the time that communication hides behind computing is lost all the same."""
    kernel_s: float = 39e-6
    """The host's, to launch a kernel in eager mode."""
    kernel_s_of: dict[str, float] = field(default_factory=_hosts)
    """The same of hosts that a generation of GPUs comes with, where they were seen: ResNet-50 and
    ViT-B in small batches under autocast beside an H200."""
    host_link_reach: float = 1.0
    """Of the link to the host's memory, whose rate is a usual one already."""
    step_s: float = 0.43e-3
    """The host's, once a step: zeroing, norms, logging."""
    gpu_pace: float = 1.0
    """Times as long as all of that says: what a Run showed of its GPU and its program."""
    host_pace: float = 1.0
    """The same of the host."""
