"""What each kind of parallelism sends: which groups of ranks, and how many bytes."""

from __future__ import annotations

from hotlap.planner.cluster import Gpus
from hotlap.planner.layers import Layer, Model
from hotlap.planner.layout import Layout
from hotlap.planner.links import (
    NOTHING,
    Group,
    Sending,
    all_to_all,
    gather,
    group,
    reduce_all,
    send,
)
from hotlap.planner.stages import Params, params_of
from hotlap.planner.training import Training


class Sendings:
    """Of one plan; ranks of tensor parallelism are neighbours, then context, then data."""

    def __init__(self, model: Model, gpus: Gpus, training: Training, layout: Layout) -> None:
        self._model, self._gpus, self._training, self._layout = model, gpus, training, layout
        self._precision = training.precision
        stride = layout.tp * layout.cp
        self._tensors = group(gpus, layout.tp, 1)
        self._context = group(gpus, layout.cp, layout.tp)
        self._shards = group(gpus, layout.shard, stride)
        self._replicas = group(gpus, layout.dp, stride * layout.shard)
        self._experts = group(gpus, layout.ep, stride)
        # Ranks that have the same experts, and how many of them share these out.
        n_same = layout.n_data * layout.cp // layout.ep
        n_cut = max(1, layout.shard // layout.ep)
        apart = layout.tp * layout.ep
        self._same_experts = group(gpus, n_same, apart)
        self._expert_shards = group(gpus, n_cut, apart)
        self._expert_replicas = group(gpus, n_same // n_cut, apart * n_cut)

    def tensor(self, layer: Layer) -> Sending:
        """Tensor, context and expert parallelism of one layer, forward."""
        layout, b = self._layout, self._training.micro_batch
        sent = NOTHING
        if layout.tp > 1 and layer.n_tensor_syncs:
            n_bytes = layer.sync_bytes * b / layout.cp
            sent += reduce_all(self._tensors, n_bytes).times(layer.n_tensor_syncs)
        if layout.ep > 1 and layer.all_to_all_bytes:
            n_bytes = layer.all_to_all_bytes * b / (layout.cp * layout.sequence_cut)
            sent += all_to_all(self._experts, n_bytes).times(2)
        if layout.cp > 1:
            # Keys and values go round; what attention hides of it is little on short sequences.
            size = self._precision.element_bytes
            kv = self._model.n_kv_heads or 1
            for one in layer.attentions:
                n_bytes = 2 * one.n_keys * kv * one.head_width * size * b / layout.tp
                sent += gather(self._context, n_bytes)
        return sent

    def gathered(self, layer: Layer) -> Sending:
        """FSDP: a layer's parameters, to compute with."""
        size = self._precision.copy_bytes or self._precision.weight_bytes
        params = params_of(layer, self._layout)
        sent = gather(self._shards, params.shared * size)
        return sent + gather(self._expert_shards, params.expert * size)

    def scattered(self, layer: Layer) -> Sending:
        """FSDP: a layer's gradients; hybrid sharding sums the parts over the replicas."""
        params, size = params_of(layer, self._layout), self._precision.reduce_bytes
        sent = gather(self._shards, params.shared * size)
        sent += gather(self._expert_shards, params.expert * size)
        if self._shards.n > 1:
            sent += reduce_all(self._replicas, params.shared * size / self._layout.shard)
            part = params.expert * size / self._expert_shards.n
            sent += reduce_all(self._expert_replicas, part)
        return sent

    def neighbour(self) -> Sending:
        """A pipeline: to the next stage, one micro-batch."""
        layout = self._layout
        if layout.pp == 1:
            return NOTHING
        n_bytes = self._model.blocks[0].input_bytes * self._training.micro_batch / layout.cp
        # Ranks of tensor parallelism send a part each, and put them together where they arrive.
        sent = send(self._gpus, layout.tp * layout.cp * layout.n_data, n_bytes / layout.tp)
        return sent if layout.sp else sent + gather(self._tensors, n_bytes)

    def gradients(self, params: Params) -> Sending:
        """DDP and ZeRO: each gradient to all replicas; context parallel ranks are replicas too."""
        layout, size = self._layout, self._precision.reduce_bytes
        n_bytes = params.shared * size
        sent = NOTHING
        if layout.shard == 1:
            ranks = self._replicas if layout.cp == 1 else self._replicas_and_context()
            sent = reduce_all(ranks, n_bytes) + reduce_all(self._same_experts, params.expert * size)
            if layout.zero == 2:
                # Gradients that are cut cannot wait for the last micro-batch.
                n_micro = self._training.batch // (layout.n_data * self._training.micro_batch)
                sent += gather(ranks, n_bytes).times(n_micro - 1)
        elif layout.cp > 1:
            sent = reduce_all(self._context, n_bytes / layout.shard)
        return sent

    def _replicas_and_context(self) -> Group:
        return group(self._gpus, self._layout.dp * self._layout.cp, self._layout.tp)
