"""Runs many scripts as `hotlap doctor` would, each in a process forked from one that has torch.

An order is a line of JSON on standard input: script, folder, steps, ranks, levers, and whether a
profile is wanted. The answer is a line with the exit code. What `sitecustomize` does at the end of
`import torch` is done here: the hooks of the chronometer are installed before anything else is
imported, and in each forked process the levers' watcher and the doctor's own, or the profile's.
Then the script is executed as `__main__`, in a folder of its own. What the processes leave is read
by the test with the launcher's own functions.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import socket
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from hotlap.chronometer import hooks
from hotlap.chronometer.profile import window
from hotlap.chronometer.session import SKIP_FLOPS_VARIABLE, Settings
from hotlap.doctor import inside as doctor_inside
from hotlap.levers.common import inside as levers_inside

SESSION = hooks.install(torch, Settings(""))
importlib.import_module("torch._dynamo")  # as making an optimizer does: once, not in each fork


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def run_script(order: dict[str, Any], rank: int, port: int) -> None:
    """In the forked process; does not return."""
    folder = Path(order["folder"])
    work = folder / f"work-{rank}"
    work.mkdir()
    os.chdir(work)
    log = os.open("output.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if order["ranks"] > 1:
        os.environ |= {
            **{"RANK": str(rank), "WORLD_SIZE": str(order["ranks"]), "LOCAL_RANK": str(rank)},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        }
    os.environ |= levers_inside.Orders(levers=order["levers"]).to_environment()
    os.environ[SKIP_FLOPS_VARIABLE] = "1"
    SESSION.settings = Settings(str(folder), order["steps"])
    if order["profile"]:
        os.environ |= window.Orders(warmup=4, steps=2, ends_run=True).to_environment()
        window.install(torch, SESSION)
    else:
        SESSION.steps = order["steps"]
        levers_inside.install(torch, SESSION)
        doctor_inside.install(torch, SESSION)
    os._exit(execute(order["script"]))


def execute(script: str) -> int:
    """As `python script` does, to the last finalizer."""
    main = ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main
    sys.argv = [script]
    code = 0
    try:
        exec(compile(Path(script).read_text(), script, "exec"), main.__dict__)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        sys.last_value = error
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return code


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        pids, port = [], free_port()
        for rank in range(order["ranks"]):
            pid = os.fork()
            if not pid:
                run_script(order, rank, port)
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps({"code": next((code for code in codes if code), 0)}), flush=True)


if __name__ == "__main__":
    main()
