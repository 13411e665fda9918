"""Counts what a traced forward does, by the layer that does it.

Every operation below autograd passes through a dispatch mode: products by their sizes, all else by
the bytes it reads and writes. What autograd keeps passes through its hooks for saved tensors; a
storage that several operations keep is counted once, parameters not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hotlap.planner.eager import OWN_LAUNCHES, Traffic, is_own_batch_norm, traffic_of
from hotlap.planner.layers import Attention, Cut, Eager, Kept, Layer, Matmul
from hotlap.planner.operations import (
    ATTENTION,
    PRODUCTS,
    is_kernel,
    moved_bytes,
    nbytes,
    place_of,
    tensors_in,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

ROUNDED_TO = 512
"""Bytes; CUDA's allocator hands out multiples of it."""


@dataclass(slots=True)
class _Part:
    name: str
    n_params: int = 0
    matmuls: list[Matmul] = field(default_factory=list)
    attentions: list[Attention] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)
    n_kernels: int = 0
    kept_bytes: float = 0.0
    input_bytes: float = 0.0
    n_params_cut: int = 0
    traffic_cut_bytes: float = 0.0
    kept_cut_bytes: float = 0.0
    n_sums: int = 0
    sum_bytes: float = 0.0


class Tally:
    """A context in which a model's forward is counted: a stem, its blocks, a head, a loss."""

    def __init__(
        self,
        model: nn.Module,
        blocks: list[nn.Module],
        batch: int,
        is_causal: bool,
        cuts: Mapping[nn.Module, Cut],
    ) -> None:
        """`cuts` are those of tensor parallelism."""
        self._batch, self._is_causal = batch, is_causal
        self._model, self._blocks, self._cuts = model, blocks, cuts
        self._cut: Cut = "none"
        self._is_between = False
        """After a layer that is cut by columns and before the one by rows: ranks have parts."""
        self._parts = [_Part("stem"), *(_Part(type(b).__name__) for b in blocks), _Part("head")]
        self._loss = _Part("loss")
        self._current = self._parts[0]
        held = (*model.parameters(), *model.buffers())
        self._own = {place_of(tensor) for tensor in held}
        self._seen = set(self._own)
        self._alive: list[Any] = []
        self._stack = ExitStack()
        self.output_bytes = self._widest = 0.0
        self._count_parameters()

    def _count_parameters(self) -> None:
        owned: set[int] = set()
        for part, block in zip(self._parts[1:-1], self._blocks, strict=True):
            for parameter in block.parameters():
                if id(parameter) not in owned:
                    owned.add(id(parameter))
                    part.n_params += parameter.numel()
            for module in block.modules():
                n_cut = _cut_params(module, self._cuts.get(module))
                part.n_params_cut += n_cut
                part.n_params -= n_cut
        rest = [p for p in self._model.parameters() if id(p) not in owned]
        # What stands in the module's order before its blocks is the stem's, the rest the head's.
        order = [id(p) for p in self._model.parameters()]
        first = min((order.index(i) for i in owned), default=len(order))
        for parameter in rest:
            is_stem = order.index(id(parameter)) < first
            self._parts[0 if is_stem else -1].n_params += parameter.numel()

    def __enter__(self) -> Tally:
        import torch

        for index, block in enumerate(self._blocks):
            self._hook(index, block)
        for layer, cut in self._cuts.items():
            self._hook_cut(layer, cut)
        hooks = torch.autograd.graph.saved_tensors_hooks(self._save, lambda saved: saved)
        self._stack.enter_context(hooks)
        self._stack.enter_context(_dispatch_mode(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _hook(self, index: int, block: nn.Module) -> None:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            part = self._current = self._parts[index + 1]
            tensors = tensors_in((args, kwargs))
            part.input_bytes = max((nbytes(t) for t in tensors), default=0) / self._batch

        def after(*_: Any) -> None:
            if index == len(self._blocks) - 1:
                self._current = self._parts[-1]

        handles = (
            block.register_forward_pre_hook(before, with_kwargs=True),
            block.register_forward_hook(after),
        )
        for handle in handles:
            self._stack.callback(handle.remove)

    def _hook_cut(self, layer: nn.Module, cut: Cut) -> None:
        def before(*_: Any) -> None:
            self._cut = cut

        def after(_: nn.Module, __: Any, output: torch.Tensor) -> None:
            self._cut, self._is_between = "none", cut == "columns"
            if cut == "rows":
                self._current.n_sums += 1
                self._current.sum_bytes = nbytes(output) / self._batch

        for handle in (
            layer.register_forward_pre_hook(before),
            layer.register_forward_hook(after),
        ):
            self._stack.callback(handle.remove)

    def begin_loss(self, output: torch.Tensor) -> None:
        """The model is done: what follows is the loss."""
        self._current = self._loss
        self.output_bytes = float(nbytes(output)) / self._batch

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = place_of(tensor)
        if key not in self._seen:
            self._seen.add(key)
            self._alive.append(storage)  # an address is used again once its storage is gone
            size = -(-storage.nbytes() // ROUNDED_TO) * ROUNDED_TO
            if self._is_between:
                self._current.kept_cut_bytes += size / self._batch
            else:
                self._current.kept_bytes += size / self._batch
        return tensor

    def operation(self, name: str, inputs: Any, outputs: Any) -> None:
        """One kernel below autograd."""
        read, written = tensors_in(inputs), tensors_in(outputs)
        part = self._current
        if part is not self._parts[-1] and part is not self._loss:  # logits are counted apart
            self._widest = max(self._widest, moved_bytes(name, inputs, outputs) / self._batch)
        if name in PRODUCTS:
            made = PRODUCTS[name](read, written, inputs, self._batch)
            part.matmuls += [replace(one, cut=self._cut) for one in made]
        elif ATTENTION in name:
            part.attentions.append(_attention(read, self._is_causal))
        elif self._is_of_weights(read):
            # Backward keeps them, but they are weights in another type: no activations.
            self._seen |= {place_of(tensor) for tensor in written}
            self._alive += written
        else:
            traffic = traffic_of(name, inputs, outputs).times(1 / self._batch)
            part.traffic += traffic
            if self._is_between:
                part.traffic_cut_bytes += traffic.moved
        part.n_kernels += 1 + OWN_LAUNCHES * is_own_batch_norm(name, inputs)

    def _is_of_weights(self, read: list[Any]) -> bool:
        """A cast of weights for autocast: it does not grow with the batch, and is counted apart."""
        return bool(read) and all(place_of(tensor) in self._own for tensor in read)

    @property
    def logits_bytes(self) -> float:
        """Of a sample: the output, what the loss keeps of it, and its gradients.

        These are two of the output's type, or under autocast one in fp32.
        """
        return self.logits_evaluated_bytes + 2 * self.output_bytes

    @property
    def logits_evaluated_bytes(self) -> float:
        """The same without gradients."""
        return self.output_bytes + self._loss.kept_bytes

    @property
    def widest_bytes(self) -> float:
        """What the operation reads and writes that needs most."""
        return self._widest

    @property
    def traffic(self) -> Traffic:
        """Of a sample, forward, with its loss."""
        return sum((part.traffic for part in (*self._parts, self._loss)), Traffic())

    @property
    def product_flops(self) -> float:
        """Of a sample, forward."""
        return sum(one.flops for part in self._parts for one in part.matmuls)

    def layers(self) -> list[Layer]:
        """The stem, the blocks and the head with the loss."""
        *others, head = self._parts
        whole_head = replace(
            head,
            traffic=head.traffic + self._loss.traffic,
            n_kernels=head.n_kernels + self._loss.n_kernels,
        )
        return [_layer(part) for part in (*others, whole_head)]


def eager_of(traffic: Traffic) -> Eager:
    """What it costs in eager mode beside the bytes that it moves."""
    return Eager(traffic.eager - traffic.moved, traffic.batch_norm)


def _layer(part: _Part) -> Layer:
    kept = Kept(part.kept_bytes, part.kept_cut_bytes)
    moved = part.traffic
    return Layer(
        part.name, part.n_params, part.n_params_cut, 0, tuple(part.matmuls), tuple(part.attentions),
        traffic_bytes=moved.moved - part.traffic_cut_bytes,
        traffic_cut_bytes=part.traffic_cut_bytes, eager=eager_of(moved),
        n_kernels=part.n_kernels, kept=kept, kept_selective=kept, input_bytes=part.input_bytes,
        n_tensor_syncs=part.n_sums, sync_bytes=part.sum_bytes,
    )  # fmt: skip


def _cut_params(layer: nn.Module, cut: Cut | None) -> int:
    """Of a layer, those that ranks share out: what rows add after their sum is every rank's."""
    if cut is None:
        return 0
    bias = getattr(layer, "bias", None)
    n_bias = bias.numel() if bias is not None and cut == "columns" else 0
    return int(layer.weight.numel() + n_bias)


def _dispatch_mode(tally: Tally) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Listener(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            outputs = func(*args, **(kwargs or {}))
            if is_kernel(func, outputs):
                name = func.overloadpacket.__name__
                tally.operation(name, (args, kwargs or {}), outputs)
            return outputs

    return Listener()


def _attention(read: list[Any], is_causal: bool) -> Attention:
    query, key = read[0], read[1]
    return Attention(query.shape[2], key.shape[2], query.shape[1], query.shape[3], is_causal, True)
