"""Images that stay bytes: a palette says which number each byte of each channel stands for.

Behind torchvision's conversion an image is a tensor of floats with at most 256 values in each
channel. `PaletteImage` is such a tensor by all that can be asked of it, and keeps the bytes: a
quarter of the memory to write, to pass on and to copy. Moved to another device, the bytes move and
become floats there; any other use of it makes the floats at once. The palette is what the original
functions make of an image of all bytes, so that every float is the same to the last bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

N_BYTES = 256

ASKED_WITHOUT_NUMBERS = frozenset(
    {
        *("size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset"),
        *("element_size", "is_floating_point", "is_complex", "is_signed", "is_contiguous"),
        *("get_device", "is_inference", "__len__", "__hash__"),
    }
)
"""Methods whose answer needs no pixel."""
PROPERTIES_WITH_NUMBERS = frozenset({"data", "T", "mT", "H", "mH", "real", "imag"})


@dataclass(frozen=True, slots=True)
class Palette:
    """The floats of all bytes, channel by channel. Plain data: it travels with every batch."""

    dtype: str
    n_channels: int
    content: bytes

    def image(self, torch: Any) -> Any:
        """As an image of one line, of shape (channels, 1, 256)."""
        values = torch.frombuffer(bytearray(self.content), dtype=getattr(torch, self.dtype))
        return values.view(self.n_channels, 1, N_BYTES)


def palette_of(torch: Any, image: Any) -> Palette:
    """The palette that a conversion gives for an image of all bytes."""
    content = bytes(image.contiguous().view(-1).view(torch.uint8).tolist())
    return Palette(str(image.dtype).removeprefix("torch."), image.shape[0], content)


@functools.lru_cache(maxsize=16)
def _table(torch: Any, palette: Palette, device: Any) -> tuple[Any, Any]:
    """The floats of all channels in a row, and where each channel's begin.

    Made on the host: a copy from there is done when it returns, for every stream that comes later.
    """
    begins = torch.arange(0, palette.n_channels * N_BYTES, N_BYTES, dtype=torch.int32)
    return palette.image(torch).view(-1).to(device), begins.view(-1, 1, 1).to(device)


def as_floats(torch: Any, pixels: Any, palette: Palette) -> Any:
    """The floats of bytes (…, height, width, channels), in the order (…, channels, height, width).

    On the device of the bytes. Costs four bytes a pixel twice until it is done.
    """
    values, begins = _table(torch, palette, pixels.device)
    places = pixels.movedim(-1, -3).to(torch.int32, memory_format=torch.contiguous_format)
    places += begins
    return values.index_select(0, places.view(-1)).view(places.shape)


@functools.cache
def image_class(torch: Any) -> Any:
    """The class of such tensors; it needs torch's to be made."""

    class PaletteImage(torch.Tensor):  # type: ignore[misc]
        """A tensor of floats that are not made before they are needed."""

        pixels: Any
        palette: Palette
        floats: Any
        """None until something needs them; from then on all that is done is done to them."""
        moved: Callable[[], None] = staticmethod(lambda: None)
        """Told of every move to another device."""

        @staticmethod
        def __new__(cls: Any, pixels: Any, palette: Palette) -> Any:
            *others, height, width, n_channels = pixels.shape
            shape = (*others, n_channels, height, width)
            dtype = getattr(torch, palette.dtype)
            self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
            self.pixels, self.palette, self.floats = pixels, palette, None
            return self

        def as_tensor(self) -> Any:
            """The floats, as a tensor of torch's own."""
            if self.floats is None:
                self.floats = as_floats(torch, self.pixels, self.palette)
            return self.floats

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            first = args[0] if args else None
            name = func.__name__
            if isinstance(first, cls) and first.floats is None:
                if _needs_no_numbers(func):
                    with torch._C.DisableTorchFunctionSubclass():
                        return func(*args, **kwargs)
                if name in ("to", "cuda"):
                    moved = _moved(torch, func, args, kwargs)
                    if moved is not None:
                        return moved
                if name == "pin_memory":
                    return cls(first.pixels.pin_memory(*args[1:], **kwargs), first.palette)
                if name == "is_pinned":
                    return first.pixels.is_pinned(*args[1:], **kwargs)
            if name == "stack" and len(args) == 1 and not kwargs:
                stacked = stack(torch, first)
                if stacked is not None:
                    return stacked
            return func(*with_floats(cls, args), **with_floats(cls, kwargs))

        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            """What does not come by way of the function above: C++ code that is given one."""
            return func(*with_floats(cls, args), **with_floats(cls, kwargs or {}))

    return PaletteImage


def stack(torch: Any, images: Any, join: Callable[[Any], Any] | None = None) -> Any:
    """A batch of such images, `join`ed as bytes; None where they are not all of one kind."""
    kind = image_class(torch)
    if not images or not all(type(one) is kind and one.floats is None for one in images):
        return None
    first = images[0]
    same = all(o.palette == first.palette and o.shape == first.shape for o in images)
    join = join or torch.stack
    return kind(join([one.pixels for one in images]), first.palette) if same else None


def _needs_no_numbers(func: Any) -> bool:
    if func.__name__ == "__get__":
        return func.__self__.__name__ not in PROPERTIES_WITH_NUMBERS
    return func.__name__ in ASKED_WITHOUT_NUMBERS


def _moved(torch: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The floats on another device, made there; None where the call leads to none."""
    image, *others = args
    if func.__name__ == "cuda":
        memory_format = kwargs.get("memory_format", torch.preserve_format)
        options = {name: kwargs[name] for name in kwargs if name != "memory_format"}
        pixels, dtype = func(image.pixels, *others, **options), None
    else:
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*others, **kwargs)
        if device is None or device.type == "cpu":
            return None
        pixels = func(image.pixels, device, non_blocking=non_blocking)
    floats = as_floats(torch, pixels, image.palette)
    type(image).moved()
    return floats.to(dtype=dtype, memory_format=memory_format or torch.preserve_format)


def with_floats(kind: type, value: Any) -> Any:
    """A value, and what is in it, with the floats in the place of such images."""
    if isinstance(value, kind):
        return value.as_tensor()  # type: ignore[attr-defined]
    if type(value) in (list, tuple):
        return type(value)(with_floats(kind, one) for one in value)
    if type(value) is dict:
        return {name: with_floats(kind, one) for name, one in value.items()}
    return value


def reduce_image(image: Any) -> tuple[Any, ...]:
    """How one is passed between processes: as bytes, unless its floats were made.

    For the queue between a loader and its workers alone: in a file, it is a plain tensor.
    """
    if image.floats is not None:
        return _as_it_is, (image.floats,)
    return _rebuilt, (image.pixels, image.palette)


def _as_it_is(tensor: Any) -> Any:
    return tensor


def _rebuilt(pixels: Any, palette: Palette) -> Any:
    import torch

    return image_class(torch)(pixels, palette)
