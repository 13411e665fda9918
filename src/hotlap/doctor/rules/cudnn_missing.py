"""Torch has CUDA and no cuDNN, or cuDNN is switched off: convolutions take slow paths."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "cudnn_missing"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A CUDA build in use, without a version of cuDNN or with cuDNN off."""
    torch = case.machine.software.torch
    if torch is None or not torch.cuda or not torch.is_cuda_available:
        return
    if torch.cudnn is None or torch.is_cudnn_enabled is False:
        yield Finding(
            NAME,
            "warning",
            "convolutions run without cuDNN",
            (f"cuDNN {torch.cudnn or 'is not there'}, enabled: {torch.is_cudnn_enabled}",),
            None,
            "install the cuDNN that this torch was built with, and leave it enabled",
        )


RULE = Rule(NAME, check)
