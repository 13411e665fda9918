"""The allocated CPUs cannot decode as many JPEG images as the GPUs could train on.

The gain is from the one to the other: that of a training on JPEG files that waits for its data.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.appetite import images_per_s
from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding
from hotlap.wording import n_of

NAME = "decode_rate"
CEILING = "JPEG decode, one core"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The measured rate of one core times the cores."""
    ceilings, n_cpus = case.machine.ceilings, case.machine.system.cpu.n_allocated
    each = ceilings.rate(CEILING) if ceilings else None
    wanted = images_per_s(case, limits)
    if each is None or n_cpus is None or wanted is None:
        return
    if each * n_cpus >= limits.least_appetite_share * wanted:
        return
    yield Finding(
        NAME,
        "note",
        f"{n_of(n_cpus, 'CPU decodes', 'CPUs decode')} {each * n_cpus:,.0f} JPEG images a second",
        (
            f"{each:,.0f} a core; the GPUs could train on {wanted:,.0f} of them, "
            "if a ResNet-50 is trained",
        ),
        wanted / (each * n_cpus),
        "for image data: ask for more CPUs, store images smaller, or decode on the GPU",
    )


RULE = Rule(NAME, check)
