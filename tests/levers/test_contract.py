"""What every lever promises, on one small training: its description, its effect, its way back."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import pytest
from running import Result, environment, run_hotlap
from witness import NAME

import hotlap.levers
from hotlap.levers import LEVERS
from hotlap.levers.common.edits import Edit, apply_edits, can_apply, describe
from hotlap.levers.common.inside import Orders
from hotlap.levers.common.lever import ANYTHING, Changes, Lever, Risk
from hotlap.levers.common.loaders import given_workers
from hotlap.levers.common.workload import Events, Workload, read_events, workload_from
from hotlap.machine.host import describe_host

HERE = Path(__file__).parent
EXAMPLE = HERE / "example_training.py"
WITNESS = str(HERE / "witness.py")
BY_NAME = {lever.name: lever for lever in LEVERS}
PHASES = {"data", "transfer", "forward", "backward", "optimizer", "other"}
N_STEPS = 12
ONLY_THE_FIRST_EPOCH = {"persistent_workers": 8}
"""Levers whose edit gives a shuffled loader another order from the next epoch on, and after how
many steps; the lever itself does not."""
ONLY_IN_WORDS = {"checkpointing"}
"""Levers for the CPU whose edit depends on the inside of the model, and cannot be made for it."""
NONSENSE = ("banana", "", "off", "false", "0", "-1", "x0", "nan", "bucket_0mb")
"""Values of no lever: 'off' leaves it out before it is asked."""
N_COMPARED = 10
"""First losses that a bound is about."""
N_FOR_CPUS = 12
"""So many levers, at least, have something to do in the example on any CPU, with or without bf16
instructions, a second core or a compiler."""
N_CPUS = describe_host().n_cpus_allocated or 1
PLAIN = {"OMP_NUM_THREADS": str(min(2, N_CPUS)), "OMP_WAIT_POLICY": "PASSIVE"}
"""More than one thread, where that is possible: some levers are about threads. They do not spin
while they wait, for other runs are beside them."""
EACH = pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever.name)

pytestmark = pytest.mark.timeout(600)


@dataclass
class Trial:
    """One run of the example with a lever, or with its edit, on the way or done."""

    result: Future[Result]

    @cached_property
    def events(self) -> Events:
        """Of the levers alone: what the witness told is in `facts`."""
        events = read_events(self.result.result().folder)
        done = {name: what for name, what in events.done.items() if name != NAME}
        return replace(events, done=done)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the training was made of, as the witness read it off."""
        told = read_events(self.result.result().folder).done[NAME]
        facts: dict[str, Any] = {}
        for one in told:
            facts |= json.loads(one)
        assert facts.keys() == {"loader", "input", "model", "optimizer", "process", "environment"}
        return facts

    @property
    def losses(self) -> list[float]:
        done = self.result.result()
        assert done.code == 0, done.stderr.decode()
        losses: list[float] = done.run["loss"]
        assert len(losses) == N_STEPS
        return losses


@dataclass
class Bench:
    """Runs the example, two at a time: most of a short run is the import of torch."""

    folder: Path
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2))
    with_settings: dict[frozenset[tuple[str, str]], Trial] = field(default_factory=dict)
    with_edit: dict[str, Trial] = field(default_factory=dict)

    def start(self, name: str, variables: Mapping[str, str], script: Path = EXAMPLE) -> Trial:
        """Have the example run in a folder of its own."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        options = ("--quiet", "--steps", str(N_STEPS), "--warmup", "0")
        env = {**PLAIN, **variables}
        words = (str(script),)
        return Trial(
            self.pool.submit(
                run_hotlap, *words, folder=folder, cwd=folder, options=options, env=env
            )
        )

    @cached_property
    def baseline(self) -> Trial:
        """Without levers."""
        return self.start("baseline", Orders(is_trial=True).to_environment())

    @cached_property
    def workload(self) -> Workload:
        """What the baseline was seen to do."""
        run = self.baseline.result.result().run
        return workload_from(self.baseline.events, run["phases_s"], N_CPUS, 1, cpu_flags())

    def settings(self, lever: Lever, workload: Workload | None = None) -> dict[str, str]:
        """A lever's first value, and those of the levers that it is nothing without."""
        workload = workload or self.workload
        needed = [name for name in lever.needs if BY_NAME[name].applies(workload).yes]
        names = (*needed, *lever.only_with(workload), lever.name)
        return {name: BY_NAME[name].values(workload)[0] for name in names}

    def edits(self, lever: Lever) -> list[Edit]:
        """The edits of a lever and of those it needs."""
        settings, workload = self.settings(lever), self.workload
        given = given_workers(workload, int(settings.get("workers", 0)))
        return [
            edit
            for name, value in settings.items()
            for edit in BY_NAME[name].edit(value, workload if name == "workers" else given)
        ]

    def start_lever(self, lever: Lever) -> None:
        """Run with the lever, and with its edit where that can be made."""
        self.trial(self.settings(lever))
        if not in_words_only(self.edits(lever)):
            self.with_edit[lever.name] = self._start_edit(lever)

    def with_lever(self, lever: Lever) -> Trial:
        """With the lever, and those that it is nothing without."""
        return self.trial(self.settings(lever))

    def without_lever(self, lever: Lever) -> Trial:
        """With those alone that it is nothing without: the example as it is, for most."""
        settings = self.settings(lever)
        del settings[lever.name]
        return self.trial(settings)

    def trial(self, settings: Mapping[str, str]) -> Trial:
        """The run with some levers, and the witness behind them; the same ones run once."""
        key = frozenset(settings.items())
        if key not in self.with_settings:
            variables: dict[str, str] = {}
            for name, value in settings.items():
                variables |= BY_NAME[name].environment(value, self.workload)
            variables |= witnessed(settings)
            self.with_settings[key] = self.start(
                f"levers/{'+'.join(settings) or 'none'}", variables
            )
        return self.with_settings[key]

    def _start_edit(self, lever: Lever) -> Trial:
        edits = self.edits(lever)
        variables = dict(pair for e in edits if e.kind == "environment" for pair in e.arguments)
        script = self.folder / f"{lever.name}.py"
        script.write_text(apply_edits(edits).get(str(EXAMPLE), EXAMPLE.read_text()))
        return self.start(f"edit/{lever.name}", variables | witnessed({}), script)


def witnessed(settings: Mapping[str, str]) -> dict[str, str]:
    """The variables that have these levers applied, and the witness behind them."""
    return Orders({**settings, NAME: "on"}, lever_files=(WITNESS,)).to_environment()


def in_words_only(edits: list[Edit]) -> list[Edit]:
    """Those that a person has to make."""
    return [edit for edit in edits if edit.kind != "environment" and not can_apply(edit)]


def cpu_flags() -> list[str]:
    """What the CPU can do."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return match[1].split() if match else []


@pytest.fixture(scope="module")
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    """All runs that the chosen tests look at; they are started at once."""
    bench = Bench(tmp_path_factory.mktemp("levers"))
    chosen = [
        item for item in request.session.items if "bench" in getattr(item, "fixturenames", ())
    ]
    names = {i.callspec.params["lever"].name for i in chosen if hasattr(i, "callspec")}
    for lever in LEVERS:
        if lever.name in names and lever.applies(bench.workload).yes:
            bench.start_lever(lever)
    yield bench
    bench.pool.shutdown(cancel_futures=True)


def on_gpu(workload: Workload) -> Workload:
    """The same training, had it run on a GPU."""
    inputs = [[[32, 3, 16, 16], "float32", "cuda"]]
    models = tuple(replace(one, facts={**one.facts, "inputs": inputs}) for one in workload.models)
    return replace(
        workload, device="cuda", device_name="NVIDIA H200", capability=(9, 0), models=models
    )


def any_settings(lever: Lever, bench: Bench) -> dict[str, str] | None:
    """Values for this training, or for one on a GPU, if there are any."""
    for workload in (bench.workload, on_gpu(bench.workload)):
        if lever.values(workload):
            return bench.settings(lever, workload)
    return None


@pytest.fixture(scope="module")
def outcomes(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By lever: what `apply_and_undo.py` saw of it; a lever that ended the process is missing."""
    results = tmp_path_factory.mktemp("outcomes") / "results.jsonl"
    by_lever = {lever.name: any_settings(lever, bench) for lever in LEVERS}
    wanted = {name: settings for name, settings in by_lever.items() if settings}
    variables = {"OMP_NUM_THREADS": "1"}
    for name in {name for lever in LEVERS for name in lever.needs}:
        if BY_NAME[name].applies(bench.workload).yes:
            value = BY_NAME[name].values(bench.workload)[0]
            variables |= BY_NAME[name].environment(value, bench.workload)
    results.touch()
    while wanted:
        words = [sys.executable, "apply_and_undo.py", json.dumps(wanted), str(results)]
        done = subprocess.run(words, cwd=HERE, env=environment(variables), timeout=300)
        told = {json.loads(line)["lever"] for line in results.read_text().splitlines()}
        left = [name for name in wanted if name not in told]
        assert left or done.returncode == 0
        wanted = {name: wanted[name] for name in left[1:]}  # the first of them ended the process
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    return {line["lever"]: line for line in lines}


@pytest.fixture
def outcome(lever: Lever, bench: Bench, outcomes: dict[str, Any]) -> Any:
    """Of one lever; None where it has no value for this training, neither here nor on a GPU."""
    if any_settings(lever, bench) is None:
        return None
    assert lever.name in outcomes, "it ended the process"
    return outcomes[lever.name]


def says_why_not(lever: Lever, bench: Bench) -> bool:
    """Whether it does not apply here; then it has told the reason, and nothing was run."""
    decision = lever.applies(bench.workload)
    if not decision.yes:
        assert len(decision.reason.split()) >= 4
        assert not any(name == lever.name for key in bench.with_settings for name, _ in key)
    return not decision.yes


def test_every_file_is_listed() -> None:
    folder = Path(hotlap.levers.__file__).parent
    files = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    assert sorted(BY_NAME) == files
    assert len(LEVERS) == len(BY_NAME)


@EACH
def test_the_description_is_complete(lever: Lever, bench: Bench) -> None:
    module = sys.modules[lever.applies.__module__]
    card = [line for line in (module.__doc__ or "").splitlines() if line.strip()]
    assert lever.name == module.__name__.rpartition(".")[2]
    assert len(card) >= 2
    assert lever.summary.strip()
    assert not lever.summary.endswith(".")
    assert "\n" not in lever.summary
    assert lever.changes in get_args(Changes)
    assert lever.risk in get_args(Risk)
    assert set(lever.phases) <= PHASES
    assert lever.phases or lever.saves_memory
    assert (lever.bound > 0) == (lever.changes == "rounding")
    partners = (f(on_gpu(bench.workload)) for f in (lever.only_with, lever.best_with))
    named = {*lever.needs, *lever.instead_of, *itertools.chain(*partners)}
    assert named <= BY_NAME.keys() - {lever.name}
    assert all(isinstance(value, str) for value in lever.values(bench.workload))


@EACH
def test_it_takes_its_own_values_and_no_nonsense(lever: Lever, bench: Bench) -> None:
    assert lever.takes is not ANYTHING
    workloads = (bench.workload, on_gpu(bench.workload), Workload(n_cpus=8))
    own = {value for workload in workloads for value in lever.values(workload)}
    assert [value for value in own if not lever.takes.accepts(value)] == []
    assert [value for value in NONSENSE if lever.takes.accepts(value)] == []
    assert lever.takes.expected


@EACH
@pytest.mark.parametrize("where", ["here", "on a GPU", "nothing seen"])
def test_it_decides_with_a_reason(lever: Lever, bench: Bench, where: str) -> None:
    workloads = {"here": bench.workload, "on a GPU": on_gpu(bench.workload)}
    workload = workloads.get(where, Workload())
    decision = lever.applies(workload)
    assert " " in decision.reason
    assert "\n" not in decision.reason
    assert not decision.reason.endswith(".")
    values = lever.values(workload)
    assert values or not decision.yes
    for value in values:
        assert all(isinstance(text, str) for text in lever.environment(value, workload).values())
        # Some have an edit together with the lever `workers` only.
        edits = lever.edit(value, workload) or lever.edit(value, given_workers(workload, 1))
        assert edits or not decision.yes
        assert all(describe(edit).strip() and "\n" not in describe(edit) for edit in edits)


@EACH
def test_taken_back_and_applied_again_it_has_its_effect_once(lever: Lever, outcome: Any) -> None:
    if outcome is None:
        assert lever.values(Workload()) == ()
        return
    first, again = ({**one} for one in outcome["rounds"])
    for one in (first, again):  # counts of objects differ
        one["done"] = [re.sub(r"\d+", "N", text) for text in one["done"]]
    assert first == again
    assert len(set(first["done"])) == len(first["done"]), "it tells the same change twice"


@EACH
def test_undo_leaves_torch_as_it_was(lever: Lever, outcome: Any) -> None:
    if outcome is None:
        assert lever.values(Workload()) == ()
        return
    assert [one["left"] for one in outcome["rounds"]] == [[], []]
    assert outcome["after_undo"] == outcome["plain"]
    assert outcome["reports_after_undo"] == []


@EACH
def test_what_applies_does_something(lever: Lever, bench: Bench) -> None:
    if says_why_not(lever, bench):
        return
    trial = bench.with_lever(lever)
    assert trial.losses
    assert trial.events.failed == {}
    assert trial.events.done.keys() == bench.settings(lever).keys()


def test_a_dozen_levers_do_something_to_the_example(bench: Bench) -> None:
    trials = {x.name: bench.with_lever(x) for x in LEVERS if x.applies(bench.workload).yes}
    effective = [name for name, trial in trials.items() if name in trial.events.done]
    assert len(effective) >= N_FOR_CPUS, f"only {effective}"


@EACH
def test_the_losses_are_those_it_promises(lever: Lever, bench: Bench) -> None:
    if says_why_not(lever, bench):
        return
    losses, plain = bench.with_lever(lever).losses, bench.baseline.losses
    if lever.changes == "nothing":
        assert losses == plain
    elif lever.changes == "rounding":
        pairs = list(zip(losses, plain, strict=True))[:N_COMPARED]
        assert max(abs(loss - other) / abs(other) for loss, other in pairs) <= lever.bound


@EACH
def test_its_edit_does_the_same(lever: Lever, bench: Bench) -> None:
    if says_why_not(lever, bench):
        return
    in_words = in_words_only(bench.edits(lever))
    if in_words:  # no line can be found for it: then the words have to be of use
        assert lever.name in ONLY_IN_WORDS
        assert all(len(describe(edit).split()) >= 4 for edit in in_words)
        return
    edited, applied = bench.with_edit[lever.name], bench.with_lever(lever)
    assert edited.events.done == {}
    n_same = ONLY_THE_FIRST_EPOCH.get(lever.name, N_STEPS)
    assert edited.losses[:n_same] == applied.losses[:n_same]
    assert applied.facts != bench.without_lever(lever).facts, "the witness does not see the lever"
    assert but_for_the_environment(edited.facts) == but_for_the_environment(applied.facts)
    for variables in (dict(e.arguments) for e in bench.edits(lever) if e.kind == "environment"):
        assert variables.items() <= edited.facts["environment"].items()
        assert variables.items() <= applied.facts["environment"].items()


def but_for_the_environment(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A lever may say the same a second time there, for libraries beside torch."""
    return {what: one for what, one in facts.items() if what != "environment"}


def test_the_example_trains_the_same_each_time(bench: Bench) -> None:
    again = bench.trial({})
    assert again.losses == bench.baseline.losses
    assert again.losses[-1] < again.losses[0]
    assert os.path.samefile(bench.workload.models[0].site.file, EXAMPLE)  # type: ignore[union-attr]
