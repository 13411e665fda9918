"""Numbers of things in a sentence: one of them is no plural."""

from __future__ import annotations

import pytest

from hotlap.wording import n_of, times


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (n_of(0, "step"), "0 steps"),
        (n_of(1, "step"), "1 step"),
        (n_of(41, "step"), "41 steps"),
        (n_of(1, "batch", "batches"), "1 batch"),
        (n_of(2, "batch", "batches"), "2 batches"),
        (times(1), "once"),
        (times(0.999), "once"),
        (times(2.5), "2.5 times"),
        (times(12345), "12,345 times"),
    ],
)
def test_a_number_of_things(text: str, told: str) -> None:
    assert text == told
