"""Write synthetic JPEG files that cost about as much to read as photographs of ImageNet.

Each is noise at several scales, from patches of colour to single pixels, about 500 x 375 pixels and
100 kB. Decoding time goes with both, so both are printed. Every file depends on its number alone.

    python benchmarks/tuner/make_jpegs.py --n 2000 jpegs/
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import random
import statistics
import time
from pathlib import Path

from PIL import Image

N_CLASSES = 1000
QUALITY = 90
SCALES = ((128, 1.0), (32, 0.5), (8, 0.3), (2, 0.25), (1, 0.18))
"""Pixels a grain of noise, and how much of it is mixed in: set so that a file has about 100 kB."""


def photo(draw: random.Random) -> Image.Image:
    """Noise from coarse to fine."""
    width, height = draw.randint(450, 550), draw.randint(340, 410)
    image = Image.new("RGB", (width, height))
    for pixels, weight in SCALES:
        size = (max(2, width // pixels), max(2, height // pixels))
        grains = Image.frombytes("RGB", size, draw.randbytes(3 * size[0] * size[1]))
        layer = grains.resize((width, height), Image.Resampling.BICUBIC)
        image = Image.blend(image, layer, weight)
    return image


def write(folder: Path, number: int) -> int:
    """Write one file; its size in bytes."""
    draw = random.Random(number)
    path = folder / f"{number:06d}_{draw.randrange(N_CLASSES):03d}.jpg"
    photo(draw).save(path, quality=QUALITY)
    return path.stat().st_size


def main() -> None:
    """Write them in as many processes as there are cores."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with multiprocessing.Pool(arguments.processes) as pool:
        sizes = pool.map(functools.partial(write, arguments.folder), range(arguments.n), 16)
    print(
        f"{len(sizes)} files in {time.monotonic() - began:.1f} s, "
        f"mean {statistics.fmean(sizes) / 1000:.0f} kB"
    )


if __name__ == "__main__":
    main()
