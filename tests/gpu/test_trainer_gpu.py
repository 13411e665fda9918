"""The trainer's paths on a GPU: copies beside the step, precisions, resuming, graphs, NCCL.

HOTLAP_TEST_DEVICE=cpu runs the same bodies on a CPU, where what only a GPU has is left out: that
shows that the tests are sound, and nothing of a GPU.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from hotlap.data.augment import Augment
from hotlap.data.feed import build_feed
from hotlap.data.settings import DataSettings
from hotlap.data.tokens import prepare_text
from hotlap.distributed import collectives
from hotlap.distributed.exchanges import OPERATIONS
from hotlap.distributed.launch import detect, start
from hotlap.distributed.parallelise import shard
from hotlap.models.gpt import GPT
from hotlap.trainer.build import build
from hotlap.trainer.clip import clip_gradients
from hotlap.trainer.ema import Ema, EmaSettings
from hotlap.trainer.loop import train
from hotlap.trainer.optimizers import muon
from hotlap.trainer.optimizers.build import build_optimizer
from hotlap.trainer.optimizers.settings import OptimizerSettings
from hotlap.trainer.recipe import resolve

DEVICE = os.environ.get("HOTLAP_TEST_DEVICE", "cuda")
IS_GPU = DEVICE == "cuda"
TESTS = Path(__file__).parents[1]
TINY = str(TESTS / "trainer" / "tiny.toml")
TEXT = TESTS.parent / "LICENSE"
SMALL_IMAGES = (
    "resnet50-synthetic",
    *("model.name=resnet18", "model.image_size=64", "n_classes=10", "n_samples=4096", "batch=32"),
    *('compile=""', "loop.steps=8", "log_steps=1", "lr=0.02"),
)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    prepare_text(TEXT, folder)
    return folder


@pytest.fixture(autouse=True)
def settings_of_the_process() -> Iterator[None]:
    """What a training sets for its process is not left to the next test."""
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.compiler.reset()


class Interrupted(Exception):
    """Ends a training in the middle."""


def losses(folder: Path, recipe: str, *changes: str, device: str = DEVICE, until: int = 0) -> Any:
    """Train in a folder; the loss of every step. `until`: it is broken off after so many."""
    settings = resolve(recipe, [f"output.folder={folder}", *changes, f"compute.device={device}"])
    with start(detect({}), 60.0, device=settings.compute.device) as started:
        t = build(settings, started)
        if until:
            t.feed = Broken(t.feed, until)
            with pytest.raises(Interrupted):
                train(t)
        else:
            assert train(t) == 0
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return {one["step"]: one["loss"] for one in lines if one["part"] == "train"}


class Broken:
    """A feed that breaks off."""

    def __init__(self, feed: Any, n: int) -> None:
        self._feed, self._n = feed, n

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)

    def epoch(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        yield from itertools.islice(self._feed.epoch(*args, **kwargs), self._n)
        raise Interrupted


def text(tokens: Path, *changes: str) -> tuple[str, ...]:
    return (TINY, f"data.path={tokens}", *changes)


def near(found: dict[int, float], expected: dict[int, float], relative: float) -> None:
    assert found.keys() == expected.keys()
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, rel=relative), step


def test_losses_in_fp32_are_those_of_a_cpu(tmp_path: Path, tokens: Path) -> None:
    expected = losses(tmp_path / "cpu", *text(tokens), device="cpu")
    near(losses(tmp_path / "gpu", *text(tokens)), expected, 1e-4)
    assert expected[20] < expected[1] - 0.5


def test_images_in_fp32_are_trained_as_on_a_cpu(tmp_path: Path) -> None:
    """Synthetic samples are drawn on the device, so that both feeds are given the same ones."""
    recipe, *changes = (*SMALL_IMAGES, "precision=fp32", "batch=8", "loop.steps=3")
    settings = [resolve(recipe, [*changes, f"compute.device={one}"]) for one in ("cpu", DEVICE)]
    batch = torch.randint(256, (8, 3, 64, 64), dtype=torch.uint8), torch.arange(8)
    found = []
    for one in settings:
        with start(detect({}), 60.0, device=one.compute.device) as started:
            t = build(one, started)
            inputs, targets = t.prepare(*(x.to(t.device) for x in batch), number=0)
            assert inputs.is_contiguous(memory_format=torch.channels_last)
            logits = t.bare(inputs)
            # In double precision: rounding may turn a ReLU at its kink on or off, and with it some
            # percent of a gradient.
            model = copy.deepcopy(t.bare).double()
            torch.nn.functional.cross_entropy(model(inputs.double()), targets).backward()
            gradients = [p.grad.detach().cpu() for p in model.parameters()]
            found.append((inputs.cpu(), logits.detach().cpu(), gradients))
    (inputs, logits, gradients), (own_inputs, own_logits, own_gradients) = found
    torch.testing.assert_close(own_inputs, inputs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(own_logits, logits, rtol=1e-3, atol=1e-3)
    for own, one in zip(own_gradients, gradients, strict=True):
        scale = one.abs().max().item()
        torch.testing.assert_close(own, one, rtol=0, atol=1e-6 * scale)


PRECISIONS = ("tf32", "bf16", "pure-bf16", *(("fp16",) if IS_GPU else ()))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_learns_as_fp32_does(tmp_path: Path, tokens: Path, precision: str) -> None:
    expected = losses(tmp_path / "fp32", *text(tokens))
    found = losses(tmp_path / precision, *text(tokens, f"precision={precision}"))
    near(found, expected, 0.05)
    assert found[20] < found[1] - 0.5


def test_a_batch_copied_beside_the_step_is_the_one_that_was_loaded(tokens: Path) -> None:
    settings = DataSettings(kind="tokens", path=str(tokens), context=64)

    def feed(device: str) -> Any:
        return build_feed(settings, 4, 0, 1, 0, torch.device(device), is_training=True)

    expected = list(feed("cpu").epoch(3))
    busy = torch.randn(2048 if IS_GPU else 16, 2048 if IS_GPU else 16, device=DEVICE)
    found = []
    for inputs, targets in feed(DEVICE).epoch(3):
        assert inputs.device.type == DEVICE
        for _ in range(20):  # the device lags behind: a copy that nobody waits for would be seen
            busy = busy @ busy / 50
        found.append((inputs * 1, targets * 1))
        del inputs, targets  # their memory is free for the next copy, as in a loop
    assert len(found) == len(expected) > 10
    for (inputs, targets), (own_inputs, own_targets) in zip(expected, found, strict=True):
        assert torch.equal(own_inputs.cpu(), inputs)
        assert torch.equal(own_targets.cpu(), targets)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_fused_optimizer_makes_the_steps_of_the_plain_one(
    tmp_path: Path, tokens: Path, name: str
) -> None:
    chosen = (f"optimizer.name={name}", "weight_decay=0.1", "lr=0.003")
    expected = losses(tmp_path / "plain", *text(tokens, *chosen, "fused=false"))
    near(losses(tmp_path / "fused", *text(tokens, *chosen, "fused=true")), expected, 1e-4)


@pytest.mark.parametrize("name", ["lars", "lamb", "lion", "muon"])
def test_the_other_optimizers_learn(tmp_path: Path, tokens: Path, name: str) -> None:
    rate = {"lars": 2.0, "lamb": 0.01, "lion": 1e-3, "muon": 3e-3}[name]
    chosen = (f"optimizer.name={name}", f"lr={rate}", "loop.steps=30", "precision=bf16")
    found = losses(tmp_path, *text(tokens, *chosen))
    assert found[30] < found[1] - 0.2


def test_muon_makes_singular_values_close_to_1_in_the_type_it_works_in() -> None:
    matrices = torch.randn(3, 96, 64, device=DEVICE)
    dtype = muon._working_dtype(matrices)
    assert dtype == (torch.bfloat16 if IS_GPU else torch.float32)
    values = torch.linalg.svdvals(muon.newton_schulz(matrices.to(dtype)).float())
    assert values.min() > 0.5
    assert values.max() < 1.35


def test_augmentations_are_made_on_the_device_and_the_same_for_a_step_each_time() -> None:
    settings = DataSettings(randaugment_ops=2, random_erasing=0.5, mixup=0.2, cutmix=1.0)
    images = torch.randint(256, (16, 3, 48, 48), dtype=torch.uint8, device=DEVICE)
    labels = torch.arange(16, device=DEVICE) % 10

    def augment() -> Augment:
        return Augment(settings, 10, 0, 0, torch.device(DEVICE), is_training=True)

    first, again = augment(), augment()
    seen = []
    for step in range(12):
        inputs, targets = first(images, labels, step)
        assert (inputs.device.type, inputs.shape) == (DEVICE, images.shape)
        assert inputs.isfinite().all()
        torch.testing.assert_close(targets.sum(1), torch.ones(16, device=DEVICE))
        seen.append(inputs)
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(seen))
    for step in (7, 2):  # in any order, as a resumed training asks for them
        assert torch.equal(again(images, labels, step)[0], seen[step])


def test_bytes_are_normalised_as_on_a_cpu() -> None:
    images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    made = []
    for device in ("cpu", DEVICE):
        augment = Augment(DataSettings(), 10, 0, 0, torch.device(device), is_training=True)
        inputs, _ = augment(images.to(device), torch.zeros(4, device=device), 0)
        assert inputs.dtype == torch.float32
        made.append(inputs.cpu())
    torch.testing.assert_close(made[1], made[0], rtol=1e-6, atol=1e-6)


RESUMED = ("fp32", "bf16", *(("fp16",) if IS_GPU else ()))


@pytest.mark.parametrize("precision", RESUMED)
def test_a_training_that_was_broken_off_goes_on_to_the_same_bits(
    tmp_path: Path, tokens: Path, precision: str
) -> None:
    """With dropout, whose numbers come from the device's own generator."""
    chosen = text(
        tokens, f"precision={precision}", "dropout=0.1", "deterministic=true", "checkpoint_steps=4"
    )
    expected = losses(tmp_path / "whole", *chosen, "ema_decay=0.9")
    before = losses(tmp_path / "parts", *chosen, "ema_decay=0.9", until=11)
    assert before == {step: loss for step, loss in expected.items() if step <= 11}
    assert losses(tmp_path / "parts", *chosen, "ema_decay=0.9") == expected
    written = [tmp_path / one / "weights.safetensors" for one in ("whole", "parts")]
    assert written[0].read_bytes() == written[1].read_bytes()


@pytest.mark.parametrize("stem", ["small_stem=true", "small_stem=false"])
def test_deterministic_images_give_the_same_bits_twice(tmp_path: Path, stem: str) -> None:
    changes = (*SMALL_IMAGES, stem, "deterministic=true", "precision=bf16")
    runs = [losses(tmp_path / name, *changes) for name in ("one", "two")]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 8


def test_activations_that_are_computed_again_change_nothing(tmp_path: Path, tokens: Path) -> None:
    chosen = text(tokens, "dropout=0.1", "precision=bf16")
    expected = losses(tmp_path / "kept", *chosen)
    near(losses(tmp_path / "again", *chosen, "checkpoint_blocks=1"), expected, 2e-3)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_training_is_the_plain_one(tmp_path: Path, tokens: Path, mode: str) -> None:
    """With accumulation: several backwards come between two updates."""
    chosen = text(tokens, "accumulate=2", "batch=4")
    expected = losses(tmp_path / "plain", *chosen)
    near(losses(tmp_path / mode, *chosen, f"compile={mode}"), expected, 1e-3)


def test_averaged_weights_are_the_average() -> None:
    model = torch.nn.Linear(64, 64).to(DEVICE, torch.bfloat16)
    average = Ema(model, EmaSettings(decay=0.9, warmup=False))
    expected = model.weight.detach().double().cpu()
    for _ in range(30):
        with torch.no_grad():
            model.weight.add_(torch.randn_like(model.weight) * 0.1)
        average.update(model)
        expected = 0.9 * expected + 0.1 * model.weight.detach().double().cpu()
    own = model.weight.detach().clone()
    assert average.averages["weight"].dtype == torch.float32
    found = average.averages["weight"].double().cpu()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    with average.swapped(model):
        torch.testing.assert_close(model.weight.double().cpu(), expected, rtol=1e-2, atol=1e-2)
    assert torch.equal(model.weight, own)


@pytest.fixture
def group() -> Iterator[torch.device]:
    """One rank that is a group, over NCCL on a GPU."""
    with start(detect({}), 60.0, device=DEVICE, always=True) as started:
        # Checkpoints and the watch talk over the CPU, in groups of their own.
        expected = "cpu:gloo,cuda:nccl" if IS_GPU else "gloo"
        assert torch.distributed.get_backend() == expected
        yield started.device


def test_scaled_gradients_of_a_sharded_model_are_those_of_the_whole_one(
    group: torch.device,
) -> None:
    def trained(is_sharded: bool) -> tuple[list[float], list[float]]:
        torch.manual_seed(0)
        model = GPT(2, 2, 32, vocab_size=64, context=16).to(group)
        if is_sharded:
            shard(model, init_device_mesh(DEVICE, (1,)))
        optimizer = build_optimizer(model, OptimizerSettings("adamw", lr=0.01))
        scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**12, growth_interval=3)
        batch = torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(1)).to(group)
        found, scales = [], []
        for step in range(8):
            with torch.autocast(DEVICE, dtype=torch.float16 if IS_GPU else torch.bfloat16):
                logits = model(batch[:, :-1])
            loss = torch.nn.functional.cross_entropy(
                logits.float().flatten(0, 1), batch[:, 1:].flatten()
            )
            # One gradient overflows: its update is left out and the scale is halved.
            scaler.scale(loss * (float("inf") if step == 5 else 1.0)).backward()
            scaler.unscale_(optimizer)
            clip_gradients(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            found.append(loss.item())
            scales.append(scaler.get_scale())
        return found, scales

    (whole, scales), (sharded, own_scales) = trained(False), trained(True)
    assert own_scales == scales
    assert scales[4] > scales[0]
    assert scales[5] == scales[4] / 2
    assert sharded == pytest.approx(whole, rel=1e-3)
    assert whole[-1] < whole[0]


def test_the_collectives_are_right_on_one_rank(group: torch.device) -> None:
    several = [one for one in OPERATIONS if one.name != "send_recv"]  # that takes two
    records = collectives.run([4096, 1 << 20], group, 3, several)
    assert {record.device for record in records} == {DEVICE}
    assert len({record.operation for record in records}) >= 6
    assert [record.operation for record in records if record.wrong_ranks] == []
