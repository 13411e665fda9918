"""Images in folders: their crops, their classes, and what is said about damaged ones."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from hotlap.data.feed import Feed, build_feed
from hotlap.data.folder import FolderSource, as_tensor, centre_of, list_images, open_rgb
from hotlap.data.sampling import IGNORED, Request
from hotlap.data.settings import DataSettings
from hotlap.errors import UsageError

CPU = torch.device("cpu")
SIZES = [(40, 30), (30, 40), (64, 32), (33, 33), (32, 64), (50, 40), (40, 50)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, seven images each in two parts, of several shapes; noise, so that crops show."""
    root = tmp_path_factory.mktemp("images")
    draw = random.Random(0)
    for part in ("train", "val"):
        for name in ("zebra", "ant"):
            (root / part / name).mkdir(parents=True)
            for i, size in enumerate(SIZES):
                pixels = draw.randbytes(size[0] * size[1] * 3)
                Image.frombytes("RGB", size, pixels).save(root / part / name / f"{i}.png")
    (root / "train" / "ant" / "notes.txt").write_text("no image")
    return root


def settings_of(folder: Path, **how: object) -> DataSettings:
    plain = DataSettings(kind="folder", path=str(folder), n_workers=0, image_size=32)
    return replace(plain, **how)  # type: ignore[arg-type]


def feed_of(settings: DataSettings, is_training: bool = True) -> Feed:
    return build_feed(settings, 4, 0, 1, 3, CPU, is_training)


def test_classes_are_the_sorted_folders_and_other_files_are_passed_over(folder: Path) -> None:
    files = list_images(folder, is_training=True)
    assert files.classes == ("ant", "zebra")
    assert files.targets.tolist() == [0] * 7 + [1] * 7
    assert files.path(0) == str(folder / "train" / "ant" / "0.png")
    assert files.path(13) == str(folder / "train" / "zebra" / "6.png")


@pytest.mark.timeout(120)
def test_crops_depend_neither_on_workers_nor_on_where_a_run_was_resumed(folder: Path) -> None:
    alone = list(feed_of(settings_of(folder)).epoch(1))
    for n_workers in (1, 2):
        feed = feed_of(settings_of(folder, n_workers=n_workers))
        for start in (0, 2):
            for mine, other in zip(alone[start:], feed.epoch(1, start), strict=True):
                assert torch.equal(mine[0], other[0])
                assert torch.equal(mine[1], other[1])


def test_a_sample_is_cropped_anew_in_every_epoch(folder: Path) -> None:
    source = FolderSource(list_images(folder, True), settings_of(folder), 3, is_training=True)
    first, again, later = (source.batch(Request(epoch, (5,), 1, 32, 32))[0] for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


def test_images_are_bytes_with_the_channels_innermost(folder: Path) -> None:
    images, targets = next(feed_of(settings_of(folder)).epoch(0))
    assert (images.shape, images.dtype) == ((4, 3, 32, 32), torch.uint8)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert targets.dtype == torch.int64


def test_pixels_keep_their_places_on_the_way_into_a_tensor() -> None:
    image = Image.new("RGB", (3, 2))
    image.putpixel((2, 1), (10, 20, 30))
    tensor = as_tensor(image)
    assert tensor.shape == (3, 2, 3)
    assert tensor[:, 1, 2].tolist() == [10, 20, 30]
    assert int(tensor.sum()) == 60


def test_a_mirrored_image_is_the_same_crop_turned_over(folder: Path) -> None:
    files = list_images(folder, True)
    batches = []
    for flip in (False, True):
        source = FolderSource(files, settings_of(folder, flip=flip), 3, is_training=True)
        batches.append(source.batch(Request(0, tuple(range(14)), 14, 32, 32))[0])
    is_same = [torch.equal(a, b) for a, b in zip(*batches, strict=True)]
    is_mirrored = [torch.equal(a.flip(-1), b) for a, b in zip(*batches, strict=True)]
    assert all(a != b for a, b in zip(is_same, is_mirrored, strict=True))
    assert any(is_same)
    assert any(is_mirrored)


def test_validation_takes_the_centre_of_a_resized_image() -> None:
    image = Image.new("RGB", (512, 256))
    image.paste((255, 255, 255), (144, 16, 368, 240))
    centre = as_tensor(centre_of(image, 224, 224, 224 / 256))
    assert (centre.shape, int(centre.min())) == ((3, 224, 224), 255)
    wider = as_tensor(centre_of(image, 226, 226, 226 / 256))
    assert int(wider.min()) == 0


def test_rectangular_validation_gives_every_image_once_in_shapes_of_their_own(
    folder: Path,
) -> None:
    settings = settings_of(folder, image_size=64, rectangular_validation=True)
    batches = list(feed_of(settings, is_training=False).epoch(0))
    shapes = [tuple(images.shape[-2:]) for images, _ in batches]
    targets = torch.cat([targets for _, targets in batches])
    assert shapes == [(96, 64), (64, 64), (64, 64), (64, 128)]
    assert sorted(targets[targets != IGNORED].tolist()) == [0] * 7 + [1] * 7


@pytest.mark.timeout(60)
@pytest.mark.parametrize("n_workers", [0, 1])
def test_a_damaged_image_is_named(tmp_path: Path, n_workers: int) -> None:
    for part in ("train", "val"):
        (tmp_path / part / "a").mkdir(parents=True)
        for i in range(4):
            (tmp_path / part / "a" / f"{i}.jpg").write_bytes(b"no image")
    settings = settings_of(tmp_path, n_workers=n_workers)
    with pytest.raises(UsageError, match=r"\d\.jpg cannot be read as an image: "):
        list(feed_of(settings).epoch(0))
    with pytest.raises(UsageError, match=r"\d\.jpg cannot be read as an image: "):
        feed_of(replace(settings, rectangular_validation=True), is_training=False)


def test_a_truncated_image_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.effect_noise((64, 64), 50).save(path)
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(UsageError, match=r"a\.jpg cannot be read as an image: .*truncated"):
        open_rgb(str(path))


def test_grey_and_transparent_images_become_rgb(tmp_path: Path) -> None:
    for mode in ("L", "RGBA", "P"):
        path = tmp_path / f"{mode}.png"
        Image.new(mode, (4, 4)).save(path)
        assert as_tensor(open_rgb(str(path))).shape == (3, 4, 4)


def test_a_folder_that_is_no_data_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"data\.path: .*/train cannot be read"):
        list_images(tmp_path, is_training=True)
    (tmp_path / "train").mkdir()
    with pytest.raises(UsageError, match=r"data\.path: .*/train has no folders"):
        list_images(tmp_path, is_training=True)
    (tmp_path / "train" / "ant").mkdir()
    with pytest.raises(UsageError, match="/train has no images"):
        list_images(tmp_path, is_training=True)
    (tmp_path / "val" / "bee").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"/val has a class 'bee' that .*/train does not have"):
        list_images(tmp_path, is_training=False)


def test_without_pillow_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(UsageError, match="pip install pillow"):
        feed_of(settings_of(folder))
