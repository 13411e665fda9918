"""How long a product of matrices takes at the chip's peaks: tiles, waves of them, and bytes.

A GPU computes the output in tiles, as many at a time as it has multiprocessors. The last wave of
tiles is rarely full, edges are padded, and each tile takes some time to start and to write. Small
tiles fill the waves better but reuse less of what they read.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil

TILES = ((256, 128, 1.0), (128, 128, 0.92), (128, 64, 0.75), (64, 64, 0.55))
"""Rows, columns, and the share of the peak that a multiprocessor reaches in a tile of that size."""
SPLITS = (1, 2, 4)
"""Parts along the inner dimension, each computed as a tile of its own and summed."""
START_K = 96
"""Filling and emptying a tile takes as long as this much of the inner dimension."""


@lru_cache(maxsize=65536)
def peak_seconds(
    m: float,
    n: int,
    k: float,
    n_multiprocessors: int,
    flops_per_s: float,
    bytes_per_s: float,
    element_bytes: int,
    input_elements: float = 0.0,
) -> float:
    """Of [m, k] times [k, n], had every multiprocessor its peak and the memory too."""
    m, k = max(1.0, m), max(1.0, k)
    moved_s = ((input_elements or m * k) + k * n + m * n) * element_bytes / bytes_per_s
    per_multiprocessor = flops_per_s / n_multiprocessors
    best = float("inf")
    for rows, columns, share in TILES:
        tiles = ceil(m / rows) * ceil(n / columns)
        for split in SPLITS:
            inner = k / split + START_K
            waves = ceil(tiles * split / n_multiprocessors)
            tile_s = 2.0 * rows * columns * inner / (per_multiprocessor * share)
            # Partial sums are written and read once more.
            summed_s = m * n * 4 * 2 * (split - 1) / bytes_per_s
            best = min(best, waves * tile_s + summed_s)
    return max(best, moved_s)
