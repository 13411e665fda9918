"""How many samples there are in a batch, or in what a model is given.

A tensor holds as many as its first dimension says. A list of tensors can be read in two ways: as
samples that lie beside each other, such as images of several sizes, or as views of one batch. What
else is in the batch tells which, and so does a loader that knows how many samples it asked for.
Where nothing tells, the number is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hotlap.chronometer.session import first_tensor

DEPTH = 4
"""Mappings and lists that lie deeper are not looked into."""
MOST_CHANNELS = 4
"""Of an image. A tensor of three dimensions whose first is larger is a batch."""


class SampleCounter:
    """Counts samples, with the types of the torch that is there."""

    def __init__(self, torch: Any) -> None:
        self._tensor: Any = torch.Tensor
        self._batch_sampler: Any = torch.utils.data.BatchSampler

    def is_plain(self, batch: Any, n: int) -> bool:
        """Whether this first dimension is all that can be meant: of one tensor, or with labels."""
        if type(batch) is self._tensor:
            return True
        last: Any = batch[-1] if type(batch) in (list, tuple) else None
        return type(last) is self._tensor and last.dim() == 1 and len(last) == n

    def in_batch(self, batch: Any, iterator: Any) -> int | None:
        """Samples in what a loader's iterator has just made."""
        asked, is_sure = self._asked(iterator)
        if is_sure and _is_row(batch) and asked in (len(batch), *map(_length, batch)):
            return asked  # without a look at every image of a list
        parts = list(self._parts(batch))
        if asked is not None and any(asked in readings for readings in parts):
            return asked
        if is_sure and (not parts or self._is_second(asked, batch)):
            return asked
        if _is_row(batch) and len(batch) > 1:
            if all(map(self._is_mapping, batch)) and self._are_alike(batch):
                return len(batch)
            if self._may_be_images(batch):
                return None
        return _agreed(parts)

    def in_call(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """Samples in the arguments of a module."""
        values = [*args, *kwargs.values()]
        while values and first_tensor(values[0], self._tensor) is None:
            del values[0]
        if not values:
            return None
        first = values[0]
        if isinstance(first, self._tensor):
            return 1 if self._is_one_sample(first, module) else _first_dimension(first)
        if _is_row(first):
            return self._in_list(first, values)
        return self.in_call(module, tuple(_values(first)), {})

    def _asked(self, iterator: Any) -> tuple[int | None, bool]:
        """How many samples a loader asked its dataset for, and whether that is sure.

        A sampler of another type may mean something else by the name, and a dataset that is
        iterated over may have fewer left.
        """
        sampler = iterator._index_sampler
        size = getattr(sampler, "batch_size", None)
        if type(size) is not int:
            return None, False
        if type(sampler) is not self._batch_sampler:
            return size, False
        try:
            left = len(sampler.sampler) - size * (iterator._num_yielded - 1)
        except Exception:  # a sampler need not know it
            return size, False
        return (min(size, left), True) if left > 0 else (size, False)

    def _is_second(self, asked: int | None, batch: Any) -> bool:
        """Whether samples are counted by the second dimension, as where time comes first."""
        tensor = first_tensor(batch, self._tensor)
        if tensor is None or tensor.dim() < 2 or asked == 1:  # a dimension of 1 says little
            return False
        return bool(tensor.size(1) == asked)

    def _parts(self, batch: Any, depth: int = DEPTH) -> Iterator[set[int]]:
        """What each part of a batch can be read as; parts that say nothing are left out."""
        if isinstance(batch, self._tensor):
            batch = (batch,)
        for item in batch if _is_row(batch) else _values(batch):
            if self._is_mapping(item):
                if depth:
                    yield from self._parts(item, depth - 1)
            else:
                readings = self._readings(item)
                if readings:
                    yield readings

    def _readings(self, value: Any) -> set[int]:
        """How many samples there can be in a tensor or a list."""
        sizes = set(self._sizes(value))
        readings = {size for size in sizes if size is not None} if len(sizes) == 1 else set()
        if _is_row(value) and len(value) and self._are_alike(value):
            readings.add(len(value))
        return readings

    def _sizes(self, value: Any, depth: int = DEPTH) -> Iterator[int | None]:
        """First dimensions of the tensors in a list; None for what has none."""
        if isinstance(value, self._tensor):
            yield _first_dimension(value)
        elif _is_row(value) and depth:
            for item in value:
                yield from self._sizes(item, depth - 1)
        else:
            yield None

    def _are_alike(self, row: Sequence[Any]) -> bool:
        """Whether the items of a list can be one sample each."""
        if all(isinstance(item, self._tensor) for item in row):
            shapes = [tuple(item.shape) for item in row]
            # Images have their channels in common, sequences all but their lengths.
            have_channels = len({(len(shape), shape[:1]) for shape in shapes}) == 1
            return have_channels or len({(len(shape), shape[1:]) for shape in shapes}) == 1
        if all(map(self._is_mapping, row)):
            return len({tuple(getattr(item, "keys", tuple)()) for item in row}) == 1
        return len({type(item) for item in row}) == 1

    def _is_mapping(self, value: Any) -> bool:
        return _has_values(value) and not isinstance(value, self._tensor)

    def _may_be_images(self, row: Sequence[Any]) -> bool:
        return all(
            isinstance(item, self._tensor) and item.dim() == 3 and item.size(0) <= MOST_CHANNELS
            for item in row
        )

    def _in_list(self, row: Sequence[Any], values: list[Any]) -> int | None:
        """In a module's first argument; `values` are it and the others."""
        agreed = _agreed(list(self._parts(values)))
        if agreed is not None:
            return agreed
        readings = self._readings(row)
        if readings == {len(row)} or self._may_be_images(row):
            return len(row)
        return next(iter(readings - {len(row)}), None)

    def _is_one_sample(self, tensor: Any, module: Any) -> bool:
        """Whether the only dimension is the features that the first layer takes.

        Else it is a batch: of words, of points on a line, of predictions for a criterion.
        """
        if tensor.dim() != 1 or not tensor.is_floating_point():
            return False
        widths = (one.size(1) for one in module.parameters() if one.dim() == 2)
        return bool(next(widths, None) == tensor.size(0))


def _agreed(parts: list[set[int]]) -> int | None:
    """The one reading that all parts have, or else the first one and any other."""
    if not parts:
        return None
    common = set.intersection(*parts)
    if not common:
        common = parts[0] & set.union(set(), *parts[1:])
    return common.pop() if len(common) == 1 else None


def _first_dimension(tensor: Any) -> int | None:
    return int(tensor.size(0)) if tensor.dim() else None


def _is_row(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _length(value: Any) -> int | None:
    return len(value) if _is_row(value) else None


def _has_values(value: Any) -> bool:
    """A mapping, an object that is like one, or a tensor."""
    return callable(getattr(value, "values", None))


def _values(value: Any) -> Iterable[Any]:
    return value.values() if _has_values(value) else ()
