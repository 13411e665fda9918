"""The diagnosis as text: a person reads it on one or two screens, whatever is unknown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from recorded import recorded

from hotlap.doctor.examine import examine
from hotlap.doctor.rule import Case
from hotlap.errors import RecordError
from hotlap.machine.stack import find_stack
from hotlap.records.ceilings import Ceiling, Ceilings
from hotlap.records.finding import Diagnosis
from hotlap.records.machine import Machine
from hotlap.records.software import Python, Software
from hotlap.records.system import Cpu, HostMemory, Network, System
from hotlap.report.doctor import render_diagnosis

SCREEN_LINES = 50


def diagnosis(machine: Machine) -> Diagnosis:
    findings, notes = examine(Case(machine))
    return Diagnosis("0.1.0", machine, findings, notes)


def unwrapped(text: str) -> str:
    """Long rows go on in the next line."""
    return " ".join(text.split())


def unknown_machine() -> Machine:
    cpu = Cpu(None, None, None, None, None, None, {}, None, None, None, (), ())
    memory = HostMemory(None, None, None, None, None, None)
    system = System(
        None, None, (), "none: no driver", (), cpu, memory, None, Network((), (), None), None, None
    )
    python = Python("3.12.1", "python", True)
    software = Software(python, None, "No module named 'torch'", None, None, {}, {}, None, {})
    return Machine(system, software, find_stack(system, software), None, ("no luck",))


@pytest.mark.parametrize("name", ["cpu_node", "gpu_node"])
def test_a_machine_fits_on_two_screens(name: str) -> None:
    lines = render_diagnosis(diagnosis(recorded(name))).splitlines()
    assert len(lines) <= 2 * SCREEN_LINES
    assert max(map(len, lines)) <= 100
    assert "None" not in "\n".join(lines)


def test_a_node_of_gpus_is_told_in_words_and_figures() -> None:
    text = unwrapped(render_diagnosis(diagnosis(recorded("gpu_node"))))
    for words in (
        "2 x NVIDIA H200, 140 GiB, 132 SMs, compute 9.0, 700 W",
        "between them: NVLink",
        "1 TiB, job's limit 512 GiB",
        "64 of 128 CPUs allocated",
        "fp32 products in fp32, convolutions in TF32",
        "GPUs 0,1 fits: torch has code for sm_90",
        "lustre, network",
        "2 of 2 InfiniBand ports active (400 Gbit/s)",
        "Slurm 4711, 2 nodes",
        "2.11.0+cu130, CUDA 13.0, cuDNN 9.15.1, NCCL 2.28.9",
        "790 TFLOP/s 80 % of 990 TFLOP/s stated",
        "all_reduce, 2 ranks (cuda)",
        "Findings none",
    ):
        assert words in text, words


def test_findings_are_told_with_evidence_gain_and_cure() -> None:
    machine = recorded("gpu_node", {"system.gpus.0.pcie_width": 8})
    text = render_diagnosis(diagnosis(machine))
    assert "warning     GPU 0 uses fewer PCIe lanes than it has [pcie_width, up to 2x]" in text
    assert "GPU 0: 8 of 16 lanes" in text
    assert "-> tell the operators" in text


def test_hidden_shared_and_partitioned_gpus_are_told() -> None:
    process = {"pid": 7, "name": "python", "memory_bytes": None}
    edits = {
        "system.gpus.1.is_visible": False,
        "system.gpus.0.is_mig": True,
        "system.gpus.0.processes": [process],
    }
    text = render_diagnosis(diagnosis(recorded("gpu_node", edits)))
    assert "hidden by CUDA_VISIBLE_DEVICES: 1" in text
    assert "GPU 0: 1 other process," in text
    assert "cut into partitions" in text


def test_a_machine_of_which_nothing_is_known_is_told_as_such() -> None:
    text = render_diagnosis(diagnosis(unknown_machine()))
    assert "none: no driver" in text
    assert "No module named 'torch'" in text
    assert "not measured" in text
    assert "note: no luck" in text
    assert "None" not in text


def test_what_was_not_measured_has_its_reason() -> None:
    rate = Ceiling("matmul fp8", "NVIDIA A100", "FLOP/s", None, None, None, "no fp8 here")
    ceilings = Ceilings((rate,), (), "", "2026-01-01", True, True, 9.0)
    machine = dataclasses.replace(unknown_machine(), ceilings=ceilings)
    text = render_diagnosis(diagnosis(machine))
    assert "no fp8 here" in text
    assert "kept from 2026-01-01, quick" in text


def test_a_diagnosis_is_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "doctor.json"
    written = diagnosis(recorded("gpu_node", {"system.gpus.0.is_mig": True}))
    written.write(path)
    assert Diagnosis.read(path) == written
    path.write_text('{"schema": 1, "machine": 3}')
    with pytest.raises(RecordError, match="is damaged"):
        Diagnosis.read(path)
    path.write_text('{"schema": 99}')
    with pytest.raises(RecordError, match="is no diagnosis"):
        Diagnosis.read(path)
