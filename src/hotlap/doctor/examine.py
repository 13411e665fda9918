"""All rules over one case. A rule that breaks is a note, and the others go on."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.rules import RULES
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding
from hotlap.records.severity import SEVERITIES


def examine(
    case: Case, rules: Sequence[Rule] = RULES, limits: Thresholds | None = None
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """The findings in the order in which to mend them, and notes on rules that broke."""
    findings: list[Finding] = []
    notes = []
    for rule in rules:
        if not all(case.has(need) for need in rule.needs):
            continue
        try:
            findings += rule.check(case, limits or Thresholds())
        except Exception as error:
            notes.append(f"rule {rule.name} could not look: {type(error).__name__}: {error}")
    return tuple(sorted(findings, key=_order)), tuple(notes)


def _order(finding: Finding) -> tuple[bool, float, int, str]:
    """What stops a training first, then by gain, then by severity."""
    severity = SEVERITIES.index(finding.severity)
    return finding.severity != "error", -(finding.gain or 1.0), -severity, finding.rule
