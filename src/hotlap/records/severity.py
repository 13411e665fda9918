"""How severe a Finding is; apart from it, for the command line needs the words alone."""

from __future__ import annotations

from typing import Literal

Severity = Literal["note", "advice", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("note", "advice", "warning", "error")
"""Least first. 'error': training fails or cannot use the hardware; 'warning': something is wrong
and costs much; 'advice': something can be had; 'note': good to know."""
