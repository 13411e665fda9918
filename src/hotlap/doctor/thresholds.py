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
    least_data_share: float = 0.15
    """Of a step that waits for data: below it other things matter more."""
    least_starved_share: float = 0.4
    """Of a step that waits for workers on all CPUs: handing batches over takes time as well, of
    short steps a good part."""
    most_workers_per_cpu: float = 2.0
    """Loader workers that wait for a disk may be more than the CPUs, up to this."""
    least_call_share: float = 0.03
    """Of a step that calls from one place take: below it they are not worth an edit."""
    least_per_step: float = 0.5
    """Calls a step: what is done in every second step or more is done in the step."""
    least_habit_per_step: float = 0.1
    """Calls a step: what is done once an epoch is no habit, though an epoch may be short here."""
    least_transfer_share: float = 0.02
    """Of a step that copies batches to the device."""
    least_padding: float = 0.25
    """Of a batch: some padding comes with any batch of sequences."""
    least_opens_per_sample: float = 0.5
    """Files: from here on samples lie in files of their own, or in pairs."""
    least_compute_share: float = 0.3
    """Of a step in forward and backward, for faster kernels to matter."""
    least_scaled: int = 20
    """Scaled updates: the first ones look for the scale and may be skipped."""
    most_skipped: float = 0.15
    """Of the scaled updates; a healthy training skips one in thousands, and the first few."""
    least_layer_size: int = 64
    """Smaller layers are bound by memory, whatever their sizes are divided by."""
    tile: int = 8
    """What 16-bit tensor cores want sizes to be multiples of."""
    vocabulary_tile: int = 64
    """The same for the largest product of a language model."""
    sequence_tile: int = 64
    """Places of a sequence that fused attention works on at a time."""
    least_depthwise: float = 0.3
    """Of the convolutions, for the network to be called depthwise."""
    least_convolutions: int = 3
    """Fewer are hardly what a step is spent on."""
    least_growth_bytes: float = 4096.0
    """A step, without ever shrinking."""
    few_shapes: int = 2
    """Sizes of inputs: the usual one, and that of an epoch's last batch."""
    most_benchmarked: int = 5
    """Sizes of inputs in a short run; each is timed anew."""
    least_compiled_modules: int = 20
    """Of a model: smaller ones gain little from being compiled."""
    least_recompiles: int = 3
    """The first change of a size has torch compile once more, for any size; that is as it should
    be."""
    least_optimizer_share: float = 0.15
    """Of the step."""
    least_other_share: float = 0.2
    """Of the step: a loop has some code of its own."""
    least_other_s: float = 0.5e-3
    """Between steps of a GPU that waits for its host: the watch itself takes up to this there."""
    least_steps: int = 20
    """For a word about how steps differ."""
    most_mean_over_median: float = 2.5
    """Of step times; on a machine that is shared others' work makes some steps twice as long."""
    least_cpus_per_thread: int = 2
    """Allocated CPUs for each thread, to call threads few."""
    least_straggling: float = 0.2
    """Of the step, that the slowest rank has more to do than the mean."""
    least_moved: float = 0.2
    """Of the layers of a model, in another order than the rest."""
    most_prefetched: int = 4
    """Batches that a worker keeps ready. On ImageNet 4 and 6 brought nothing over the usual 2, and
    took 8 and 16 GB more of the host's memory."""
    enough_for_norm: int = 32
    """Samples from which a batch norm has good statistics by itself."""
    most_unused_memory: float = 0.5
    """Of the GPU's memory at the peak: below it a larger batch fits."""
    low_mfu: float = 0.1
    """Common models reach 0.2 to 0.5."""
    low_power: float = 0.4
    """Of the limit; an idle GPU draws a tenth of it, a busy one most."""
    least_dominant_share: float = 0.2
    """Of the step in one operation that is no product: common ones take a few percent."""
    least_elementwise_share: float = 0.3
    """Of the step; a ResNet or a GPT in 16 bits spends a third to a half so before it is fused."""
    saved_by_fusing: float = 0.5
    """Of elementwise time: two operations in one read and write half as much."""
    least_copy_share: float = 0.15
    """Of the step; a GPU's own copies of batches and gradients take a few percent."""
    least_kernel_loss: float = 0.03
    """Of the step that a better shape would save."""
    least_wave_loss: float = 0.1
    """Of a product's time in a last wave that is not full. Any sizes lose some: 8192 by 8192, well
    chosen, 0.03 on an H200."""
    least_idle_share: float = 0.15
    """Of the step in which the GPU waits for its host."""
    least_exposed_share: float = 0.1
    """Of the step in which ranks exchange and compute nothing."""
    full_memory: float = 0.85
    """Of the GPU's memory: from here on a longer input may not fit."""
    least_fragmentation: float = 0.15
    """Of what the allocator has taken."""
    least_tensor_core_share: float = 0.5
    """Of the time of 16-bit products."""
    least_wide_share: float = 0.1
    """Of the step in fp32 products under autocast."""
    most_lengths: int = 4
    """Sizes of inputs beside the number of samples."""
