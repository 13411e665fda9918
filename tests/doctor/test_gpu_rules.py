"""The doctor on trainings that were recorded on an H200: which rules fire, and the numbers.

`gpu_cases.py` says what they are, `record_on_gpu.py` how they were recorded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gpu_cases import CASES, GpuCase
from gpu_records import GpuRecords
from record_on_gpu import text_of

from hotlap.chronometer.profile.classes import uses_tensor_cores
from hotlap.doctor.examine import examine
from hotlap.doctor.kernels import Kernels
from hotlap.doctor.limit import limits_of
from hotlap.doctor.rules import RULES, pageable_copies
from hotlap.machine.chips import find_chip
from hotlap.records.ceilings import Ceiling, Ceilings
from hotlap.records.finding import Diagnosis, Finding
from hotlap.report.doctor import render_diagnosis
from hotlap.report.profile import render_profile

BY_NAME = {case.name: case for case in CASES}
MENDED = tuple(case for case in CASES if case.mended and case.rules)


BATCH_BYTES = 16 * 1024 * (256 * 4 + 8)
"""Of `sounds.py`: features and classes."""


def named(case: GpuCase) -> str:
    return case.name


each_case = pytest.mark.parametrize("case", CASES, ids=named)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> GpuRecords:
    return GpuRecords(tmp_path_factory.mktemp("h200"))


def findings_of(records: GpuRecords, name: str) -> tuple[Finding, ...]:
    findings, notes = examine(records.case(name))
    assert notes == ()
    return findings


def finding_of(records: GpuRecords, case: GpuCase) -> Finding:
    """That of the rule which the case is for."""
    return next(f for f in findings_of(records, case.name) if f.rule == case.rules[0])


def kernels_of(records: GpuRecords, name: str) -> Kernels:
    kernels = records.case(name).kernels
    assert kernels is not None
    return kernels


def limits(records: GpuRecords, name: str) -> dict[str, float]:
    """The parts of the step, by name."""
    case = records.case(name)
    assert case.training is not None
    return {one.name: one.share for one in limits_of(case.training, case.kernels, None)}


# Which rules fire ---------------------------------------------------------------------------------


def test_every_case_is_recorded(records: GpuRecords) -> None:
    assert {case.name for case in CASES} == records.names


@each_case
def test_a_record_is_of_the_script_as_it_is_now(records: GpuRecords, case: GpuCase) -> None:
    training = records.case(case.name).training
    assert training is not None
    assert Path(training.run.command[0]).read_text() == text_of(case, is_small=False)


@each_case
def test_the_rules_of_a_case_fire_and_no_others(records: GpuRecords, case: GpuCase) -> None:
    found = findings_of(records, case.name)
    assert {finding.rule for finding in found if finding.severity != "note"} == set(case.rules)
    for finding in found:
        assert finding.cure
        assert finding.evidence
        assert all(text and "None" not in text for text in (finding.summary, *finding.evidence))
        assert finding.gain is None or finding.gain >= 1


def test_rules_on_kernels_that_no_record_shows_are_few() -> None:
    """One needs several ranks, each with a GPU: hand-made traces have to do."""
    shown = {rule for case in CASES for rule in case.rules}
    looking = {rule.name for rule in RULES if "profile" in rule.needs}
    assert looking - shown == {"exposed_communication"}


# Gains --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", MENDED, ids=named)
def test_a_gain_is_near_what_the_cure_really_brings(records: GpuRecords, case: GpuCase) -> None:
    """The same training without its fault was recorded too."""
    gain = finding_of(records, case).gain
    assert gain is not None
    assert gain == pytest.approx(records.times_longer(case), rel=0.25)


def test_gains_are_in_the_order_of_what_cures_really_bring(records: GpuRecords) -> None:
    """Spearman's rank correlation."""
    told = [finding_of(records, case).gain or 1.0 for case in MENDED]
    true = [records.times_longer(case) for case in MENDED]
    n = len(MENDED)
    assert n >= 10
    apart = sum((a - b) ** 2 for a, b in zip(ranks(told), ranks(true), strict=True))
    assert 1 - 6 * apart / (n * (n * n - 1)) >= 0.8


def ranks(values: list[float]) -> list[int]:
    return [sorted(values).index(value) for value in values]


def test_rates_of_the_machine_make_the_gain_of_pinned_memory_exact(records: GpuRecords) -> None:
    """At the rates that the copies of the two records had."""
    rates = []
    for name, kind in (("unpinned", "pageable"), ("sounds", "pinned")):
        (copy,) = (op for op in kernels_of(records, name).top("copy") if "HtoD" in op.name)
        rate = BATCH_BYTES / copy.seconds
        rates.append(Ceiling(f"host to device, {kind}", "NVIDIA H200", "B/s", rate, None, None, ""))
    known = records.case("unpinned")
    machine = replace(known.machine, ceilings=Ceilings(tuple(rates), (), "", "", False, False, 1.0))
    (finding,) = examine(replace(known, machine=machine), [pageable_copies.RULE])[0]
    assert finding.gain == pytest.approx(records.times_longer(BY_NAME["unpinned"]), rel=0.03)


def test_what_costs_nothing_is_no_finding(records: GpuRecords) -> None:
    for name in ("unpinned tokens", "blocking tokens"):
        assert records.times_longer(BY_NAME[name]) < 1.02
        assert findings_of(records, name) == ()


# Numbers ------------------------------------------------------------------------------------------


@each_case
def test_the_parts_of_a_step_add_up(records: GpuRecords, case: GpuCase) -> None:
    assert sum(limits(records, case.name).values()) == pytest.approx(1, abs=0.03)


@each_case
def test_no_product_is_faster_than_the_chip(records: GpuRecords, case: GpuCase) -> None:
    chip = find_chip("NVIDIA H200", None)
    assert chip is not None
    peaks = {"bfloat16": chip.dense_16bit_flops_per_s, "float32": chip.fp32_flops_per_s}
    rank = kernels_of(records, case.name).rank
    assert rank.matmuls
    for one in rank.matmuls:
        peak = peaks[one.dtype]
        assert one.flops_per_s is not None
        assert peak is not None
        assert 0 < one.flops_per_s < peak
        assert uses_tensor_cores(one.kernel) == (one.dtype == "bfloat16")
    products = [row for row in rank.classes if row.name in ("matmul", "attention")]
    assert all(row.roofline is not None and 0 < row.roofline <= 1 for row in products)
    assert sum(row.share for row in rank.classes) == pytest.approx(1)


def test_wide_layers_are_spent_in_products_on_tensor_cores(records: GpuRecords) -> None:
    kernels = kernels_of(records, "dense")
    (matmul, *_) = kernels.rank.classes
    assert matmul.name == "matmul"
    assert matmul.share > 0.75
    assert matmul.roofline == pytest.approx(0.82, abs=0.02)
    assert kernels.rank.tensor_core_share == 1.0
    assert list(kernels.rank.matmul_dtypes) == ["bfloat16"]


def test_a_gpu_that_lowers_its_clocks_is_not_said_to_wait(records: GpuRecords) -> None:
    """Its steps were 7.4 ms long at first and 7.9 ms once it was warm; it was never idle."""
    found = limits(records, "dense")
    assert found["not in the profile"] == pytest.approx(0.053, abs=0.01)
    assert found["host"] < 0.02


def test_small_layers_leave_the_gpu_waiting_for_launches(records: GpuRecords) -> None:
    kernels = kernels_of(records, "tiny")
    assert limits(records, "tiny")["host"] > 0.9
    assert kernels.share(kernels.seconds("matmul")) < 0.05
    # Forward and backward can be one graph; the optimizer and the loop are launched as before.
    gain = finding_of(records, BY_NAME["tiny"]).gain
    assert gain == pytest.approx(3.2, abs=0.2)


def test_a_value_that_is_read_is_found_with_its_line(records: GpuRecords) -> None:
    case = records.case("reading")
    assert case.training is not None
    script = Path(case.training.run.command[0])
    line = 1 + script.read_text().splitlines().index("    loss.item()")
    (sync,) = kernels_of(records, "reading").rank.syncs
    assert sync.site is not None
    assert (sync.site.file, sync.site.line, sync.calls) == (str(script), line, 1.0)
    (finding,) = findings_of(records, "reading")
    assert finding.summary == "the host waits for the device once a step"
    assert f"{script.name}:{line}" in finding.cure


def test_fp32_products_are_told_from_tf32(records: GpuRecords) -> None:
    rank = kernels_of(records, "strict fp32").rank
    assert list(rank.matmul_dtypes) == ["float32"]
    assert rank.tensor_core_share == 0
    mixed = kernels_of(records, "outside autocast").rank
    assert set(mixed.matmul_dtypes) == {"float32", "bfloat16"}


def test_copies_that_convolutions_make_are_left_to_the_memory_order(records: GpuRecords) -> None:
    kernels = kernels_of(records, "contiguous")
    made = [op for op in kernels.top("copy") if "convolution" in op.operator]
    assert kernels.share(sum(op.seconds for op in made)) > 0.2
    assert kernels.share(kernels_of(records, "convs").seconds("copy")) < 0.01


def test_kernels_of_a_report_are_told_apart(records: GpuRecords) -> None:
    profile = records.case("dense").profile
    assert profile is not None
    text = render_profile(profile, Path())
    assert "  threshold_backward: vectorized_elementwise" in text
    assert "  clamp_min: vectorized_elementwise" in text
    assert "  mm: nvjet_sm90_tst_320x128" in text


@each_case
def test_the_report_has_no_line_that_nobody_can_read(records: GpuRecords, case: GpuCase) -> None:
    known = records.case(case.name)
    assert known.training is not None
    findings, notes = examine(known)
    parts = limits_of(known.training, known.kernels, None)
    diagnosis = Diagnosis(
        "0", records.machine, findings, notes, known.run, known.profile, limits=parts
    )
    text = render_diagnosis(diagnosis)
    assert known.profile is not None
    text += render_profile(known.profile, Path())
    spent = text[text.index("What the step is spent on") : text.index("Findings")]
    assert all(len(line) <= 105 for line in spent.splitlines())
    assert " 0 %" not in spent
    for doubtful in ("None", " nan", " 1 times", " 1 kernels", " 1 steps", "@FOLDER@", "@TESTS@"):
        assert doubtful not in text
