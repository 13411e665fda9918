"""`hotlap doctor` as a user starts it, in surroundings that lack this and that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SAFE = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
"""So that a machine on which AMX is only advertised has no finding of its own."""
REPLAYED = Path(__file__).parents[1] / "machine" / "replayed_nvml"
LOOK = "--no-measure"


def doctor(
    folder: Path, *words: str, env: dict[str, str] | None = None, launcher: tuple[str, ...] = ()
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run it in a folder; the finished process and its document, empty where there is none."""
    result = folder / "doctor.json"
    start = [sys.executable, *launcher, "-m", "hotlap", "doctor"]
    done = subprocess.run(
        [*start, "--json", str(result), *words],
        cwd=folder,
        env={**os.environ, **SAFE, "HOTLAP_CACHE_DIR": str(folder / "cache"), **(env or {})},
        capture_output=True,
        text=True,
        timeout=150,
    )
    return done, json.loads(result.read_text()) if result.exists() else {}


def rules(document: dict[str, Any]) -> set[str]:
    return {finding["rule"] for finding in document["findings"]}


@pytest.mark.timeout(200)
def test_a_machine_is_told_measured_and_kept_for_the_next_time(tmp_path: Path) -> None:
    done, document = doctor(tmp_path, "--quick")
    assert done.returncode == 0, done.stderr
    for title in ("System", "Software", "Stack", "Ceilings", "Findings"):
        assert f"\n{title}" in done.stdout
    assert set(document) >= {"schema", "machine", "findings"}
    assert set(document["machine"]) >= {"system", "software", "stack", "ceilings"}
    measured = {r["name"]: r["value"] for r in document["machine"]["ceilings"]["rates"]}
    assert measured["matmul fp32"] > 0
    assert measured["JPEG decode, one core"] > 0
    assert document["machine"]["system"]["storage"]["read_bytes_per_s"] > 0
    again, kept = doctor(tmp_path, "--quick")
    before, now = document["machine"]["ceilings"], kept["machine"]["ceilings"]
    cpu = kept["machine"]["system"]["cpu"]
    counts = not before["is_busy"] or cpu["load_1min"] > cpu["n_cpus"]
    assert now["is_cached"] == counts == ("kept from" in again.stdout)
    assert (now["rates"] == before["rates"]) == counts
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "doctor.json"]


@pytest.mark.timeout(200)
def test_ranks_are_measured_under_a_launcher_and_rank_0_alone_tells(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done, document = doctor(tmp_path, "--quick", launcher=torchrun)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("hotlap doctor on") == 1
    exchanges = document["machine"]["ceilings"]["exchanges"]
    operations = {one["operation"] for one in exchanges}
    six = {"broadcast", "reduce", "all_reduce", "gather", "scatter", "all_gather"}
    assert operations >= {"send_recv", *six}
    assert all(one["world_size"] == 2 and one["median_s"] > 0 for one in exchanges)


@pytest.mark.parametrize(
    ("missing", "env"),
    [
        ("PATH", {"PATH": ""}),
        ("a home", {"HOME": "/proc", "XDG_CACHE_HOME": "", "HOTLAP_CACHE_DIR": ""}),
        ("a folder for temporary files", {"TMPDIR": "/nowhere"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_missing_is_never_a_failure(
    tmp_path: Path, missing: str, env: dict[str, str]
) -> None:
    done, document = doctor(tmp_path, LOOK, env=env)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert document["machine"]["notes"] == []
    if missing == "PATH":
        assert "no nvidia-smi on the PATH" in document["machine"]["system"]["gpus_from"]
        assert document["machine"]["software"]["compilers"] == {}
        assert "no_compiler" in rules(document)


@pytest.mark.timeout(200)
def test_a_home_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    env = {"HOME": "/proc", "XDG_CACHE_HOME": "", "HOTLAP_CACHE_DIR": ""}
    done, document = doctor(tmp_path, "--quick", env=env)
    assert done.returncode == 0, done.stderr
    (note,) = document["machine"]["notes"]
    assert note.startswith("ceilings are not kept for the next time: /proc/.cache/hotlap")
    assert note in done.stdout


def test_a_broken_torch_is_an_error_that_is_told_and_fails_only_where_asked(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "torch.py").write_text("raise ImportError('libtorch.so: cannot open')")
    path = os.pathsep.join((str(broken), os.environ.get("PYTHONPATH", "")))
    env = {"PYTHONPATH": path}
    done, document = doctor(tmp_path, LOOK, env=env)
    assert done.returncode == 0, done.stderr
    assert "torch_missing" in rules(document)
    assert "libtorch.so: cannot open" in done.stdout
    failed, document = doctor(tmp_path, LOOK, "--fail-on", "error", "--quiet", env=env)
    assert failed.returncode == 1
    assert (failed.stdout, failed.stderr) == ("", "")
    assert "torch_missing" in rules(document)


def test_gpus_that_this_torch_cannot_use_are_seen(tmp_path: Path) -> None:
    path = os.pathsep.join((str(REPLAYED), os.environ.get("PYTHONPATH", "")))
    done, document = doctor(tmp_path, LOOK, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    assert "2 x NVIDIA H200, 140 GiB, 132 SMs, compute 9.0, 700 W" in done.stdout
    assert {"cpu_only_torch", "gpu_held_back"} <= rules(document)
    assert document["findings"][0]["severity"] == "error"


def test_no_secret_of_the_environment_is_in_the_report(tmp_path: Path) -> None:
    secret = "hunter2-do-not-print"
    names = ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY", "NCCL_TOKEN")
    env = {**dict.fromkeys(names, secret), "CUDA_LAUNCH_BLOCKING": "1"}
    done, document = doctor(tmp_path, LOOK, env=env)
    assert secret not in done.stdout + done.stderr + json.dumps(document)
    assert "debug_environment" in rules(document)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--data", "nowhere"), "--data nowhere is no folder"),
        (("--fail-on", "awful"), "invalid choice: 'awful'"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_wrong_use_is_one_sentence(tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    done, document = doctor(tmp_path, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("hotlap: ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert document == {}


@pytest.mark.timeout(60)
def test_an_interrupted_measurement_leaves_no_process_and_no_traceback(tmp_path: Path) -> None:
    process = started(tmp_path)
    assert process.stderr is not None
    while "torch in a process" not in process.stderr.readline():
        assert process.poll() is None
    deadline = time.monotonic() + 20
    while len(processes_with(str(tmp_path))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(processes_with(str(tmp_path))) == 2, "itself and the one with torch in it"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    while processes_with(str(tmp_path)) and time.monotonic() < deadline + 10:
        time.sleep(0.02)
    assert processes_with(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


SLOW = """
import time, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, flush=True)
    time.sleep(0.05)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("asked_by", [signal.SIGTERM, signal.SIGINT])
def test_a_look_that_is_broken_off_is_told_and_no_success(
    tmp_path: Path, asked_by: signal.Signals
) -> None:
    (tmp_path / "train.py").write_text(SLOW)
    process = started(tmp_path, "--no-measure", "train.py")
    assert process.stdout is not None
    while process.stdout.readline() != "20\n":
        assert process.poll() is None
    process.send_signal(asked_by)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + asked_by
    assert "hotlap/cli" not in err  # a traceback is the script's own
    assert "Findings" in err
    assert "for a profile" not in err
    assert processes_with(str(tmp_path)) == []


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A doctor to send signals to."""
    return subprocess.Popen(
        [sys.executable, "-m", "hotlap", "doctor", *words],
        cwd=folder,
        env={**os.environ, **SAFE, "HOTLAP_CACHE_DIR": str(folder / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_with(text: str) -> list[int]:
    """Running processes that have this in their environment, whoever is their parent now."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if text.encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
        except OSError:
            continue
    return found
