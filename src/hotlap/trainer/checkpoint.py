"""Checkpoints: torch's distributed ones, made safe.

    training/checkpoints/step-00001200/
        __0_0.distcp …   tensors, as torch.distributed.checkpoint writes them: any number of ranks
        .metadata        where each tensor lies in them
        training.json    where the training stood: step, epoch, batch
        manifest.json    size and checksum of every file above, written last

A checkpoint is written under another name and renamed when it is whole: one that was interrupted is
never taken for one. What is damaged later is found by its checksum and the one before is used.
Nothing of a checkpoint is executed: it holds tensors and JSON, and torch's index of them is read by
an unpickler that knows its classes alone.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from hotlap.errors import UsageError

PARTIAL = ".partial"
STATE, MANIFEST = "training.json", "manifest.json"
CHUNK_BYTES = 1 << 22

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a training stood."""

    step: int = 0
    """Updates that were made."""
    epoch: int = 0
    batch: int = 0
    """Batches of the epoch that were taken."""


@dataclass(slots=True)
class _Pending:
    """A checkpoint that is still being written."""

    folder: Path
    written: Future[Any]


@dataclass(slots=True)
class Checkpoints:
    """The checkpoints of one folder, as all ranks see them together."""

    folder: Path
    keep: int
    asynchronous: bool
    say: Callable[[str], None]
    group: Any = None
    """Ranks that write together, able to talk over the CPU; None for one process."""
    _pending: _Pending | None = field(default=None)

    # Writing ----------------------------------------------------------------------------------

    def save(self, place: Place, tensors: Tensors, facts: Mapping[str, Any]) -> None:
        """Write one; the tensors may be changed as soon as this returns."""
        self.finish()
        name = f"step-{place.step:08d}"
        partial = self.folder / (name + PARTIAL)
        if self._is_first:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            state = {"step": place.step, "epoch": place.epoch, "batch": place.batch, **facts}
            (partial / STATE).write_text(json.dumps(state), encoding="utf-8")
        self._wait_for_all()
        writer = FileSystemWriter(partial, sync_files=True, single_file_per_rank=True)
        self._pending = _Pending(partial, self._write(tensors, writer))
        if not self.asynchronous:
            self.finish()

    def _write(self, tensors: Tensors, writer: FileSystemWriter) -> Future[Any]:
        how = {"storage_writer": writer, "process_group": self.group, "no_dist": self._is_alone}
        if self.asynchronous:
            return dcp.async_save(tensors, **how)
        dcp.save(tensors, **how)
        written: Future[Any] = Future()
        written.set_result(None)
        return written

    def is_writing(self) -> bool:
        """Whether this rank has not yet written its part of the last one."""
        return self._pending is not None and not self._pending.written.done()

    def finish(self) -> None:
        """Wait for the last one and make it valid; one that could not be written is told."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.written.result()
            sums = _checksums(pending.folder, self._own_files(pending.folder))
            problem = ""
        except Exception as error:  # of a disk, mostly: the training is worth more than this
            sums, problem = {}, f"{type(error).__name__}: {error}"
        everybody = self._gather((sums, problem))
        problems = [problem for _, problem in everybody if problem]
        if self._is_first:
            sums = {name: one for part, _ in everybody for name, one in part.items()}
            problems = problems or _missing(pending.folder, sums)
            if problems:
                self.say(f"the checkpoint {pending.folder.name} was not written: {problems[0]}")
                shutil.rmtree(pending.folder, ignore_errors=True)
            else:
                self._commit(pending.folder, sums)
        self._wait_for_all()

    def _commit(self, partial: Path, sums: dict[str, list[int]]) -> None:
        with (partial / MANIFEST).open("w", encoding="utf-8") as stream:
            json.dump(sums, stream)
            stream.flush()
            os.fsync(stream.fileno())
        final = partial.with_name(partial.name.removesuffix(PARTIAL))
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
        _sync_folder(self.folder)
        for old in self._names()[: -self.keep]:
            shutil.rmtree(self.folder / old, ignore_errors=True)

    def _own_files(self, folder: Path) -> list[Path]:
        """Those that this rank has written."""
        own = sorted(folder.glob(f"__{self._rank}_*.distcp"))
        return [*own, folder / ".metadata", folder / STATE] if self._is_first else own

    # Reading ----------------------------------------------------------------------------------

    def newest(self) -> Path | None:
        """The newest whole checkpoint; damaged ones are named and passed over."""
        found = None
        if self._is_first:
            for name in reversed(self._names()):
                problem = damage(self.folder / name)
                if not problem:
                    found = name
                    break
                self.say(f"the checkpoint {name} is damaged ({problem}); the one before is used")
            for partial in self.folder.glob(f"*{PARTIAL}"):
                shutil.rmtree(partial, ignore_errors=True)
        found = self._gather(found)[0]
        return self.folder / found if found else None

    def _names(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        return sorted(p.name for p in self.folder.glob("step-*") if not p.name.endswith(PARTIAL))

    # Ranks ------------------------------------------------------------------------------------

    @property
    def _is_alone(self) -> bool:
        return self.group is None

    @property
    def _rank(self) -> int:
        return 0 if self.group is None else dist.get_rank(self.group)

    @property
    def _is_first(self) -> bool:
        return self._rank == 0

    def _wait_for_all(self) -> None:
        if self.group is not None:
            dist.barrier(self.group)

    def _gather(self, mine: Any) -> list[Any]:
        if self.group is None:
            return [mine]
        everybody: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(everybody, mine, group=self.group)
        return everybody


def _missing(folder: Path, sums: Mapping[str, Any]) -> list[str]:
    """Files that the index names and nobody has seen."""
    index = CheckedReader(folder).read_metadata()
    named = {info.relative_path for info in index.storage_data.values()}
    return [f"{name} is missing" for name in sorted(named - set(sums))]


def load(folder: Path, tensors: Tensors, is_alone: bool, group: Any = None) -> None:
    """Read a checkpoint into tensors that are there already, however many ranks wrote it."""
    CheckedReader(folder).read_metadata()  # torch would hide the reason of a refusal in its own
    dcp.load(tensors, storage_reader=CheckedReader(folder), process_group=group, no_dist=is_alone)


def read_state(folder: Path) -> dict[str, Any]:
    """Where the training of a checkpoint stood."""
    state: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
    return state


def names_in(folder: Path) -> set[str]:
    """The tensors that a checkpoint holds."""
    return set(CheckedReader(folder).read_metadata().state_dict_metadata)


def damage(folder: Path) -> str:
    """What is wrong with a checkpoint, in a few words; empty if nothing is."""
    try:
        sums = dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
        found = _checksums(folder, [folder / name for name in sums])
    except (OSError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    if not sums:
        return f"{MANIFEST} names no file"
    wrong = [name for name, value in sums.items() if found[name] != value]
    return f"{wrong[0]} is not what was written" if wrong else ""


def _checksums(folder: Path, files: list[Path]) -> dict[str, list[int]]:
    return {str(path.relative_to(folder)): _checksum(path) for path in files}


def _checksum(path: Path) -> list[int]:
    """Size and CRC-32."""
    size = crc = 0
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, crc]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class CheckedReader(FileSystemReader):
    """Reads torch's index of a checkpoint without executing what a file may ask for."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index."""
        path = Path(self.path) / ".metadata"
        try:
            metadata = _MetadataUnpickler(io.BytesIO(path.read_bytes())).load()
        except (OSError, pickle.UnpicklingError, EOFError) as error:
            raise UsageError(f"the checkpoint {self.path} cannot be read: {error}") from None
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    """Knows the classes of torch's index of tensors, and nothing else.

    An index of other objects than tensors is refused with it: torch would unpickle those.
    """

    KNOWN: ClassVar[dict[str, tuple[str, ...]]] = {
        "torch.distributed.checkpoint.metadata": (
            *("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata"),
            *("ChunkStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING"),
        ),
        "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
        "torch.serialization": ("_get_layout",),
        "torch": ("Size",),
        "pathlib": ("PosixPath",),
        "pathlib._local": ("PosixPath",),
        "collections": ("OrderedDict",),
    }

    def find_class(self, module: str, name: str) -> Any:
        """Refuse what is not listed."""
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in self.KNOWN.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"its index asks for {module}.{name}")
