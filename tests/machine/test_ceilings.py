"""Ceilings: measured by real children, kept per machine, used for MFU where no sheet is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from making import make_rank, make_table, merged
from recorded import recorded

from hotlap.machine import ceiling_cache, ceilings
from hotlap.machine.ceilings import BACK, PINNED, SMALL_STEP, Device, list_devices, stated
from hotlap.machine.child import Answer, ask
from hotlap.machine.peaks import find_peak
from hotlap.records.ceilings import Ceiling, Ceilings
from hotlap.records.system import Gpu

H200 = Gpu(
    0,
    "NVIDIA H200",
    memory_bytes=143771 << 20,
    compute_capability="9.0",
    pcie_generation_max=5,
    pcie_width_max=16,
)


def told(answer: Answer) -> dict[str, Any]:
    return {one["done"]: one for one in answer.told if "done" in one}


@pytest.mark.timeout(120)
def test_a_cpu_is_measured_and_what_it_has_not_is_a_line() -> None:
    names = ["matmul fp32", "matmul tf32", "matmul fp8", "memory copy", "smallest operation"]
    names.append(SMALL_STEP)
    answer = ask("torch_ceilings", ["cpu", "8", *names], 100)
    assert answer.trouble == ""
    found = told(answer)
    assert list(found) == names
    for name in ("matmul fp32", "memory copy", "smallest operation", SMALL_STEP):
        assert found[name]["value"] > 0
    assert found["matmul tf32"]["value"] is None
    assert found["matmul tf32"]["note"] == "this device has no TF32"
    assert found["matmul fp8"]["note"] == "this device has no fp8"


@pytest.mark.timeout(120)
def test_a_device_that_is_not_there_is_a_line_each() -> None:
    answer = ask("torch_ceilings", ["cuda:7", "4", "matmul fp32", PINNED], 100)
    assert [one["value"] for one in told(answer).values()] == [None, None]
    assert all(one["note"] for one in told(answer).values())


def test_images_are_decoded() -> None:
    (one,) = ask("jpeg", ["0.3"], 60).told
    assert one["value"] > 0
    assert "500 x 375" in one["note"]


class Script:
    """Children that answer from a list, for what a real one cannot be made to do."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.asked = list(answers), []

    def __call__(self, program: str, arguments: Sequence[str], *rest: Any) -> Answer:
        self.asked.append(list(arguments[2:]))
        return self.answers.pop(0)


def test_a_measurement_that_kills_its_process_costs_itself_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = {"done": "matmul fp32", "value": 5.0, "note": ""}
    dies = Answer(
        ({"begin": "matmul fp32"}, done, {"begin": "matmul bf16"}), "it ended with SIGILL"
    )
    rest = Answer(({"begin": "memory copy"}, {"done": "memory copy", "value": 7.0, "note": ""}), "")
    script = Script(dies, rest)
    monkeypatch.setattr(ceilings, "ask", script)
    device = Device("cpu", "cpu", None, ("matmul fp32", "matmul bf16", "memory copy"))
    software = dataclasses.replace(recorded("cpu_node").software, torch=None)
    rates = ceilings._measure_device(device, software, 10.0, {})
    assert [(one.name, one.value, one.note) for one in rates] == [
        ("matmul fp32", 5.0, ""),
        ("matmul bf16", None, "it ended with SIGILL"),
        ("memory copy", 7.0, ""),
    ]
    assert script.asked == [["matmul fp32", "matmul bf16", "memory copy"], ["memory copy"]]


def test_what_is_known_to_end_a_process_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(Answer((), ""))
    monkeypatch.setattr(ceilings, "ask", script)
    machine = recorded("cpu_node")  # its bf16 products die
    (device,) = list_devices(machine.system, machine.software)
    rates = ceilings._measure_device(device, machine.software, 10.0, {})
    assert "matmul bf16" not in script.asked[0]
    notes = {one.name: one.note for one in rates}
    assert notes["matmul bf16"] == "not tried: it ended with SIGILL"
    assert notes["matmul fp32"] == ceilings.TOO_LATE


def test_the_first_gpu_is_measured_in_full_and_each_knows_its_sheet() -> None:
    machine = recorded("gpu_node")
    first, second, cpu = list_devices(machine.system, machine.software)
    assert (first.torch_name, first.wanted) == ("cuda:0", ceilings.ON_GPU)
    assert (second.torch_name, second.wanted) == ("cuda:1", ceilings.ON_OTHER_GPUS)
    assert (cpu.name, cpu.wanted) == ("cpu", ("matmul fp32",))
    assert first.gpu is not None
    assert first.gpu.index == 0
    assert list_devices(machine.system, machine.software, with_cpu=False) == [first, second]


def test_what_vendors_state_is_known_where_they_do() -> None:
    assert stated("matmul bf16", H200) == pytest.approx(989.5e12)
    assert stated("memory copy", H200) == pytest.approx(4.8e12)
    assert stated(PINNED, H200) == stated(BACK, H200) == pytest.approx(63e9, rel=0.01)
    assert stated("launch latency", H200) is None
    assert stated("matmul bf16", dataclasses.replace(H200, is_mig=True)) is None
    assert stated("matmul bf16", dataclasses.replace(H200, name="NVIDIA H9000")) is None
    v100 = Gpu(0, "Tesla V100-SXM2-32GB", compute_capability="7.0")
    assert stated("matmul fp16", v100) == pytest.approx(125e12)
    assert stated("matmul bf16", v100) is None


def measured(is_quick: bool = False) -> Ceilings:
    rate = Ceiling("matmul bf16", "NVIDIA H9000", "FLOP/s", 2e15, None, None, "")
    return Ceilings((rate,), (), "", "2026-01-01 00:00 UTC", False, is_quick, 9.0)


def test_ceilings_are_kept_and_come_back_as_kept(tmp_path: Path) -> None:
    software = recorded("cpu_node").software
    assert ceiling_cache.store(tmp_path / "a" / "b", "key", measured(), software) == ""
    back = ceiling_cache.load(tmp_path / "a" / "b", "key", is_quick=False)
    assert back == dataclasses.replace(measured(), is_cached=True)
    assert ceiling_cache.load(tmp_path / "a" / "b", "other", is_quick=False) is None


def test_a_quick_measurement_does_not_stand_in_for_a_full_one(tmp_path: Path) -> None:
    software = recorded("cpu_node").software
    ceiling_cache.store(tmp_path, "key", measured(is_quick=True), software)
    assert ceiling_cache.load(tmp_path, "key", is_quick=False) is None
    assert ceiling_cache.load(tmp_path, "key", is_quick=True) is not None


def test_what_was_measured_on_a_busy_machine_counts_until_it_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLAP_CACHE_DIR", str(tmp_path))
    n_measured = 0

    def measure(*args: object) -> tuple[Ceiling, ...]:
        nonlocal n_measured
        n_measured += 1
        return measured().rates

    monkeypatch.setattr(ceilings, "measure_ceilings", measure)
    n_cpus = recorded("gpu_node").system.cpu.n_cpus
    assert n_cpus is not None
    seen = []
    for load in (n_cpus + 1.0, n_cpus + 2.0, 0.5, n_cpus + 1.0):
        machine = recorded("gpu_node", {"system.cpu.load_1min": load})
        found, trouble = ceilings.find_ceilings(
            machine.system, machine.software, False, False, lambda text: None
        )
        assert trouble == ""
        seen.append((found.is_busy, found.is_cached, n_measured))
    assert seen == [(True, False, 1), (True, True, 1), (False, False, 2), (False, True, 2)]


@pytest.mark.parametrize(
    "edits",
    [
        {"software.torch.version": "2.12.0"},
        {"software.driver": "590.1"},
        {"system.cpu.n_allocated": 8},
        {"system.gpus.0.uuid": "GPU-other"},
        {"system.gpus.0.power_limit_w": 400.0},
        {"system.hostname": "node043"},
        {"software.environment.ONEDNN_MAX_CPU_ISA": "AVX2"},
    ],
    ids=lambda edits: next(iter(edits)),
)
def test_another_machine_driver_or_torch_is_measured_anew(edits: dict[str, Any]) -> None:
    before, after = recorded("gpu_node"), recorded("gpu_node", edits)
    key = ceiling_cache.machine_key
    assert key(before.system, before.software) != key(after.system, after.software)


@pytest.mark.parametrize(
    "edits",
    [{"system.cpu.load_1min": 9.0}, {"system.gpus.0.clock_mhz": 1980}, {"system.storage": None}],
    ids=lambda edits: next(iter(edits)),
)
def test_what_changes_from_minute_to_minute_is_no_other_machine(edits: dict[str, Any]) -> None:
    before, after = recorded("gpu_node"), recorded("gpu_node", edits)
    key = ceiling_cache.machine_key
    assert key(before.system, before.software) == key(after.system, after.software)


def test_where_nothing_can_be_kept_it_is_said_and_nothing_fails() -> None:
    software = recorded("cpu_node").software
    unwritable = Path("/proc/hotlap")
    assert "cannot be written" in ceiling_cache.store(unwritable, "key", measured(), software)
    assert ceiling_cache.store(None, "key", measured(), software) == "there is no home folder"
    assert ceiling_cache.load(unwritable, "key", True) is None
    assert ceiling_cache.load(None, "key", True) is None


def test_a_damaged_file_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "ceilings-key.json").write_text('{"rates": 3}')
    assert ceiling_cache.load(tmp_path, "key", True) is None


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HOTLAP_CACHE_DIR": "/c", "HOME": "/h"}, "/c"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/hotlap"),
        ({"HOME": "/h"}, "/h/.cache/hotlap"),
        ({}, "None"),
    ],
)
def test_where_ceilings_are_kept(environ: dict[str, str], folder: str) -> None:
    assert str(ceiling_cache.cache_folder(environ)) == folder


def keep_unknown_chip(folder: Path) -> int:
    """A chip of no data sheet was measured here; its memory."""
    edits = {"software.torch.devices.0.name": "NVIDIA H9000"}
    software = recorded("gpu_node", edits).software
    assert ceiling_cache.store(folder, "key", measured(), software) == ""
    assert software.torch is not None
    return software.torch.devices[0].memory_bytes


def test_the_peak_is_the_sheets_and_the_measured_one_where_there_is_no_sheet(
    tmp_path: Path,
) -> None:
    memory = keep_unknown_chip(tmp_path)
    unknown = find_peak("NVIDIA H9000", memory, tmp_path)
    assert unknown is not None
    assert (unknown.flops_per_s, unknown.is_measured) == (2e15, True)
    known = find_peak("NVIDIA H200", memory, tmp_path)
    assert known is not None
    assert (known.flops_per_s, known.is_measured) == (1979e12 / 2, False)
    assert find_peak("NVIDIA H9000", memory // 2, tmp_path) is None
    assert find_peak("NVIDIA H8000", memory, tmp_path) is None
    assert find_peak(None, None, tmp_path) is None


def test_mfu_of_an_unknown_chip_is_against_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = keep_unknown_chip(tmp_path)
    monkeypatch.setenv("HOTLAP_CACHE_DIR", str(tmp_path))
    steps = [{"forward": 100, "backward": 100}] * 4
    process = {"device": "NVIDIA H9000", "device_memory_bytes": memory}
    rank = dataclasses.replace(make_rank(make_table(steps)), process=process)
    run = merged([rank])
    assert run.flops.ceiling_per_s == 2e15
    assert run.flops.mfu == pytest.approx(100.0 / 200e-9 / 2e15)
    assert any("`hotlap doctor` measured" in note for note in run.notes)
    monkeypatch.setenv("HOTLAP_CACHE_DIR", str(tmp_path / "empty"))
    assert merged([rank]).flops.mfu is None
