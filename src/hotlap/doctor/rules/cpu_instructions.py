"""A matrix product on the CPU ends the process: an instruction is advertised and cannot be used.

Seen on virtual machines that advertise AMX. It is an error where the CPU trains; beside a GPU it
waits for the first product on the host.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "cpu_instructions"
VARIABLE = "ONEDNN_MAX_CPU_ISA"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A product that a child process did not survive."""
    torch = case.machine.software.torch
    products = torch.products if torch else {}
    died = {name: how for name, how in products.items() if how.startswith("it ended")}
    if not died:
        return
    instructions = case.machine.system.cpu.instructions
    dead = [one.name for one in instructions if one.is_advertised and one.state == "dies"]
    evidence = [f"a {name} product on the CPU: {how}" for name, how in died.items()]
    if dead:
        evidence.append(f"advertised and not usable: {', '.join(dead)}")
    yield Finding(
        NAME,
        "warning" if case.gpus else "error",
        f"products in {' and '.join(died)} on the CPU end the process",
        tuple(evidence),
        None,
        f"set {VARIABLE}={_newest_without_amx(case)} before torch starts (lever onednn_isa)",
    )


def _newest_without_amx(case: Case) -> str:
    usable = {one.name for one in case.machine.system.cpu.instructions if one.state == "usable"}
    return "AVX512_CORE_BF16" if "avx512_bf16" in usable else "AVX2"


RULE = Rule(NAME, check)
