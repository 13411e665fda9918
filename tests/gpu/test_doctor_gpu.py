"""`hotlap doctor` on a real GPU: what the driver tells, what torch shows, what can be measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SRC = Path(__file__).parents[2] / "src"

HOLDS_MEMORY = """
import sys, torch
held = torch.zeros(1 << 30, device="cuda")
print("holding", flush=True)
sys.stdin.read()
"""


def doctor(folder: Path, *words: str, env: dict[str, str] | None = None) -> tuple[Any, str]:
    """Run it; its document and what it printed."""
    result = folder / "doctor.json"
    done = subprocess.run(
        [sys.executable, "-m", "hotlap", "doctor", "--json", str(result), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SRC), "HOTLAP_CACHE_DIR": str(folder), **(env or {})},
        capture_output=True,
        text=True,
        timeout=280,
    )
    print(done.stdout, done.stderr[-2000:])
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(result.read_text()), done.stdout


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """One full measurement that several tests look at."""
    return doctor(tmp_path_factory.mktemp("doctor"))


def test_the_driver_and_torch_tell_of_the_same_gpus(full: tuple[Any, str]) -> None:
    document, text = full
    system, torch = document["machine"]["system"], document["machine"]["software"]["torch"]
    assert system["gpus_from"] == "NVML"
    visible = [gpu for gpu in system["gpus"] if gpu["is_visible"]]
    assert len(visible) == len(torch["devices"])
    for gpu, device in zip(visible, torch["devices"], strict=True):
        assert gpu["name"] == device["name"]
        assert gpu["compute_capability"] == device["compute_capability"]
        assert gpu["n_sms"] == device["n_sms"]
        assert gpu["memory_bytes"] == pytest.approx(device["memory_bytes"], rel=0.03)
        assert gpu["power_limit_w"] > 0
        assert gpu["pcie_width"] > 0
    assert visible[0]["name"] in text


def test_the_build_fits_the_gpu_and_the_driver(full: tuple[Any, str]) -> None:
    stack = full[0]["machine"]["stack"]
    assert [fit["state"] for fit in stack["gpus"]] == ["fits"] * len(stack["gpus"])
    assert stack["driver"] == "fits"


def test_every_ceiling_is_measured_in_time_and_below_its_sheet(full: tuple[Any, str]) -> None:
    ceilings = full[0]["machine"]["ceilings"]
    assert ceilings["took_s"] < 60
    rates = {one["name"]: one for one in reversed(ceilings["rates"])}  # the first GPU's stay
    capability = full[0]["machine"]["software"]["torch"]["devices"][0]["compute_capability"]
    small = ("launch latency", "step of a small model")
    for name in ("matmul bf16", "matmul fp16", "matmul fp32", "memory copy", *small):
        assert rates[name]["value"] > 0, rates[name]["note"]
    for one in ceilings["rates"]:
        assert one["ratio"] is None or 0 < one["ratio"] < 1.1, one
    if float(capability) >= 8.9:
        assert rates["matmul fp8"]["value"] > rates["matmul bf16"]["value"]
    if float(capability) >= 8.0:
        assert rates["matmul tf32"]["value"] > rates["matmul fp32"]["value"]
    pinned, pageable = (rates[f"host to device, {how}"]["value"] for how in ("pinned", "pageable"))
    assert pinned > pageable > 0


def test_a_gpu_without_faults_has_no_error(full: tuple[Any, str]) -> None:
    severities = {finding["severity"] for finding in full[0]["findings"]}
    assert "error" not in severities, full[0]["findings"]


def test_quick_takes_what_was_kept_and_a_quick_one_is_short(tmp_path: Path) -> None:
    document, _ = doctor(tmp_path, "--quick")
    assert document["machine"]["ceilings"]["took_s"] < 30
    again, text = doctor(tmp_path, "--quick")
    assert again["machine"]["ceilings"]["is_cached"]
    assert "kept from" in text


def test_hidden_gpus_are_found_and_told(tmp_path: Path) -> None:
    document, _ = doctor(tmp_path, "--no-measure", env={"CUDA_VISIBLE_DEVICES": ""})
    assert "no_visible_gpu" in {finding["rule"] for finding in document["findings"]}


def test_faults_of_the_environment_are_found_on_a_gpu(tmp_path: Path) -> None:
    env = {"CUDA_LAUNCH_BLOCKING": "1", "NVIDIA_TF32_OVERRIDE": "0"}
    document, _ = doctor(tmp_path, "--no-measure", env=env)
    found = {finding["rule"] for finding in document["findings"]}
    assert {"debug_environment", "tf32_override"} <= found


def test_another_process_on_the_gpu_is_found(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_MEMORY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "holding\n"
            document, _ = doctor(tmp_path, "--no-measure")
        finally:
            other.kill()
    assert "gpu_busy" in {finding["rule"] for finding in document["findings"]}
