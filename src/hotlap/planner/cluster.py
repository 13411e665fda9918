"""The GPUs a plan is for: the chip, how many, and what connects them.

Names of kinds are short (`a100-80gb`); their peaks stand in the chip table. What that table does
not hold stands here: the number of multiprocessors and the links between the GPUs of a node.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.errors import UsageError
from hotlap.machine.chips import CHIPS, Chip


@dataclass(frozen=True, slots=True)
class Kind:
    """A short name, the row of the chip table, and what the planner needs beside it."""

    chip: str
    generation: str
    """Of its design, by which calibrations go; an H200 was measured by itself."""
    n_multiprocessors: int
    link_gb_per_s: float
    """To the other GPUs of the node, one way: NVLink or Infinity Fabric, else PCIe."""


# Multiprocessors and links are those of the data sheets that the chip table names; links one way.
KINDS: dict[str, Kind] = {
    "v100-16gb": Kind("NVIDIA V100 SXM2 16 GB", "volta", 80, 150),
    "v100-32gb": Kind("NVIDIA V100 SXM2 32 GB", "volta", 80, 150),
    "v100-pcie-16gb": Kind("NVIDIA V100 PCIe 16 GB", "volta", 80, 16),
    "v100-pcie-32gb": Kind("NVIDIA V100 PCIe 32 GB", "volta", 80, 16),
    "t4-16gb": Kind("NVIDIA T4", "turing", 40, 16),
    "a10-24gb": Kind("NVIDIA A10", "ampere", 72, 32),
    "a10g-24gb": Kind("NVIDIA A10G", "ampere", 80, 32),
    "a30-24gb": Kind("NVIDIA A30", "ampere", 56, 32),
    "a40-48gb": Kind("NVIDIA A40", "ampere", 84, 32),
    "a6000-48gb": Kind("NVIDIA RTX A6000", "ampere", 84, 32),
    "rtx3090-24gb": Kind("NVIDIA GeForce RTX 3090", "ampere", 82, 32),
    "a100-pcie-40gb": Kind("NVIDIA A100 PCIe 40 GB", "ampere", 108, 32),
    "a100-40gb": Kind("NVIDIA A100 SXM 40 GB", "ampere", 108, 300),
    "a100-pcie-80gb": Kind("NVIDIA A100 PCIe 80 GB", "ampere", 108, 32),
    "a100-80gb": Kind("NVIDIA A100 SXM 80 GB", "ampere", 108, 300),
    "l4-24gb": Kind("NVIDIA L4", "ada", 58, 32),
    "l40-48gb": Kind("NVIDIA L40", "ada", 142, 32),
    "l40s-48gb": Kind("NVIDIA L40S", "ada", 142, 32),
    "rtx4090-24gb": Kind("NVIDIA GeForce RTX 4090", "ada", 128, 32),
    "rtx6000ada-48gb": Kind("NVIDIA RTX 6000 Ada Generation", "ada", 142, 32),
    "rtx5090-32gb": Kind("NVIDIA GeForce RTX 5090", "blackwell", 170, 64),
    "h100-80gb": Kind("NVIDIA H100 SXM", "hopper", 132, 450),
    "h100-pcie-80gb": Kind("NVIDIA H100 PCIe", "hopper", 114, 64),
    "h100-nvl-94gb": Kind("NVIDIA H100 NVL", "hopper", 132, 300),
    "h800-80gb": Kind("NVIDIA H800 SXM", "hopper", 132, 200),
    "h800-pcie-80gb": Kind("NVIDIA H800 PCIe", "hopper", 114, 64),
    "h200-141gb": Kind("NVIDIA H200 SXM", "h200", 132, 450),
    "h200-nvl-141gb": Kind("NVIDIA H200 NVL", "hopper", 132, 450),
    "gh200-96gb": Kind("NVIDIA GH200 96 GB", "hopper", 132, 450),
    "gh200-144gb": Kind("NVIDIA GH200 144 GB", "hopper", 132, 450),
    "b200-180gb": Kind("NVIDIA B200", "blackwell", 148, 900),
    "gb200-186gb": Kind("NVIDIA GB200", "blackwell", 148, 900),
    "mi100-32gb": Kind("AMD Instinct MI100", "cdna", 120, 138),
    "mi210-64gb": Kind("AMD Instinct MI210", "cdna", 104, 150),
    "mi250-64gb": Kind("AMD Instinct MI250 (one GCD)", "cdna", 104, 150),
    "mi250x-64gb": Kind("AMD Instinct MI250X (one GCD)", "cdna", 110, 150),
    "mi300x-192gb": Kind("AMD Instinct MI300X", "cdna3", 304, 448),
    "mi325x-256gb": Kind("AMD Instinct MI325X", "cdna3", 304, 448),
}

HOST_LINKS = {
    **{"volta": 12.0, "turing": 12.0},
    **{"ampere": 25.0, "ada": 25.0, "cdna": 25.0, "cdna3": 50.0},
    **{"hopper": 50.0, "h200": 50.0, "blackwell": 50.0, "gh200": 350.0, "gb200": 350.0},
}
"""GB/s one way, of pinned memory, by generation or chip: about four fifths of PCIe 3, 4 and 5 with
16 lanes (16, 32 and 63), and of NVLink-C2C (450). Boards where GPUs share them have less."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """A number of GPUs of one kind."""

    kind: str
    n: int
    per_node: int
    interconnect_gb_per_s: float
    """Of a node to the others, one way, all its adapters together; 0 on a single node."""
    own_memory_bytes: int | None = None
    """Where a site's GPUs have less than the chip that stands for them."""
    own_host_link_gb_per_s: float | None = None
    """Where it is known: between a GPU and the memory of its host, one way."""
    host_memory_bytes: float | None = None
    """Of a node, as far as a job can have it; None where it is not known."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            near = [name for name in KINDS if name.split("-")[0] == self.kind.split("-")[0].lower()]
            raise UsageError(
                f"--gpu is '{self.kind}'; there are {', '.join(near or KINDS)}"
                + ("" if near else "; `hotlap plan --list-gpus` shows their figures")
            )
        for option, value in (("--gpus", self.n), ("--gpus-per-node", self.per_node)):
            if value < 1:
                raise UsageError(f"{option} is {value}; it has to be at least 1")
            if value > MOST_GPUS:
                raise UsageError(f"{option} is {value}; {MOST_GPUS:,} are the most")
        if self.n > self.per_node and self.n % self.per_node:
            raise UsageError(
                f"--gpus is {self.n}; over several nodes it has to be a multiple of "
                f"--gpus-per-node, {self.per_node}"
            )
        if self.n > self.per_node and self.interconnect_gb_per_s <= 0:
            raise UsageError(
                f"--interconnect is missing; {self.n} GPUs with {self.per_node} a node talk over a "
                "network, whose GB/s a node decide the answer"
            )

    @property
    def chip(self) -> Chip:
        """The row of the chip table."""
        name = KINDS[self.kind].chip
        return next(chip for chip in CHIPS if chip.name == name)

    @property
    def memory_bytes(self) -> int:
        """Of one GPU."""
        return self.own_memory_bytes or self.chip.memory_bytes

    @property
    def generation(self) -> str:
        """Of the chip's design."""
        return KINDS[self.kind].generation

    @property
    def host_link_gb_per_s(self) -> float:
        """Between a GPU and the memory of its host, one way."""
        if self.own_host_link_gb_per_s:
            return self.own_host_link_gb_per_s
        return HOST_LINKS.get(self.kind.split("-")[0], HOST_LINKS[self.generation])

    @property
    def n_multiprocessors(self) -> int:
        """Of one GPU."""
        return KINDS[self.kind].n_multiprocessors

    @property
    def link_bytes_per_s(self) -> float:
        """Of one GPU to its neighbours in the node, one way."""
        return KINDS[self.kind].link_gb_per_s * 1e9

    @property
    def node_bytes_per_s(self) -> float:
        """Of a node to the others, one way."""
        return self.interconnect_gb_per_s * 1e9


MOST_GPUS = 1_000_000
WITHOUT_BF16 = ("volta", "turing")


def check_precision(gpus: Gpus, precision: str) -> None:
    """The 16-bit rate of older chips is fp16's alone."""
    if gpus.generation in WITHOUT_BF16 and "bf16" in precision:
        raise UsageError(f"--precision is {precision}; {gpus.chip.name} has no bf16: use fp16")


def peak_flops_per_s(chip: Chip, rate: str) -> float:
    """The chip's dense peak at a precision, or one sentence that it has none."""
    peak = {
        "fp32": chip.fp32_flops_per_s,
        "tf32": chip.tf32_flops_per_s,
        "16bit": chip.dense_16bit_flops_per_s,
        "fp8": chip.fp8_flops_per_s,
    }[rate]
    if peak is None:
        raise UsageError(f"--precision: {chip.name} has no products in {rate}; use fp16 or fp32")
    return peak
