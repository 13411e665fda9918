"""Recorded Machines and edits of them.

`cpu_node.json` was recorded by `hotlap doctor` on a virtual machine of two cores, less its names;
its bf16 products end the process. `gpu_node.json` is that record edited into one node of a job on
two nodes with two H200s each. The Stack is not in the files: it follows from the rest.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotlap.machine.stack import find_stack
from hotlap.records.ceilings import Ceilings
from hotlap.records.codec import from_json
from hotlap.records.machine import Machine
from hotlap.records.software import Software
from hotlap.records.system import System

MACHINES = Path(__file__).parent / "doctor" / "machines"
Edits = Mapping[str, Any]


def recorded(name: str, edits: Edits | None = None) -> Machine:
    """A recorded Machine with some of its facts changed: 'system.cpu.n_allocated' to a value."""
    document = json.loads((MACHINES / f"{name}.json").read_text())
    for path, value in (edits or {}).items():
        change(document, path, value)
    system = from_json(System, document["system"], "system")
    software = from_json(Software, document["software"], "software")
    ceilings = from_json(Ceilings, document["ceilings"], "ceilings")
    return Machine(system, software, find_stack(system, software), ceilings, ())


def change(document: Any, path: str, value: Any) -> None:
    """Set what lies at a path; a number in it counts in a list. It must be there already,
    but for the tables of names that are free."""
    *folders, last = path.split(".")
    for word in folders:
        document = document[int(word)] if word.isdigit() else document[word]
    if isinstance(document, list):
        document[int(last)] = copy.deepcopy(value)
        return
    is_free = folders[-1] in ("environment", "packages", "compilers", "products", "bounds")
    assert is_free or last in document, f"there is no {path} in the record"
    document[last] = copy.deepcopy(value)
