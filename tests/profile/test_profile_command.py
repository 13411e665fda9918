"""`hotlap profile` on trainings whose operators, waits and endings are known beforehand."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from profiling import SCRIPT, Profiled, line_of, profile_command, profile_style
from running import SCRIPTS, TIMEOUT_S, environment

from hotlap.records.profile import RankProfile, Site

BATCH, CHANNELS, PIXELS, WIDTH, HEADS, TOKENS = 16, 8, 16 * 16, 64, 2, 16


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    folder = tmp_path_factory.mktemp("plain")
    trace = folder / "copy.json.gz"
    window = ("--warmup", "4", "--steps", "2", "--trace", str(trace))
    return profile_style(folder, "plain", options=window)


def flops_of(rank: RankProfile, kind: str) -> float | None:
    return next(row.flops for row in rank.classes if row.name == kind)


def test_the_flops_of_each_class_are_the_planted_ones(plain: Profiled) -> None:
    rows = BATCH * HEADS * TOKENS
    linear = 2 * rows * WIDTH * (WIDTH + 10)
    # Forward, and in the backward one product for the input and one for the weight.
    assert flops_of(plain.rank, "matmul") == 3 * linear
    # The image needs no gradient: one product in the backward.
    assert flops_of(plain.rank, "conv") == 2 * (2 * BATCH * CHANNELS * PIXELS * 3 * 9)
    scores = BATCH * HEADS * TOKENS * TOKENS
    assert flops_of(plain.rank, "attention") == (2 + 5) * 2 * scores * WIDTH
    assert flops_of(plain.rank, "copy") is None
    assert {"norm", "elementwise"} <= {row.name for row in plain.rank.classes}
    assert sum(row.share for row in plain.rank.classes) == pytest.approx(1.0)


def test_the_window_is_the_one_asked_for(plain: Profiled) -> None:
    rank = plain.rank
    assert (rank.first_step, rank.n_steps, rank.n_line_steps) == (5, 2, 1)
    assert rank.device == "cpu"
    assert rank.idle is None
    assert rank.tensor_core_share is None
    assert rank.outside_s is not None
    assert rank.step_s is not None
    assert 0 < rank.outside_s < rank.step_s


def test_operators_have_their_line_and_module(plain: Profiled) -> None:
    tops = {row.name: row for row in plain.rank.top}
    gelu = tops["aten::gelu"].sites[0]
    assert gelu.site == Site("profiled.py", line_of("gelu"), "forward", "Net")
    assert not gelu.is_backward
    assert tops["aten::gelu"].calls == 1
    conv = tops["aten::convolution_backward"].sites[0]
    assert (conv.site.module, conv.is_backward) == ("conv", True)
    shapes = {(one.m, one.n, one.k): one for one in plain.rank.matmuls}
    body = shapes[BATCH * HEADS * TOKENS, WIDTH, WIDTH]
    assert body.dtype == "float32"
    assert {share.site.module for share in body.sites} == {"body"}


def test_only_the_users_own_wait_is_reported(plain: Profiled) -> None:
    (sync,) = plain.rank.syncs
    assert sync.call == "aten::item"
    assert sync.calls == 1
    assert sync.site == Site("profiled.py", line_of("item"), "main", "")
    assert f"profiled.py:{line_of('item')}  aten::item" in plain.stderr


def test_memory_is_that_of_the_model(plain: Profiled) -> None:
    memory = plain.rank.memory
    assert memory is not None
    weights = 4 * (CHANNELS * 27 + CHANNELS + 2 * WIDTH + WIDTH * (WIDTH + 1) + 10 * (WIDTH + 1))
    assert memory.weights == memory.gradients == weights
    n_parameters = 8
    assert memory.optimizer == 2 * weights + 4 * n_parameters
    assert memory.activations is None


def test_the_trace_opens_and_holds_the_steps(plain: Profiled, tmp_path: Path) -> None:
    assert plain.rank.trace is not None
    packed = (plain.folder / plain.rank.trace).read_bytes()
    events = json.loads(gzip.decompress(packed))["traceEvents"]
    assert sum(event["name"] == "hotlap.step" for event in events) == 2 + 1
    copied = plain.folder.parents[1] / "copy.json.gz"
    assert copied.read_bytes() == packed
    leftovers = {path.suffix for path in plain.folder.iterdir() if not path.name.startswith(".")}
    assert leftovers == {".json", ".gz"}


def test_the_script_is_what_it_is_without(plain: Profiled) -> None:
    alone = subprocess.run(
        [sys.executable, SCRIPT.name, "--style", "plain"],
        cwd=SCRIPTS, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert plain.stdout == alone.stdout
    assert plain.code == alone.returncode == 0
    # All that hotlap says comes after the command's last byte, which here is on stdout.
    assert plain.stderr.startswith("\nhotlap: ")


def test_the_runs_figures_are_without_the_profiled_steps(plain: Profiled) -> None:
    run = plain.document["run"]
    (path,) = plain.folder.glob("rank-*.json")
    table = json.loads(path.read_bytes())["steps"]
    # Two steps of the window, one between, one with stacks, and the closing of each.
    assert table["is_probe"] == [0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0]
    counted = [
        ns for ns, probe in zip(table["total_ns"], table["is_probe"], strict=True) if not probe
    ]
    kept = counted[run["steps"]["warmup"] :]
    assert run["step_s"]["mean"] == pytest.approx(sum(kept) / len(kept) / 1e9)
    assert len(run["loss"]) == 12
    assert any("under the profiler" in note for note in run["notes"])


def test_graph_breaks_and_recompiles_have_reason_and_line(tmp_path: Path) -> None:
    done = profile_style(tmp_path, "compile")
    assert done.code == 0
    (broken,) = done.rank.graph_breaks
    assert (broken.file, broken.line) == ("profiled.py", line_of("break"))
    assert "torch._dynamo.graph_break()" in broken.reason
    assert any(
        again.function == "forward" and "size mismatch" in again.reason
        for again in done.rank.recompiles
    )
    assert "Graph break" not in done.stderr
    assert "Recompiling" not in done.stderr


def test_a_user_who_asks_dynamo_for_its_logs_still_gets_them(tmp_path: Path) -> None:
    logs = {"TORCH_LOGS": "graph_breaks,recompiles"}
    done = profile_style(tmp_path, "compile", extra=logs)
    assert len(done.rank.graph_breaks) == 1
    assert "Graph break in user code" in done.stderr
    assert "Recompiling function forward" in done.stderr


def test_products_in_bf16_are_seen_as_such(tmp_path: Path) -> None:
    done = profile_style(tmp_path, "bf16", extra={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"})
    assert done.code == 0
    assert set(done.rank.matmul_dtypes) == {"bfloat16"}


def test_a_script_that_ends_before_the_window(tmp_path: Path) -> None:
    done = profile_style(tmp_path, "plain", "--steps", "3")
    assert done.code == 0
    assert done.rank.n_steps == 0
    assert any("ended before the window" in note for note in done.rank.notes)
    assert "--warmup" in done.stderr
    assert len(done.document["run"]["loss"]) == 3


def test_a_script_that_ends_before_the_step_with_stacks(tmp_path: Path) -> None:
    done = profile_style(tmp_path, "plain", "--steps", "6")
    assert done.code == 0
    assert done.rank.n_steps == 2
    assert done.rank.n_line_steps == 0
    assert any("source lines are unknown" in note for note in done.rank.notes)


@pytest.mark.parametrize(("style", "code"), [("raises", 1), ("killed", -signal.SIGKILL)])
def test_a_script_that_dies_inside_the_window(tmp_path: Path, style: str, code: int) -> None:
    done = profile_style(tmp_path, style, options=("--warmup", "4", "--steps", "4"))
    assert done.code == code
    assert done.rank.n_steps == 0
    (note,) = done.rank.notes
    assert "the training ended inside the window" in note
    assert len(done.document["run"]["loss"]) == 6
    if style == "raises":
        assert done.stderr.count("ValueError: planted") == 1
        assert "hotlap/chronometer" not in done.stderr


def test_a_script_that_raises_in_the_step_with_stacks(tmp_path: Path) -> None:
    done = profile_style(tmp_path, "raises", options=("--warmup", "4", "--steps", "1"))
    assert done.code == 1
    assert (done.rank.n_steps, done.rank.n_line_steps) == (1, 0)
    assert any("ended inside the window" in note for note in done.rank.notes)


def test_a_profiler_of_the_scripts_own_has_precedence(tmp_path: Path) -> None:
    done = profile_style(tmp_path, "own-profiler")
    assert done.code == 0
    assert "own profiler saw True" in done.stdout
    assert any("a profiler of its own" in note for note in done.rank.notes)
    assert len(done.document["run"]["loss"]) == 12


def test_a_profiler_that_does_not_start_is_a_note(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "start.py").write_text(
        "import runpy, sys, torch\n"
        "def start(self): raise RuntimeError('CUPTI is held by another tool')\n"
        "torch.profiler.profile.start = start\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    done = profile_command(tmp_path, str(broken / "start.py"), "profiled.py", "--style", "plain")
    assert done.code == 0
    assert any("CUPTI is held by another tool" in note for note in done.rank.notes)
    assert len(done.document["run"]["loss"]) == 12


def test_memory_that_grows_is_seen(tmp_path: Path) -> None:
    window = ("--warmup", "30", "--steps", "1", "--no-stacks", "--stop")
    done = profile_style(tmp_path, "leaks", "--steps", "1000", options=window)
    assert done.code == 0
    assert done.document["run"]["status"] == "cut"
    memory = done.rank.memory
    assert memory is not None
    assert memory.slope is not None
    assert memory.slope == pytest.approx(4 << 21, rel=0.2)
    assert done.rank.syncs == ()
    assert done.rank.top[0].sites == ()


def test_each_rank_has_a_profile_and_collectives_are_matched(tmp_path: Path) -> None:
    launcher = str(Path(sys.executable).parent / "torchrun")
    done = profile_command(tmp_path, launcher, "--nproc-per-node", "2", "ddp.py")
    assert done.code == 0
    assert [rank.rank for rank in done.profile.ranks] == [0, 1]
    for rank in done.profile.ranks:
        assert rank.communication is not None
        assert rank.communication.calls == 1  # one bucket
        total, parts = rank.communication.total_s, rank.communication
        assert parts.exposed_s + parts.hidden_s == pytest.approx(total)
        assert rank.trace == f"trace-{rank.rank:05d}.json.gz"
    skew = done.profile.skew
    assert skew is not None
    assert skew.transfer_s > 0
    for row in skew.ranks:
        assert row.collective_s == pytest.approx(row.waiting_s + skew.transfer_s)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--steps", "0", "train.py"), "--steps"),
        (("--warmup", "x", "train.py"), "--warmup"),
        (("missing.py",), "missing.py does not exist"),
        ((), "no command was given"),
        (("--trace", "x.json", "train.py"), ".json.gz"),
        (("--trace", "no/such/x.json.gz", "train.py"), "cannot be written"),
    ],
)
def test_wrong_use_is_one_sentence(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hotlap", "profile", *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("hotlap: ")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_command_that_does_not_train_has_nothing_to_profile(tmp_path: Path) -> None:
    done = profile_command(tmp_path, "true")
    assert done.code == 0
    assert done.profile.ranks == ()
    assert "no training step" in done.stderr
