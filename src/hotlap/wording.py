"""Numbers of things, as a sentence says them."""

from __future__ import annotations


def n_of(n: int, what: str, several: str = "") -> str:
    """A number of things in a sentence; `several` is their name where it is no `what` with an s."""
    return f"{n} {what}" if n == 1 else f"{n} {several or what + 's'}"


def times(n: float) -> str:
    """How often, in a sentence."""
    number = f"{n:,.0f}" if n >= 100 else f"{n:.3g}"
    return "once" if round(n, 2) == 1 else f"{number} times"
