"""What a job's command finds: modules, environments, containers and the cluster's own settings.

Modules and virtual environments are the real ones. conda and Apptainer are in no package of
Debian's: programs of their names stand for them, and show which words reach them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import Cluster
from submitting import Submitted, hotlap, submit

NAMES = (
    *("TOOL", "TOOL_PATH", "LOADEDMODULES", "VIRTUAL_ENV", "CONDA_WORDS", "APPTAINER_WORDS"),
    *("NCCL_SOCKET_IFNAME", "NCCL_DEBUG"),
)
SHOW = f"""
import json, os, sys
found = {{name: os.environ.get(name) for name in {NAMES}}}
found |= {{"argv": sys.argv[1:], "prefix": sys.prefix, "cwd": os.getcwd()}}
# In one short write, so that the lines of several ranks do not mix.
os.write(1, (json.dumps(found) + chr(10)).encode())
"""
TOOL = """#%Module
setenv TOOL {it's the module's}
prepend-path TOOL_PATH /tools/bin
"""
CONDA = """#!/bin/bash
[[ "$*" == "shell.bash hook" ]] || exit 9
echo 'conda() { export CONDA_WORDS="$(printf "%s|" "$@")"; }'
"""
APPTAINER = """#!/bin/bash
export APPTAINER_WORDS="$(printf '%s|' "$@")"
until [[ $1 == *.sif ]]; do shift; done
shift
exec "$@"
"""
FIRST = ("--hours", "0.1")
NAME = "it's my $HOME"

pytestmark = pytest.mark.timeout(170)

Jobs = dict[str, Submitted]


@pytest.fixture(scope="module")
def jobs(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """Side by side."""
    home = tmp_path_factory.mktemp("home")
    (home / "modules" / "tool").mkdir(parents=True)
    (home / "modules" / "tool" / "1.0").write_text(TOOL)
    programs = home / "bin"
    programs.mkdir()
    for name, text in (("conda", CONDA), ("apptainer", APPTAINER)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    venv.create(home / "my venv", symlinks=True)
    here = {"MODULEPATH": str(home / "modules")}
    ours = {"PATH": f"{programs}:{os.environ['PATH']}"}

    def send(name: str, env: dict[str, str], *words: str) -> Submitted:
        folder = tmp_path_factory.mktemp(name)
        return submit(cluster, folder, "v100", *FIRST, "--name", name, *words, env=env)

    python, show = sys.executable, ("-c", SHOW, "a b", "$(touch ran)")
    image = "my image.sif"
    return {
        "no function": send("modules", here, "--module", "tool/1.0", "--", python, *show),
        "function": send(
            "function", {**here, **exported_function()}, "--module", "tool", "--", python, *show
        ),
        "no such module": send("nomodule", here, "--module", "; touch ran", "--", python, *show),
        "venv": send("venv", {}, "--venv", str(home / "my venv"), "--", "python", *show),
        "conda": send("conda", ours, "--conda", NAME, "--", python, *show),
        "container": send(
            *("container", ours, "--container", image, "--bind", NAME, "--gpus", "2"),
            *("--", python, *show),
        ),
    }


def exported_function() -> dict[str, str]:
    """The function as it reaches a job that is sent from a shell where modules work."""
    words = ["bash", "-c", "source /usr/share/modules/init/bash && env -0"]
    shell = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout
    found = dict(line.partition("=")[::2] for line in shell.split("\0") if line)
    functions = {name: value for name, value in found.items() if name.startswith("BASH_FUNC_")}
    assert "BASH_FUNC_module%%" in functions
    return functions


def shown(job: Submitted) -> dict[str, Any]:
    assert job.wait() == "COMPLETED", job.text("err")
    found = job.lines()[0]
    assert found["argv"] == ["a b", "$(touch ran)"]
    assert not list(job.folder.parents[2].rglob("ran"))
    return found


@pytest.mark.parametrize("way", ["no function", "function"])
def test_modules_are_loaded_whether_or_not_the_shell_around_knows_them(
    jobs: Jobs, way: str
) -> None:
    found = shown(jobs[way])
    assert (found["TOOL"], found["TOOL_PATH"]) == ("it's the module's", "/tools/bin")
    assert found["LOADEDMODULES"] == "tool/1.0"


def test_without_a_module_that_was_asked_for_the_command_does_not_run(jobs: Jobs) -> None:
    job = jobs["no such module"]
    assert job.wait() == "FAILED"
    assert job.text() == ""
    assert "; touch ran" in job.text("err")
    assert not list(job.folder.parents[2].rglob("ran"))


def test_python_is_that_of_the_virtual_environment(jobs: Jobs) -> None:
    found = shown(jobs["venv"])
    assert found["prefix"] == found["VIRTUAL_ENV"]
    assert Path(found["prefix"]).name == "my venv"


def test_conda_is_asked_for_its_hook_and_the_name_arrives_whole(jobs: Jobs) -> None:
    assert shown(jobs["conda"])["CONDA_WORDS"] == f"activate|{NAME}|"


def test_a_container_gets_the_command_and_sees_the_folders(jobs: Jobs) -> None:
    job = jobs["container"]
    cwd = shown(job)["cwd"]
    assert len(job.lines()) == 2
    words = shown(job)["APPTAINER_WORDS"].split("|")
    python = words.index(sys.executable)
    binds = ["--bind", cwd, "--bind", NAME, "--pwd", cwd]
    assert words[:python] == ["exec", "--nv", *binds, "my image.sif"]


def test_a_clusters_own_settings_are_exported_and_a_users_come_first(
    cluster: Cluster, tmp_path: Path
) -> None:
    profile = tmp_path / "mini.toml"
    hotlap(cluster, tmp_path, "clusters", "discover", "-o", str(profile))
    nccl = (
        '\n[environment]\nsource = "live"\nNCCL_SOCKET_IFNAME = "hsn0,hsn1"\nNCCL_DEBUG = "INFO"\n'
    )
    profile.write_text(profile.read_text() + nccl)
    words = ["--cluster", str(profile), *FIRST, "--gpus", "2", "--env", "NCCL_DEBUG=it's mine"]
    job = submit(cluster, tmp_path, "v100", *words, "--", sys.executable, "-c", SHOW)
    assert job.wait() == "COMPLETED", job.text("err")
    found = [(one["NCCL_SOCKET_IFNAME"], one["NCCL_DEBUG"]) for one in job.lines()]
    assert found == [("hsn0,hsn1", "it's mine")] * 2


def test_a_virtual_environment_that_is_none_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    words = ["submit", *FIRST, "--gpu", "v100", "--account", "abc@v100", "--venv", "nowhere"]
    refused = hotlap(cluster, tmp_path, *words, "python", "-c", json.dumps(1))
    assert refused.returncode == 2
    assert refused.stderr == "hotlap: --venv is 'nowhere'; there is no bin/activate in it\n"
