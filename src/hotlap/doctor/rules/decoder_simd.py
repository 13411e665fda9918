"""Pillow was built with a JPEG library without vector instructions: it decodes far slower."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "decoder_simd"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """What the Stack says of the decoder."""
    stack = case.machine.stack
    if stack.decoder == "works":
        yield Finding(
            NAME,
            "advice",
            "images are decoded without vector instructions",
            (stack.decoder_how,),
            None,
            "install Pillow from its own wheels, which bring libjpeg-turbo, or Pillow-SIMD",
        )


RULE = Rule(NAME, check)
