"""What courses and talks on fast training teach, and the rules of the doctor that look for it.

The facts are numbered as in the list that the doctor was built from.
"""

from __future__ import annotations

import pytest

from hotlap.doctor.rules import RULES

N_FACTS = 47
MOST_WITHOUT = 5

FACTS: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("CPU, storage, network and memory are known",
        ("cpu_capability", "small_files", "disk_full", "slow_network", "host_memory")),
    2: ("it is known what limits a step",
        ("low_mfu", "thin_products", "elementwise", "memory_full", "loader_workers", "launch_gaps",
         "exposed_communication", "straggler", "host_to_device")),
    3: ("shared file systems open few files a second", ("small_files", "many_files")),
    4: ("the build fits the hardware",
        ("arch_list", "driver_cuda", "cpu_capability", "cudnn_missing", "nccl_missing",
         "known_bad")),
    5: ("the CPUs that count are the allocated ones",
        ("cpus_per_gpu", "threads_too_many", "threads_too_few", "workers_many")),
    6: ("products run in fp32 unless they are told otherwise",
        ("fp32_products", "autocast_missed", "float64")),
    7: ("flags of TF32", ("fp32_products", "tf32_override", "tf32_forced")),
    8: ("fp16 needs its gradients scaled, bf16 does not",
        ("fp16_unscaled", "scaler_with_bf16", "scaler_skips")),
    9: ("backward is outside of autocast", ("backward_in_autocast",)),
    10: ("precisions that are a risk",
         ("medium_precision", "fp16_accumulation", "fp16_reductions", "half_parameters")),
    11: ("sizes and batches of linear layers fit tiles", ("odd_linear", "idle_tensor_cores")),
    12: ("small sizes leave products to memory", ("thin_products", "small_batch")),
    13: ("channels of convolutions fit tiles, the first ones too",
         ("odd_channels", "first_channels")),
    14: ("recurrent layers are cuDNN's and fit its kernels", ("rnn_sizes", "rnn_cells")),
    15: ("the vocabulary is padded", ("odd_vocabulary",)),
    16: ("heads and sequences fit fused attention", ("head_size", "attention_by_hand")),
    17: ("the last wave of tiles is full", ("waves",)),
    18: ("FLOPs a byte against the device's", ("thin_products",)),
    19: ("what only moves memory is fused", ("elementwise",)),
    20: ("depthwise networks are bound by memory", ("depthwise",)),
    21: ("workers, pinned memory, copies that do not wait, few batches ahead",
         ("loader_workers", "workers_few", "pageable_copies", "blocking_copies",
          "workers_restart", "prefetch_many")),
    22: ("CPUs that cannot keep up leave decoding to the device", ("decode_rate", "cpus_too_slow")),
    23: ("batches hold as many tokens, on all ranks", ("padding", "straggler")),
    24: ("memory is taken for the longest input first", ("longest_input",)),
    25: ("shapes do not change with the last batch", ("last_batch",)),
    26: ("no synchronisation in the step", ("syncs", "barriers", "prints", "blocking_copies")),
    27: ("tensors are made where they are used", ("device_tensors",)),
    28: ("losses are kept without their graphs", ("keeps_graph",)),
    29: ("validation keeps no graph", ("validation_grad",)),
    30: ("debugging aids are off", ("anomaly", "profiler_on", "gradcheck", "debug_environment")),
    31: ("gradients are dropped, not zeroed", ("zero_grad",)),
    32: ("cuDNN times its kernels where shapes are fixed", ("cudnn_benchmark", "benchmark_varies")),
    33: ("no bias before a norm", ("conv_bias",)),
    34: ("convolutions have the channels last", ("channels_last",)),
    35: ("models are compiled as a whole, launches do not limit",
         ("compile_missing", "compile_nothing", "graph_breaks", "recompiles", "launch_gaps")),
    36: ("no single operation dominates", ("dominant_op",)),
    37: ("DDP in place of DataParallel", ("data_parallel",)),
    38: ("DDP looks for unused parameters only if there are any, and layers are made in order",
         ("find_unused", "parameter_order")),
    39: ("batch norms are synchronised only where it is needed", ("sync_batchnorm",)),
    40: ("DDP's buckets", ("bucket_view", "exposed_communication")),
    41: ("communication is hidden, ranks are level", ("exposed_communication", "straggler")),
    44: ("a device is timed by its own clock", ("wrong_clock",)),
    46: ("results that do not vary have a price", ("deterministic", "deterministic_script")),
    47: ("environments are pinned", ("loose_environment",)),
}  # fmt: skip

WITHOUT = {
    42: "on how many GPUs a training should run is the choice of who pays for them; `hotlap plan` "
    "tells what each number costs",
    43: "which hyper-parameters were found on which scale is not seen in a run; `hotlap sweep` and "
    "`hotlap lr-find` find them",
    45: "whether there was a baseline, and whether the model converges, is known to its author; "
    "`hotlap tune` keeps both",
}
"""What software that looks at one run cannot see, each with the reason."""


def test_every_fact_is_looked_for_or_has_a_reason() -> None:
    assert sorted([*FACTS, *WITHOUT]) == list(range(1, N_FACTS + 1))
    assert len(WITHOUT) <= MOST_WITHOUT
    assert all(WITHOUT.values())


@pytest.mark.parametrize("number", FACTS)
def test_the_rules_of_a_fact_exist(number: int) -> None:
    what, rules = FACTS[number]
    assert what
    assert rules
    assert set(rules) <= {rule.name for rule in RULES}
