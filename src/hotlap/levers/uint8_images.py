"""uint8_images: images leave the loader as bytes and become floats on the GPU.

When: the model is on a GPU, the step waits for data, and torchvision turns the images into floats
(`ToTensor` or `ToDtype`, with or without `Normalize` behind it). A worker then neither computes the
floats nor writes four bytes a value into the memory it shares, and a quarter travels to the GPU,
where a table of what those functions make of each byte gives the floats. Costs the GPU the memory
of three batches for a moment. The same values, bit for bit. A script that computes with a batch on
the host before it moves it gets the floats there, and gains nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

from hotlap.levers.common.edits import Edit, tell
from hotlap.levers.common.later import report_once
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.loaders import saved_of_copies, waits_for_copies
from hotlap.levers.common.palette import (
    N_BYTES,
    Palette,
    image_class,
    palette_of,
    reduce_image,
    stack,
    with_floats,
)
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

MODES = ("L", "RGB", "RGBA")
"""Of PIL's images: those whose channels are bytes."""
MOST_CHANNELS = 4
MOST_PALETTES = 64
"""Kept: a script may draw other means and deviations for every image."""


def apply(torch: Any, value: str, process: Process) -> None:
    """Keep the images of all loaders bytes until they are moved to the device."""
    if not (torch.version.cuda or torch.version.hip):
        return
    did_once = report_once(process)
    install(torch, process, lambda: did_once("images become floats on the device"))


def install(torch: Any, process: Process, moved: Callable[[], None]) -> None:
    """Take the place of torchvision's conversions, of collating and of passing on to the script."""
    from torch.utils.data._utils import collate, worker

    kind, lever = image_class(torch), process.lever
    conversions = Conversions(torch, process)
    join, loop = collate.collate_tensor_fn, worker._worker_loop

    def collated(images: Any, *, collate_fn_map: Any = None) -> Any:
        options = {"collate_fn_map": collate_fn_map}
        batch = stack(torch, images, lambda pixels: join(pixels, **options))
        return join(with_floats(kind, images), **options) if batch is None else batch

    @functools.wraps(loop)
    def worker_loop(*args: Any, **kwargs: Any) -> Any:
        # One that was not forked has a torchvision of its own, and makes no loader.
        process.as_lever(lever, conversions.replace)
        return loop(*args, **kwargs)

    process.replace(kind, "moved", staticmethod(moved))
    ForkingPickler.register(kind, reduce_image)
    collate.default_collate_fn_map[kind] = collated
    process.on_undo(lambda: collate.default_collate_fn_map.pop(kind))
    process.replace(worker, "_worker_loop", worker_loop)
    process.on_loader(lambda loader, arguments: conversions.replace())


class Conversions:
    """torchvision's functions that make floats of images, and those that take their place."""

    def __init__(self, torch: Any, process: Process) -> None:
        self._torch, self._process = torch, process
        self._kind = image_class(torch)
        self._palettes: dict[Any, Palette] = {}
        self._replaced: set[str] = set()

    def replace(self) -> None:
        """In what the script has imported of torchvision so far."""
        first, second = "torchvision.transforms.functional", "torchvision.transforms.v2"
        # Before all else: the second kind of transforms passes by what it does not know.
        if second in sys.modules and second not in self._replaced:
            self._introduce(sys.modules[f"{second}.functional._utils"]._KERNEL_REGISTRY)
            self._replace_second(sys.modules[second])
            self._replaced.add(second)
        if first in sys.modules and first not in self._replaced:
            self._replace_first(sys.modules[first])
            self._replaced.add(first)

    def _introduce(self, kernels: dict[Any, dict[type, Any]]) -> None:
        """Let torchvision treat an image of bytes as the tensor that it is."""
        for by_type in kernels.values():
            if self._torch.Tensor in by_type:
                by_type[self._kind] = by_type[self._torch.Tensor]
                self._process.on_undo(functools.partial(by_type.pop, self._kind))

    def _replace_first(self, functional: Any) -> None:
        to_tensor, normalize = functional.to_tensor, functional.normalize

        @functools.wraps(to_tensor)
        def bytes_of(pic: Any) -> Any:
            pixels = self._pixels_of(pic, functional.pil_to_tensor)
            if pixels is None:
                return to_tensor(pic)
            n_channels = pixels.shape[-1]
            palette = self._palette(
                (to_tensor, n_channels, self._torch.get_default_dtype()),
                lambda: to_tensor(self._all_bytes(n_channels).permute(1, 2, 0).numpy()),
            )
            return self._kind(pixels, palette)

        @functools.wraps(normalize)
        def normalized(tensor: Any, mean: Any, std: Any, inplace: bool = False) -> Any:
            if not self._is_ours(tensor, mean, std):
                return normalize(tensor, mean, std, inplace)
            key = (normalize, tuple(mean), tuple(std))
            return self._normalized(key, tensor, inplace, lambda line: normalize(line, mean, std))

        self._process.replace(functional, "to_tensor", bytes_of)
        self._process.replace(functional, "normalize", normalized)

    def _replace_second(self, transforms: Any) -> None:
        """Called with one image alone: beside other inputs, its type decides what is changed."""
        torch, image_type = self._torch, sys.modules["torchvision.tv_tensors"].Image
        to_dtype, normalize = transforms.ToDtype.forward, transforms.Normalize.forward

        def is_bytes(inputs: Any) -> bool:
            image = inputs[0]
            return (
                len(inputs) == 1
                and type(image) in (torch.Tensor, image_type)
                and image.dtype == torch.uint8
                and image.dim() == 3
                and image.shape[0] <= MOST_CHANNELS
            )

        @functools.wraps(to_dtype)
        def bytes_of(transform: Any, *inputs: Any) -> Any:
            dtype = transform.dtype
            is_float = isinstance(dtype, torch.dtype) and dtype.is_floating_point
            if not (is_float and transform.scale and is_bytes(inputs)):
                return to_dtype(transform, *inputs)
            image = inputs[0].as_subclass(torch.Tensor).movedim(0, -1)
            n_channels = image.shape[-1]
            palette = self._palette(
                (to_dtype, n_channels, dtype),
                lambda: to_dtype(transform, self._all_bytes(n_channels)),
            )
            return self._kind(image.clone(memory_format=torch.contiguous_format), palette)

        @functools.wraps(normalize)
        def normalized(transform: Any, *inputs: Any) -> Any:
            image, mean, std = inputs[0], transform.mean, transform.std
            if len(inputs) != 1 or not self._is_ours(image, mean, std):
                return normalize(transform, *inputs)
            key = (normalize, tuple(mean), tuple(std))
            change = functools.partial(normalize, transform)
            return self._normalized(key, image, transform.inplace, change)

        self._process.replace(transforms.ToDtype, "forward", bytes_of)
        self._process.replace(transforms.Normalize, "forward", normalized)

    def _pixels_of(self, picture: Any, pil_to_tensor: Callable[[Any], Any]) -> Any:
        """Height, width, channels: a copy, as the original makes one. None: not of bytes."""
        if type(picture).__module__.startswith("PIL."):
            is_bytes = picture.mode in MODES
            return pil_to_tensor(picture).movedim(0, -1).contiguous() if is_bytes else None
        if type(picture).__module__ == "numpy" and str(picture.dtype) == "uint8":
            is_image = picture.ndim == 3 and picture.shape[2] <= MOST_CHANNELS
            return self._torch.from_numpy(picture.copy()) if is_image else None
        return None

    def _is_ours(self, tensor: Any, *numbers: Any) -> bool:
        """Whether it is bytes still, one image and not a batch, and is given a number a channel.

        torchvision takes tensors in their place, with as much as one number a pixel.
        """
        is_bytes = type(tensor) is self._kind and tensor.floats is None and tensor.dim() == 3
        return is_bytes and all(
            isinstance(values, (list, tuple)) and all(isinstance(v, (int, float)) for v in values)
            for values in numbers
        )

    def _normalized(
        self, key: tuple[Any, ...], image: Any, inplace: bool, change: Callable[[Any], Any]
    ) -> Any:
        line = image.palette.image
        palette = self._palette((image.palette, *key), lambda: change(line(self._torch)))
        if not inplace:
            return self._kind(image.pixels, palette)
        image.palette = palette
        return image

    def _all_bytes(self, n_channels: int) -> Any:
        line = self._torch.arange(N_BYTES, dtype=self._torch.uint8)
        return line.view(1, 1, N_BYTES).repeat(n_channels, 1, 1)

    def _palette(self, key: Any, image: Callable[[], Any]) -> Palette:
        """What a conversion makes of all bytes, made once."""
        if key not in self._palettes:
            if len(self._palettes) == MOST_PALETTES:
                self._palettes.clear()
            self._palettes[key] = palette_of(self._torch, image())
        return self._palettes[key]


def applies(workload: Workload) -> Decision:
    """A GPU that waits for images of floats which torchvision may have made."""
    waits = waits_for_copies(workload)
    if not waits.yes:
        return waits
    if not any(one.facts.get("has_torchvision") for one in workload.loaders):
        return Decision(False, "the script does not use torchvision's transforms")
    if not any(_takes_images(one.facts.get("inputs", ())) for one in workload.models):
        return Decision(False, "the model takes no images of floats")
    return waits


def _takes_images(inputs: Any) -> bool:
    return any(
        len(shape) == 4 and shape[1] <= MOST_CHANNELS and "float" in dtype
        for shape, dtype, *_ in inputs
    )


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Told only: the transforms are one place, the loop that moves the batch is another."""
    text = (
        "end this loader's transforms with PILToTensor() in the place of ToTensor() and of "
        "Normalize(mean, std), and behind images.to(device) write images = images.float() / "
        "torch.tensor(255.0, device=device) (by a plain 255 a GPU rounds otherwise) and "
        "torchvision.transforms.functional.normalize(images, mean, std)"
    )
    return tuple(tell(loader.site, text) for loader in workload.loaders)


LEVER = Lever(
    name="uint8_images",
    summary="images leave the loader as bytes and become floats on the GPU",
    changes="nothing",
    risk="safe",
    phases=("data", "transfer"),
    # A quarter of the bytes travels; what is left of an image's work is its decoding.
    saves=lambda workload: saved_of_copies(workload, transfer=0.75, data=0.2),
    values=lambda workload: ("on",),
    takes=one_of("on"),
    applies=applies,
    apply=apply,
    edit=edit,
)
