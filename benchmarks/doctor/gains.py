"""The doctor's gains against what its cures really bring, on the scripts with planted faults.

    python benchmarks/doctor/gains.py [--rounds 5] [--only rule,rule] [--write results.md]

For every rule on a training whose fault can be had on a CPU: the faulty script is visited once, as
`hotlap doctor` does, for the gain that the finding promises; one that promises none is named. Then
the script as it is and the cured one are run in turns. Cured is: with the lever that the finding
names, or, where it names an edit, the script with that edit. The ratio of their mean steps is what
the cure brings; its spread is that of the rounds. What counts is the order: Spearman's rank
correlation of promised and real gains.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import correlation, median
from typing import Any

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "doctor")]

from forked import Forked  # noqa: E402
from recorded import recorded  # noqa: E402
from script_cases import PAIRS  # noqa: E402
from test_profile_rules import CPU_PAIRS  # noqa: E402
from test_training_rules import CPU_MENDED, as_told, written  # noqa: E402

from hotlap.doctor.examine import examine  # noqa: E402
from hotlap.doctor.rule import Case  # noqa: E402
from hotlap.machine.host import describe_host  # noqa: E402
from hotlap.records.finding import Finding  # noqa: E402

STEPS = 40
LEVER = re.compile(r"`hotlap run --levers (\w+)(?:=([\w-]+))?`")
NO_CURE = {
    "scaler_skips": "its gain is in updates that count, not in steps",
    "not_on_gpu": "its cure is the GPU that is not there",
}
"""Faults on a CPU whose gain no step on it shows."""


@dataclass(frozen=True)
class Fault:
    rule: str
    script: str
    mended: str
    n_ranks: int
    is_profiled: bool
    told: dict[str, Any] = field(default_factory=dict)
    """Facts that the rule is told otherwise, as its test does: the number of CPUs."""


@dataclass(frozen=True)
class Row:
    rule: str
    promised: float
    real: float
    low: float
    high: float
    cure: str


LOGITS = "        logits = "
CUT = {LOGITS: f"        inputs, targets = inputs[:, :24], targets[:, :24]\n{LOGITS}"}
CURES = {"padding": CUT}
"""Edits of faulty scripts, where the twin is another training than the cured one."""


def faults() -> list[Fault]:
    """Those that are really there on a CPU."""
    of_training = [
        Fault(
            p.rule,
            written(p.base, p.fault),
            written(p.base, {**p.fault, **CURES[p.rule]} if p.rule in CURES else p.twin),
            p.n_ranks,
            False,
            p.told,
        )
        for p in PAIRS
        if not p.on_gpu and p.rule not in NO_CURE
    ]
    of_kernels = [
        Fault(rule, written("plain", fault), written("plain", twin), 1, True)
        for rule, (fault, twin) in CPU_PAIRS.items()
    ]
    return of_training + of_kernels


def promise(forked: Forked, fault: Fault) -> Finding | None:
    """What the doctor says of it; None where it does not see it."""
    visit = forked.visit(fault.script, STEPS, fault.n_ranks)
    assert visit.training is not None
    training = as_told(visit.training, fault.told)
    profile = forked.profile(fault.script) if fault.is_profiled else None
    machine = recorded("cpu_node", CPU_MENDED)
    findings, _ = examine(Case(machine, visit.run, training, profile=profile))
    return next((one for one in findings if one.rule == fault.rule), None)


def mean_step_s(forked: Forked, text: str, n_ranks: int, levers: dict[str, str]) -> float:
    run = forked.visit(text, STEPS, n_ranks, levers).run
    assert run.step_s is not None
    return run.step_s.mean


def measure(forked: Forked, fault: Fault, finding: Finding, rounds: int) -> Row:
    """Faulty and cured, in turns."""
    lever = LEVER.search(finding.cure)
    levers = {lever[1]: lever[2] or "on"} if lever else {}
    cured = fault.script if lever else fault.mended
    ratios = []
    for _ in range(rounds):
        before = mean_step_s(forked, fault.script, fault.n_ranks, {})
        ratios.append(before / mean_step_s(forked, cured, fault.n_ranks, levers))
    assert finding.gain is not None
    name = f"lever {lever[1]}={levers[lever[1]]}" if lever else "edit"
    return Row(fault.rule, finding.gain, median(ratios), min(ratios), max(ratios), name)


def ranks_of(values: list[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    ordered = sorted(values)
    first = {value: ordered.index(value) for value in values}
    return [first[value] + (ordered.count(value) + 1) / 2 for value in values]


def rank_correlation(rows: list[Row]) -> float:
    """Spearman's, of promised and real gains."""
    promised, real = [row.promised for row in rows], [row.real for row in rows]
    return correlation(ranks_of(promised), ranks_of(real))


def told(row: Row) -> str:
    """In a line."""
    spread = f"[{row.low:.2f}, {row.high:.2f}]"
    return (
        f"{row.rule:<22} promised {row.promised:6.2f}x  real {row.real:6.2f}x {spread}  {row.cure}"
    )


def report(rows: list[Row], left: dict[str, str], rounds: int, took_s: float) -> str:
    """What was measured, where and with which versions."""
    host = describe_host()
    lines = [
        "# The doctor's gains against what its cures bring: results",
        "",
        f"- Date: {datetime.now(UTC):%Y-%m-%d}. `gains.py --rounds {rounds}`, {took_s / 60:.0f} "
        f"minutes; {STEPS} steps a run, faulty and cured in turns; median, least and most",
        f"- Machine: {host.n_cpus_allocated} CPUs of {host.cpu_model}; torch {version('torch')}, "
        f"Python {platform.python_version()}",
    ]
    if len(rows) > 2:
        rho = rank_correlation(rows)
        lines.append(f"- Rank correlation over {len(rows)} faults: {rho:.3f} (required: 0.8)")
    lines += ["", "| rule | promised | real | least to most | cured by |", "|---|---|---|---|---|"]
    lines += [
        f"| `{row.rule}` | {row.promised:.2f} | {row.real:.2f} | {row.low:.2f} to {row.high:.2f} "
        f"| {row.cure} |"
        for row in sorted(rows, key=lambda row: -row.promised)
    ]
    for why in dict.fromkeys(left.values()):
        named = ", ".join(f"`{rule}`" for rule in left if left[rule] == why)
        lines += ["", f"Left out, as the fault {why}: {named}."]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--write", type=Path, help="a file for the table, written as it grows")
    arguments = parser.parse_args()
    wanted = set(filter(None, arguments.only.split(",")))
    rows, left, began = list[Row](), dict[str, str](), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        forked = Forked(Path(folder))
        for fault in faults():
            if wanted and fault.rule not in wanted:
                continue
            finding = promise(forked, fault)
            if finding is None or finding.gain is None:
                left[fault.rule] = "was not seen" if finding is None else "promises no number"
                print(f"{fault.rule:<22} {left[fault.rule]}", flush=True)
            else:
                rows.append(measure(forked, fault, finding, arguments.rounds))
                print(told(rows[-1]), flush=True)
            if arguments.write:
                took_s = time.monotonic() - began
                arguments.write.write_text(report(rows, left, arguments.rounds, took_s))
        forked.close()
    if len(rows) > 2:
        print(f"\nrank correlation over {len(rows)} faults: {rank_correlation(rows):.3f}")


if __name__ == "__main__":
    main()
