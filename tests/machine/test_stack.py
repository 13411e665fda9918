"""The Stack: builds against hardware, and versions that are known to be bad."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hotlap.machine.environment import find_environment
from hotlap.machine.known_bad import ROWS, find_known_bad, parse_version
from hotlap.machine.software import _products, find_compilers, find_torch
from hotlap.machine.stack import _fit_driver, fit_gpu
from hotlap.records.software import Torch
from hotlap.records.system import Gpu

TORCH = Torch(
    version="2.11.0+cu130",
    cuda="13.0",
    hip=None,
    cudnn="9.15.1",
    nccl="2.28.9",
    arch_list=(),
    cpu_capability="AVX512",
    blas="mkl",
    is_mkldnn=True,
    is_debug=False,
    is_cuda_available=True,
    why_no_cuda="",
    devices=(),
    n_threads=8,
    n_interop_threads=8,
    matmul_precision="highest",
    is_tf32_matmul=False,
    is_tf32_conv=True,
    is_cudnn_enabled=True,
    is_deterministic=False,
    allocator="glibc",
    products={},
)


@pytest.mark.parametrize(
    ("capability", "arch_list", "state"),
    [
        ("9.0", "sm_80 sm_90", "fits"),
        ("9.0", "sm_90a", "fits"),
        ("8.9", "sm_80 sm_86 sm_90", "fits"),  # machine code of 8.6 runs on 8.9
        ("8.0", "sm_86", "does not fit"),  # and not the other way round
        ("9.0", "sm_80", "does not fit"),
        ("9.0", "sm_80 compute_80", "works"),
        ("9.0", "sm_100 compute_100", "does not fit"),
        ("12.0", "sm_90 sm_120", "fits"),
        ("10.3", "sm_100", "fits"),
        ("7.0", "", "does not fit"),
        ("", "sm_90", "unknown"),
        ("nonsense", "sm_90 sm_ compute_x", "unknown"),
        ("9.0", "sm_ nonsense", "does not fit"),
    ],
)
def test_a_build_is_held_against_a_gpu_as_cuda_does_it(
    capability: str, arch_list: str, state: str
) -> None:
    torch = dataclasses.replace(TORCH, arch_list=tuple(arch_list.split()))
    assert fit_gpu(Gpu(0, "a GPU", compute_capability=capability), torch).state == state


def test_builds_that_cannot_be_compared_are_unknown() -> None:
    gpu = Gpu(0, "AMD Instinct MI300X", compute_capability="9.4")
    assert fit_gpu(gpu, None).state == "unknown"
    assert fit_gpu(gpu, dataclasses.replace(TORCH, cuda=None, hip="6.4")).state == "unknown"
    assert fit_gpu(gpu, dataclasses.replace(TORCH, cuda=None)).state == "does not fit"


@pytest.mark.parametrize(
    ("cuda", "driver", "driver_cuda", "state"),
    [
        ("13.0", "580.95.05", "13.0", "fits"),
        ("13.1", "580.95.05", "13.0", "fits"),  # within CUDA 13
        ("13.0", "575.57", "12.9", "does not fit"),
        ("12.8", "535.1", "12.2", "fits"),
        ("12.8", "580.95.05", "13.0", "fits"),
        ("12.1", "515.1", "11.7", "does not fit"),
        ("13.0", "575.57", None, "does not fit"),
        ("14.0", "580.95.05", "13.0", "unknown"),
        ("13.0", None, None, "unknown"),
        ("nightly", "580.95.05", "13.0", "unknown"),
        ("13.0", "nonsense", None, "unknown"),
    ],
)
def test_a_driver_is_held_against_the_cuda_of_a_build(
    cuda: str, driver: str | None, driver_cuda: str | None, state: str
) -> None:
    assert _fit_driver(dataclasses.replace(TORCH, cuda=cuda), driver, driver_cuda)[0] == state


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.13.0+cpu", (2, 13, 0)), ("580.95.05", (580, 95, 5)), ("", ()), (None, ()), ("dev", ())],
)
def test_versions_are_numbers(text: str | None, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


def test_a_known_bad_version_is_found_with_its_source_and_only_where_it_matters() -> None:
    (bad,) = find_known_bad({"cudnn": "9.8.0", "torch": "2.8.0"}, has_gpu=True)
    assert bad.source.startswith("https://")
    assert "wrong" in bad.what
    (other,) = find_known_bad({"cudnn": "9.8.0", "torch": "2.10.0"}, has_gpu=True)
    assert "memory" in other.what
    assert find_known_bad({"cudnn": "9.8.0", "torch": "2.8.0"}, has_gpu=False) == ()
    assert find_known_bad({"cudnn": "9.7.1", "torch": "2.8.0"}, has_gpu=True) == ()
    assert find_known_bad({"cudnn": "9.13", "torch": "2.8.0"}, has_gpu=True) == ()
    assert find_known_bad({"cudnn": None, "torch": "unknown"}, has_gpu=True) == ()


def test_every_row_of_the_known_bad_has_a_source_and_a_range() -> None:
    for row in ROWS:
        assert row.source.startswith("https://")
        assert row.since < row.before


def test_nothing_of_the_environment_is_kept_but_what_is_listed() -> None:
    environ = {
        "OMP_NUM_THREADS": "4",
        "WANDB_API_KEY": "secret",
        "NCCL_SECRET": "secret",
        "HTTPS_PROXY": "http://me:secret@proxy",
        "HF_TOKEN": "secret",
    }
    assert find_environment(environ) == {"OMP_NUM_THREADS": "4"}


def test_a_path_without_compilers_has_none_and_a_broken_one_is_told(tmp_path: Path) -> None:
    assert find_compilers({"PATH": ""}) == {}
    tool = tmp_path / "gcc"
    tool.write_text("#!/bin/sh\nexit 1\n")
    tool.chmod(0o755)
    assert find_compilers({"PATH": f"{tmp_path}:/nowhere"}) == {"gcc": "does not work"}


def test_a_product_that_began_and_did_not_end_ended_as_its_process() -> None:
    told = [{"begin": "float32"}, {"done": "float32", "state": "usable"}, {"begin": "bfloat16"}]
    assert _products(told, "it ended with SIGILL") == {
        "float32": "usable",
        "bfloat16": "it ended with SIGILL",
    }


def test_a_torch_that_cannot_be_imported_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: not found')")
    found = find_torch({"PYTHONPATH": str(tmp_path)})
    assert found.torch is None
    assert "libcudart.so.13: not found" in found.why_no_torch


def test_this_torch_tells_what_it_is_and_every_product_is_tried() -> None:
    found = find_torch()
    assert found.torch is not None
    assert set(found.torch.products) == {"float32", "bfloat16", "float16"}
    assert found.torch.products["float32"] == "usable"
    assert found.torch.n_threads >= 1
    assert found.torch.allocator in ("glibc", "tcmalloc", "jemalloc", "musl")
    assert found.image is not None
