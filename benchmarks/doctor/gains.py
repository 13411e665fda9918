"""The doctor's gains against what its cures really bring, on the scripts with planted faults.

    python benchmarks/doctor/gains.py [--rounds 5] [--only rule,rule]

For every rule on a training whose fault can be had on a CPU: the faulty script is visited once, as
`hotlap doctor` does, for the gain that the finding promises. Then the script as it is and the cured
one are run in turns. Cured is: with the lever that the finding names, or, where it names an edit,
the script with that edit. The ratio of their mean steps is what the cure brings; its spread is that
of the rounds. What counts is the order: Spearman's rank correlation of promised and real gains.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import correlation, median

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "doctor")]

from forked import Forked  # noqa: E402
from recorded import recorded  # noqa: E402
from script_cases import PAIRS  # noqa: E402
from test_profile_rules import CPU_PAIRS  # noqa: E402
from test_training_rules import CPU_MENDED, written  # noqa: E402

from hotlap.doctor.examine import examine  # noqa: E402
from hotlap.doctor.rule import Case  # noqa: E402
from hotlap.records.finding import Finding  # noqa: E402

STEPS = 40
LEVER = re.compile(r"`hotlap run --levers (\w+)(?:=([\w-]+))?`")
NO_CURE = {
    "workers_few": "needs more CPUs than a small machine has",
    "cpus_too_slow": "its cure is other data or another machine",
    "many_files": "its cure is another format of the data",
    "straggler": "its cure is another node",
    "scaler_skips": "its gain is in updates that count, not in steps",
}
"""Whose twin is not the script after the cure."""


@dataclass(frozen=True)
class Fault:
    rule: str
    script: str
    mended: str
    n_ranks: int
    is_profiled: bool


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
        )
        for p in PAIRS
        if not p.on_gpu and not p.told and p.rule not in NO_CURE
    ]
    of_kernels = [
        Fault(rule, written("plain", fault), written("plain", twin), 1, True)
        for rule, (fault, twin) in CPU_PAIRS.items()
    ]
    return of_training + of_kernels


def promise(forked: Forked, fault: Fault) -> Finding | None:
    """What the doctor says of it; None where it promises no number."""
    visit = forked.visit(fault.script, STEPS, fault.n_ranks)
    profile = forked.profile(fault.script) if fault.is_profiled else None
    machine = recorded("cpu_node", CPU_MENDED)
    findings, _ = examine(Case(machine, visit.run, visit.training, profile=profile))
    found = next((one for one in findings if one.rule == fault.rule), None)
    return found if found is not None and found.gain is not None else None


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    wanted = set(filter(None, arguments.only.split(",")))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        forked = Forked(Path(folder))
        for fault in faults():
            if wanted and fault.rule not in wanted:
                continue
            finding = promise(forked, fault)
            if finding is None:
                print(f"{fault.rule:<22} promises no number", flush=True)
                continue
            rows.append(measure(forked, fault, finding, arguments.rounds))
            row = rows[-1]
            print(
                f"{row.rule:<22} promised {row.promised:6.2f}x  real {row.real:6.2f}x "
                f"[{row.low:.2f}, {row.high:.2f}]  {row.cure}",
                flush=True,
            )
        forked.close()
    if len(rows) > 2:
        rho = correlation(
            ranks_of([row.promised for row in rows]), ranks_of([row.real for row in rows])
        )
        print(f"\nrank correlation over {len(rows)} faults: {rho:.3f}")


if __name__ == "__main__":
    main()
