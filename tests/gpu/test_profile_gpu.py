"""`hotlap profile` on a real GPU: kernels, idle, waits with their lines, memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
SRC = Path(__file__).parents[2] / "src"
SCRIPT = SCRIPTS / "profiled_cuda.py"
N = 4096


def profile(tmp_path: Path, *words: str) -> Any:
    """The only rank of the profile."""
    result = tmp_path / "profile.json"
    done = subprocess.run(
        [sys.executable, "-m", "hotlap", "profile", "--runs-dir", str(tmp_path / "runs"),
         "--json", str(result), str(SCRIPT), *words],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SRC)}, timeout=280,
    )  # fmt: skip
    print(done.stderr[-6000:])
    assert done.returncode == 0, done.stderr[-2000:]
    (rank,) = json.loads(result.read_text())["profile"]["ranks"]
    return rank


def line_of(planted: str) -> int:
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    return next(i for i, line in enumerate(lines, 1) if f"# planted: {planted}" in line)


def test_products_dominate_on_tensor_cores(tmp_path: Path) -> None:
    rank = profile(tmp_path, "--dtype", "bfloat16")
    assert rank["classes"][0]["name"] == "matmul"
    assert rank["classes"][0]["flops"] == 3 * 2 * N**3
    assert rank["tensor_core_share"] > 0.99
    assert list(rank["matmul_dtypes"]) == ["bfloat16"]
    assert 0.2 < rank["classes"][0]["roofline"] <= 1.1


def test_plain_fp32_products_use_no_tensor_cores(tmp_path: Path) -> None:
    rank = profile(tmp_path, "--dtype", "float32")
    assert rank["tensor_core_share"] < 0.01
    assert list(rank["matmul_dtypes"]) == ["float32"]


def test_waits_have_their_lines(tmp_path: Path) -> None:
    rank = profile(tmp_path, "--sync")
    found = {(row["site"] or {}).get("line"): row["call"] for row in rank["syncs"]}
    assert found[line_of("item")] == "aten::item"
    assert "Synchronize" in found[line_of("synchronize")]


def test_a_slow_loader_is_idle_time_for_data(tmp_path: Path) -> None:
    idle = profile(tmp_path, "--slow-loader")["idle"]
    assert idle["data_s"] > 0.8 * idle["total_s"]
    assert idle["data_s"] > 0.015


def test_memory_by_category(tmp_path: Path) -> None:
    memory = profile(tmp_path)["memory"]
    assert memory["weights"] == memory["gradients"] == 2 * N * N
    assert memory["optimizer"] >= 2 * 2 * N * N
    assert memory["activations"] > 0
    held = sum(memory[name] for name in ("weights", "buffers", "gradients", "optimizer"))
    assert memory["peak"] == held + memory["activations"]
