"""The environment variables that change how a training runs.

A fixed list, name by name: nothing else of the environment is read into a record, so that no key,
token or password can end in a report.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLES = (
    # threads
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "KMP_BLOCKTIME", "GOMP_CPU_AFFINITY"),
    # devices
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "CUDA_CACHE_DISABLE"),
    # precision and determinism
    *("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG"),
    *("TORCH_CUDNN_V8_API_DISABLED", "CUDNN_DETERMINISTIC"),
    # instruction sets
    *("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS"),
    *("MKL_DEBUG_CPU_TYPE",),
    # debugging aids
    *("CUDA_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL", "HIP_LAUNCH_BLOCKING"),
    *("TORCH_DISTRIBUTED_DEBUG", "TORCH_CPP_LOG_LEVEL", "TORCH_LOGS", "TORCH_COMPILE_DEBUG"),
    *("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "TORCH_USE_CUDA_DSA"),
    *("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTHONMALLOC", "PYTHONDEVMODE", "PYTHONFAULTHANDLER"),
    *("MALLOC_CHECK_", "MALLOC_PERTURB_", "TORCH_SHOW_CPP_STACKTRACES"),
    # memory
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "LD_PRELOAD", "MALLOC_CONF"),
    *("GLIBC_TUNABLES", "MALLOC_ARENA_MAX"),
    # communication
    *("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_P2P_DISABLE"),
    *("NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_NET_GDR_LEVEL", "NCCL_ALGO", "NCCL_PROTO"),
    *("NCCL_NET", "NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_CROSS_NIC", "NCCL_BLOCKING_WAIT"),
    *("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "GLOO_SOCKET_IFNAME"),
    *("FI_PROVIDER", "UCX_NET_DEVICES", "UCX_TLS"),
    # ranks
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    # compilers and caches
    *("CC", "CXX", "CUDA_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"),
    *("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCH_CUDA_ARCH_LIST", "TRITON_INTERPRET"),
)


def find_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of the list that are set."""
    return {name: environ[name] for name in VARIABLES if name in environ}
