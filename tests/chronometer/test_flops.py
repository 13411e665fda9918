"""The FLOPs of a step are those that a person counts by hand."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from making import make_rank, make_table, merged
from running import SCRIPTS, Command, RunCache
from torch import Tensor, nn

from hotlap.chronometer.flop_formulas import FORMULAS
from hotlap.chronometer.flops import ModuleSnapshots
from hotlap.records import Flops
from hotlap.report.terminal import render_run


def by_hand() -> ModuleType:
    """The script with the hand-made counts."""
    spec = importlib.util.spec_from_file_location("by_hand", SCRIPTS / "flops_by_hand.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mlp_step_flops(batch: int = 256) -> int:
    """compiled_model.py: 256 -> 512 -> 10; the batch itself needs no gradient."""
    hand = by_hand()
    first = hand.linear(batch, 256, 512) * (hand.FORWARD + hand.WEIGHT_GRADIENT)
    flops: int = first + hand.linear(batch, 512, 10) * hand.ALL
    return flops


COUNTED = {
    "resnet": (Command(("resnet.py",)), lambda: by_hand().resnet_step_flops()),
    "gpt": (Command(("gpt.py",)), lambda: by_hand().gpt_step_flops()),
}
COMPILED = {
    style: Command(("compiled_model.py", "--style", style))
    for style in ("module", "method", "sequential")
}


@pytest.mark.parametrize(("command", "expected"), COUNTED.values(), ids=list(COUNTED))
def test_flops_are_those_counted_by_hand(
    runs: RunCache, command: Command, expected: Callable[[], int]
) -> None:
    flops = runs(command).run["flops"]
    assert flops["per_step"] == pytest.approx(expected(), rel=0.02)
    assert flops["per_s"] > 0
    assert flops["ceiling_per_s"] is None, "a CPU is not in the chip table"
    assert flops["mfu"] is None


@pytest.mark.parametrize("command", COMPILED.values(), ids=list(COMPILED))
def test_a_compiled_model_has_the_flops_of_the_plain_one(runs: RunCache, command: Command) -> None:
    assert runs(command).run["flops"]["per_step"] == mlp_step_flops()


@pytest.mark.parametrize("command", [Command(("compiled_model.py", "--style", "step"))])
def test_flops_that_cannot_be_counted_are_null_and_say_why(
    runs: RunCache, command: Command
) -> None:
    run = runs(command).run
    assert run["flops"]["per_step"] is None
    assert any(note.startswith("FLOPs are unknown") for note in run["notes"])


class WrittenOut(nn.Module):
    """A recurrent layer of linear ones: the same products, one element of the sequences at a time.

    What the gates make of their sums costs no product.
    """

    def __init__(self, given: int, width: int, n_layers: int, n_gates: int, n_ways: int) -> None:
        super().__init__()
        self.width, self.n_gates, self.n_ways = width, n_gates, n_ways
        widths = [given] + [n_ways * width] * (n_layers - 1)
        sizes = [size for size in widths for _ in range(n_ways)]
        self.inputs = nn.ModuleList(nn.Linear(size, n_gates * width) for size in sizes)
        self.states = nn.ModuleList(nn.Linear(width, n_gates * width) for _ in sizes)

    def forward(self, batch: Tensor, first: Tensor | None = None) -> Tensor:
        elements = list(batch)
        for layer in range(0, len(self.inputs), self.n_ways):
            ways = [self.one_way(elements, layer + way, first) for way in range(self.n_ways)]
            elements = [torch.cat(pair, -1) for pair in zip(*ways, strict=True)]
        return torch.stack(elements)

    def one_way(self, elements: list[Tensor], index: int, first: Tensor | None) -> list[Tensor]:
        state = torch.zeros(len(elements[0]), self.width) if first is None else first[index]
        made = []
        for element in elements:
            gates = self.inputs[index](element) + self.states[index](state)
            state = gates.view(len(gates), self.n_gates, self.width).tanh().sum(1)
            made.append(state)
        return made


N_GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}
LENGTH, BATCH, GIVEN, WIDTH = 7, 5, 8, 16


def counted(module: nn.Module, *args: Any) -> dict[str, Any]:
    """What the process of a training writes of one module after its last step."""
    snapshots = ModuleSnapshots(torch, {})
    snapshots.add(module, args, {})
    return snapshots.count()["1"]


def flops_of(module: nn.Module, *args: Any) -> float:
    flops: float = counted(module, *args)["flops"]
    return flops


@pytest.mark.parametrize("n_ways", [1, 2], ids=["forwards", "both_ways"])
@pytest.mark.parametrize("n_layers", [1, 3])
@pytest.mark.parametrize("kind", N_GATES)
def test_a_recurrent_layer_has_the_flops_of_linear_ones(
    kind: type[nn.RNNBase], n_layers: int, n_ways: int
) -> None:
    batch = torch.randn(LENGTH, BATCH, GIVEN)
    layer = kind(GIVEN, WIDTH, n_layers, bidirectional=n_ways == 2)
    written_out = WrittenOut(GIVEN, WIDTH, n_layers, N_GATES[kind], n_ways)
    flops = flops_of(layer, batch)
    assert flops == flops_of(written_out, batch) > 0
    assert flops_of(layer, batch.requires_grad_()) == flops_of(written_out, batch) > flops
    other = kind(GIVEN, WIDTH, n_layers, bias=False, batch_first=True, bidirectional=n_ways == 2)
    assert flops_of(other, torch.randn(BATCH, LENGTH, GIVEN)) == flops


def test_gradients_of_a_recurrent_layer_that_nobody_asks_for_do_not_count() -> None:
    batch = torch.randn(LENGTH, BATCH, GIVEN, requires_grad=True)
    first = torch.randn(2, BATCH, WIDTH, requires_grad=True)
    lstm, written_out = nn.LSTM(GIVEN, WIDTH, 2), WrittenOut(GIVEN, WIDTH, 2, 4, 1)
    all_of_them = flops_of(lstm, batch, (first, first))
    assert all_of_them == flops_of(written_out, batch, first)
    for module in (lstm, written_out):
        module.requires_grad_(False)
    assert flops_of(lstm, batch, (first, first)) == flops_of(written_out, batch, first)
    assert flops_of(lstm, batch, (first, first)) < all_of_them


class ByCudnn(nn.Module):
    """The operator that a recurrent layer is on a GPU, which fake tensors need none for."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, batch: Tensor) -> Tensor:
        one = self.layer
        n_ways, mode = 1 + one.bidirectional, {"LSTM": 2, "GRU": 3}[one.mode]
        states = torch.zeros(one.num_layers * n_ways, batch.shape[1], one.proj_size or WIDTH)
        cells = torch.zeros(one.num_layers * n_ways, batch.shape[1], WIDTH) if mode == 2 else None
        weights, stride = one._flat_weights, len(one._all_weights[0])
        sizes = (WIDTH, one.proj_size, one.num_layers)
        how = (False, 0.0, True, one.bidirectional, [], None)
        made = torch._cudnn_rnn(batch, weights, stride, None, states, cells, mode, *sizes, *how)
        output: Tensor = made[0]
        return output


@pytest.mark.parametrize("n_ways", [1, 2], ids=["forwards", "both_ways"])
@pytest.mark.parametrize(("kind", "more"), [(nn.LSTM, {"proj_size": 4}), (nn.GRU, {})])
@pytest.mark.parametrize("wants_batch", [False, True])
def test_the_operator_of_a_gpu_has_the_flops_of_the_products_on_a_cpu(
    kind: type[nn.RNNBase], more: dict[str, int], n_ways: int, wants_batch: bool
) -> None:
    batch = torch.randn(LENGTH, BATCH, GIVEN, requires_grad=wants_batch)
    layer = kind(GIVEN, WIDTH, 2, bidirectional=n_ways == 2, **more)
    assert flops_of(ByCudnn(layer), batch) == flops_of(layer, batch)


def test_a_count_leaves_the_weights_of_a_recurrent_layer_alone() -> None:
    lstm = nn.LSTM(GIVEN, WIDTH)
    counted(lstm, torch.randn(LENGTH, BATCH, GIVEN))
    assert all(weight.grad is None for weight in lstm.parameters())


class PacksSequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(GIVEN, WIDTH)

    def forward(self, batch: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(batch, lengths)
        state: Tensor = self.gru(packed)[1]
        return state


def test_flops_of_packed_sequences_are_unknown() -> None:
    """How many elements there are is in the lengths, and differs from batch to batch."""
    found = counted(
        PacksSequences(), torch.randn(LENGTH, BATCH, GIVEN), torch.tensor([7, 6, 5, 2, 1])
    )
    assert "flops" not in found
    assert found["error"].startswith("they depend on the numbers in the batch")


N_NODES, N_EDGES = 20, 29
PRODUCTS = {
    "sparse_mm": torch.sparse.mm,
    "at": lambda graph, nodes: graph @ nodes,
    "addmm": lambda graph, nodes: torch.addmm(nodes, graph, nodes),
    "from_the_right": lambda graph, nodes: (nodes.t() @ graph).t(),
    "one_by_one": lambda graph, nodes: torch.stack([graph @ one for one in nodes.t()]),
}


def graph_of(layout: str) -> Tensor:
    places = torch.randperm(N_NODES**2)[:N_EDGES]
    indices = torch.stack([places // N_NODES, places % N_NODES])
    graph = torch.sparse_coo_tensor(indices, torch.ones(N_EDGES), (N_NODES, N_NODES)).coalesce()
    made: Tensor = getattr(graph, f"to_{layout}")()
    return made


class GraphLayer(nn.Module):
    """A linear layer, then a product with a graph: an argument, a buffer or the script's own."""

    def __init__(self, multiply: Callable[..., Tensor], graph: Tensor | None, place: str) -> None:
        super().__init__()
        self.linear, self.multiply = nn.Linear(GIVEN, WIDTH), multiply
        self.register_buffer("graph", graph if place == "buffer" else None)
        self.own = (lambda: graph) if place == "script" else None

    def forward(self, nodes: Tensor, graph: Tensor | None = None) -> Tensor:
        graph = self.own() if self.own else self.graph if graph is None else graph
        return self.multiply(graph, self.linear(nodes))


LINEAR_FLOPS = 2 * 2 * N_NODES * GIVEN * WIDTH
"""Forward and the gradient of the weight."""
GRAPH_FLOPS = 2 * N_EDGES * WIDTH


@pytest.mark.parametrize("place", ["argument", "buffer", "script"])
@pytest.mark.parametrize("layout", ["sparse", "sparse_csr", "sparse_csc"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_of_a_sparse_tensor_only_what_it_stores_is_counted(
    product: str, layout: str, place: str
) -> None:
    graph = graph_of(layout)
    layer = GraphLayer(PRODUCTS[product], graph, place)
    args = (graph,) if place == "argument" else ()
    flops = flops_of(layer, torch.randn(N_NODES, GIVEN), *args)
    assert flops == LINEAR_FLOPS + 2 * GRAPH_FLOPS


def test_a_product_that_is_sampled_has_the_flops_of_its_samples() -> None:
    left, right = torch.randn(N_NODES, WIDTH), torch.randn(WIDTH, N_NODES)
    assert FORMULAS["sparse_sampled_addmm"](graph_of("sparse_csr"), left, right) == GRAPH_FLOPS


def test_a_sparse_tensor_made_in_the_forward_is_counted_by_its_values() -> None:
    def multiply(places: Tensor, nodes: Tensor) -> Tensor:
        graph = torch.sparse_coo_tensor(places, torch.ones(N_EDGES), (N_NODES, N_NODES))
        return graph @ nodes

    places = torch.randint(N_NODES, (2, N_EDGES))
    flops = flops_of(GraphLayer(multiply, None, "argument"), torch.randn(N_NODES, GIVEN), places)
    assert flops == LINEAR_FLOPS + 2 * GRAPH_FLOPS


UNCOUNTED = {
    "two_sparse": lambda graph, nodes: torch.sparse.mm(graph, graph).to_dense() @ nodes,
    "coalesced": lambda graph, nodes: (graph + graph).coalesce() @ nodes,
    "bilinear": lambda graph, nodes: nn.functional.bilinear(
        nodes, nodes, nodes[:2, :, None] @ nodes[:2, None]
    ),
    "cholesky": lambda graph, nodes: torch.linalg.cholesky(nodes.t() @ nodes),
    "of_the_user": lambda graph, nodes: of_the_user(nodes) @ nodes.t(),
}


@torch.library.custom_op("hotlap_tests::of_the_user", mutates_args=())
def of_the_user(nodes: Tensor) -> Tensor:
    return nodes.clone()


of_the_user.register_fake(torch.empty_like)
of_the_user.register_autograd(lambda context, gradient: gradient)


@pytest.mark.parametrize("multiply", UNCOUNTED.values(), ids=list(UNCOUNTED))
def test_flops_are_unknown_where_an_operator_cannot_be_counted(
    multiply: Callable[..., Tensor],
) -> None:
    layer = GraphLayer(multiply, None, "argument")
    found = counted(layer, torch.randn(N_NODES, GIVEN), graph_of("sparse"))
    assert "flops" not in found
    assert "Error:" not in found["error"], "the count itself went through"


class Experts(nn.Module):
    """Four experts, each for its own rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64, dtype=torch.bfloat16)
        self.experts = nn.Parameter(torch.zeros(4, 64, 32, dtype=torch.bfloat16))

    def forward(self, tokens: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(self.linear(tokens), self.experts, offs=ends)


def test_the_product_of_experts_counts_each_token_once() -> None:
    tokens = torch.zeros(48, 64, dtype=torch.bfloat16)
    ends = torch.tensor([16, 24, 40, 48], dtype=torch.int32)
    hand = by_hand()
    linear = hand.linear(48, 64, 64) * (hand.FORWARD + hand.WEIGHT_GRADIENT)
    assert flops_of(Experts(), tokens, ends) == linear + hand.linear(48, 64, 32) * hand.ALL


def test_a_grouped_convolution_has_the_flops_of_its_groups() -> None:
    batch, channels, side, kernel = 2, 8, 5, 3
    model = nn.Sequential(
        nn.Conv2d(channels, channels, kernel, groups=channels, padding=1),
        nn.ConvTranspose2d(channels, channels, kernel, groups=channels, padding=1),
    )
    hand = by_hand()
    one = channels * hand.conv(batch, 1, 1, kernel, side)
    flops = flops_of(model, torch.randn(batch, channels, side, side))
    assert flops == one * (hand.FORWARD + hand.WEIGHT_GRADIENT) + one * hand.ALL


@pytest.mark.parametrize(
    ("per_step", "text"),
    [(367_000.0, "367 kFLOP"), (640.0, "640 FLOP"), (2.699e9, "2.699 GFLOP")],
)
def test_flops_are_printed_in_thousands_millions_and_so_on(per_step: float, text: str) -> None:
    run = merged([make_rank(make_table([{"forward": 10}] * 3))])
    run = replace(run, flops=Flops(per_step, per_step, None, None))
    assert f"{text} a step, {text}/s" in render_run(run, "here")
