"""Loaded into a measured process by HOTLAP_INSTALL: two of three steps are quiet, on any device."""

from __future__ import annotations

from typing import Any

from hotlap.chronometer.session import Session


def install(torch: Any, session: Session) -> None:
    """Have every step's end decide it, as the clock of a device does."""
    step_ended = Session.step_ended

    def then_be_quiet(self: Session, now: int) -> None:
        step_ended(self, now)
        self.be_quiet(len(self.boundaries) % 3 != 0)
        if self.quiet_flag:
            self.note("there were quiet steps")

    Session.step_ended = then_be_quiet  # type: ignore[method-assign]
