"""`hotlap tune` and `hotlap run` as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from commands import hotlap, ladder_of, work
from running import wait_for
from simulated import World

from hotlap.cli.tune import parse
from hotlap.errors import UsageError
from hotlap.levers.common.workload import Seen, Site, Workload
from hotlap.tuner import tune
from hotlap.tuner.bench import Bench, rate
from hotlap.tuner.climb import Climb
from hotlap.tuner.prove import prove
from hotlap.tuner.settings import read_settings
from hotlap.tuner.trial import marked_processes, run_trial
from hotlap.tuner.tune import TuneRequest, Tuning, Watcher

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A training that waits for its data, tuned with the levers of the loader."""
    folder = work(tmp_path_factory.mktemp("tuned"), "0.004")
    levers = "workers,fused_optimizer,batch_size"
    options = ("--only", levers, "--steps", "32", "--json", "ladder.json")
    proof = ("--prove", "40", "--seeds", "2")
    done = hotlap(folder, "tune", "--budget", "4", *options, *proof, "train.py")
    assert done.returncode == 0, done.stderr
    return folder, done.stderr


def test_a_training_that_waits_for_data_gets_workers(tuned: tuple[Path, str]) -> None:
    folder, text = tuned
    ladder = ladder_of(folder)
    assert list(ladder["levers"]) == ["workers"]
    assert ladder["ratio_low"] > 1.0
    assert ladder["best"]["samples_per_s"] > ladder["baseline"]["samples_per_s"]
    (kept,) = [rung for rung in ladder["rungs"] if rung["kept"]]
    assert kept["contribution_low"] > 1.0
    assert kept["loss_verdict"].startswith("bit for bit")
    assert f"{ladder['ratio']:.2f}x faster [{ladder['ratio_low']:.2f}" in text


def test_what_changes_the_maths_is_not_tried_unless_it_is_allowed(tuned: tuple[Path, str]) -> None:
    folder, _ = tuned
    (rung,) = [one for one in ladder_of(folder)["rungs"] if one["lever"] == "batch_size"]
    assert rung["state"] == "not allowed"
    assert "`--allow batch_size` tries it" in rung["reason"]


def test_the_proof_is_in_what_is_written(tuned: tuple[Path, str]) -> None:
    folder, text = tuned
    proof = ladder_of(folder)["proof"]
    assert (proof["n_steps"], len(proof["baseline"]), len(proof["tuned"])) == (40, 2, 2)
    # Workers hand out the same samples in the same order, so that both train bit for bit alike.
    assert proof["tuned"] == proof["baseline"]
    assert proof["equivalent"] is True
    assert "to 40 steps on 2 seeds: final losses are equivalent" in text
    (kept,) = (folder / ".hotlap").glob("ladder-*.json")
    assert json.loads(kept.read_text()) == ladder_of(folder)


def test_the_edits_for_the_users_own_source_are_shown(tuned: tuple[Path, str]) -> None:
    folder, text = tuned
    diff = ladder_of(folder)["diff"]
    value = ladder_of(folder)["levers"]["workers"]
    assert (
        f"+    loader = DataLoader(Slow(), batch_size=8, shuffle=True, num_workers={value}" in diff
    )
    assert diff in text


def test_the_users_files_are_as_they_were(tuned: tuple[Path, str]) -> None:
    folder, _ = tuned
    assert (folder / "model.pt").read_bytes() == b"weights of the user's own"
    left = {path.name for path in folder.iterdir()}
    assert left == {"train.py", "model.pt", "hotlap.toml", "ladder.json", ".hotlap"}


def test_run_applies_what_was_kept_and_says_so(tuned: tuple[Path, str]) -> None:
    folder, _ = tuned
    value = ladder_of(folder)["levers"]["workers"]
    done = hotlap(folder, "run", "--steps", "10", "--json", "run.json", "train.py")
    assert done.returncode == 0
    assert f"lever workers={value}: " in done.stderr
    assert json.loads((folder / "run.json").read_text())["levers"] == {"workers": value}
    assert "was tuned for" not in done.stderr
    (folder / "run.json").unlink()


def test_settings_of_another_script_or_of_none_are_told(tmp_path: Path) -> None:
    folder = work(tmp_path, "0")
    settings = folder / "hotlap.toml"
    settings.write_text('command = ["ema.py"]\n[levers]\nfused_optimizer = true\n')
    told = hotlap(folder, "run", "--steps", "5", "train.py").stderr
    assert "note: hotlap.toml was tuned for ema.py; its levers are applied to train.py\n" in told
    settings.write_text('command = ["ema.py"]\n[levers]\n')
    told = hotlap(folder, "run", "--steps", "5", "train.py").stderr
    assert told.endswith("  hotlap.toml names no lever: the command ran as it is\n")


def test_levers_that_harm_are_refused_and_named(tmp_path: Path) -> None:
    folder = work(tmp_path, "0")
    (folder / "hotlap.toml").write_text('[levers]\nworkers = "2"\n')
    traps = (
        *("scale_gradients_claims_rounding", "drop_batches_claims_nothing"),
        *("freeze_layer_claims_rounding", "stale_data_claims_nothing"),
        "skip_work_claims_rounding",
    )
    chosen = ("--lever-file", str(HERE / "traps.py"), "--only", ",".join(traps))
    options = (*chosen, "--json", "ladder.json")
    done = hotlap(folder, "tune", "--budget", "4", "--steps", "40", *options, "train.py")
    assert done.returncode == 0, done.stderr
    ladder = ladder_of(folder)
    assert ladder["levers"] == {}
    states = {rung["lever"]: rung["state"] for rung in ladder["rungs"]}
    assert states == dict.fromkeys(traps, "different")
    assert "nothing was seen to pay" in done.stderr
    assert "note: what hotlap.toml held before is kept in hotlap.toml.old" in done.stderr
    assert read_settings(folder / "hotlap.toml.old").levers == {"workers": "2"}
    assert read_settings(folder / "hotlap.toml").levers == {}


def test_the_lever_that_the_documentation_shows_is_refused_by_the_guard(tmp_path: Path) -> None:
    folder = work(tmp_path, "0")
    page = (HERE.parents[1] / "docs" / "tuning.md").read_text()
    (folder / "own.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    options = ("--lever-file", "own.py", "--only", "one_more", "--json", "ladder.json")
    done = hotlap(folder, "tune", "--budget", "2", "--steps", "32", *options, "train.py")
    assert done.returncode == 0, done.stderr
    (rung,) = ladder_of(folder)["rungs"]
    assert (rung["lever"], rung["state"]) == ("one_more", "different")
    assert rung["reason"] == "9 samples a step instead of 8"


def test_a_trial_that_dies_is_a_state_and_the_climb_goes_on(tmp_path: Path) -> None:
    folder = work(tmp_path, "0")
    odd = ("--lever-file", str(HERE / "odd_levers.py"), "--only", "dies,fails,idles,leans")
    done = hotlap(
        folder, "tune", "--budget", "4", "--steps", "32", *odd, "--json", "ladder.json", "train.py"
    )
    assert done.returncode == 0, done.stderr
    rungs = {(rung["lever"], rung["value"]): rung for rung in ladder_of(folder)["rungs"]}
    died = rungs["dies", "SIGILL"]
    told = "it ended with signal SIGILL before its first step"
    assert (died["state"], died["reason"]) == ("crashed", told)
    assert "about to run an instruction that is not there" in died["last_lines"]
    assert "signal SIGSEGV" in rungs["dies", "SIGSEGV"]["reason"]
    assert rungs["fails", "on"]["reason"].endswith("RuntimeError: this torch is too old")
    assert rungs["idles", "on"]["state"] == "no effect"
    alone, together = [one for one in ladder_of(folder)["rungs"] if one["lever"] == "leans"][:2]
    assert alone["state"] == "crashed"
    assert together["state"] == "ok"
    assert "together with mends" in together["reason"]


def trials_in(log: Path) -> list[str]:
    """The marks that processes of all its trials carry."""
    return [folder.name for folder in log.glob("tune-*/runs/*")]


def test_interrupted_it_leaves_nothing_running_and_goes_on_later(tmp_path: Path) -> None:
    folder = work(tmp_path, "0.004")
    words = ("tune", "--budget", "4", "--only", "workers", "--steps", "32", "train.py")
    process = subprocess.Popen(
        [sys.executable, "-m", "hotlap", *words],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    log, settings = folder / ".hotlap", folder / "hotlap.toml"
    assert wait_for(lambda: settings.is_file(), 120), "no lever was kept"
    (kept,) = read_settings(settings).levers.items()
    assert wait_for(lambda: any(map(marked_processes, trials_in(log))), 20), "it tries nothing more"
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert "the same command goes on where it was" in text
    assert kept[0] == "workers"
    assert read_settings(settings).levers == dict([kept])
    assert [marked_processes(name) for name in trials_in(log)] == [[]] * len(trials_in(log))
    done = hotlap(folder, *words)
    assert done.returncode == 0, done.stderr
    assert "going on with a climb that was interrupted after" in done.stderr
    assert not list(log.glob("tune-*"))


def test_interrupted_before_the_first_rung_it_says_so_in_one_sentence(tmp_path: Path) -> None:
    folder = work(tmp_path, "0.002")
    process = subprocess.Popen(
        [sys.executable, "-m", "hotlap", "tune", "train.py"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert wait_for(lambda: bool(trials_in(folder / ".hotlap")), 60), "no trial was begun"
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130
    assert text.endswith("\nhotlap: interrupted; the same command goes on where it was\n")
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tune",), "no command was given; write it last, as in `hotlap tune train.py --lr 0.1`"),
        (("tune", "missing.py"), "the script missing.py does not exist"),
        (("tune", "--only", "warp", "train.py"), "'warp' is no lever; there are"),
        (("tune", "--budget", "no", "train.py"), "a number above zero is expected"),
        (("tune", "--lever-file", "none.py", "train.py"), "does not exist or is no Python file"),
        (("tune", "--output", "no/where.toml", "train.py"), "--output no/where.toml cannot be"),
        (("tune", "--output", "/proc/x.toml", "train.py"), "--output /proc/x.toml cannot be"),
        (("tune", "--output", ".", "train.py"), "--output . is a folder; name a file"),
        (("tune", "--runs-dir", "/proc/x", "train.py"), "--runs-dir /proc/x cannot be written"),
        (("tune", "--runs-dir", "train.py/x", "train.py"), "--runs-dir train.py/x cannot be"),
        (("tune", "--only", "", "train.py"), "'' was found; the name of a lever is expected"),
        (("tune", "--prove", "9", "--seeds", "1", "train.py"), "--seeds 1 was found; two or more"),
        (("run", "train.py"), "hotlap.toml does not exist; `hotlap tune COMMAND` writes one"),
        (("run", "--levers", "warp=9", "train.py"), "'warp' is no lever; there are"),
        (("run", "--levers", "workers=x", "train.py"), "the lever workers is 'x'; a whole number"),
    ],
)
def test_wrong_use_is_one_sentence(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    folder = work(tmp_path, "0")
    done = hotlap(folder, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("levers = 3", "has no table [levers]"),
        ("[levers", "cannot be read"),
        ("[levers]\nworkers = [1, 2]", "the lever workers is [1, 2]; one value is expected"),
        ("[levers]\nwarp = 9", "hotlap.toml: 'warp' is no lever"),
        ("[levers]\nthreads = 0", "hotlap.toml: the lever threads is '0'; a whole number of at"),
    ],
)
def test_a_damaged_settings_file_is_one_sentence(
    tmp_path: Path, content: str, message: str
) -> None:
    folder = work(tmp_path, "0")
    (folder / "hotlap.toml").write_text(content)
    done = hotlap(folder, "run", "train.py")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_calls_a_lever_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    assert "batch (or batch_size)" in " ".join(capsys.readouterr().out.split())


def test_a_command_that_fails_is_told_with_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\nraise SystemExit('no data here')")
    done = hotlap(tmp_path, "tune", "train.py")
    assert done.returncode == 2
    assert "the command itself does not run: it ended with exit code 1 before its" in done.stderr
    assert "samples/s" not in done.stderr  # a table without a line
    assert "no data here" in done.stderr
    # What failed is not remembered: mended, the same command starts anew.
    assert not list((tmp_path / ".hotlap").glob("tune-*"))


def tuning_of(folder: Path, watcher: Watcher | None = None, **fields: Any) -> Tuning:
    request = TuneRequest(("train.py",), folder / ".hotlap", folder / "x.toml", **fields)
    return Tuning(request, watcher or Watcher())


def test_loaders_that_are_given_workers_get_what_goes_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    facts = ({"num_workers": 0}, {"num_workers": 0, "is_iterable": True})
    sites = [Site("train.py", line) for line in (1, 2)]
    tuning = tuning_of(tmp_path)
    tuning.workload = Workload(loaders=tuple(map(Seen, sites, facts)))
    alone = tuning.edits({"persistent_workers": "on"})
    assert alone == [()]
    for (one,) in tuning.edits({"workers": "4", "persistent_workers": "on"}):
        assert one.site == sites[0]


def test_settings_of_another_climb_are_kept_and_those_of_the_same_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    file, older = tmp_path / "x.toml", tmp_path / "x.toml.old"
    file.write_text('[levers]\nworkers = "2"\n')
    notes: list[str] = []
    tuning_of(tmp_path, Watcher(note=notes.append))._write_settings({"threads": "1"})
    goes_on = tuning_of(tmp_path, Watcher(note=notes.append))
    goes_on._write_settings({"threads": "2"})
    goes_on._write_settings({})
    assert read_settings(file).levers == {}
    assert read_settings(older).levers == {"workers": "2"}
    assert notes == [f"what {file} held before is kept in {older}"]


def test_trials_of_a_script_that_was_changed_are_not_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import model")
    (tmp_path / "model.py").write_text("WIDTH = 256")
    before = tuning_of(tmp_path)._state_folder
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "installed.py").write_text("1")  # no part of the project
    assert tuning_of(tmp_path)._state_folder == before
    (tmp_path / "x.toml").write_text("[levers]\n")  # hotlap's own
    assert tuning_of(tmp_path)._state_folder == before
    (tmp_path / "model.py").write_text("WIDTH = 16")
    changed = tuning_of(tmp_path)._state_folder
    assert changed != before
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "base.yaml").write_text("width: 16")
    assert tuning_of(tmp_path)._state_folder != changed


def test_trials_of_another_torch_are_not_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    before = tuning_of(tmp_path)._state_folder
    monkeypatch.setattr("hotlap.tuner.tune.metadata.version", lambda name: "0.4.1")
    assert tuning_of(tmp_path)._state_folder != before


def test_every_line_that_was_seen_in_the_copy_is_told_as_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    tuning = tuning_of(tmp_path)
    kinds = [one.name for one in fields(Workload) if "Seen" in str(one.type)]
    assert {"loaders", "ddps", "own_batches"} <= set(kinds)
    with tuning.scratch() as copy:
        seen = (Seen(Site(str(copy / "train.py"), 7), {}), Seen(None, {}))
        workload = replace(Workload(), **dict.fromkeys(kinds, seen))
        at_home = tune._at_home(workload, tuning._scratch)
    own = (Seen(Site(str(tmp_path / "train.py"), 7), {}), Seen(None, {}))
    assert [getattr(at_home, name) for name in kinds] == [own] * len(kinds)


def test_what_a_machine_does_not_tell_is_no_objective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    world = World({})
    climb = Climb(
        bench=Bench(world.make, rate, 60.0, 4.0), levers={}, needed_values=lambda needed: None
    )
    baseline = climb.look()  # 1 GiB, and no energy
    with pytest.raises(UsageError, match="--objective energy: this machine does not tell it"):
        tuning_of(tmp_path, objective="energy")._check_objective(baseline, climb)
    tuning_of(tmp_path, memory_limit_bytes=2.0**29)._check_objective(baseline, climb)
    (note,) = climb.notes
    assert "takes 1.00 GiB, more than the limit of 0.50 GiB" in note


@pytest.mark.timeout(240)
def test_a_proof_trains_as_many_steps_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = work(tmp_path, "0")
    monkeypatch.chdir(folder)
    made = []

    def run_and_remember(*given: Any) -> Any:
        made.append(run_trial(*given))
        return made[-1]

    monkeypatch.setattr(tune, "run_trial", run_and_remember)
    proof = prove(tuning_of(folder), {"fused_optimizer": "on"}, 40, 2)
    assert [(trial.seed, trial.n_steps) for trial in made] == [(0, 40), (0, 40), (1, 40), (1, 40)]
    assert [bool(trial.levers) for trial in made] == [False, True] * 2
    assert proof.equivalent
    assert proof.baseline[0] != proof.baseline[1]  # other seeds are other trainings
