"""The published measurements as cases: a model, GPUs, a training, a layout, and what was measured.

Sources, one file each in data/:

vtrain_a100_single, vtrain_a100_multi   Bang et al., vTrain (https://arxiv.org/abs/2312.12391):
                                        Megatron on a DGX A100, and on up to 512 A100 80 GB with
                                        four 200 Gbit/s adapters a node
mosaic_llmfoundry_a100_h100             MosaicML, llm-foundry, scripts/train/benchmarking: MPT
                                        under FSDP; 1,600 Gbit/s a node (A100), 3,200 (H100)
megatron_sc21_table1, _table2           Narayanan et al. 2021 (https://arxiv.org/abs/2104.04473):
                                        Selene, 8 A100 80 GB and eight 200 Gbit/s adapters a node
korthikanti_a100_memory_time            Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198):
                                        the same machine
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hotlap.planner.cluster import Gpus
from hotlap.planner.layers import Model
from hotlap.planner.layout import Layout, Recompute
from hotlap.planner.training import Training
from hotlap.planner.transformer import Arithmetic, TransformerSizes, transformer

DATA = Path(__file__).parent / "data"
MEGATRON = Arithmetic(element_bytes=2, norm_bytes=2, fused_attention=False)

KORTHIKANTI = {
    "22B": (6144, 48, 64, 4, 4, 1),
    "175B": (12288, 96, 96, 1, 64, 3),
    "530B": (20480, 105, 128, 1, 280, 3),
    "1T": (25600, 128, 160, 1, 512, 1),
}
"""hidden, layers, heads, micro-batch, global batch, parts of an interleaved pipeline."""

MPT = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}
"""hidden, layers, heads."""


@dataclass(frozen=True)
class Case:
    """One row of a file."""

    section: str
    label: str
    model: Model
    gpus: Gpus
    training: Training
    layout: Layout
    step_s: float


def rows(name: str) -> list[dict[str, str]]:
    """Of a file, by column name."""
    with (DATA / f"{name}.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def gpt(name: str, hidden: int, n_layers: int, n_heads: int, seq: int) -> Model:
    """Megatron's: dropout, learned positions, plain attention, V 51200."""
    sizes = TransformerSizes(
        n_layers, hidden, n_heads, 4 * hidden, 51200, n_positions=seq, has_dropout=True
    )
    return transformer(name, sizes, seq, MEGATRON)


def megatron(batch: int, micro_batch: int) -> Training:
    """16-bit weights and gradients, an fp32 master copy; communication does not overlap."""
    return Training(batch, micro_batch, "bf16-master", "adamw", overlaps=False)


def vtrain(name: str, recompute: Recompute, kind: str) -> Iterator[Case]:
    """Of either file."""
    for row in rows(name):
        tp, dp, pp = (int(row[f"{what} parallelism"]) for what in ("tensor", "data", "pipeline"))
        batch, micro = int(row["global batch"]), int(row["micro batch"])
        hidden, n_layers = int(row["hidden size"]), int(row["# layers"])
        seq, heads = int(row["sequence length"]), int(row["attention heads"])
        yield Case(
            name,
            f"h={hidden} L={n_layers} batch={batch} micro={micro} tp={tp} dp={dp} pp={pp}",
            gpt("GPT", hidden, n_layers, heads, seq),
            Gpus(kind, int(row["# GPUs"]), 8, 100.0),
            megatron(batch, micro),
            Layout(dp=dp, tp=tp, pp=pp, recompute=recompute),
            float(row["iteration time (ms)"]) / 1000,
        )


SECTIONS = {
    "H100 80GB BF16 (Large Scale, >= 128 GPUs)": "mosaic H100 large",
    "H100 80GB BF16": "mosaic H100",
    "H100 80GB FP8": "mosaic H100 fp8",
    "A100 80GB with 1600 Gbps node-node interconnect (RoCE)": "mosaic A100-80",
    "A100 40GB with 1600 Gbps node-node interconnect (RoCE)": "mosaic A100-40",
}


def mosaic() -> Iterator[Case]:
    """FSDP on one to 64 nodes."""
    for row in rows("mosaic_llmfoundry_a100_h100"):
        hidden, n_layers, heads = MPT[row["Model"]]
        seq, n_gpus = int(row["SeqLen (T)"]), int(row["# GPUs"])
        is_pure = row["MP Mode"] == "PURE"
        sizes = TransformerSizes(n_layers, hidden, heads, 4 * hidden, 50368, n_positions=seq)
        kind = row["GPU"].replace("_", "-")
        precision = "pure-bf16" if is_pure else "fp8" if row["Precision"] == "amp_fp8" else "bf16"
        batch = int(row["GlobalBatchSize"])
        yield Case(
            SECTIONS[row["section"]],
            f"{row['Model']} seq={seq} gpus={n_gpus} micro={row['MicroBatchSize']}",
            transformer(row["Model"], sizes, seq, Arithmetic(2, 2, fused_attention=True)),
            Gpus(kind, n_gpus, 8, 400.0 if kind.startswith("h100") else 200.0),
            Training(batch, int(row["MicroBatchSize"]), precision, "adamw"),
            Layout(
                shard=n_gpus,
                reshard=int(row["Sharding Strategy"] == "FULL_SHARD"),
                recompute="full" if row["Activation Checkpointing"] == "True" else "none",
            ),
            batch * seq / (float(row["Throughput (T/s/GPU)"]) * n_gpus),
        )


def megatron_sc21() -> Iterator[Case]:
    """Times from the published FLOP/s, whose convention has full recomputation in it."""
    for row in rows("megatron_sc21_table1_a100"):
        hidden, n_layers = int(row["hidden"]), int(row["layers"])
        batch, n_gpus, seq = int(row["gbs"]), int(row["gpus"]), int(row["seq"])
        tp, pp = int(row["tp"]), int(row["pp"])
        flops = 96 * batch * seq * n_layers * hidden**2
        flops *= 1 + seq / (6 * hidden) + 51200 / (16 * n_layers * hidden)
        v = n_layers // pp // int(row["vp_layers"]) if row["vp_layers"] else 1
        yield Case(
            "megatron sc21",
            row["model"],
            gpt(row["model"], hidden, n_layers, int(row["heads"]), seq),
            Gpus("a100-80gb", n_gpus, 8, 200.0),
            megatron(batch, int(row["mbs"])),
            Layout(
                dp=n_gpus // (tp * pp), tp=tp, pp=pp, v=v, recompute="full",
                schedule="interleaved" if v > 1 else "1f1b",
            ),
            flops / (float(row["tflops_per_gpu_hw"]) * 1e12 * n_gpus),
        )  # fmt: skip


def korthikanti_layout(row: dict[str, str]) -> tuple[Model, Gpus, Training, Layout]:
    """Of one row; 'none' and 'full' are without sequence parallelism."""
    hidden, n_layers, heads, micro, batch, v = KORTHIKANTI[row["model"]]
    tp, pp = int(row["tp"]), int(row["pp"])
    mode: dict[str, Recompute] = {"none": "none", "seqsel": "selective", "full": "full"}
    layout = Layout(
        tp=tp, pp=pp, v=v, schedule="interleaved" if v > 1 else "1f1b",
        recompute=mode[row["mode"]], sp=int(row["mode"] == "seqsel"),
    )  # fmt: skip
    model = gpt(row["model"], hidden, n_layers, heads, 2048)
    gpus = Gpus("a100-80gb", int(row["gpus"]), 8, 200.0)
    return model, gpus, megatron(batch, micro), layout


def korthikanti() -> Iterator[Case]:
    """The rows that have a time."""
    for row in rows("korthikanti_a100_memory_time"):
        if row["iter_s"]:
            model, gpus, training, layout = korthikanti_layout(row)
            label = f"{row['model']} {row['mode']}"
            yield Case("korthikanti", label, model, gpus, training, layout, float(row["iter_s"]))


def all_cases() -> list[Case]:
    """Every measured step time."""
    return [
        *vtrain("vtrain_a100_single", "none", "a100-40gb"),
        *vtrain("vtrain_a100_multi", "full", "a100-80gb"),
        *mosaic(),
        *megatron_sc21(),
        *korthikanti(),
    ]
