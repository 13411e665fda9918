"""Images that stay bytes: the same floats, whatever is done with them.

torchvision has no build for this suite; a module with the two functions that are replaced stands in
for it, written as its documentation says. The real one, and a real device, are in tests/gpu.
"""

from __future__ import annotations

import copy
import functools
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lever_runs import a_loader, a_workload
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from hotlap.doctor.rules import cpus_too_slow
from hotlap.levers import device_prefetch, uint8_images
from hotlap.levers.common.palette import Palette, as_floats, image_class, palette_of
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Seen

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
HEIGHT, WIDTH = 16, 48  # with three channels, every byte has a place in each of them


def pil_to_tensor(picture: Any) -> torch.Tensor:
    array = np.array(picture, copy=True)
    return torch.from_numpy(array).view(*array.shape[:2], -1).permute(2, 0, 1)


def to_tensor(picture: Any) -> torch.Tensor:
    image = pil_to_tensor(picture).contiguous()
    is_bytes = image.dtype == torch.uint8
    return image.to(torch.get_default_dtype()).div(255) if is_bytes else image


def normalize(tensor: Any, mean: Any, std: Any, inplace: bool = False) -> Any:
    tensor = tensor if inplace else tensor.clone()
    columns = [torch.as_tensor(one, dtype=tensor.dtype)[:, None, None] for one in (mean, std)]
    if (columns[1] == 0).any():
        raise ValueError("std evaluated to zero")
    return tensor.sub_(columns[0]).div_(columns[1])


def pixels(seed: int = 0, n_channels: int = 3) -> torch.Tensor:
    """Height, width, channels; all bytes in each channel, in another order for each seed."""
    generator = torch.Generator().manual_seed(seed)
    lines = [torch.randperm(HEIGHT * WIDTH, generator=generator) % 256 for _ in range(n_channels)]
    return torch.stack(lines, dim=1).view(HEIGHT, WIDTH, n_channels).to(torch.uint8)


def palette(change: Callable[[Any], Any] = lambda image: image) -> Palette:
    everything = torch.arange(256, dtype=torch.uint8).view(1, 1, 256).repeat(3, 1, 1)
    return palette_of(torch, change(everything.float().div(255)))


def expected(seed: int = 0) -> torch.Tensor:
    """What torchvision makes of the same bytes."""
    return to_tensor(pixels(seed).numpy())


def an_image(seed: int = 0) -> Any:
    return image_class(torch)(pixels(seed), palette())


def is_bytes(tensor: Any) -> bool:
    return type(tensor) is image_class(torch) and tensor.floats is None


# The tensor ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_the_floats_are_those_of_the_original_functions(dtype: torch.dtype) -> None:
    def change(image: torch.Tensor) -> torch.Tensor:
        return normalize(image, MEAN, STD).to(dtype)

    floats = as_floats(torch, pixels(), palette(change))
    assert floats.dtype == dtype
    assert floats.is_contiguous()
    assert torch.equal(floats, change(expected()))


def test_it_is_asked_about_itself_and_stays_bytes() -> None:
    image, plain = an_image(), expected()
    assert image.shape == plain.shape
    assert image.size(0) == len(image) == 3
    assert (image.dtype, image.device, image.ndim) == (plain.dtype, plain.device, plain.ndim)
    assert image.stride() == plain.stride()
    assert image.is_contiguous()
    assert image.is_floating_point()
    assert not image.is_cuda
    assert not image.requires_grad
    assert image._version == 0
    assert isinstance(image, torch.Tensor)
    assert {image: 1}[image] == 1
    assert is_bytes(image)


@pytest.mark.parametrize(
    "use",
    [
        lambda image: image + 1,
        lambda image: 1 - image,
        lambda image: image[0, 2:5],
        lambda image: image.clone().sub_(1),
        lambda image: torch.cat([image, expected(1)]),
        lambda image: torch.stack([image, expected(1)]),
        lambda image: torch.stack((image, an_image(1)), dim=1),
        lambda image: torch.where(image > 0.5, image, expected(1)),
        lambda image: torch.nn.functional.avg_pool2d(image, 2),
        lambda image: image.mT,
        lambda image: image.data,
        lambda image: image.to(torch.float64),
        lambda image: image.to("cpu"),
        lambda image: torch.from_numpy(image.numpy()),
        lambda image: torch.from_numpy(np.asarray(image)),
        lambda image: torch.tensor(image.tolist()),
        lambda image: copy.deepcopy(image),
        lambda image: torch.load(saved(image)),
    ],
)
def test_every_use_of_it_is_a_use_of_its_floats(use: Callable[[Any], Any]) -> None:
    result = use(an_image())
    assert type(result) is torch.Tensor
    assert torch.equal(result, use(expected()))


def saved(tensor: Any) -> io.BytesIO:
    """A file: anybody can read it, so that it must not need this class."""
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return file


def test_what_is_changed_in_place_stays_changed() -> None:
    image = an_image()
    image.sub_(1)
    image[0].mul_(2)
    plain = expected() - 1
    plain[0] *= 2
    assert image._version > 0
    assert torch.equal(image + 0, plain)


@pytest.mark.parametrize("by_name", [True, False])
def test_it_can_be_trained_like_any_input(by_name: bool) -> None:
    image = an_image()
    if by_name:
        image.requires_grad = True
    else:
        image.requires_grad_()
    (image * 3).sum().backward()
    assert image.requires_grad
    assert torch.equal(image.grad, torch.full_like(expected(), 3))


def test_code_that_asks_no_python_gets_the_floats() -> None:
    with torch._C.DisableTorchFunctionSubclass():
        assert torch.equal(an_image() * 2, expected() * 2)


@pytest.mark.parametrize(
    ("args", "kwargs", "dtype"),
    [
        (("meta",), {}, torch.float32),
        (("meta", torch.float16), {}, torch.float16),
        ((torch.empty(1, device="meta"),), {"non_blocking": True}, torch.float32),
        ((), {"device": torch.device("meta"), "dtype": torch.bfloat16}, torch.bfloat16),
        (("meta",), {"memory_format": torch.channels_last}, torch.float32),
    ],
)
def test_it_moves_as_bytes(args: Any, kwargs: Any, dtype: torch.dtype) -> None:
    batch = torch.stack([an_image(0), an_image(1)])
    plain = torch.stack([expected(0), expected(1)])
    moved, plain_moved = batch.to(*args, **kwargs), plain.to(*args, **kwargs)
    assert is_bytes(batch)
    assert type(moved) is torch.Tensor
    assert (moved.device, moved.dtype) == (plain_moved.device, dtype)
    assert (moved.shape, moved.stride()) == (plain_moved.shape, plain_moved.stride())


# In loaders ------------------------------------------------------------------------------------


class Pictures(Dataset[Any]):
    """Pictures that PIL has, changed as a script changes them."""

    def __init__(self, change: Callable[[Any], Any], mode: str = "RGB") -> None:
        self.change, self.mode = change, mode

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Any, int]:
        picture = Image.fromarray(pixels(index).numpy()).convert(self.mode)
        torch.manual_seed(index)
        return self.change(picture), index


def functional() -> Any:
    return sys.modules["torchvision.transforms.functional"]


def as_float(picture: Any) -> Any:
    return functional().to_tensor(picture)


def normalized(picture: Any) -> Any:
    return functional().normalize(as_float(picture), MEAN, STD)


def normalized_in_place(picture: Any) -> Any:
    image = as_float(picture)
    result = functional().normalize(image, mean=MEAN, std=STD, inplace=True)
    assert torch.equal(result + 0, image + 0)
    return functional().normalize(as_float(picture), mean=tuple(MEAN), std=STD, inplace=True)


def normalized_by_tensors(picture: Any) -> Any:
    return functional().normalize(as_float(picture), torch.tensor(MEAN), torch.tensor(STD))


def erased_at_times(picture: Any) -> Any:
    image = normalized(picture)
    if torch.rand(()) < 0.5:
        image = image.clone()
        image[:, 2:5, 2:5] = 0
    return image


def from_an_array(picture: Any) -> Any:
    return as_float(np.asarray(picture)[:, ::-1])


ORIGINALS = {"to_tensor": to_tensor, "normalize": normalize, "pil_to_tensor": pil_to_tensor}


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """With the lever at work in this process: an entry for each move that it was told of."""
    from torch.utils.data._utils import collate, worker

    module = ModuleType("torchvision.transforms.functional")
    vars(module).update(ORIGINALS)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    loop, failures, told = worker._worker_loop, list[Any](), list[str]()

    def report(**event: Any) -> None:
        failures.extend([event] if "failed" in event else [])

    process = Process(torch, SimpleNamespace(), report)
    move = functools.partial(told.append, "moved")
    process.as_lever("uint8_images", uint8_images.install, torch, process, move)
    ((lever, see_loader),) = process._on_loader
    process.as_lever(lever, see_loader, DataLoader, {})
    yield told
    process.undo()
    assert failures == []
    assert {name: getattr(module, name) for name in ORIGINALS} == ORIGINALS
    assert worker._worker_loop is loop
    assert image_class(torch) not in collate.default_collate_fn_map


def loaded(dataset: Dataset[Any], **options: Any) -> list[Any]:
    return list(DataLoader(dataset, batch_size=3, **options))


def loaded_without_lever(dataset: Dataset[Any], **options: Any) -> list[Any]:
    replaced = {name: getattr(functional(), name) for name in ORIGINALS}
    vars(functional()).update(ORIGINALS)
    batches = loaded(dataset, **options)
    vars(functional()).update(replaced)
    return batches


def test_the_lever_takes_the_place_of_both_functions(moves: list[str]) -> None:
    assert functional().to_tensor is not to_tensor
    assert functional().normalize is not normalize


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize(
    ("change", "mode", "stay_bytes"),
    [
        (as_float, "RGB", True),
        (as_float, "L", True),
        (as_float, "RGBA", True),
        (as_float, "F", False),
        (from_an_array, "RGB", True),
        (normalized, "RGB", True),
        (normalized_in_place, "RGB", True),
        (normalized_by_tensors, "RGB", False),
        (erased_at_times, "RGB", False),
        (lambda picture: normalized(picture) * 2, "RGB", False),
        (lambda picture: torch.stack([normalized(picture)] * 2), "RGB", True),
    ],
)
def test_batches_are_the_same_to_the_last_bit(
    moves: list[str], change: Any, mode: str, stay_bytes: bool, n_workers: int
) -> None:
    dataset = Pictures(change, mode)
    batches = loaded(dataset, num_workers=n_workers)
    assert [is_bytes(images) for images, _ in batches] == [stay_bytes] * 2
    plain = loaded_without_lever(dataset)
    for (images, labels), (plain_images, plain_labels) in zip(batches, plain, strict=True):
        assert type(plain_images) is torch.Tensor
        assert images.dtype == plain_images.dtype
        assert images.stride() == plain_images.stride()
        assert torch.equal(images, plain_images)
        assert torch.equal(labels, plain_labels)


def test_the_default_type_of_floats_is_the_scripts(moves: list[str]) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        ((images, _), _) = loaded(Pictures(normalized))
        ((plain, _), _) = loaded_without_lever(Pictures(normalized))
    finally:
        torch.set_default_dtype(torch.float32)
    assert images.dtype == plain.dtype == torch.float64
    assert torch.equal(images, plain)


def test_a_collate_function_of_the_scripts_gets_images_as_well(moves: list[str]) -> None:
    def collate(samples: list[Any]) -> Any:
        images, labels = zip(*samples, strict=True)
        return {"images": torch.stack(images), "sums": [one.sum() for one in images], "l": labels}

    dataset = Pictures(normalized)
    for n_workers in (0, 1):
        batches = loaded(dataset, collate_fn=collate, num_workers=n_workers)
        plain = loaded_without_lever(dataset, collate_fn=collate)
        for one, other in zip(batches, plain, strict=True):
            assert torch.equal(one["images"], other["images"])
            assert (one["sums"], one["l"]) == (other["sums"], other["l"])


def test_a_move_is_told_of_and_prefetching_goes_with_it(moves: list[str]) -> None:
    process = Process(torch, SimpleNamespace(), lambda **event: None)
    to_meta = SimpleNamespace(
        is_move=lambda tensor, result: result.device != tensor.device,
        run=lambda device, function: (function(), None),
        hand_over=lambda result, event: moves.append("handed over"),
    )
    device_prefetch.install(torch, process, to_meta)
    dataset = Pictures(normalized)
    for images, labels in DataLoader(dataset, num_workers=1):
        assert images.to("meta", non_blocking=True).shape == (1, 3, HEIGHT, WIDTH)
        assert is_bytes(images)
        labels.to("meta")
    process.undo()
    assert moves.count("moved") == len(dataset)
    assert moves.count("handed over") == 2 * (len(dataset) - 2)  # all but the first two batches


def test_images_of_several_sizes_are_refused_as_without(moves: list[str]) -> None:
    sizes = iter((8, 8, 9) * 2)
    dataset = Pictures(lambda picture: as_float(picture.resize((7, next(sizes)))))
    told = []
    for load in (loaded, loaded_without_lever):
        with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as e:
            load(dataset)
        told.append(str(e.value))
    assert told[0] == told[1]


def test_what_normalize_refuses_it_refuses_still(moves: list[str]) -> None:
    def by_zero(picture: Any) -> Any:
        return functional().normalize(as_float(picture), MEAN, [0.0, 1.0, 1.0])

    with pytest.raises(ValueError, match="std evaluated to zero"):
        loaded(Pictures(by_zero))


def test_other_means_for_every_image_do_not_fill_the_memory(moves: list[str]) -> None:
    image = Image.fromarray(pixels().numpy())
    for i in range(3 * uint8_images.MOST_PALETTES):
        mean = [i / 100, 0.0, 0.0]
        result = functional().normalize(as_float(image), mean, STD)
        assert torch.equal(result, normalize(expected(), mean, STD))
    (conversions,) = {
        cell.cell_contents
        for cell in functional().normalize.__closure__
        if isinstance(cell.cell_contents, uint8_images.Conversions)
    }
    assert len(conversions._palettes) <= uint8_images.MOST_PALETTES


# When it is tried ------------------------------------------------------------------------------


def a_model(*inputs: Any) -> Seen:
    return Seen(None, {"kinds": {}, "inputs": inputs})


IMAGES = [[8, 3, 224, 224], "float32", "cuda"]
OF_TORCHVISION = a_loader(has_torchvision=True)


@pytest.mark.parametrize(
    ("loaders", "fields", "reason"),
    [
        ([OF_TORCHVISION], {}, "50% of the step waits for data and its copy"),
        ([OF_TORCHVISION], {"device": "cpu"}, "not on a GPU"),
        ([], {}, "no DataLoader"),
        ([a_loader()], {}, "does not use torchvision"),
        ([OF_TORCHVISION], {"models": (a_model([[8, 64], "int64", "cuda"]),)}, "no images"),
        ([OF_TORCHVISION], {"models": (a_model([[8, 512, 7, 7], "float32", "cuda"]),)}, "no imag"),
        ([OF_TORCHVISION], {"phases_s": {"data": 0.0, "forward": 1.0}}, "only 0.0% of the step"),
    ],
)
def test_it_is_tried_where_images_of_torchvision_are_waited_for(
    loaders: Any, fields: Any, reason: str
) -> None:
    workload = a_workload(*loaders, **{"device": "cuda", "models": (a_model(IMAGES),), **fields})
    decision = uint8_images.applies(workload)
    assert decision.yes == (fields == {} and loaders == [OF_TORCHVISION])
    assert reason in decision.reason


def test_the_doctor_names_it_where_cpus_are_too_slow() -> None:
    workload = a_workload(OF_TORCHVISION, device="cuda", models=(a_model(IMAGES),))
    named, others = (
        cpus_too_slow._cure(SimpleNamespace(workload=one))  # type: ignore[arg-type]
        for one in (workload, replace(workload, device="cpu"))
    )
    assert "`hotlap run --levers uint8_images` has it" in named
    assert "uint8_images" not in others
    assert named.endswith(others)
