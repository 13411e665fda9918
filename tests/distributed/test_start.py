"""How ranks come together: each on its device, or one sentence about why not."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from running import run_ranks

from hotlap.distributed.launch import Launch, detect, finish, start
from hotlap.errors import UsageError


def test_a_lone_process_has_a_group_only_where_asked_for() -> None:
    with start(detect({}), timeout_s=10, device="cpu") as started:
        assert not started.is_group
        assert not dist.is_initialized()
    with start(detect({}), timeout_s=10, device="cpu", always=True) as started:
        assert started.is_group
        assert dist.get_world_size() == 1
    assert not dist.is_initialized()
    finish()


def test_the_group_is_left_where_its_block_raises() -> None:
    with pytest.raises(ZeroDivisionError), start(detect({}), 10, device="cpu", always=True):
        raise ZeroDivisionError
    assert not dist.is_initialized()


@pytest.mark.timeout(60)
def test_ranks_that_never_come_are_one_sentence() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with pytest.raises(UsageError, match=f"did not meet all 2 ranks at 127.0.0.1 port {port}"):
        start(detect(environ), timeout_s=1, device="cpu")


def show_gpus(monkeypatch: pytest.MonkeyPatch, *uuids: str) -> None:
    """Let torch see GPUs that are not there."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(uuid=uuids[device.index]),
    )


def two_ranks() -> list[Launch]:
    """Of one node, with a port of their own to meet at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    both = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **meeting}
    return [detect({**both, "RANK": rank, "LOCAL_RANK": rank}) for rank in ("0", "1")]


@pytest.mark.timeout(60)
def test_two_ranks_on_one_gpu_are_refused_unless_the_cpu_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    show_gpus(monkeypatch, "GPU-a")

    def refusal(launch: Launch) -> str:
        with pytest.raises(UsageError) as raised:
            start(launch, timeout_s=20)
        return str(raised.value)

    with ThreadPoolExecutor(2) as pool:
        refusals = list(pool.map(refusal, two_ranks()))
    assert all("share one GPU" in one and "2 ranks on this node" in one for one in refusals)
    with start(detect({}), timeout_s=10, device="cpu") as started:
        assert started.device.type == "cpu"


def test_a_rank_takes_the_gpu_of_its_place_on_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = detect({})
    third = replace(alone, local_rank=2)
    show_gpus(monkeypatch, "GPU-a", "GPU-b", "GPU-c", "GPU-d")
    assert start(third, timeout_s=10).device == torch.device("cuda", 2)
    # Where srun binds GPUs to tasks, each task sees its own as the first.
    show_gpus(monkeypatch, "GPU-c")
    assert start(third, timeout_s=10).device == torch.device("cuda", 0)


def test_a_gpu_that_is_asked_for_and_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    show_gpus(monkeypatch)
    assert start(detect({}), timeout_s=10).device.type == "cpu"
    with pytest.raises(UsageError, match="device is 'cuda', but torch sees no GPU"):
        start(detect({}), timeout_s=10, device="cuda")


PROGRAM = """
import json, os, sys, torch, torch.distributed as dist
from hotlap.distributed.launch import detect, start
before = dict(os.environ)
with start(detect(os.environ), timeout_s=40, device="cpu"):
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
os.write(1, (json.dumps([total.item(), before == dict(os.environ)]) + "\\n").encode())
"""


@pytest.mark.timeout(90)
def test_ranks_of_torchrun_meet_and_leave_the_environment_alone(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run_ranks(program, 2)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[3.0, True]] * 2
