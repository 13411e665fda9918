"""Files of idx and of tokens: what they hold comes out, and damage is named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from hotlap.data import idx
from hotlap.data.feed import build_feed
from hotlap.data.idx import IdxSource, find_idx_folder, read_idx
from hotlap.data.sampling import IGNORED, Batch, Request
from hotlap.data.settings import DataSettings
from hotlap.data.tokens import (
    DocumentSource,
    WindowSource,
    document_ends,
    open_tokens,
    prepare_text,
    write_text,
)
from hotlap.errors import UsageError

CPU = torch.device("cpu")
N_IMAGES = 12


def idx_bytes(values: torch.Tensor) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.dim()]) + sizes + bytes(values.flatten().tolist())


@pytest.fixture
def fashion(tmp_path: Path) -> Path:
    """A set like Fashion-MNIST, in which every pixel of image i of the training set is i."""
    for part, n in (("train", N_IMAGES), ("t10k", 5)):
        images = torch.arange(n, dtype=torch.uint8).view(-1, 1, 1).repeat(1, 6, 6)
        images[:, :, 0] = 200  # the left edge, so that a mirrored image is seen to be one
        labels = torch.arange(n, dtype=torch.uint8) % 10
        with gzip.open(tmp_path / f"{part}-images-idx3-ubyte.gz", "wb") as stream:
            stream.write(idx_bytes(images))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    return tmp_path


def test_images_come_with_their_labels(fashion: Path) -> None:
    source = IdxSource(fashion, CPU, seed=0, is_training=True, flip=False)
    images, labels = source.batch(Request(0, (11, 3), 2))
    assert (len(source), source.n_classes, source.image_size) == (12, 10, 6)
    assert (images.shape, images.dtype) == ((2, 1, 6, 6), torch.uint8)
    assert images[:, 0, 0, 5].tolist() == [11, 3]
    assert labels.tolist() == [1, 3]


def test_a_padded_image_is_seen_through_a_window_that_moves_from_epoch_to_epoch(
    fashion: Path,
) -> None:
    source = IdxSource(fashion, CPU, seed=0, is_training=True, flip=False, crop_padding=2)
    plain = IdxSource(fashion, CPU, seed=0, is_training=True, flip=False)
    every = tuple(range(N_IMAGES))
    whole = torch.nn.functional.pad(plain.batch(Request(0, every, N_IMAGES))[0], (2,) * 4)
    corners = set()
    for epoch in range(8):
        images, labels = source.batch(Request(epoch, every, N_IMAGES))
        assert labels.tolist() == [i % 10 for i in every]
        # Those in the middle of the batch are what they are in any other batch of the epoch.
        assert torch.equal(source.batch(Request(epoch, (5, 2), 2))[0], images[[5, 2]])
        for image, padded in zip(images[1:], whole[1:], strict=True):
            places = [
                (top, left)
                for top in range(5)
                for left in range(5)
                if torch.equal(image, padded[:, top : top + 6, left : left + 6])
            ]
            assert len(places) == 1
            corners.add(places[0])
    assert len(corners) > 15


def test_validation_images_are_whole(fashion: Path) -> None:
    source = IdxSource(fashion, CPU, seed=0, is_training=False, flip=True, crop_padding=2)
    images, _ = source.batch(Request(0, (4,), 1))
    assert (images[0, 0, :, 0] == 200).all()
    assert (images[0, 0, :, 1:] == 4).all()


def test_the_test_set_is_used_for_validation(fashion: Path) -> None:
    assert len(IdxSource(fashion, CPU, seed=0, is_training=False, flip=True)) == 5


def test_half_of_the_images_are_mirrored_by_sample_and_epoch_alone(fashion: Path) -> None:
    source = IdxSource(fashion, CPU, seed=0, is_training=True, flip=True)

    def mirrored(epoch: int, indices: Iterable[int]) -> list[bool]:
        images, _ = source.batch(Request(epoch, tuple(indices), N_IMAGES))
        return [bool(one[0, 0, 5] == 200) for one in images]

    whole = mirrored(1, range(N_IMAGES))
    assert 0 < sum(whole) < N_IMAGES
    assert mirrored(1, [7, 2]) == [whole[7], whole[2]]
    assert mirrored(2, range(N_IMAGES)) != whole
    assert mirrored(1, range(N_IMAGES)) == whole


def test_images_are_resized_where_another_size_is_asked_for(fashion: Path) -> None:
    source = IdxSource(fashion, CPU, seed=0, is_training=False, flip=False)
    images, _ = source.batch(Request(0, (4,), 1, height=12, width=12))
    assert (images.shape, images.dtype) == ((1, 1, 12, 12), torch.uint8)
    assert images[0, 0, :, 6:].unique().tolist() == [4]


def test_a_feed_of_idx_files_is_as_large_as_they_say(fashion: Path) -> None:
    settings = DataSettings(kind="idx", path=str(fashion))
    feed = build_feed(settings, 5, 0, 1, 0, CPU, is_training=True)
    batches = list(feed.epoch(0))
    assert [images.shape for images, _ in batches] == [(5, 1, 6, 6)] * 2
    assert (feed.n_batches, feed.n_samples, feed.n_classes) == (2, 12, 10)


def test_an_empty_path_looks_in_the_usual_places(
    fashion: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idx, "USUAL_PLACES", ("/nowhere", str(fashion)))
    assert find_idx_folder("") == fashion
    monkeypatch.setattr(idx, "USUAL_PLACES", ("/nowhere",))
    with pytest.raises(UsageError, match=r"data\.path is empty .*dataset-fashion-mnist"):
        find_idx_folder("")


GOOD = idx_bytes(torch.zeros(3, 2, 2, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (GOOD[:-1], "has 11 bytes of data; its head says 3 x 2 x 2"),
        (GOOD + b"x", "has 13 bytes of data; its head says 3 x 2 x 2"),
        (b"\x00\x00\x0d\x03" + GOOD[4:], "starts with 00000d03; .* starts with 00000803"),
        (idx_bytes(torch.zeros(3, dtype=torch.uint8)), "starts with 00000801"),
        (GOOD[:7], "bytes of data"),
        (b"", "starts with nothing"),
    ],
    ids=["truncated", "too long", "floats", "labels", "half a head", "empty"],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"{path} .*{complaint}"):
        read_idx(path, n_dimensions=3)


def test_a_truncated_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(GOOD)[:-9])
    with pytest.raises(UsageError, match=f"{path} cannot be read"):
        read_idx(path, n_dimensions=3)


def test_a_missing_file_and_labels_of_another_count_are_named(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(GOOD)
    with pytest.raises(UsageError, match="has neither train-labels-idx1-ubyte nor"):
        IdxSource(tmp_path, CPU, seed=0, is_training=True, flip=False)
    labels = idx_bytes(torch.zeros(4, dtype=torch.uint8))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(labels)
    with pytest.raises(UsageError, match="has 3 train images but 4 labels"):
        IdxSource(tmp_path, CPU, seed=0, is_training=True, flip=False)


def write_tokens(path: Path, tokens: list[int], dtype: str, end_token: int | None = None) -> Path:
    n_bytes = {"uint16": 2, "uint32": 4}[dtype]
    path.write_bytes(b"".join(one.to_bytes(n_bytes, "little") for one in tokens))
    header = {"dtype": dtype, "vocabulary": 100_000, "end_token": end_token}
    path.with_suffix(".json").write_text(json.dumps(header))
    return path


def everything(source: WindowSource | DocumentSource) -> Batch:
    return source.batch(Request(0, tuple(range(len(source))), len(source)))


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_windows_cover_the_file_and_each_token_is_a_target_once(tmp_path: Path, dtype: str) -> None:
    tokens = list(range(40_000, 40_000 + 8 * 5 + 1))
    file = open_tokens(write_tokens(tmp_path / "train.bin", tokens, dtype))
    inputs, targets = everything(WindowSource(file, context=8, is_training=True))
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.flatten().tolist() == tokens[:-1]
    assert targets.flatten().tolist() == tokens[1:]


def test_the_rest_of_a_file_is_a_window_of_its_own_in_validation_alone(tmp_path: Path) -> None:
    tokens = list(range(1, 22))
    file = open_tokens(write_tokens(tmp_path / "val.bin", tokens, "uint16"))
    assert len(WindowSource(file, 8, is_training=True)) == 2
    inputs, targets = everything(WindowSource(file, 8, is_training=False))
    assert inputs.shape == (3, 8)
    assert targets[targets != IGNORED].tolist() == tokens[1:]
    assert targets[2].tolist() == [18, 19, 20, 21, *[IGNORED] * 4]


def test_an_epoch_of_windows_repeats_none_and_is_shuffled(tmp_path: Path) -> None:
    write_tokens(tmp_path / "train.bin", list(range(8 * 12 + 1)), "uint16")
    settings = DataSettings(kind="tokens", path=str(tmp_path), context=8)
    feed = build_feed(settings, 4, 0, 1, seed=3, device=CPU, is_training=True)
    firsts = [int(row[0]) for inputs, _ in feed.epoch(1) for row in inputs]
    assert sorted(firsts) == list(range(0, 96, 8))
    assert firsts != sorted(firsts)


def test_a_text_becomes_its_bytes_with_an_end_to_each_document(tmp_path: Path) -> None:
    write_text(tmp_path / "train.bin", ["Grüße", "b"])
    file = open_tokens(tmp_path / "train.bin")
    assert file.tokens.tolist() == [*"Grüße".encode(), 0, ord("b"), 0]
    assert (file.header.vocabulary, file.header.end_token) == (256, 0)
    assert document_ends(file).tolist() == [8, 10]


def test_the_end_of_a_text_is_for_validation(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {i}\n" for i in range(100)))
    prepare_text(text, tmp_path / "tokens", val_share=0.2, separator="\n")
    content = [
        bytes(open_tokens(tmp_path / "tokens" / f"{part}.bin").tokens.tolist())
        for part in ("train", "val")
    ]
    assert b"".join(content).count(0) == 101  # one line was cut in two
    assert len(content[1]) == pytest.approx(0.2 * len(text.read_bytes()), abs=2)
    assert content[0].startswith(b"line 0\0line 1\0")
    assert content[1].endswith(b"line 99\0")


def test_a_text_with_a_zero_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds a byte 0"):
        write_text(tmp_path / "train.bin", ["a\0b"])


def test_every_token_of_every_document_appears_once_whatever_its_length(tmp_path: Path) -> None:
    documents = [[*range(10, 10 + n), 9] for n in (3, 0, 25, 1, 8, 16)]
    tail = [70, 71]
    tokens = [one for document in documents for one in document] + tail
    file = open_tokens(write_tokens(tmp_path / "train.bin", tokens, "uint16", end_token=9))
    inputs, targets = everything(DocumentSource(file, context=8))
    pairs = [
        (a, b)
        for row_in, row_out in zip(inputs.tolist(), targets.tolist(), strict=True)
        for a, b in zip(row_in, row_out, strict=True)
        if b != IGNORED
    ]
    expected = [pair for d in [*documents, tail] for pair in pairwise(d)]
    assert pairs == expected
    assert inputs.shape[1] == 8


def test_a_feed_of_documents_keeps_to_its_tokens(tmp_path: Path) -> None:
    texts = ["x" * n for n in range(1, 60)]
    write_text(tmp_path / "train.bin", texts)
    settings = DataSettings(kind="tokens", path=str(tmp_path), context=64, tokens_per_batch=200)
    ranks = [build_feed(settings, 1, rank, 2, 0, CPU, True) for rank in range(2)]
    batches = [list(feed.epoch(0)) for feed in ranks]
    assert len(batches[0]) == len(batches[1]) == ranks[0].n_batches
    assert all(inputs.numel() <= 200 for one in batches for inputs, _ in one)
    assert batches[0][0][0].shape[1] == 59
    n_targets = sum(int((targets != IGNORED).sum()) for one in batches for _, targets in one)
    assert n_targets == sum(map(len, texts))
    with pytest.raises(UsageError, match=r"data\.tokens_per_batch"):
        ranks[0].epoch(0, batch_size=8)


def test_documents_need_an_end_token(tmp_path: Path) -> None:
    write_tokens(tmp_path / "train.bin", [1, 2, 3], "uint16")
    settings = DataSettings(kind="tokens", path=str(tmp_path), context=2, tokens_per_batch=8)
    with pytest.raises(UsageError, match="names no end_token"):
        build_feed(settings, 1, 0, 1, 0, CPU, is_training=True)


@pytest.mark.parametrize(
    ("header", "content", "complaint"),
    [
        (None, b"ab", r"train\.json cannot be read .*\"dtype\": \"uint16\""),
        ("[]", b"ab", "is no header"),
        ('{"dtype": "uint16"}', b"ab", "is no header of tokens: KeyError"),
        ('{"dtype": "int8", "vocabulary": 9}', b"ab", "dtype is 'int8'"),
        ('{"dtype": "uint16", "vocabulary": 9}', b"abc", "has 3 bytes; .*multiple of 2"),
        ('{"dtype": "uint16", "vocabulary": 9}', b"", "has 0 bytes"),
        ('{"dtype": "uint16", "vocabulary": 9}', None, r"train\.bin cannot be read"),
    ],
)
def test_a_damaged_token_file_is_named(
    tmp_path: Path, header: str | None, content: bytes | None, complaint: str
) -> None:
    if header is not None:
        (tmp_path / "train.json").write_text(header)
    if content is not None:
        (tmp_path / "train.bin").write_bytes(content)
    with pytest.raises(UsageError, match=complaint):
        open_tokens(tmp_path / "train.bin")


def test_a_token_outside_the_vocabulary_is_named(tmp_path: Path) -> None:
    write_tokens(tmp_path / "train.bin", [1, 2, 3], "uint16")
    (tmp_path / "train.json").write_text('{"dtype": "uint16", "vocabulary": 3}')
    source = WindowSource(open_tokens(tmp_path / "train.bin"), 2, is_training=True)
    with pytest.raises(UsageError, match="holds a token 3; its header says"):
        source.batch(Request(0, (0,), 1))
