"""The geometry of crops follows torchvision's rules."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from hotlap.data.crops import central_box, covering_size, random_crop_box


def random_boxes(
    width: int, height: int, scale: tuple[float, float]
) -> list[tuple[int, int, int, int]]:
    draw = random.Random(1)
    return [random_crop_box(width, height, scale, draw) for _ in range(4000)]


def test_random_crops_lie_inside_and_keep_to_area_and_aspect() -> None:
    for left, top, right, bottom in random_boxes(500, 375, (0.08, 1.0)):
        assert 0 <= left < right <= 500
        assert 0 <= top < bottom <= 375
        width, height = right - left, bottom - top
        assert 0.74 < width / height < 1.35
        assert 0.079 < width * height / (500 * 375) <= 1.0


def test_area_is_uniform_and_aspect_log_uniform_where_every_draw_fits() -> None:
    boxes = random_boxes(1000, 1000, (0.1, 0.5))
    areas = [(r - x) * (b - y) / 1e6 for x, y, r, b in boxes]
    logs = [math.log((r - x) / (b - y)) for x, y, r, b in boxes]
    assert statistics.fmean(areas) == pytest.approx(0.3, abs=0.01)
    assert statistics.stdev(areas) == pytest.approx(0.4 / math.sqrt(12), rel=0.05)
    assert statistics.fmean(logs) == pytest.approx(0.0, abs=0.02)
    assert statistics.stdev(logs) == pytest.approx(2 * math.log(4 / 3) / math.sqrt(12), rel=0.05)


def test_crops_are_anywhere_and_as_often_left_as_right() -> None:
    boxes = random_boxes(200, 200, (0.25, 0.25))
    centres = [(x + r) / 2 for x, _, r, _ in boxes]
    assert statistics.fmean(centres) == pytest.approx(100, abs=2)
    assert min(x for x, *_ in boxes) == 0
    assert max(r for *_, r, _ in boxes) == 200


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((1000, 10), (493, 0, 506, 10)),
        ((10, 1000), (0, 493, 10, 506)),
    ],
)
def test_what_never_fits_falls_back_to_the_centre(
    size: tuple[int, int], box: tuple[int, int, int, int]
) -> None:
    # All of a panorama's area cannot be had with an aspect ratio below 4/3.
    assert random_crop_box(*size, (1.0, 1.0), random.Random(0)) == box


def test_the_same_draw_gives_the_same_box() -> None:
    first, second = (random_crop_box(90, 80, (0.08, 1.0), random.Random(4)) for _ in range(2))
    assert first == second


def test_a_resized_image_covers_what_is_cut_from_it() -> None:
    assert covering_size(500, 375, 256, 256) == (341, 256)
    assert covering_size(375, 500, 256, 256) == (256, 341)
    draw = random.Random(0)
    for _ in range(1000):
        width, height, crop_width, crop_height = (draw.randint(1, 999) for _ in range(4))
        covers = covering_size(width, height, crop_width, crop_height)
        assert covers[0] >= crop_width
        assert covers[1] >= crop_height
        assert covers[0] == crop_width or covers[1] == crop_height


def test_the_centre_is_in_the_middle() -> None:
    assert central_box(341, 256, 224, 224) == (58, 16, 282, 240)
    assert central_box(224, 224, 224, 224) == (0, 0, 224, 224)
