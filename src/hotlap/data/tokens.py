"""Token files: a folder with `train.bin` and `val.bin`, each with a `.json` of its name beside it.

The `.bin` is nothing but tokens, little-endian, one after another, so that it can be mapped into
memory whatever its size and other tools can write it. The `.json` says what they are:

    {"dtype": "uint16", "vocabulary": 50257, "end_token": 50256}

`dtype` is uint16 or uint32; `end_token` closes every document, and is null where there is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from hotlap.data.sampling import IGNORED, Batch, Request
from hotlap.errors import UsageError

Dtype = Literal["uint16", "uint32"]
BYTE_VOCABULARY = 256
BYTE_END = 0
"""No text holds this byte, so it can close a document."""
SCAN_TOKENS = 1 << 24
"""Looked through at once for ends of documents."""


@dataclass(frozen=True, slots=True)
class TokenHeader:
    """The `.json` beside a token file."""

    dtype: Dtype
    vocabulary: int
    """Tokens are below it."""
    end_token: int | None


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A token file, mapped into memory: only what is read is loaded."""

    path: Path
    header: TokenHeader
    tokens: torch.Tensor


def open_tokens(path: Path) -> TokenFile:
    """Map a `.bin` file whose header stands beside it."""
    header = _read_header(path.with_suffix(".json"))
    dtype = getattr(torch, header.dtype)
    try:
        n_bytes = path.stat().st_size
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if n_bytes == 0 or n_bytes % dtype.itemsize:
        raise UsageError(
            f"{path} has {n_bytes} bytes; for {header.dtype} that has to be a multiple of "
            f"{dtype.itemsize}, and more than 0"
        )
    size = n_bytes // dtype.itemsize
    return TokenFile(path, header, torch.from_file(str(path), size=size, dtype=dtype))


def _read_header(path: Path) -> TokenHeader:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        header = TokenHeader(found["dtype"], int(found["vocabulary"]), found.get("end_token"))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); it has to say what the tokens are, as "
            '{"dtype": "uint16", "vocabulary": 50257, "end_token": 50256}'
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no header of tokens: {error!r}") from None
    if header.dtype not in get_args(Dtype):
        raise UsageError(f"{path}: dtype is {header.dtype!r}; it has to be uint16 or uint32")
    return header


class WindowSource:
    """Windows of `context` tokens side by side; each token is a target once.

    In training the rest at the end, shorter than a window, is left out; in validation it is a
    window filled up with ignored targets. A batch costs less to make than to send between
    processes, so that there are no workers for it.
    """

    is_slow = False
    is_on_device = False

    def __init__(self, file: TokenFile, context: int, is_training: bool) -> None:
        """A window has `context` inputs and as many targets, one token further on."""
        self._file = file
        self._context = context
        self.n_classes = file.header.vocabulary
        n_targets = len(file.tokens) - 1
        self._n_windows = n_targets // context if is_training else -(-n_targets // context)

    def __len__(self) -> int:
        """The number of windows."""
        return self._n_windows

    def batch(self, request: Request) -> Batch:
        """Inputs and targets (n, context)."""
        starts = torch.tensor(request.indices) * self._context
        last = len(self._file.tokens) - 1
        lengths = (last - starts).clamp(max=self._context)
        return padded(self._file, starts, lengths, self._context)


class DocumentSource:
    """Documents, each padded to the longest of its batch; longer ones are cut into pieces."""

    is_slow = False
    is_on_device = False

    def __init__(self, file: TokenFile, context: int) -> None:
        """A piece has at most `context` inputs; every token of a document but one is a target."""
        self._file = file
        self.n_classes = file.header.vocabulary
        self._starts, self.lengths = _pieces(document_ends(file), context)

    def __len__(self) -> int:
        """The number of pieces."""
        return len(self.lengths)

    def batch(self, request: Request) -> Batch:
        """Inputs and targets (n, the longest)."""
        chosen = list(request.indices)
        starts, lengths = self._starts[chosen], self.lengths[chosen]
        return padded(self._file, starts, lengths, int(lengths.max()))


def padded(file: TokenFile, starts: torch.Tensor, lengths: torch.Tensor, width: int) -> Batch:
    """Inputs from each start on, and the tokens that follow them as targets."""
    inputs = torch.zeros((len(starts), width), dtype=torch.int64)
    targets = torch.full_like(inputs, IGNORED)
    for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        inputs[row, :length] = file.tokens[start : start + length]
        targets[row, :length] = file.tokens[start + 1 : start + length + 1]
    largest = max(int(inputs.max()), int(targets.max()))
    # On a GPU such a token would end the training without a word about where it came from.
    if largest >= file.header.vocabulary:
        raise UsageError(
            f"{file.path} holds a token {largest}; its header says that the vocabulary has "
            f"{file.header.vocabulary}"
        )
    return inputs, targets


def document_ends(file: TokenFile) -> torch.Tensor:
    """One past the last token of each document, its end token counted."""
    if file.header.end_token is None:
        raise UsageError(
            f"{file.path}: data.tokens_per_batch is for documents, and the header beside the "
            "file names no end_token that would close them"
        )
    n = len(file.tokens)
    found = [
        (file.tokens[first : first + SCAN_TOKENS] == file.header.end_token).nonzero()[:, 0] + first
        for first in range(0, n, SCAN_TOKENS)
    ]
    # What follows the last end token is a document too; twice the same end is an empty one.
    return torch.unique(torch.cat([*(one + 1 for one in found), torch.tensor([n])]))


def _pieces(ends: torch.Tensor, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Start and number of inputs of each piece; a document of one token has no target."""
    firsts = torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1]])
    n_inputs = ends - firsts - 1
    n_pieces = (n_inputs + context - 1) // context
    document = torch.repeat_interleave(torch.arange(len(ends)), n_pieces)
    # The number of a piece within its document: counted over all, less those before it.
    place = torch.arange(len(document)) - (n_pieces.cumsum(0) - n_pieces)[document]
    lengths = (n_inputs[document] - place * context).clamp(max=context)
    return firsts[document] + place * context, lengths


def write_text(path: Path, documents: Iterable[str]) -> None:
    """Write a `.bin` of texts as their bytes in UTF-8, and its header: a vocabulary of 256."""
    with path.open("wb") as stream:
        for document in documents:
            content = document.encode()
            if BYTE_END in content:
                raise UsageError(f"a text for {path} holds a byte 0, which closes documents")
            wide = bytearray(2 * len(content) + 2)
            wide[:-2:2] = content  # the low byte of each token; the end token is two zeros
            stream.write(wide)
    header = TokenHeader("uint16", BYTE_VOCABULARY, BYTE_END)
    path.with_suffix(".json").write_text(json.dumps(asdict(header)) + "\n", encoding="utf-8")


def prepare_text(
    text: Path, folder: Path, val_share: float = 0.1, separator: str | None = None
) -> None:
    """Make `train.bin` and `val.bin` of one text, the end of it for validation.

    With a separator, what stands between two of them is a document; without, all of it is one.
    """
    try:
        content = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{text} cannot be read as a text in UTF-8: {error}") from None
    cut = round(len(content) * (1 - val_share))
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", content[:cut]), ("val", content[cut:])):
        documents = part.split(separator) if separator else [part]
        write_text(folder / f"{name}.bin", (one for one in documents if one.strip()))
