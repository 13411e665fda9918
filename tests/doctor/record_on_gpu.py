"""Runs the cases of `gpu_cases.py` on this machine's GPU and packs what rules look at.

    python tests/doctor/record_on_gpu.py h200.tar.gz [--only name,name] [--small]

Of each case: the Run, its ranks, what was seen inside, the script, and the Profile of a second run;
beside them the Machine, once. What names the machine or lies elsewhere on it is left out. `--small`
tries it all on a CPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from forked import Forked  # noqa: E402
from gpu_cases import CASES, GpuCase  # noqa: E402
from records_archive import PROJECT, TESTS, as_if_alone, pack  # noqa: E402

from hotlap.machine.probe import Prober  # noqa: E402
from hotlap.records.codec import write_json  # noqa: E402
from hotlap.records.machine import Machine  # noqa: E402
from hotlap.records.profile import PROFILE_FILE  # noqa: E402

STEPS = 40
KEPT = ("run.json", "rank-*.json", "*.levers", "train.py")
SMALL = {
    '"cuda"': '"cpu"',
    "cuda.synchronize": "cpu.synchronize",
    "BATCH, SIZE, WIDTH = 256, 64, 256": "BATCH, SIZE, WIDTH = 4, 8, 16",
    "32768, 32768": "32, 32",
    "1 << 26": "1 << 6",
    "120 << 30": "120",
    "80 << 30": "80",
    "1 << 30": "1024",
    "600 << 20": "600",
    "<< 21": "<< 1",
    "(1408, 3328,": "(64, 32,",
    "(1792, 3072,": "(64, 32,",
    "(1792, 2816,": "(64, 32,",
}
HOST = "gpu-node"
UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
PATHS = ("CC", "CXX", "CUDA_HOME")
"""Variables that hold paths of the machine."""


def text_of(case: GpuCase, is_small: bool) -> str:
    """The script, with its fault."""
    text = (HERE / "gpu_scripts" / f"{case.base}.py").read_text()
    for old, new in case.edits.items():
        assert old in text, f"{case.base}.py has no {old!r}"
        text = text.replace(old, new)
    if is_small:
        text = re.sub(r"(N_CLASSES) = .*", r"\1 = 64, 64, 128, 16", text)
        text = re.sub(r"(N_HEADS, BATCH) = .*", r"\1 = 64, 16, 32, 2, 4", text)
        text = re.sub(r"(N_FEATURES, WIDTH, BATCH) = .*", r"\1 = 16, 16, 8, 32, 4", text)
        for old, new in SMALL.items():
            text = text.replace(old, new)
    return text


def record(forked: Forked, case: GpuCase, target: Path, is_small: bool) -> None:
    """One case: a run that is measured, and one that is profiled."""
    text = text_of(case, is_small)
    measured = forked.run(text, STEPS)
    measured.run.write(measured.folder)
    target.mkdir(parents=True)
    for pattern in KEPT:
        for path in measured.folder.glob(pattern):
            keep(path, measured.folder, target)
    profiled = forked.profile(text)
    write_json(forked.folder / PROFILE_FILE, profiled)
    keep(forked.folder / PROFILE_FILE, forked.folder, target)


def keep(path: Path, folder: Path, target: Path) -> None:
    """A file of a run, less its paths and its host: the test puts its own folder there."""
    host, text = socket.gethostname(), path.read_text()
    for old, new in {
        str(folder): "@FOLDER@",
        str(HERE): TESTS,
        str(HERE.parents[1]): PROJECT,
        sys.prefix: "@PYTHON@",
        f'"{host}"': f'"{HOST}"',
        platform.release(): "6",
    }.items():
        text = text.replace(old, new)
    text = UUID.sub("0", text)
    if path.name == PROFILE_FILE:
        text = json.dumps(as_if_alone(json.loads(text)), separators=(",", ":"))
    (target / path.name.replace(f"{host}-", f"{HOST}-")).write_text(text)


def nameless(machine: Machine) -> Machine:
    """Without what tells which machine it is."""
    system, software = machine.system, machine.software
    storage = replace(system.storage, path=".", mount="/") if system.storage else None
    network = replace(system.network, interfaces=())
    environment = {k: v for k, v in software.environment.items() if k not in PATHS}
    return replace(
        machine,
        system=replace(system, hostname=HOST, storage=storage, network=network),
        software=replace(
            software,
            python=replace(software.python, executable="python3"),
            environment=environment,
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("archive", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    wanted = set(filter(None, arguments.only.split(",")))
    with tempfile.TemporaryDirectory() as folder:
        root, kept = Path(folder), Path(folder) / "kept"
        kept.mkdir()
        forked = Forked(root)
        for case in CASES:
            if wanted and case.name not in wanted:
                continue
            began = time.monotonic()
            try:
                record(forked, case, kept / case.name.replace(" ", "-"), arguments.small)
                print(f"{case.name}: {time.monotonic() - began:.1f} s", flush=True)
                pack(kept, arguments.archive)  # a run that is cut short leaves what it has
            except AssertionError as error:
                shutil.rmtree(kept / case.name.replace(" ", "-"), ignore_errors=True)
                print(f"{case.name} failed: {str(error)[-1500:]}", flush=True)
        forked.close()
        parts = Prober(progress=print).probe(Path(), None)
        write_json(root / "machine.json", nameless(Machine(*parts, None, ())))
        keep(root / "machine.json", root, kept)
        pack(kept, arguments.archive)


if __name__ == "__main__":
    main()
