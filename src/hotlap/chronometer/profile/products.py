"""The big matrix products, one shape each, and how well their tiles fill the device.

    tiles = ceil(m / tile_m) * ceil(n / tile_n) * batch;  waves = tiles / multiprocessors

A last wave that is not full takes as long as a full one: 1.1 waves cost two.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping

from hotlap.chronometer.profile.costs import Product, product_of
from hotlap.chronometer.profile.lines import Lines
from hotlap.chronometer.profile.sums import computed_in
from hotlap.chronometer.profile.work import Window, Work
from hotlap.records.profile import Matmul

N_PRODUCTS = 8
_TILE = re.compile(r"(?<![\dx])(\d{2,3})x(\d{2,3})(?!\d)")


def find_products(
    window: Window, n_multiprocessors: int | None, lines: Lines | None
) -> tuple[Matmul, ...]:
    """The shapes of matrix product that take the most time."""
    groups: dict[tuple[Product, str, str], list[Work]] = defaultdict(list)
    for work in window.works:
        product = _product(work)
        if product is not None and work.kind == "matmul":
            dtype = computed_in(work) or product.dtype
            groups[product, dtype, work.name if window.is_device else ""].append(work)
    ranked = sorted(groups.items(), key=lambda item: -sum(work.us for work in item[1]))
    return tuple(
        _row(product, dtype, kernel, works, window.n_steps, n_multiprocessors, lines)
        for (product, dtype, kernel), works in ranked[:N_PRODUCTS]
    )


def _product(work: Work) -> Product | None:
    if work.operator is None:
        return None
    return next((found for one in work.operator.ancestors() if (found := product_of(one))), None)


def _row(
    product: Product,
    dtype: str,
    kernel: str,
    works: list[Work],
    n_steps: int,
    n_multiprocessors: int | None,
    lines: Lines | None,
) -> Matmul:
    seconds = sum(work.us for work in works) / 1e6 / n_steps
    operators = {id(work.operator) for work in works}
    calls = len(operators) / n_steps
    tiles = count_tiles(product, kernel) if kernel else None
    waves = tiles / n_multiprocessors if tiles and n_multiprocessors else None
    return Matmul(
        m=product.m,
        n=product.n,
        k=product.k,
        batch=product.batch,
        dtype=dtype,
        seconds=seconds,
        calls=calls,
        flops_per_s=product.flops * calls / seconds if seconds else None,
        kernel=kernel,
        tiles=tiles,
        waves=waves,
        wave_efficiency=waves / math.ceil(waves) if waves else None,
        sites=lines.sites_of_product(product) if lines else (),
    )


def count_tiles(product: Product, kernel: str) -> int | None:
    """How many tiles a kernel cuts its output into, where its name tells their size.

    Which of the two sizes lies along which side depends on the layout; the fewer tiles count,
    because a library chooses the orientation that fits.
    """
    found = _TILE.search(kernel)
    if found is None:
        return None
    a, b = int(found.group(1)), int(found.group(2))
    either = [math.ceil(product.m / x) * math.ceil(product.n / y) for x, y in ((a, b), (b, a))]
    return min(either) * product.batch


def multiprocessors(devices: tuple[Mapping[str, object], ...]) -> int | None:
    """Of the device in the trace."""
    found = devices[0].get("numSms") if devices else None
    return found if isinstance(found, int) else None
