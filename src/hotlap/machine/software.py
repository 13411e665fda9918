"""The Software: Python, torch and how it was built, packages, compilers, the image decoder."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from hotlap.machine.child import ask
from hotlap.records.codec import from_json
from hotlap.records.software import ImageLibrary, Python, Torch

PACKAGES = (
    *("torchvision", "torchaudio", "torchcodec", "triton", "pytorch-triton-rocm", "numpy"),
    *("pillow", "pillow-simd", "opencv-python", "opencv-python-headless", "PyTurboJPEG"),
    *("simplejpeg", "nvidia-dali-cuda110", "nvidia-dali-cuda120", "nvidia-dali-cuda130"),
    *("webdataset", "flash-attn", "xformers", "transformer-engine", "torchao", "apex"),
    *("accelerate", "lightning", "pytorch-lightning", "transformers", "deepspeed", "horovod"),
    *("nvidia-ml-py", "pynvml", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13", "intel-extension-for-pytorch"),
)
COMPILERS = ("gcc", "g++", "clang", "nvcc", "hipcc", "ninja")
PRODUCTS = ("float32", "bfloat16", "float16")
VERSION_TIMEOUT_S = 10.0
TORCH_TIMEOUT_S = 120.0
"""The first import of torch from a cold network file system takes long."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a process with torch in it told."""

    torch: Torch | None
    why_no_torch: str
    image: ImageLibrary | None


def find_python() -> Python:
    """The Python that hotlap and the user's script run under."""
    is_isolated = sys.prefix != sys.base_prefix or (Path(sys.prefix) / "conda-meta").exists()
    return Python(platform.python_version(), sys.executable, is_isolated)


def find_packages() -> dict[str, str]:
    """Versions of the packages that matter to training and are installed."""
    return {name: version for name in PACKAGES if (version := _version(name)) is not None}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except Exception:  # not installed, or its metadata is damaged
        return None


def find_compilers(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The compilers on the PATH that `torch.compile` and extensions use."""
    found = {}
    for name in COMPILERS:
        path = shutil.which(name, path=environ.get("PATH", ""))
        if path is not None:
            found[name] = _version_line(path, environ)
    return found


def _version_line(path: str, environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_TIMEOUT_S,
            env=dict(environ),
        )
    except (OSError, subprocess.TimeoutExpired):
        return "does not answer"
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not lines:
        return "does not work"
    return next((line for line in lines if "release" in line), lines[0])  # nvcc's fourth line


def find_torch(environ: Mapping[str, str] = os.environ) -> Found:
    """Torch, in a process of its own, and how each small product ended there."""
    answer = ask("torch_facts", ["facts", *PRODUCTS], TORCH_TIMEOUT_S, environ)
    facts = _merged(answer.told)
    image = facts.get("image") and from_json(ImageLibrary, facts["image"], "image")
    if "torch" not in facts:
        return Found(None, answer.trouble or "it told nothing", image)
    products = _products(answer.told, answer.trouble)
    left = [name for name in PRODUCTS if name not in products]
    if left:  # one of them ended the process: what comes after it is tried in another
        again = ask("torch_facts", left, TORCH_TIMEOUT_S, environ)
        products |= _products(again.told, again.trouble)
    document = {**facts["torch"], "products": products}
    return Found(from_json(Torch, document, "torch"), "", image)


def _merged(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {key: value for one in told for key, value in one.items()}


def _products(told: Sequence[dict[str, Any]], trouble: str) -> dict[str, str]:
    """By data type: how its product ended; the one that began and did not end, as the process."""
    products = {}
    for one in told:
        if "begin" in one:
            products[one["begin"]] = trouble
        if "done" in one:
            products[one["done"]] = one["state"]
    return products
