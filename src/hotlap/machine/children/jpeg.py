"""JPEG images that one core decodes in a second, with the Pillow that is there."""

from __future__ import annotations

import io
from collections.abc import Sequence

from hotlap.machine.child import tell
from hotlap.machine.clock import now_s

SIZE = (500, 375)
"""The middle size of a photograph in ImageNet."""
QUALITY = 90


def main(argv: Sequence[str]) -> None:
    """Tell images a second, from the best tenth of the time that is given."""
    from PIL import Image

    seconds = float(argv[0])
    # Noise made larger has the soft edges of a photograph: bytes and work are like one's.
    noise = [Image.effect_noise((SIZE[0] // 4, SIZE[1] // 4), 80) for _ in range(3)]
    image = Image.merge("RGB", noise).resize(SIZE, Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=QUALITY)
    data = stream.getvalue()
    best, begin = 0.0, now_s()
    while now_s() - begin < seconds:
        best = max(best, _rate(data, seconds / 10))
    width, height = SIZE
    tell({"value": best, "note": f"{width} x {height}, {len(data) // 1000} kB, Pillow"})


def _rate(data: bytes, seconds: float) -> float:
    from PIL import Image

    n, begin = 0, now_s()
    while now_s() - begin < seconds:
        Image.open(io.BytesIO(data)).convert("RGB").load()
        n += 1
    return n / (now_s() - begin)
