"""Which ceilings shares of a roofline are against."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotlap.chronometer.profile.roof import Roofs
from hotlap.machine.ceiling_cache import machine_key, store
from hotlap.machine.chips import find_chip
from hotlap.machine.probe import Prober
from hotlap.records.ceilings import Ceiling, Ceilings


def test_a_known_chip_that_was_not_measured_has_its_data_sheet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLAP_CACHE_DIR", str(tmp_path))
    chip = find_chip("NVIDIA H200", None)
    assert chip is not None
    in_bf16 = Roofs()("NVIDIA H200", {"bfloat16": 1.0, "float32": 0.5})
    in_fp32 = Roofs()("NVIDIA H200", {"float32": 1.0})
    assert in_bf16 is not None
    assert in_fp32 is not None
    assert in_bf16.flops_per_s == chip.dense_16bit_flops_per_s
    assert in_fp32.flops_per_s == chip.fp32_flops_per_s
    assert in_bf16.bytes_per_s == chip.bandwidth_bytes_per_s
    assert "data sheet" in in_bf16.source


def test_an_unknown_device_has_no_roof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLAP_CACHE_DIR", str(tmp_path))
    assert Roofs()("cpu", {"float32": 1.0}) is None
    assert Roofs()("A chip of tomorrow", {}) is None


def test_what_the_doctor_measured_on_this_machine_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLAP_CACHE_DIR", str(tmp_path))
    system, software, _ = Prober(progress=lambda text: None).probe(tmp_path, None)
    rates = (
        Ceiling("matmul fp32", "cpu", "FLOP/s", 3e10, None, None, ""),
        Ceiling("memory copy", "cpu", "B/s", 7e9, None, None, ""),
    )
    measured = Ceilings(rates, (), "", "today", False, True, 1.0)
    assert store(tmp_path, machine_key(system, software), measured, software) == ""
    roof = Roofs()("cpu", {"float32": 1.0})
    assert roof is not None
    assert (roof.flops_per_s, roof.bytes_per_s) == (3e10, 7e9)
    assert "hotlap doctor" in roof.source
