"""The probes of the System over small recorded folders and over this very machine."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from hotlap.machine import storage
from hotlap.machine.container import find_container
from hotlap.machine.cpu import find_cpu
from hotlap.machine.gpus import Gpus, find_gpus, parse_smi, visible_gpus, with_torch
from hotlap.machine.isa import find_instructions
from hotlap.machine.network import find_network
from hotlap.machine.scheduler import find_scheduler
from hotlap.machine.storage import OURS, THEIRS, Effort, find_mount, find_storage, measure
from hotlap.records.software import TorchDevice
from hotlap.records.system import Gpu, InfiniBand, Interface, NumaNode, Scheduler

SMALL = Effort(n_bytes=1 << 20, seconds=0.2)


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


TWO_SOCKETS = {
    "proc/cpuinfo": "model name: Some CPU\nflags\t\t: fpu avx2 hypervisor avx512f\n",
    "proc/loadavg": "3.25 2.00 1.00 2/300 4711\n",
    "proc/self/status": "Cpus_allowed_list:\t0-2\n",
    "sys/devices/system/cpu/online": "0-7\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:  1024 kB\n",
    "sys/devices/system/node/node1/cpulist": "4-7\n",
    "sys/devices/system/node/possible": "0-1\n",
    **{
        f"sys/devices/system/cpu/cpu{cpu}/topology/{name}": f"{number}\n"
        for cpu in range(8)
        for name, number in (("physical_package_id", cpu // 4), ("core_id", cpu // 2))
    },
}


def test_cores_sockets_numa_nodes_and_the_allocation_on_each_are_counted(tmp_path: Path) -> None:
    cpu = find_cpu(write(tmp_path, TWO_SOCKETS), {}, is_tried=False)
    assert (cpu.n_cpus, cpu.n_cores, cpu.n_sockets, cpu.n_allocated) == (8, 4, 2, 3)
    assert cpu.numa == (NumaNode(0, 4, 3, 1 << 20), NumaNode(1, 4, 0, None))
    assert (cpu.governor, cpu.load_1min, cpu.is_virtual) == ("performance", 3.25, True)
    assert cpu.bounds == {"affinity": 3}


def test_what_binds_the_cpus_is_named(tmp_path: Path) -> None:
    root = write(tmp_path, {**TWO_SOCKETS, "proc/self/cgroup": "0::/\n",
                            "sys/fs/cgroup/cpu.max": "200000 100000\n"})  # fmt: skip
    cpu = find_cpu(root, {"SLURM_CPUS_PER_TASK": "1"}, is_tried=False)
    assert cpu.bounds == {"affinity": 3, "cgroup quota": 2, "Slurm": 1}
    assert cpu.n_allocated == 1


def test_a_machine_that_tells_nothing_is_unknown(tmp_path: Path) -> None:
    cpu = find_cpu(tmp_path, {}, is_tried=False)
    assert (cpu.n_cpus, cpu.n_cores, cpu.numa, cpu.instructions) == (None, None, (), ())
    network = find_network(tmp_path)
    assert (network.interfaces, network.infiniband, network.is_gpudirect) == ((), (), None)
    assert find_container(tmp_path, {}) is None
    assert find_scheduler({}) is None


def test_advertised_instructions_are_tried_on_this_machine() -> None:
    found = {one.name: one for one in find_instructions()}
    advertised = [one for one in found.values() if one.is_advertised]
    if os.uname().machine == "x86_64":
        assert advertised
        assert {one.state for one in advertised} <= {"usable", "dies"}
    assert {one.state for one in found.values() if not one.is_advertised} <= {"unknown"}


def test_features_of_arm_are_told_and_not_tried(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/cpuinfo": "processor: 0\nFeatures\t: fp asimd bf16 sve\n"})
    found = find_instructions(root)
    assert [one.name for one in found if one.is_advertised] == ["asimd", "bf16", "sve"]
    assert {one.state for one in found} == {"unknown"}


def test_interfaces_infiniband_and_gpudirect_are_found(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "sys/class/net/lo/operstate": "unknown\n",
            "sys/class/net/eth0/operstate": "up\n",
            "sys/class/net/eth0/speed": "25000\n",
            "sys/class/net/eth1/operstate": "down\n",
            "sys/class/net/eth1/speed": "-1\n",
            "sys/class/net/bonding_masters": "bond0\n",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
            "sys/class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n",
            "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
            "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
            "proc/modules": "nvidia_peermem 16384 0 - Live 0x0\nib_core 4 1 - Live 0x0\n",
        },
    )
    network = find_network(root, {"eth0": "192.0.2.7"}.get)
    assert network.interfaces == (
        Interface("eth0", True, 25000, "192.0.2.7"),
        Interface("eth1", False, None, None),
    )
    assert network.infiniband == (
        InfiniBand("mlx5_0", 1, True, 200.0, "InfiniBand"),
        InfiniBand("mlx5_1", 1, False, None, None),
    )
    assert network.is_gpudirect is True


@pytest.mark.parametrize(
    ("files", "environ", "kind"),
    [
        ({".dockerenv": ""}, {}, "Docker"),
        ({"run/.containerenv": ""}, {}, "Podman"),
        ({}, {"APPTAINER_CONTAINER": "/images/a.sif"}, "Apptainer"),
        ({"proc/self/cgroup": "0::/kubepods/pod1\n"}, {}, "Kubernetes"),
        ({"proc/self/cgroup": "0::/system.slice\n"}, {}, None),
    ],
)
def test_a_container_is_known_by_its_traces(
    tmp_path: Path, files: dict[str, str], environ: dict[str, str], kind: str | None
) -> None:
    assert find_container(write(tmp_path, files), environ) == kind


def test_a_job_is_known_by_its_variables() -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "x"}
    assert find_scheduler(environ) == Scheduler("Slurm", "7", 2, None, None, None)
    assert find_scheduler({"PBS_JOBID": "8.host"}) == Scheduler("PBS", "8.host", *[None] * 4)


MOUNTS = """\
/dev/sda / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
10.0.0.1@o2ib:/s /scratch lustre rw 0 0
/dev/sdb /scratch/local xfs rw 0 0
/dev/sdc /with\\040space btrfs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "mount", "filesystem"),
    [
        ("/home/me", "/", "ext4"),
        ("/scratch/me/data", "/scratch", "lustre"),
        ("/scratch/local/x", "/scratch/local", "xfs"),
        ("/scratchy", "/", "ext4"),
        ("/with space/x", "/with space", "btrfs"),
    ],
)
def test_the_longest_mount_point_holds_a_path(path: str, mount: str, filesystem: str) -> None:
    assert find_mount(Path(path), MOUNTS) == (mount, filesystem)


def test_the_storage_under_an_empty_folder_is_measured_and_left_empty(tmp_path: Path) -> None:
    found = find_storage(tmp_path, SMALL)
    assert found.filesystem is not None
    assert found.read_bytes_per_s is not None
    assert found.opens_per_s is not None
    assert found.read_bytes_per_s > 0
    assert found.opens_per_s > 0
    assert found.measured_on == OURS
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_there_are_neither_changed_nor_thrown_out_of_the_cache(
    tmp_path: Path,
) -> None:
    file = tmp_path / "data.bin"
    file.write_bytes(os.urandom(300_000))
    before = file.stat().st_mtime_ns
    was_cached = storage._is_cached(file, 300_000)
    measure(tmp_path, SMALL)
    assert file.stat().st_mtime_ns == before
    assert was_cached
    assert storage._is_cached(file, 300_000)


def test_cold_files_that_are_there_are_read(tmp_path: Path) -> None:
    for i in range(60):
        _write_cold(tmp_path / f"small-{i}", 2000)
    for i in range(2):
        _write_cold(tmp_path / f"large-{i}", 9 << 20)
    rate, opens, what = measure(tmp_path, SMALL)
    assert rate is not None
    assert opens is not None
    assert THEIRS in what or what == OURS  # where the system keeps pages whatever it is told
    assert len(list(tmp_path.iterdir())) == 62


def _write_cold(path: Path, n_bytes: int) -> None:
    with path.open("wb") as stream:
        stream.write(os.urandom(n_bytes))
        stream.flush()
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_a_folder_that_nobody_can_write_is_a_line() -> None:
    rate, opens, why = measure(Path("/proc/self/task"), SMALL)
    assert (rate, opens) == (None, None)
    assert "cannot be written" in why


def test_files_of_the_kernel_are_not_read() -> None:
    found = find_storage(Path("/sys"), SMALL)
    assert (found.read_bytes_per_s, found.opens_per_s, found.free_bytes) == (None, None, None)
    assert (found.kind, found.measured_on) == ("unknown", "no place for data")


GPUS = [Gpu(i, "NVIDIA H200", uuid=f"GPU-{i}abc") for i in range(4)]


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        (None, {0, 1, 2, 3}),
        ("", set()),
        ("0,2", {0, 2}),
        ("3, 1", {1, 3}),
        ("GPU-2", {2}),
        ("0,9,1", {0}),
        ("-1", set()),
        ("NoDevFiles", set()),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_does(value: str | None, visible: set[int]) -> None:
    assert visible_gpus(GPUS, value) == visible


SMI = (
    "0, NVIDIA H200, GPU-0abc, 143771, 0, 9.0, 345, 1980, 76.49, 700.00, 700.00, 31, "
    "Enabled, Disabled, Enabled, 16, 16, 580.95.05"
)


def test_nvidia_smi_is_read_where_there_is_no_nvml(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho '{SMI}'\necho '{SMI.replace('0, NV', '1, NV', 1)}'\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    found = find_gpus(environ={"PATH": f"{tmp_path}:/bin", "CUDA_VISIBLE_DEVICES": "1"})
    assert found.told_by == "nvidia-smi"
    assert found.driver == "580.95.05"
    assert [gpu.is_visible for gpu in found.gpus] == [False, True]
    gpu = found.gpus[0]
    assert (gpu.memory_bytes, gpu.compute_capability) == (143771 << 20, "9.0")
    assert (gpu.power_limit_w, gpu.is_ecc, gpu.is_mig) == (700.0, True, False)


def test_what_nvidia_smi_does_not_know_is_unknown() -> None:
    row = [text.strip() for text in SMI.split(",")]
    row[8:11] = ["[N/A]", "[Not Supported]", "[N/A]"]
    gpu = parse_smi(row)
    assert (gpu.power_w, gpu.power_limit_w, gpu.power_default_w) == (None, None, None)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 9", "nvidia-smi: it failed"),
        ("echo 'No devices were found'; exit 6", "nvidia-smi: No devices were found"),
    ],
)
def test_an_nvidia_smi_that_fails_is_a_line(tmp_path: Path, script: str, words: str) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    found = find_gpus(environ={"PATH": f"{tmp_path}:/bin"})
    assert found.gpus == ()
    assert words in found.told_by


REPLAYED = Path(__file__).parent / "replayed_nvml"


def test_nvml_is_replayed_with_what_it_does_not_support(tmp_path: Path) -> None:
    found = find_gpus(environ={"PYTHONPATH": str(REPLAYED), "PATH": ""})
    assert (found.told_by, found.driver, found.driver_cuda) == ("NVML", "580.95.05", "13.0")
    first, second = found.gpus
    assert (first.name, first.memory_bytes, first.n_sms) == ("NVIDIA H200", 143771 << 20, 132)
    assert (first.power_limit_w, first.slowdowns) == (700.0, ("heat", "power cap"))
    assert first.n_nvlinks == 18
    assert (second.is_mig, second.temperature_c) == (None, None)
    assert [(p.pid, p.name) for p in first.processes] == [(4711, "python3")]
    assert "hunter2" not in json.dumps([repr(found)])
    assert [(pair.a, pair.b, pair.path) for pair in found.pairs] == [(0, 1, "NVLink")]


def test_torch_fills_in_what_the_driver_does_not_tell() -> None:
    device = TorchDevice(0, "1abc", "NVIDIA H200", "9.0", 1 << 30, 132)
    filled = with_torch(Gpus(tuple(GPUS), (), "NVML"), (device,))
    assert [gpu.n_sms for gpu in filled.gpus] == [None, 132, None, None]
    alone = with_torch(Gpus((), (), "none: nothing"), (device,))
    assert (alone.told_by, alone.gpus[0].name) == ("torch", "NVIDIA H200")
    assert with_torch(Gpus((), (), "none: nothing"), ()).told_by == "none: nothing"
