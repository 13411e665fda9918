"""The host probe over small recorded folders: every source may be there, missing, or nonsense."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from hotlap.machine.host import Host, describe_host

X86_CPUINFO = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz
cpu cores\t: 20

processor\t: 1
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz
cpu cores\t: 20
"""

GRACE_CPUINFO = """\
processor\t: 0
BogoMIPS\t: 2000.00
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd4f
CPU revision\t: 0
"""

POWER_CPUINFO = """\
processor\t: 0
cpu\t\t: POWER9, altivec supported
clock\t\t: 3800.000000MHz
"""

NODE = {
    "proc/cpuinfo": X86_CPUINFO,
    "proc/meminfo": "MemTotal:       196608000 kB\nMemFree:        100000000 kB\n",
    "proc/self/status": "Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t0-31,40-47\n",
    "proc/sys/kernel/hostname": "node042\n",
    "proc/sys/kernel/osrelease": "5.14.0-427.el9.x86_64\n",
    "sys/devices/system/cpu/online": "0-79\n",
}

V2_JOB = "system.slice/slurmstepd.scope/job_7/step_0"
V2 = {"proc/self/cgroup": f"0::/{V2_JOB}\n"}

V1 = {
    "proc/self/cgroup": (
        "12:memory:/slurm/uid_1000/job_7\n4:cpu,cpuacct:/slurm/uid_1000/job_7\n"
        "1:name=systemd:/system.slice\n"
    )
}
V1_CPU = "sys/fs/cgroup/cpu,cpuacct/slurm/uid_1000/job_7"
V1_MEMORY = "sys/fs/cgroup/memory/slurm/uid_1000/job_7"
V1_NO_MEMORY_LIMIT = "9223372036854771712\n"


def described(folder: Path, files: dict[str, str], **environ: str) -> Host:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return describe_host(root=folder, environ=environ)


def test_a_node_without_cgroups_is_bounded_by_its_affinity_mask(tmp_path: Path) -> None:
    assert described(tmp_path, NODE) == Host(
        hostname="node042",
        cpu_model="Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz",
        n_cpus=80,
        n_cpus_allocated=40,
        memory_bytes=196608000 * 1024,
        memory_limit_bytes=None,
        kernel="5.14.0-427.el9.x86_64",
        python=platform.python_version(),
    )


def test_a_cgroup_v2_quota_is_rounded_up_to_whole_cpus(tmp_path: Path) -> None:
    files = {
        **NODE,
        **V2,
        f"sys/fs/cgroup/{V2_JOB}/cpu.max": "250000 100000\n",
        f"sys/fs/cgroup/{V2_JOB}/memory.max": "17179869184\n",
    }
    host = described(tmp_path, files)
    assert host.n_cpus == 80
    assert host.n_cpus_allocated == 3
    assert host.memory_limit_bytes == 16 * 2**30


def test_cgroup_v2_without_a_quota_sets_no_bound(tmp_path: Path) -> None:
    files = {
        **NODE,
        **V2,
        f"sys/fs/cgroup/{V2_JOB}/cpu.max": "max 100000\n",
        f"sys/fs/cgroup/{V2_JOB}/memory.max": "max\n",
    }
    host = described(tmp_path, files)
    assert host.n_cpus_allocated == 40
    assert host.memory_limit_bytes is None


def test_the_tightest_limit_up_the_cgroup_tree_binds(tmp_path: Path) -> None:
    files = {
        **NODE,
        **V2,
        f"sys/fs/cgroup/{V2_JOB}/cpu.max": "1600000 100000\n",
        f"sys/fs/cgroup/{V2_JOB}/memory.max": "max\n",
        "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/cpu.max": "800000 100000\n",
        "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max": "8589934592\n",
    }
    host = described(tmp_path, files)
    assert host.n_cpus_allocated == 8
    assert host.memory_limit_bytes == 8 * 2**30


@pytest.mark.parametrize("path", ["/", "/docker/3f2a", "/../../kubepods/pod1"])
def test_in_a_container_the_limits_at_the_mount_are_its_own(tmp_path: Path, path: str) -> None:
    files = {
        **NODE,
        "proc/self/cgroup": f"0::{path}\n",
        "sys/fs/cgroup/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/memory.max": "4294967296\n",
    }
    host = described(tmp_path, files)
    assert host.n_cpus_allocated == 4
    assert host.memory_limit_bytes == 4 * 2**30


def test_cgroup_v1_limits_are_found(tmp_path: Path) -> None:
    files = {
        **NODE,
        **V1,
        f"{V1_CPU}/cpu.cfs_quota_us": "1000000\n",
        f"{V1_CPU}/cpu.cfs_period_us": "100000\n",
        f"{V1_MEMORY}/memory.limit_in_bytes": "68719476736\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": V1_NO_MEMORY_LIMIT,
    }
    host = described(tmp_path, files)
    assert host.n_cpus_allocated == 10
    assert host.memory_limit_bytes == 64 * 2**30


def test_cgroup_v1_mounted_one_controller_a_folder_is_found(tmp_path: Path) -> None:
    files = {
        **NODE,
        "proc/self/cgroup": "4:memory:/\n1:cpu:/\n0::/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert described(tmp_path, files).n_cpus_allocated == 2


def test_cgroup_v1_without_limits_sets_no_bound(tmp_path: Path) -> None:
    files = {
        **NODE,
        **V1,
        f"{V1_CPU}/cpu.cfs_quota_us": "-1\n",
        f"{V1_CPU}/cpu.cfs_period_us": "100000\n",
        f"{V1_MEMORY}/memory.limit_in_bytes": V1_NO_MEMORY_LIMIT,
    }
    host = described(tmp_path, files)
    assert host.n_cpus_allocated == 40
    assert host.memory_limit_bytes is None


def test_slurm_cpus_per_task_binds_where_it_is_the_fewest(tmp_path: Path) -> None:
    assert described(tmp_path, NODE, SLURM_CPUS_PER_TASK="10").n_cpus_allocated == 10
    assert described(tmp_path, NODE, SLURM_CPUS_PER_TASK="64").n_cpus_allocated == 40


@pytest.mark.parametrize("value", ["", "0", "ten", "-4"])
def test_a_slurm_variable_that_is_no_count_is_ignored(tmp_path: Path, value: str) -> None:
    assert described(tmp_path, NODE, SLURM_CPUS_PER_TASK=value).n_cpus_allocated == 40


def test_an_arm_host_without_a_model_name_is_named_after_its_core(tmp_path: Path) -> None:
    host = described(tmp_path, {**NODE, "proc/cpuinfo": GRACE_CPUINFO})
    assert host.cpu_model == "Arm Neoverse V2"


def test_an_arm_core_that_is_not_known_is_given_by_its_numbers(tmp_path: Path) -> None:
    cpuinfo = GRACE_CPUINFO.replace("0xd4f", "0xabc")
    host = described(tmp_path, {**NODE, "proc/cpuinfo": cpuinfo})
    assert host.cpu_model == "implementer 0x41, part 0xabc"


def test_a_power_host_is_named(tmp_path: Path) -> None:
    host = described(tmp_path, {**NODE, "proc/cpuinfo": POWER_CPUINFO})
    assert host.cpu_model == "POWER9, altivec supported"


def test_without_sys_the_cpus_are_counted_in_cpuinfo(tmp_path: Path) -> None:
    host = described(tmp_path, {"proc/cpuinfo": X86_CPUINFO})
    assert host.n_cpus == 2
    assert host.n_cpus_allocated == 2


def unknown_host() -> Host:
    return Host(None, None, None, None, None, None, None, platform.python_version())


def test_a_host_that_tells_nothing_is_unknown(tmp_path: Path) -> None:
    assert described(tmp_path, {}) == unknown_host()


@pytest.mark.parametrize("text", ["", "\n", "nonsense", "a:b:c:d\n", ":\n::\n", "0-,-3,,\n"])
def test_nonsense_in_every_file_raises_nothing(tmp_path: Path, text: str) -> None:
    files = dict.fromkeys(NODE, text)
    files |= {"proc/self/cgroup": text, "sys/fs/cgroup/cpu.max": text}
    host = described(tmp_path, files)
    assert (host.n_cpus, host.memory_bytes, host.memory_limit_bytes) == (None, None, None)


def test_bytes_that_are_no_text_raise_nothing(tmp_path: Path) -> None:
    described(tmp_path, NODE)
    for name in NODE:
        (tmp_path / name).write_bytes(b"\xff\xfe\x00\x80")
    assert describe_host(root=tmp_path, environ={}).n_cpus is None


def test_what_cannot_be_read_raises_nothing(tmp_path: Path) -> None:
    # A folder in the place of each file: reading it fails whoever runs the test.
    for name in (*NODE, "proc/self/cgroup", "sys/fs/cgroup/cpu.max"):
        (tmp_path / name).mkdir(parents=True)
    assert describe_host(root=tmp_path, environ={}) == unknown_host()


def test_this_host_is_described() -> None:
    host = describe_host()
    assert host.n_cpus is not None
    assert host.n_cpus_allocated is not None
    assert 1 <= host.n_cpus_allocated <= host.n_cpus
    assert host.memory_bytes is not None
