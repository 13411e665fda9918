"""Every number that a rule compares with, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Thresholds:
    least_sheet_share: float = 0.5
    """Of a GPU's stated rate. Healthy ones reach 0.7 to 0.9 in large products and copies."""
    healthy_sheet_share: float = 0.75
    """What a healthy GPU reaches; the gain of mending one is measured against it."""
    least_pinned_bytes_per_s: float = 8e9
    """PCIe 3 with 16 lanes moves 12e9, PCIe 4 twice and PCIe 5 four times that."""
    least_nvlink_bus_bytes_per_s: float = 40e9
    """All-reduce over NVLink; PCIe does not reach it."""
    least_network_mbit_per_s: int = 25_000
    """Between nodes; below it gradients of common models take as long as their step."""
    least_power_share: float = 0.9
    """Of the default power limit."""
    most_foreign_bytes: int = GIB // 2
    """Of a GPU's memory in the hands of other processes; a display takes less."""
    least_cpus_per_gpu: int = 4
    """One launches kernels, the others load data."""
    most_load_per_cpu: float = 1.5
    """Runnable processes a CPU; above it they wait for each other."""
    least_cpus_for_threads: int = 4
    """Of one thread on fewer CPUs little is lost."""
    least_shared_bytes: int = GIB
    """Of /dev/shm; one batch of 256 images of 224 pixels in fp32 is 150 MB, and each worker
    has two of them under way."""
    least_host_share: float = 0.5
    """Of the GPUs' memory that the host should have: checkpoints and pinned batches go through."""
    least_open_files: int = 4096
    """Each tensor that a worker hands over may hold an open file."""
    least_locked_bytes: int = GIB
    """Memory that an InfiniBand adapter may read is locked."""
    least_free_bytes: int = 2 * GIB
    """For checkpoints, caches of compilers and logs."""
    image_flops: float = 24.3e9
    """Forward and backward of one 224-pixel image through a ResNet-50."""
    usual_mfu: float = 0.2
    """Share of its matrix rate that a GPU reaches on that network."""
    least_appetite_share: float = 1.0
    """Of the images that a GPU could train on, which the host should be able to bring."""
    least_data_share: float = 0.1
    """Of a step that waits for data: below it other things matter more."""
