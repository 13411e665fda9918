"""Every rule on a training fires on its fault and on nothing else, and not on well-tuned ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import Forked
from recorded import recorded
from script_cases import GPU, OPTIMIZER, PAIRS, SLOW, Edits, Pair

from hotlap.doctor.examine import examine
from hotlap.doctor.habits import Call, Habits
from hotlap.doctor.rule import Case
from hotlap.doctor.rules import RULES
from hotlap.doctor.training import Training
from hotlap.doctor.visit import Visit
from hotlap.levers.common.workload import Site
from hotlap.records.finding import Finding
from hotlap.records.severity import SEVERITIES

SCRIPTS = Path(__file__).parent / "scripts"
CPU_MENDED = {"software.torch.products.bfloat16": "usable"}
STEPS = 20
SITE = Site("train.py", 1)


def written(base: str, edits: Edits) -> str:
    """A script with some of its text changed; each change must find its place."""
    text = (SCRIPTS / f"{base}.py").read_text()
    for old, new in edits.items():
        assert text.count(old) >= 1, f"{base}.py has no {old!r}"
        text = text.replace(old, new, 1)
    return text


def told(value: Any, path: list[str], new: Any) -> Any:
    """A copy of a value with another one at a path."""
    if not path:
        return new
    name, *rest = path
    if isinstance(value, tuple):
        i = int(name)
        return (*value[:i], told(value[i], rest, new), *value[i + 1 :])
    if isinstance(value, dict):
        return {**value, name: told(value.get(name), rest, new)}
    return dataclasses.replace(value, **{name: told(getattr(value, name), rest, new)})


def as_told(training: Training, facts: dict[str, Any]) -> Training:
    for path, new in facts.items():
        if path == "habits.calls":
            new = tuple(Call(name, SITE, True, n, seconds) for name, n, seconds in new)
        training = told(training, path.split("."), new)
    return training


class Clinic:
    """Runs each script once, however many pairs have it; and again to confirm what it found.

    Other work on the machine can make any phase of a short run look long. A finding that was not
    expected counts if a second run of the script has it too.
    """

    def __init__(self, forked: Forked) -> None:
        self._forked, self._visits = forked, dict[tuple[str, int], Visit]()

    def visit(self, text: str, n_ranks: int = 1, again: bool = False) -> Visit:
        key = (text, n_ranks)
        if key not in self._visits or again:
            self._visits[key] = self._forked.visit(text, STEPS, n_ranks)
        return self._visits[key]

    def findings(self, pair: Pair, has_fault: bool) -> tuple[Finding, ...]:
        expected = {pair.rule} if has_fault else set()
        found = self._examine(pair, has_fault, again=False)
        if {finding.rule for finding in found} <= expected:
            return found
        before = {finding.rule for finding in found}
        return tuple(f for f in self._examine(pair, has_fault, again=True) if f.rule in before)

    def _examine(self, pair: Pair, has_fault: bool, again: bool) -> tuple[Finding, ...]:
        text = written(pair.base, pair.fault if has_fault else pair.twin)
        visit = self.visit(text, pair.n_ranks, again)
        assert visit.training is not None
        machine = "gpu_node" if pair.on_gpu else pair.machine
        facts = {**(GPU if pair.on_gpu else {}), **(pair.told if has_fault else pair.twin_told)}
        training = as_told(visit.training, facts)
        mended = CPU_MENDED if machine == "cpu_node" else {}
        found, notes = examine(Case(recorded(machine, mended), training.run, training))
        assert notes == ()
        return found


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    forked = Forked(tmp_path_factory.mktemp("visits"))
    yield Clinic(forked)
    forked.close()


def named(pair: Pair) -> str:
    return pair.rule


@pytest.mark.parametrize("pair", PAIRS, ids=named)
def test_a_rule_fires_on_its_fault_and_no_other_rule_does(clinic: Clinic, pair: Pair) -> None:
    found = clinic.findings(pair, has_fault=True)
    assert {finding.rule for finding in found} == {pair.rule}
    for finding in found:
        assert finding.severity in SEVERITIES
        assert finding.summary
        assert finding.cure
        assert finding.evidence
        assert all(text and "None" not in text for text in (finding.summary, *finding.evidence))
        assert finding.gain is None or finding.gain >= 1


# With a thread on every core, what runs beside it makes its steps irregular, as the doctor says.
TWINS = [
    pytest.param(pair, marks=pytest.mark.needs_quiet) if pair.rule == "threads_script" else pair
    for pair in PAIRS
]


@pytest.mark.parametrize("pair", TWINS, ids=named)
def test_nothing_fires_on_the_twin_without_the_fault(clinic: Clinic, pair: Pair) -> None:
    assert clinic.findings(pair, has_fault=False) == ()


def test_every_rule_on_a_training_has_a_case() -> None:
    of_training = {r.name for r in RULES if "training" in r.needs and "profile" not in r.needs}
    assert {pair.rule for pair in PAIRS} == of_training


NOTHING_YET = {
    "shapes": [],
    "memory": [],
    "evaluation": {"n_without_backward": 0, "n_with_backward": 0, "site": None},
    "settings": {},
    "backward": {"n": 0, "n_in_autocast": 0, "n_retaining": 0, "site": None},
    "updates": {"n_updates": 0, "n_without_gradient": 0, "n_parameters": 0, "n_scaled": 0,
                "n_skipped": 0},
    "compiled": {"n_graphs": 0, "breaks": {}, "n_again": 0, "again_s": 0.0, "again": []},
    "opens": {"n": 0, "folder": ""},
}  # fmt: skip
"""What a process tells in its first step; one that is killed tells nothing else."""


@pytest.mark.parametrize("base", ["plain", "images", "text"])
@pytest.mark.parametrize("is_told", [True, False])
def test_a_process_that_was_killed_has_no_fault_for_it(
    clinic: Clinic, base: str, is_told: bool
) -> None:
    training = clinic.visit(written(base, {})).training
    assert training is not None
    early = Habits(
        files=training.habits.files, facts={**NOTHING_YET, "layers": training.habits.layers}
    )
    cut = dataclasses.replace(training, habits=early if is_told else Habits())
    for device in ({}, GPU):
        machine = "gpu_node" if device else "cpu_node"
        case = Case(recorded(machine, CPU_MENDED), training.run, as_told(cut, device))
        found, notes = examine(case)
        assert notes == ()
        assert [finding.rule for finding in found if finding.severity != "note"] == []


def finding_of(clinic: Clinic, rule: str) -> tuple[Finding, Training]:
    pair = next(pair for pair in PAIRS if pair.rule == rule)
    (finding,) = clinic.findings(pair, has_fault=True)
    training = clinic.visit(written(pair.base, pair.fault), pair.n_ranks).training
    assert training is not None
    return finding, as_told(training, pair.told)


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("loader_workers", "loader = DataLoader("),
        ("prints", "print(inputs)"),
        ("collects", "gc.collect()"),
        ("saves", "torch.save("),
        ("array_lists", "torch.tensor([numpy"),
        ("keeps_graph", "total += loss"),
        ("zero_grad", "optimizer.zero_grad(set_to_none=False)"),
        ("retain_graph", "loss.backward(retain_graph=True)"),
        ("validation_grad", "n_right += (model("),
        ("anomaly", "set_detect_anomaly(True)"),
        ("slow_optimizer", "optimizer = torch.optim.AdamW"),
        ("backward_in_autocast", "loss.backward()"),
        ("scaler_with_bf16", "GradScaler("),
        ("conv_bias", "nn.Conv2d("),
        ("attention_by_hand", "def forward(self, x):"),
        ("data_parallel", "nn.DataParallel(model)"),
        ("threads_script", "set_num_threads(1)"),
        ("accumulation_sync", "            loss.backward()"),
        ("find_unused", "model = DistributedDataParallel("),
    ],
)
def test_a_finding_names_the_line(clinic: Clinic, rule: str, line: str) -> None:
    finding, training = finding_of(clinic, rule)
    (script,) = [file for file in training.script.files if file.path.endswith("train.py")]
    text = Path(script.path).read_text().splitlines()
    numbers = [i for i, one in enumerate(text, 1) if line in one]
    told_lines = " ".join((*finding.evidence, finding.cure))
    assert f"train.py:{numbers[0]}" in told_lines


def test_gains_follow_from_what_was_measured(clinic: Clinic) -> None:
    finding, training = finding_of(clinic, "loader_workers")
    share = training.share("data")
    left = max(1 - share, share / training.workload.n_cpus)
    assert finding.gain == pytest.approx(1 / left)
    finding, training = finding_of(clinic, "slow_optimizer")
    assert finding.gain == pytest.approx(1 / (1 - 0.5 * training.share("optimizer")))
    finding, training = finding_of(clinic, "saves")
    saved_s = sum(call.total_s for call in training.habits.calls if call.name == "torch.save")
    share = saved_s / (training.habits.n_steps - 1) / training.step.mean
    assert finding.gain == pytest.approx(1 / (1 - share))
    finding, training = finding_of(clinic, "loop_overhead")
    assert finding.gain == pytest.approx(1 / (1 - training.share("other")), rel=0.1)
    finding, training = finding_of(clinic, "scaler_skips")
    assert finding.gain == pytest.approx(2, rel=0.1)
    finding, training = finding_of(clinic, "straggler")
    assert finding.gain is not None
    assert finding.gain > 1.2


def test_a_large_gain_comes_first(clinic: Clinic) -> None:
    edits = {**SLOW, OPTIMIZER: "torch.optim.AdamW(model.parameters(), lr=1e-4)"}
    found = clinic.findings(Pair("none", "plain", fault=edits), has_fault=True)
    gains = [finding.gain for finding in found if finding.gain is not None]
    assert found[0].rule == "loader_workers"
    assert gains == sorted(gains, reverse=True)
