"""A traced model has the parameters, FLOPs and kept bytes that the real one has."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from models_to_trace import EncoderDecoder, conv_net, mixture
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from hotlap.errors import UsageError
from hotlap.models.gpt import GPT
from hotlap.models.resnet import resnet18
from hotlap.models.vit import ViT
from hotlap.planner.calibration import Calibration
from hotlap.planner.cluster import Gpus
from hotlap.planner.layers import Model
from hotlap.planner.layout import Layout, refusal
from hotlap.planner.step import step_time
from hotlap.planner.trace import Request, trace
from hotlap.planner.tracing import traced
from hotlap.planner.training import Training
from hotlap.planner.transformer import Arithmetic, TransformerSizes, transformer
from hotlap.planner.work import work_of
from hotlap.records.codec import to_json

HERE = Path(__file__).parent
SMALL_GPT = {"n_layers": 3, "n_heads": 4, "width": 64, "vocab_size": 500, "context": 32}


@pytest.fixture
def models_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a process of its own."""
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def request(factory: str, **changes: object) -> Request:
    given: dict[str, object] = {
        "arguments": {}, "seq": None, "image_size": 32, "n_channels": 3, "autocast": "",
        "pure_16bit": False, "attention_is_causal": False,
    }  # fmt: skip
    return Request(factory, **(given | changes))  # type: ignore[arg-type]


CASES: list[tuple[Request, Callable[[], nn.Module], Callable[[], Tensor]]] = [
    (request("models_to_trace:conv_net"), conv_net, lambda: torch.randn(2, 3, 32, 32)),
    (
        request("hotlap.models.resnet:resnet18", image_size=64),
        resnet18,
        lambda: torch.randn(2, 3, 64, 64),
    ),
    (
        request("hotlap.models.gpt:GPT", arguments=SMALL_GPT, seq=32, image_size=None),
        lambda: GPT(**SMALL_GPT),
        lambda: torch.randint(0, 500, (2, 32)),
    ),
]


def kept_bytes(model: nn.Module, inputs: Tensor) -> int:
    """What autograd really keeps of a forward and its loss, parameters and input left out."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}
    alive = []

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        alive.append(storage)
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda saved: saved):
        flat = model(inputs).flatten(0, -2)
        F.cross_entropy(flat, torch.zeros(flat.shape[0], dtype=torch.long))
    return sum(kept.values())


def all_layers(model: Model) -> list[float]:
    return [(layer.kept.whole + layer.kept.cut) * n for layer, n in model.groups()]


@pytest.mark.parametrize(("asked", "make", "inputs"), CASES, ids=["conv", "resnet18", "gpt"])
def test_a_trace_counts_what_the_real_model_does(
    asked: Request, make: Callable[[], nn.Module], inputs: Callable[[], Tensor]
) -> None:
    model = trace(asked)
    real = make()
    assert model.n_params == sum(p.numel() for p in real.parameters())
    with FlopCounterMode(display=False) as counter:
        real(inputs())
    products = sum(
        one.flops for layer, n in model.groups() for _ in range(n) for one in layer.matmuls
    )
    # Torch counts no FLOPs of attention on a CPU; the trace counts those apart.
    assert products * 2 == pytest.approx(counter.get_total_flops())
    measured = kept_bytes(real, inputs()) / 2
    loss = model.logits_bytes - 3 * _output_bytes(model, real, inputs())
    assert sum(all_layers(model)) + loss == pytest.approx(measured, rel=0.02)


def test_launches_and_bytes_of_a_backward_are_those_counted_by_hand() -> None:
    model = trace(request("models_to_trace:two_layers"))
    # mm, relu, mm, log_softmax, nll_loss; ones, nll_loss, log_softmax, 2 mm, relu, mm.
    assert model.backward_kernels == pytest.approx(7 / 5)
    # Bytes of a sample: relu 64, log_softmax 32; nll_loss 16, log_softmax 48, relu 96.
    assert model.backward_traffic == pytest.approx(160 / 96, rel=0.08)


def test_a_model_without_a_product_is_planned_too() -> None:
    model = trace(request("models_to_trace:without_products"))
    assert model.flops == 0
    assert model.recomputed is not None
    assert model.recomputed.products == 0
    gpus, layout = Gpus("h200-141gb", 1, 1, 0.0), Layout(recompute="full")
    work = work_of(model, gpus, Training(8, 8, "bf16", "sgd"), layout)
    assert step_time(work, Calibration()).total > 0


@pytest.mark.parametrize("autocast", ["", "bf16"])
def test_a_recurrent_layer_multiplies_each_token_with_all_its_weights(autocast: str) -> None:
    asked = request("models_to_trace:Recurrent", seq=16, image_size=None, autocast=autocast)
    n_weights = 2 * (4 * 32 * 32 + 4 * 32 * 32) + 32 * 100
    assert trace(asked).flops == 2 * 16 * n_weights


def test_an_encoder_decoder_and_a_mixture_of_experts_are_traced() -> None:
    both = trace(request("models_to_trace:EncoderDecoder", seq=16, image_size=None))
    assert both.n_params == sum(p.numel() for p in EncoderDecoder().parameters())
    assert [layer.name for layer in both.blocks] == [
        *["TransformerEncoderLayer"] * 2,
        *["TransformerDecoderLayer"] * 2,
    ]
    # A decoder attends twice: to itself and to what the encoder made.
    assert both.blocks[2].flops > both.blocks[0].flops
    experts = trace(request("models_to_trace:mixture", seq=16, image_size=None))
    assert experts.n_params == sum(p.numel() for p in mixture().parameters())
    products = [one for one in experts.blocks[0].matmuls if one.groups == 4]
    assert len(products) >= 2


def test_tensor_parallel_cuts_what_a_transformer_of_these_sizes_would() -> None:
    """Named by the model itself, and found by the names of linear layers."""
    sizes = TransformerSizes(3, 64, 4, 256, 500, n_positions=32)
    planned = transformer("GPT", sizes, 32, Arithmetic(4, 4)).blocks[0]
    traced_block = trace(CASES[2][0]).blocks[0]
    assert traced_block.n_params_cut == planned.n_params_cut
    assert traced_block.n_params == planned.n_params
    assert traced_block.n_tensor_syncs == planned.n_tensor_syncs == 2
    assert traced_block.sync_bytes == planned.sync_bytes
    assert traced_block.kept.cut == pytest.approx(planned.kept.cut, rel=0.02)
    by_name = trace(request("models_to_trace:llama_like", seq=16, image_size=None))
    assert by_name.n_heads == 4
    (block,) = {layer.n_params_cut for layer in by_name.blocks}
    assert block == 4 * 32 * 32 + 3 * 32 * 64
    assert {one.cut for one in by_name.blocks[0].matmuls} == {"columns", "rows"}


def test_a_convolutional_net_is_not_cut() -> None:
    net = trace(CASES[0][0])
    assert net.n_heads is None
    assert "tp has to be 1" in refusal(Layout(tp=2), net, 2, 4, 2)


def _output_bytes(model: Model, real: nn.Module, inputs: Tensor) -> float:
    output = real(inputs)
    return output.numel() * output.element_size() / 2


def test_attention_is_counted_in_full() -> None:
    model = trace(CASES[2][0])
    scores = sum(
        one.flops for layer, n in model.groups() for one in layer.attentions for _ in range(n)
    )
    assert scores == 3 * 4 * 32 * 32 * 64


def test_blocks_are_found_in_their_order() -> None:
    gpt, net = trace(CASES[2][0]), trace(CASES[0][0])
    assert [layer.name for layer in gpt.blocks] == ["Block"] * 3
    assert [layer.name for layer in net.blocks] == ["_Residual"] * 2
    assert gpt.blocks[1].input_bytes == 32 * 64 * 4
    assert net.stem.n_params == 3 * 9 * 16 + 16
    assert net.head.n_params == 16 * 10 + 10


def test_autocast_halves_most_of_what_is_kept() -> None:
    wide = {**SMALL_GPT, "width": 256}
    asked = request("hotlap.models.gpt:GPT", arguments=wide, seq=32, image_size=None)
    plain = trace(asked)
    mixed = trace(request(asked.factory, arguments=wide, seq=32, image_size=None, autocast="bf16"))
    assert 0.5 < sum(all_layers(mixed)) / sum(all_layers(plain)) < 0.85


def test_a_vision_transformer_is_traced() -> None:
    arguments = {"n_layers": 2, "n_heads": 2, "width": 32, "patch_size": 8, "image_size": 32}
    model = traced(request("hotlap.models.vit:ViT", arguments=arguments))
    assert model.n_params == sum(p.numel() for p in ViT(**arguments).parameters())
    assert len(model.blocks) == 2


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("nosuch.module:thing", "nosuch.module cannot be imported"),
        ("models_to_trace:nothing", "has no callable 'nothing'"),
        ("models_to_trace", "is written package.module:factory"),
        ("models_to_trace:frozen", "no parameter that is trained"),
        ("models_to_trace:looks_at_values", "could not be traced"),
        ("models_to_trace:raises", "could not be made .RuntimeError: no such."),
        ("os:getcwd", "returned str; it has to return an nn.Module"),
        ("hotlap.models.gpt:GPT", "missing a required argument: 'n_layers'"),
    ],
)
def test_a_model_that_cannot_be_traced_is_one_sentence(factory: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as raised:
        trace(request(factory))
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("models_on_the_path")
def test_a_model_is_traced_in_a_process_of_its_own() -> None:
    assert to_json(traced(CASES[0][0])) == to_json(trace(CASES[0][0]))
    with pytest.raises(UsageError, match="its process ended with exit code 7"):
        traced(request("models_to_trace:dies"))
