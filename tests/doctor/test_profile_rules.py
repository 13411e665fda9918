"""Rules on kernels: each fires on its fault and on nothing else.

On the CPU the profiles are real: a script with the fault, and its twin. For a GPU traces are put
together by hand (`device_trace.py`), each of a step of 1 ms, beside a real run of a script of which
the device is then told otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from device_cases import DEVICE_PAIRS, copied, exchange, gemm, many_kernels, reading, steps
from device_trace import STEP_US, profile_of
from forked import Forked
from recorded import recorded
from script_cases import GPU, MADE, STEP, TOP, WELL_TUNED, Edits, Pair, around_loss
from test_training_rules import as_told, written

from hotlap.doctor.examine import examine
from hotlap.doctor.limit import limits_of
from hotlap.doctor.rule import Case
from hotlap.doctor.rules import RULES, pageable_copies, syncs
from hotlap.doctor.script import read_script
from hotlap.doctor.training import Training
from hotlap.doctor.visit import with_profile
from hotlap.records.finding import Finding
from hotlap.records.profile import MemoryUse, Profile, RankProfile, RankWait, Site, Skew

LOOKING = [rule for rule in RULES if "profile" in rule.needs]
MENDED = {"software.torch.products.bfloat16": "usable"}
GIB = 2**30
PHASES = {"forward": 1.0}
"""Of the steps on a GPU: data and optimizer are a CPU's in the run beside them."""

# On the CPU ---------------------------------------------------------------------------------------

# Of many kinds, none of which takes more than the others: which one is slow differs between CPUs.
CHAIN = (
    "\n\nclass Chain(nn.Module):\n"
    "    def forward(self, x):\n"
    "        y = x + torch.zeros(N_TIMES, 1, 1)\n"
    "        for _ in range(N_ROUNDS):\n"
    "            y = nn.functional.leaky_relu(nn.functional.softshrink(y, 0.01))\n"
    "            y = nn.functional.hardswish(nn.functional.hardsigmoid(y))\n"
    "        return y.mean(0)\n\n\n"
)
OUTSIDE = (
    "\n\nclass Outside(nn.Linear):\n"
    "    def forward(self, x):\n"
    '        is_on = ENABLED and torch.is_autocast_enabled("cpu")\n'
    '        with torch.autocast("cpu", enabled=is_on):\n'
    "            return super().forward(x if is_on else x.float())\n\n\n"
)
BF16 = around_loss('torch.autocast("cpu", torch.bfloat16)')


def outside(is_enabled: bool) -> Edits:
    """The wide layer in autocast, or not."""
    return {
        **BF16,
        "batch_size=64": "batch_size=512",
        TOP: f"{OUTSIDE.replace('ENABLED', str(is_enabled))}{TOP}",
        "nn.Linear(1024, 1024)": "Outside(1024, 1024)",
    }


def chain(n_times: int, n_rounds: int) -> Edits:
    """Activations of so many times the size that they have, one after the other."""
    made = CHAIN.replace("N_TIMES", str(n_times)).replace("N_ROUNDS", str(n_rounds))
    return {
        TOP: f"{made}{TOP}",
        "nn.ReLU(), nn.Linear(1024, 1024)": "Chain(), nn.Linear(1024, 1024)",
    }


CPU_PAIRS: dict[str, tuple[Edits, Edits]] = {
    "dominant_op": (
        {MADE: f"{MADE}long = torch.rand(500_000)\n", STEP: f"{STEP}        torch.sort(long)\n"},
        {MADE: f"{MADE}long = torch.rand(20)\n", STEP: f"{STEP}        torch.sort(long)\n"},
    ),
    "copies": (
        {MADE: f"{MADE}big = torch.randn(3000, 3000)\n", STEP: f"{STEP}        big.t().clone()\n"},
        {MADE: f"{MADE}big = torch.randn(30, 30)\n", STEP: f"{STEP}        big.t().clone()\n"},
    ),
    "elementwise": (chain(40, 3), chain(1, 1)),
    "autocast_missed": (outside(False), outside(True)),
}


class Clinic:
    """One real run of the plain script, and profiles of its variants."""

    def __init__(self, root: Path) -> None:
        self.root, self._forked = root, Forked(root)
        self._trainings: dict[str, Training] = {}

    def close(self) -> None:
        self._forked.close()

    def training(self, edits: Edits) -> Training:
        text = written("plain", edits)
        if text not in self._trainings:
            training = self._forked.visit(text, 20).training
            assert training is not None
            self._trainings[text] = training
        return self._trainings[text]

    def on_cpu(self, edits: Edits) -> tuple[Finding, ...]:
        training = self.training(edits)
        profile = self.profile(edits)
        machine = recorded("cpu_node", MENDED)
        return found(Case(machine, training.run, training, profile=profile))

    def above_notes(self, base: str, edits: Edits) -> set[str]:
        """What `hotlap doctor` finds in a script, by rule."""
        text, n_ranks = written(base, edits), Pair("none", base).n_ranks
        visit = self._forked.visit(text, 20, n_ranks)
        visit = with_profile(visit, self._forked.profile(text, n_ranks))
        case = Case(recorded("cpu_node", MENDED), visit.run, visit.training, profile=visit.profile)
        findings, notes = examine(case)
        assert notes == ()
        assert case.kernels is not None
        return {finding.rule for finding in findings if finding.severity != "note"}

    def profile(self, edits: Edits) -> Profile:
        return self._forked.profile(written("plain", edits))

    def on_gpu(self, rank: RankProfile, facts: dict[str, Any]) -> Case:
        told = {**GPU, "step.mean": STEP_US / 1e6, "workload.phases_s": PHASES, **facts}
        training = as_told(self.training({}), told)
        profile = Profile("", (), "", (rank,), None, ())
        return Case(recorded("gpu_node", {}), training.run, training, profile=profile)


def found(case: Case) -> tuple[Finding, ...]:
    findings, notes = examine(case, [*LOOKING, syncs.RULE])
    assert notes == ()
    return findings


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    clinic = Clinic(tmp_path_factory.mktemp("profiles"))
    yield clinic
    clinic.close()


@pytest.mark.needs_quiet
@pytest.mark.parametrize("rule", CPU_PAIRS)
def test_a_rule_fires_on_its_fault_on_a_cpu(clinic: Clinic, rule: str) -> None:
    findings = clinic.on_cpu(CPU_PAIRS[rule][0])
    assert {finding.rule for finding in findings} == {rule}
    assert all(finding.evidence and finding.cure for finding in findings)


@pytest.mark.needs_quiet
@pytest.mark.parametrize("rule", CPU_PAIRS)
def test_nothing_fires_on_the_twin_on_a_cpu(clinic: Clinic, rule: str) -> None:
    assert clinic.on_cpu(CPU_PAIRS[rule][1]) == ()


@pytest.mark.needs_quiet
def test_the_line_of_a_costly_operation_is_named(clinic: Clinic) -> None:
    (finding,) = clinic.on_cpu(CPU_PAIRS["dominant_op"][0])
    text = written("plain", CPU_PAIRS["dominant_op"][0]).splitlines()
    line = next(i for i, one in enumerate(text, 1) if "torch.sort" in one)
    assert f"train.py:{line}" in finding.cure
    assert finding.gain is not None
    assert finding.gain > 1.2


@pytest.mark.parametrize("name", WELL_TUNED)
def test_a_well_tuned_script_has_no_finding_above_a_note(clinic: Clinic, name: str) -> None:
    """Of all rules; what other work on the machine can make of a short run is not there twice."""
    found = clinic.above_notes(*WELL_TUNED[name])
    assert not found or not found & clinic.above_notes(*WELL_TUNED[name])


# On a GPU -----------------------------------------------------------------------------------------


COPYING = "for x in data:\n    model.train()\n    x = x.to(device)\n    model(x).backward()\n"


def written_to(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("rule", DEVICE_PAIRS)
def test_a_rule_fires_on_its_fault_on_a_gpu(clinic: Clinic, tmp_path: Path, rule: str) -> None:
    pair = DEVICE_PAIRS[rule]
    findings = found(clinic.on_gpu(profile_of(steps(pair.fault), tmp_path), pair.told))
    assert {finding.rule for finding in findings} == {rule}
    assert all(finding.evidence and finding.cure for finding in findings)
    assert all(finding.gain is None or finding.gain > 1 for finding in findings)


@pytest.mark.parametrize("rule", DEVICE_PAIRS)
def test_nothing_fires_on_the_twin_on_a_gpu(clinic: Clinic, tmp_path: Path, rule: str) -> None:
    pair = DEVICE_PAIRS[rule]
    assert found(clinic.on_gpu(profile_of(steps(pair.twin), tmp_path), pair.told)) == ()


@pytest.mark.parametrize(("pieces", "expected"), [(30, {"fragmentation"}), (2, set())])
def test_memory_in_pieces_is_found_where_it_is_nearly_full(
    clinic: Clinic, tmp_path: Path, pieces: int, expected: set[str]
) -> None:
    memory = MemoryUse(None, None, None, None, None, pieces * GIB, 100 * GIB, None, 0)
    rank = profile_of(steps(gemm(1408, 1536, 4096)), tmp_path)
    case = clinic.on_gpu(replace(rank, memory=memory), {})
    assert {finding.rule for finding in found(case)} == expected


@pytest.mark.parametrize(
    ("memory", "expected"), [("Pageable", {"pageable_copies"}), ("Pinned", set())]
)
def test_batches_that_no_loader_brings_are_seen_in_the_profile(
    clinic: Clinic, tmp_path: Path, memory: str, expected: set[str]
) -> None:
    rank = profile_of(steps(copied(memory)), tmp_path)
    phases = {"transfer": 0.28, "forward": 0.72}
    case = clinic.on_gpu(rank, {"workload.loaders": (), "workload.phases_s": phases})
    findings, notes = examine(case, [*LOOKING, syncs.RULE, pageable_copies.RULE])
    assert notes == ()
    assert {finding.rule for finding in findings} == expected
    for finding in findings:  # a machine that copies 9 GB/s, and 55 from pinned memory
        assert finding.gain == pytest.approx(1 / (1 - 0.28 * (1 - 9 / 55)))
        assert finding.cure.endswith("non_blocking=True for the copies")


def test_a_wait_for_a_copy_of_a_batch_is_left_to_the_rules_on_those(
    clinic: Clinic, tmp_path: Path
) -> None:
    """The script's line 7 waits in both; in one it is a copy to the device."""
    rank = profile_of(steps(reading(True)), tmp_path)
    case = clinic.on_gpu(rank, {})
    assert {finding.rule for finding in found(case)} == {"syncs"}
    copying = read_script([written_to(tmp_path / "train.py", "\n" * 4 + COPYING)])
    (_, copy), *_ = copying.copies()
    assert copy.lineno == 7
    site = Site(str(tmp_path / "train.py"), 7, "main", "")
    (sync,) = (one for one in rank.syncs if one.site is not None)
    told = replace(rank, syncs=(replace(sync, site=site),))
    assert found(clinic.on_gpu(told, {})) != ()
    assert found(clinic.on_gpu(told, {"script": copying})) == ()


def test_every_rule_on_kernels_has_a_case() -> None:
    assert {*CPU_PAIRS, *DEVICE_PAIRS, "fragmentation"} == {
        *(rule.name for rule in LOOKING),
        "syncs",
    }


def test_a_profiler_that_slows_the_host_makes_no_gaps(clinic: Clinic, tmp_path: Path) -> None:
    """Kernels fill 240 µs of a profiled millisecond; the true step is hardly longer than that."""
    rank = profile_of(steps(many_kernels(12)), tmp_path)
    assert found(clinic.on_gpu(rank, {"step.mean": 250e-6})) == ()


def test_waits_for_a_late_rank_are_no_exchange(clinic: Clinic, tmp_path: Path) -> None:
    """Of 250 µs in a collective this rank waits for 200: what is left is 5 % of the step."""
    rank = profile_of(steps(exchange(725, 700)), tmp_path)
    case = clinic.on_gpu(rank, {})
    waits = (RankWait(0, 1e-3, 250e-6, 200e-6), RankWait(1, 1e-3, 50e-6, 0.0))
    skew = Skew(50e-6, 100e-6, 1, waits)
    assert case.profile is not None
    assert case.training is not None
    late = replace(case, profile=replace(case.profile, skew=skew))
    assert {finding.rule for finding in found(case)} == {"exposed_communication"}
    assert found(late) == ()
    limits = {one.name: one.share for one in limits_of(case.training, late.kernels, skew)}
    assert limits["imbalance"] == pytest.approx(0.2, abs=0.01)
    assert limits["communication"] == pytest.approx(0.05, abs=0.01)


def test_what_happens_once_a_step_is_told_so(clinic: Clinic, tmp_path: Path) -> None:
    (finding,) = found(
        clinic.on_gpu(profile_of(steps(DEVICE_PAIRS["dominant_op"].fault), tmp_path), {})
    )
    assert finding.evidence[-1] == "launched once a step"


def test_the_gain_is_what_the_finding_says_is_lost(clinic: Clinic, tmp_path: Path) -> None:
    def gain(rule: str) -> float:
        case = clinic.on_gpu(profile_of(steps(DEVICE_PAIRS[rule].fault), tmp_path), {})
        (finding,) = found(case)
        assert finding.gain is not None
        return finding.gain

    assert gain("exposed_communication") == pytest.approx(1 / (1 - 0.25), rel=0.01)
    assert gain("launch_gaps") == pytest.approx(1000 / 240, rel=0.05)
    assert gain("dominant_op") == pytest.approx(1 / 0.6, rel=0.01)
    # 143 tiles are two waves of 132 multiprocessors: 121 tiles' worth of them stand idle.
    assert gain("waves") == pytest.approx(1 / (1 - 0.96 * 121 / 264), rel=0.01)


# What limits --------------------------------------------------------------------------------------


def test_what_the_step_is_spent_on_adds_up_on_a_gpu(clinic: Clinic, tmp_path: Path) -> None:
    case = clinic.on_gpu(profile_of(steps(exchange(725, 700)), tmp_path), {})
    assert case.training is not None
    limits = {one.name: one.share for one in limits_of(case.training, case.kernels, None)}
    assert limits["communication"] == pytest.approx(0.25, abs=0.01)
    assert limits["kernels of unknown bound"] == pytest.approx(0.7, abs=0.01)  # no roof is known
    assert sum(limits.values()) == pytest.approx(1, abs=0.02)


def test_what_the_step_is_spent_on_adds_up_on_a_cpu(clinic: Clinic) -> None:
    training = clinic.training({})
    without = limits_of(training, None, None)
    assert sum(one.share for one in without) == pytest.approx(1, abs=0.03)
    assert without[0].name == "computing"
    profile = clinic.profile({})
    case = Case(recorded("cpu_node", MENDED), training.run, training, profile=profile)
    looked = limits_of(training, case.kernels, None)
    assert sum(one.share for one in looked) == pytest.approx(1, abs=0.1)
