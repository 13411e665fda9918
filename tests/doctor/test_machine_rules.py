"""Every rule on the machine fires on its fault and on nothing else."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import pytest
from machine_cases import PAIRS, Pair
from recorded import recorded

from hotlap.doctor.examine import examine
from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.rules import RULES
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding
from hotlap.records.run import Run
from hotlap.records.severity import SEVERITIES

RULE_FILES = Path(importlib.import_module("hotlap.doctor.rules").__path__[0])


def findings(pair: Pair, edits: dict[str, object]) -> tuple[Finding, ...]:
    found, notes = examine(Case(recorded(pair.base, {**pair.common, **edits})))
    assert notes == ()
    return found


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.rule)
def test_a_rule_fires_on_its_fault_and_no_other_rule_does(pair: Pair) -> None:
    found = findings(pair, pair.fault)
    assert {finding.rule for finding in found} == {pair.rule}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.rule)
def test_nothing_fires_on_the_twin_without_the_fault(pair: Pair) -> None:
    assert findings(pair, pair.twin) == ()


def test_nothing_fires_on_the_recorded_machines_without_faults() -> None:
    for pair in PAIRS:
        assert findings(pair, {}) == ()


def test_the_machine_as_it_was_recorded_has_its_real_fault() -> None:
    (finding,), _ = examine(Case(recorded("cpu_node")))
    assert (finding.rule, finding.severity) == ("cpu_instructions", "error")
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in finding.cure


def test_every_rule_has_a_case_and_every_file_is_a_rule_that_is_listed() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert {pair.rule for pair in PAIRS} == {r.name for r in RULES if r.needs == ("machine",)}
    assert {path.stem for path in RULE_FILES.glob("*.py")} - {"__init__"} == set(names)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.rule)
def test_a_finding_is_whole(pair: Pair) -> None:
    for finding in findings(pair, pair.fault):
        assert finding.severity in SEVERITIES
        assert finding.summary
        assert finding.cure
        assert finding.evidence
        assert all(text and "None" not in text for text in (finding.summary, *finding.evidence))
        assert finding.gain is None or finding.gain > 1


def gain(rule: str) -> float:
    pair = next(pair for pair in PAIRS if pair.rule == rule)
    value = findings(pair, pair.fault)[0].gain
    assert value is not None
    return value


def test_gains_are_ratios_of_what_was_measured() -> None:
    assert gain("tf32_override") == pytest.approx(400 / 51)
    assert gain("cpu_only_torch") == pytest.approx(67e12 / 3e12)
    assert gain("pcie_width") == 2
    assert gain("gpu_below_sheet") == pytest.approx(0.75 / 0.4)
    wanted = 790e12 * 0.2 / 24.3e9  # of the one GPU that each of two tasks on a node has
    assert gain("decode_rate") == pytest.approx(wanted / (64 * 100))
    assert gain("small_files") == pytest.approx(wanted / (64 * 50))
    assert gain("threads_too_few") == 8
    assert gain("infiniband_disabled") == pytest.approx(2 * 400 / 400)


def test_findings_come_errors_first_and_then_by_gain() -> None:
    edits = {
        "system.gpus.0.pcie_width": 4,
        "system.gpus.1.n_ecc_errors": 3,
        "ceilings.rates.10.ratio": 0.4,
        "system.gpus.0.is_mig": True,
    }
    found, _ = examine(Case(recorded("gpu_node", edits)))
    assert [f.rule for f in found] == ["ecc_errors", "pcie_width", "gpu_below_sheet", "mig"]


def test_thresholds_are_one_place_and_can_be_others() -> None:
    case = Case(recorded("gpu_node"))
    strict = dataclasses.replace(Thresholds(), least_cpus_per_gpu=65)
    found, _ = examine(case, limits=strict)
    assert [finding.rule for finding in found] == ["cpus_per_gpu"]


def broken(case: Case, limits: Thresholds) -> list[Finding]:
    raise ValueError("nobody thought of this")


def never(case: Case, limits: Thresholds) -> list[Finding]:
    raise AssertionError("a rule was asked about what is not there")


def test_a_rule_that_breaks_is_a_note_and_the_others_go_on() -> None:
    rules = (Rule("odd", broken), *RULES)
    found, notes = examine(Case(recorded("cpu_node")), rules)
    assert [finding.rule for finding in found] == ["cpu_instructions"]
    assert notes == ("rule odd could not look: ValueError: nobody thought of this",)


def test_a_rule_is_asked_only_where_what_it_needs_is_known() -> None:
    rules = (Rule("of_a_run", never, needs=("machine", "run")),)
    assert examine(Case(recorded("cpu_node")), rules) == ((), ())
    fake_run = object.__new__(Run)
    _, notes = examine(Case(recorded("cpu_node"), fake_run), rules)
    assert "of_a_run" in notes[0]


def test_the_documentation_lists_every_rule_with_its_first_sentence() -> None:
    listed = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    for rule in RULES:
        text = importlib.import_module(f"hotlap.doctor.rules.{rule.name}").__doc__ or ""
        first = " ".join(text.split("\n\n")[0].split())
        assert f"- `{rule.name}`: {first}\n" in listed
