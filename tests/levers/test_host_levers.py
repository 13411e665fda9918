"""The levers of the host, each seen to take effect in a real training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from lever_runs import a_loader, run_with
from running import environment, run_hotlap

from hotlap.levers import (
    affinity,
    allocator,
    cuda_allocator,
    debug_off,
    gc_pauses,
    onednn_isa,
    threads,
)
from hotlap.levers.common.inside import Orders
from hotlap.levers.common.workload import Workload, read_events

HOST = """
import gc, json, os
import torch

torch.autograd.set_detect_anomaly(True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.autograd.detect_anomaly(), torch.autograd.profiler.emit_itt():
    for _ in range(3):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
    is_anomaly = torch.is_anomaly_enabled()
maps = open("/proc/self/maps").read()
print(json.dumps({
    "anomaly": is_anomaly,
    "frozen": gc.get_freeze_count() > 1000,
    "threshold": gc.get_threshold()[0],
    "denormal": (torch.full((1,), 1e-38) * 1e-3).item(),
    "threads": torch.get_num_threads(),
    "n_cores_of_main": len(os.sched_getaffinity(0)),
    "malloc": [name for name in ("tcmalloc", "jemalloc") if name in maps],
}))
"""


@pytest.fixture
def host_script(tmp_path: Path) -> Path:
    path = tmp_path / "host.py"
    path.write_text(HOST)
    return path


def test_levers_of_the_host_take_effect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host_script: Path
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    levers = {"debug_off": "on", "gc_pauses": "freeze", "flush_denormals": "on", "threads": "2"}
    levers |= {"affinity": "close", "onednn_isa": "AVX2"}
    result, events = run_with(tmp_path, host_script, cuda_allocator="expandable_segments", **levers)
    truth = result.truth
    assert truth["anomaly"] is False
    assert truth["frozen"]
    assert truth["threshold"] == gc_pauses.N_YOUNG
    assert truth["denormal"] == 0.0
    assert truth["threads"] == 2
    assert truth["n_cores_of_main"] <= max(1, len(os.sched_getaffinity(0)) // 2)
    assert set(events.done) == set(levers)  # there is no GPU whose memory would grow
    assert events.done["debug_off"] == [
        "CUDA_LAUNCH_BLOCKING is 0",
        "anomaly detection stays off, which host.py:5 switches on",
        "anomaly detection stays off, which host.py:8 switches on",
        "emit_itt stays off, which host.py:8 switches on",
    ]


def test_what_a_script_does_can_stand_against_a_lever(tmp_path: Path) -> None:
    levers = {"threads": "2", "workers": "1", "affinity": "close"}
    variables = {**Orders(levers).to_environment(), **affinity.environment("close", Workload())}
    result = run_hotlap("loader.py", folder=tmp_path, env=variables)
    events = read_events(result.folder)
    assert "training thread's core" in events.failed["affinity"]
    assert events.failed["threads"] == "the script sets the number of threads itself, to 1"
    assert "threads" not in events.done


@pytest.mark.parametrize("value", allocator.values(Workload()))
def test_each_allocator_of_this_machine_is_used(
    tmp_path: Path, host_script: Path, value: str
) -> None:
    result, events = run_with(tmp_path, host_script, allocator=value)
    assert list(events.done) == ["allocator"]
    assert result.truth["malloc"] == ([] if value == "glibc" else [value])


FAULTS = """
import resource, torch
x = torch.zeros(1 << 22)
for i in range(60):
    if i == 40:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    y = x + torch.ones_like(x)
    z = torch.cat((x, y, x, y))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_glibc_keeps_large_blocks() -> None:
    def n_faults(**variables: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", FAULTS],
            env=environment(variables),
            capture_output=True,
            check=True,
            timeout=100,
        )
        return int(done.stdout)

    kept = n_faults(**allocator.environment("glibc", Workload()))
    assert kept < n_faults() / 4


@pytest.mark.parametrize(
    ("version", "threshold"), [("2.17", 2**25), ("2.34", 2**25), ("2.35", 2**30), ("2.41.9", 2**30)]
)
def test_glibc_is_asked_for_no_larger_threshold_than_it_takes(
    monkeypatch: pytest.MonkeyPatch, version: str, threshold: int
) -> None:
    monkeypatch.delenv(allocator.TUNABLES, raising=False)
    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: ("glibc", version))
    tunables = allocator.environment("glibc", Workload())[allocator.TUNABLES]
    assert tunables.startswith(f"glibc.malloc.mmap_threshold={threshold}:")


def test_libraries_are_found_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libjemalloc.so.2").touch()
    monkeypatch.setattr(allocator, "folders", lambda: (tmp_path,))
    monkeypatch.setenv("LD_PRELOAD", "libother.so")
    assert allocator.find_library("tcmalloc", (tmp_path,)) is None
    assert "jemalloc" in allocator.values(Workload())
    assert "tcmalloc" not in allocator.values(Workload())
    variables = allocator.environment("jemalloc", Workload())
    assert variables["LD_PRELOAD"] == f"{tmp_path / 'libjemalloc.so.2'} libother.so"
    assert allocator.applies(Workload()).yes
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libtcmalloc.so.4")
    assert not allocator.applies(Workload()).yes


def test_onednn_keeps_to_older_instructions() -> None:
    code = "import torch; torch.nn.Conv2d(3, 16, 3)(torch.ones(8, 3, 32, 32))"

    def used(variables: Mapping[str, str]) -> str:
        """The instructions that oneDNN says it uses at most."""
        words, env = [sys.executable, "-c", code], environment({**variables, "ONEDNN_VERBOSE": "1"})
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=100)
        (told,) = [line for line in done.stdout.splitlines() if ",info,cpu,isa:" in line]
        return told.rpartition("isa:")[2]

    assert used({}) != "Intel SSE4.1"
    assert used(onednn_isa.environment("SSE41", Workload())) == "Intel SSE4.1"
    amx = Workload(cpu_flags=frozenset({"amx_bf16", "avx512_bf16"}))
    assert onednn_isa.applies(amx).yes
    assert onednn_isa.values(amx) == ("AVX512_CORE_BF16", "AVX2")
    assert not onednn_isa.applies(Workload()).yes


def test_cuda_allocator_adds_to_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (cuda_allocator.OLD, cuda_allocator.NEW):
        monkeypatch.delenv(name, raising=False)
    on_gpu = Workload(device="cuda", torch="2.13.0+cu130")
    assert cuda_allocator.applies(on_gpu).yes
    new = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert cuda_allocator.environment("", on_gpu) == new
    old = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert cuda_allocator.environment("", replace(on_gpu, torch="2.4.1")) == old
    monkeypatch.setenv(cuda_allocator.OLD, "max_split_size_mb:64")
    both = {cuda_allocator.OLD: "max_split_size_mb:64,expandable_segments:True"}
    assert cuda_allocator.environment("", on_gpu) == both
    monkeypatch.setenv(cuda_allocator.OLD, "expandable_segments:False")
    assert not cuda_allocator.applies(on_gpu).yes


def test_debugging_is_off_only_where_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in debug_off.OFF:
        monkeypatch.delenv(name, raising=False)
    assert not debug_off.applies(Workload()).yes
    assert debug_off.environment("on", Workload()) == {}
    assert debug_off.applies(Workload(flags={"anomaly": True})).yes
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "OFF")
    assert debug_off.applies(Workload()).reason == "CUDA_LAUNCH_BLOCKING is set"


def test_values_of_threads() -> None:
    assert threads.values(Workload(n_cpus=8, flags={"n_threads": 8})) == ("4", "1")
    assert threads.values(Workload(n_cpus=1, flags={"n_threads": 1})) == ()
    assert not threads.applies(Workload(n_cpus=1, flags={"n_threads": 1})).yes
    assert not threads.applies(Workload(device="cuda", n_cpus=8)).yes


def test_affinity_only_where_it_cannot_hurt() -> None:
    many = Workload(n_cpus=8, flags={"n_threads": 8})
    assert affinity.applies(many).yes
    assert not affinity.applies(replace(many, world_size=2)).yes
    assert not affinity.applies(replace(many, loaders=(a_loader(num_workers=1),))).yes


UNDO = """
import gc, json, sys, tempfile
import torch
from hotlap.chronometer.session import Session, Settings
from hotlap.levers import LEVERS
from hotlap.levers.common.process import Process

NAMES = json.loads(sys.argv[1])


def state():
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    return [
        torch.get_num_threads(), gc.get_threshold(), gc.get_freeze_count(),
        (torch.full((1,), 1e-38) * 1e-3).item(),
        str([torch.set_anomaly_enabled, torch.cuda.set_sync_debug_mode, iterator.__next__,
             iterator._reset, torch.Tensor.to, torch.Tensor.cuda,
             torch.autograd.profiler.emit_nvtx.__enter__]),
        vars(torch.utils.data.DataLoader(list(range(4)))).get("num_workers"),
    ]


process = Process(torch, Session(torch, Settings(tempfile.mkdtemp())), lambda **event: None)
process.watch()
before = state()
for lever in LEVERS:
    if lever.name in NAMES:
        process.apply(lever, NAMES[lever.name])
process._meet_model(torch.nn.Linear(2, 2), (torch.zeros(1, 2),), {})
changed = state()
process.undo()
print(json.dumps([before, changed, state()]))
"""


def test_everything_is_undone() -> None:
    levers = {
        "workers": "2",
        "debug_off": "on",
        "gc_pauses": "freeze",
        "flush_denormals": "on",
        "threads": "2",
        "pin_memory": "on",
        "device_prefetch": "on",
    }
    done = subprocess.run(
        [sys.executable, "-c", UNDO, json.dumps(levers)],
        env=environment(),
        capture_output=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr.decode()
    before, changed, after = json.loads(done.stdout)
    assert after == before
    assert all(a != b for a, b in zip(before, changed, strict=True))
