"""What torch.compile needs is missing: a C++ compiler, and Triton beside a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "no_compiler"
COMPILERS = ("g++", "clang", "gcc")
BROKEN = ("does not answer", "does not work")
TRITON = ("triton", "pytorch-triton-rocm")


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """One finding for all that is missing."""
    software = case.machine.software
    if software.torch is None:
        return
    missing = []
    works = [c for c in COMPILERS if software.compilers.get(c, BROKEN[0]) not in BROKEN]
    if not works and "CXX" not in case.environment:
        missing.append("a C++ compiler")
    has_triton = any(name in software.packages for name in TRITON)
    if case.gpus and software.torch.is_cuda_available and not has_triton:
        missing.append("Triton")
    if missing:
        yield Finding(
            NAME,
            "advice",
            f"torch.compile lacks {' and '.join(missing)}",
            (f"on the PATH: {', '.join(software.compilers) or 'no compiler'}",),
            None,
            "load a module with a compiler, or install what is missing; then try lever compile",
        )


RULE = Rule(NAME, check)
