"""Batches in pinned memory, for loaders whose script did not ask for it."""

from __future__ import annotations

import functools
from typing import Any

from hotlap.levers.common.process import Process


def pin_the_hosts_alone(torch: Any, process: Process) -> None:
    """Have loaders pin what is on the host, and hand out the rest of a batch as it is.

    A dataset or a collate function may make tensors on the GPU: to pin those is an error.
    """
    module = torch.utils.data._utils.pin_memory
    original = module.pin_memory

    @functools.wraps(original)
    def pin_memory(data: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(data, torch.Tensor) and not data.is_cpu:
            return data
        return original(data, *args, **kwargs)  # which comes back here with each part of a batch

    process.replace(module, "pin_memory", pin_memory)
