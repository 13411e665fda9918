"""Published trainings that are in none of the files, predicted by the shipped calibration.

    PYTHONPATH=src python3 benchmarks/planner/published.py [--write FILE]     seconds, no GPU

Nothing is fitted to these runs. What a source does not say is in the last column; a run whose
memory is said not to fit did fit, so that is a miss as well.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hotlap.planner.calibration import Calibration
from hotlap.planner.cluster import Gpus
from hotlap.planner.layers import Model
from hotlap.planner.layout import Layout
from hotlap.planner.memory import GIB
from hotlap.planner.predict import Scale, interval_of, predict
from hotlap.planner.training import Training
from hotlap.planner.transformer import Arithmetic, TransformerSizes, transformer

FUSED, PLAIN = Arithmetic(), Arithmetic(fused_attention=False)
LEAN = Arithmetic(gate="lean")
MASTER, MASTER32 = "bf16-master", "bf16-master-fp32grad"


@dataclass(frozen=True)
class Published:
    """One run."""

    name: str
    source: str
    model: Model
    gpus: Gpus
    training: Training
    layout: Layout
    step_s: float
    assumed: str


def gpt(n_layers: int, hidden: int, heads: int, vocab: int, **more: bool | int) -> TransformerSizes:
    """A feed-forward part four times as wide."""
    return TransformerSizes(n_layers, hidden, heads, 4 * hidden, vocab, **more)


def llama(
    n_layers: int, hidden: int, heads: int, ffn: int, vocab: int, kv: int = 0
) -> TransformerSizes:
    """Gated, without bias, an output layer of its own."""
    gated = {"is_gated": True, "is_tied": False, "has_bias": False}
    return TransformerSizes(n_layers, hidden, heads, ffn, vocab, n_kv_heads=kv, **gated)


def nodes(kind: str, n: int, gb_per_s: float) -> Gpus:
    """Eight GPUs each."""
    return Gpus(kind, n, 8, gb_per_s)


def interleaved(v: int, **more: int | str) -> Layout:
    """A pipeline of v parts a stage."""
    return Layout(v=v, schedule="interleaved", **more)  # type: ignore[arg-type]


def with_recomputation(model: Model, batch: int, n_gpus: int, tflops: float) -> float:
    """Seconds of a step from hardware TFLOP/s of a GPU, all blocks computed twice."""
    again = model.flops - model.head.flops
    return (3 * model.flops + again) * batch / n_gpus / tflops / 1e12


def plain_rate(model: Model, batch: int, n_gpus: int, tflops: float) -> float:
    """Seconds of a step from model TFLOP/s of a GPU."""
    return 3 * model.flops * batch / n_gpus / tflops / 1e12


def by_tokens(model: Model, batch: int, n_gpus: int, tokens_per_s: float) -> float:
    """Seconds of a step from tokens/s of a GPU."""
    return batch * model.tokens_per_sample / n_gpus / tokens_per_s


def llama_3() -> Iterator[Published]:
    """16-bit activations, gathered weights kept, gradients in fp32, nothing computed again."""
    sizes = llama(126, 16384, 128, 53248, 128256, kv=8)
    source = "arxiv.org/abs/2407.21783, table 4"
    for seq, n, dp, cp, tflops in ((8192, 8192, 64, 1, 430.0), (8192, 16384, 128, 1, 400.0),
                                   (131072, 16384, 8, 16, 380.0)):  # fmt: skip
        model = transformer("Llama 3 405B", sizes, seq, LEAN)
        batch = 2048 * 8192 // seq
        layout = interleaved(8, shard=dp, tp=8, cp=cp, pp=16, sp=1, reshard=0)
        yield Published(
            f"Llama 3 405B, {seq // 1024}k, {n}", source, model, nodes("h100-80gb", n, 400.0),
            Training(batch, 1, MASTER32, "adamw"), layout, plain_rate(model, batch, n, tflops),
            "8 parts a stage, lean gates" + (", attention counted in full" if cp > 1 else ""),
        )  # fmt: skip


def megatron_530b() -> Iterator[Published]:
    """MT-NLG, on 280, 350 and 420 nodes."""
    sizes = gpt(105, 20480, 128, 51200, n_positions=2048, has_dropout=True)
    model = transformer("MT-NLG 530B", sizes, 2048, PLAIN)
    for n_nodes, step_s in ((280, 60.1), (350, 50.2), (420, 44.4)):
        yield Published(
            f"MT-NLG 530B, {8 * n_nodes}", "arxiv.org/abs/2201.11990, section 2.3", model,
            nodes("a100-80gb", 8 * n_nodes, 200.0),
            Training(1920, 1, MASTER32, "adamw", overlaps=False),
            Layout(dp=n_nodes // 35, tp=8, pp=35, zero=1, recompute="full"), step_s,
            "ZeRO-1, sums in fp32",
        )  # fmt: skip


def nemotron() -> Iterator[Published]:
    """Squared ReLU, no bias; three stages of a growing batch."""
    sizes = gpt(96, 18432, 96, 256000, n_kv_heads=8, has_bias=False, is_tied=False)
    model = transformer("Nemotron-4 340B", sizes, 4096, FUSED)
    for dp, batch, step_s in ((16, 768, 10.3), (32, 1536, 10.3), (64, 2304, 8.0)):
        yield Published(
            f"Nemotron-4 340B, {96 * dp}", "arxiv.org/abs/2406.11704, table 2", model,
            nodes("h100-80gb", 96 * dp, 400.0),
            Training(batch, 1, MASTER32, "adamw", overlaps_tensor=True),
            interleaved(8, dp=dp, tp=8, pp=12, sp=1, zero=1), step_s,
            "8 parts a stage, tensor parallel sums beside products (NeMo's default)",
        )  # fmt: skip


def megascale() -> Iterator[Published]:
    """Megatron-LM's rows of the comparison, which has its own system beside it."""
    sizes = gpt(96, 12288, 128, 64000, n_positions=2048)
    model = transformer("GPT 175B", sizes, 2048, FUSED)
    found = (
        *((256, 768, 40.0), (512, 768, 21.2), (768, 768, 15.2), (1024, 768, 11.9)),
        *((3072, 6144, 29.02), (6144, 6144, 14.78), (8192, 6144, 12.24), (12288, 6144, 8.57)),
    )
    for n, batch, step_s in found:
        yield Published(
            f"GPT 175B, Megatron, {n}", "arxiv.org/abs/2402.15627, table 2", model,
            nodes("a100-80gb", n, 200.0),
            Training(batch, 1, MASTER32, "adamw", overlaps=False),
            interleaved(6, dp=n // 64, tp=8, pp=8, sp=1, zero=1), step_s,
            "A100, micro-batch 1, fused attention, nothing computed again",
        )  # fmt: skip


def volta() -> Iterator[Published]:
    """Megatron-LM's first: a generation of GPUs that no file has."""
    for name, sizes, layout, batch, tflops in (
        ("Megatron 1.2B, 1", gpt(40, 1536, 16, 51200, n_positions=1024, has_dropout=True),
         Layout(recompute="full"), 8, 39.0),
        ("Megatron 8.3B, 512", gpt(72, 3072, 32, 51200, n_positions=1024, has_dropout=True),
         Layout(dp=64, tp=8, recompute="full"), 512, 15100 / 512),
    ):  # fmt: skip
        model = transformer(name, sizes, 1024, PLAIN)
        n = layout.world_size
        yield Published(
            name, "arxiv.org/abs/1909.08053, section 5.1", model, Gpus("v100-32gb", n, 16, 100.0),
            Training(batch, 8, "fp16", "adamw", overlaps=False), layout,
            with_recomputation(model, batch, n, tflops), "FLOPs count what is computed again",
        )  # fmt: skip


def others() -> Iterator[Published]:
    """One row each."""
    bloom = transformer("BLOOM", gpt(70, 14336, 112, 250880), 2048, PLAIN)
    yield Published(
        "BLOOM 176B, 384", "arxiv.org/abs/2211.05100: 150 TFLOP/s; 60 GB a GPU", bloom,
        nodes("a100-80gb", 384, 50.0), Training(2048, 2, MASTER32, "adamw", overlaps=False),
        Layout(dp=8, tp=4, pp=12, zero=1, recompute="full"),
        with_recomputation(bloom, 2048, 384, 150), "",
    )  # fmt: skip
    sizes = gpt(96, 12288, 96, 50272, n_positions=2048, has_dropout=True)
    opt = transformer("OPT", sizes, 2048, PLAIN)
    yield Published(
        "OPT 175B, 992", "arxiv.org/abs/2205.01068: 147 TFLOP/s", opt,
        nodes("a100-80gb", 992, 200.0), Training(992, 8, MASTER, "adamw"),
        Layout(shard=124, tp=8, recompute="full"), with_recomputation(opt, 992, 992, 147),
        "network, recomputation",
    )  # fmt: skip
    one = transformer("LLaMA", llama(80, 8192, 64, 22016, 32000), 2048, FUSED)
    yield Published(
        "LLaMA 65B, 2048", "arxiv.org/abs/2302.13971: 380 tokens/s a GPU", one,
        nodes("a100-80gb", 2048, 200.0), Training(2048, 8, MASTER, "adamw"),
        Layout(shard=256, tp=8, sp=1), by_tokens(one, 2048, 2048, 380), "layout, network",
    )  # fmt: skip
    two = transformer("Llama 2", llama(80, 8192, 64, 28672, 32000, kv=8), 4096, FUSED)
    yield Published(
        "Llama 2 70B, 2048", "arxiv.org/abs/2307.09288: 1,720,320 GPU-hours, 2T tokens", two,
        nodes("a100-80gb", 2048, 200.0), Training(1024, 4, MASTER, "adamw"),
        Layout(shard=256, tp=8, sp=1), by_tokens(two, 1024, 2048, 2e12 / 1720320 / 3600),
        "GPUs, layout, network; all hours are steps",
    )  # fmt: skip
    neox = transformer("GPT-NeoX", gpt(44, 6144, 64, 50432, is_tied=False), 2048, PLAIN)
    yield Published(
        "GPT-NeoX 20B, 96", "arxiv.org/abs/2204.06745: 117 TFLOP/s", neox,
        nodes("a100-40gb", 96, 100.0), Training(1536, 4, MASTER, "adamw", overlaps=False),
        Layout(dp=12, tp=2, pp=4, zero=1, recompute="full"),
        with_recomputation(neox, 1536, 96, 117), "batch 1,538 as 1,536",
    )  # fmt: skip
    glm_sizes = TransformerSizes(70, 12288, 96, 32768, 150528, is_gated=True, is_causal=False)
    glm = transformer("GLM", glm_sizes, 2048, PLAIN)
    yield Published(
        "GLM-130B, 768", "arxiv.org/abs/2210.02414: MFU 32.5 %", glm,
        nodes("a100-40gb", 768, 200.0), Training(4224, 1, MASTER, "adamw", overlaps=False),
        Layout(dp=24, tp=4, pp=8, zero=1, recompute="full"),
        plain_rate(glm, 4224, 768, 0.325 * 312), "",
    )  # fmt: skip
    mpt = transformer("MPT", gpt(32, 4096, 32, 50432, has_bias=False), 2048, FUSED)
    yield Published(
        "MPT 7B, 440", "databricks.com/blog/mpt-7b: 1T tokens in 9.5 days", mpt,
        nodes("a100-40gb", 440, 200.0), Training(1760, 4, MASTER, "lion"),
        Layout(shard=440, recompute="full"), by_tokens(mpt, 1760, 440, 1e12 / 440 / 9.5 / 86400),
        "recomputation; all days are steps",
    )  # fmt: skip
    for name, sizes, layout, mfu in (
        ("LLaMA 13B, 64", llama(40, 5120, 40, 13824, 128000), Layout(dp=64, zero=1), 70.57),
        ("LLaMA 65B, 64", llama(80, 8192, 64, 22016, 128000),
         Layout(dp=8, tp=2, pp=4, sp=1, zero=1), 59.62),
    ):  # fmt: skip
        model = transformer(name, sizes, 2048, FUSED)
        yield Published(
            name, "arxiv.org/abs/2311.05610, table 1", model, nodes("a100-80gb", 64, 200.0),
            Training(2048, 1, MASTER, "adamw"), layout,
            plain_rate(model, 2048, 64, mfu / 100 * 312), "layout, network",
        )  # fmt: skip


def every() -> list[Published]:
    """All runs."""
    return [*llama_3(), *megatron_530b(), *nemotron(), *megascale(), *volta(), *others()]


def table(runs: Iterable[Published]) -> Iterator[str]:
    """Published beside predicted."""
    columns = ("training, GPUs", "published s", "predicted s", "interval", "error %", "inside")
    columns += ("GiB a GPU", "assumed", "source")
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    errors, inside, fits = [], [], []
    for run in runs:
        one = predict(run.model, run.gpus, run.training, run.layout, Calibration(), Scale())
        step = interval_of(one, Calibration())
        errors.append(step.value / run.step_s - 1)
        inside.append(step.low <= run.step_s <= step.high)
        has = run.gpus.memory_bytes / GIB
        needs = one.memory_bytes / GIB
        fits.append(needs <= has)
        yield (
            f"| {run.name} | {run.step_s:.2f} | {step.value:.2f} | {step.low:.2f} to "
            f"{step.high:.2f} | {100 * errors[-1]:+.1f} | {'yes' if inside[-1] else 'NO'} | "
            f"{needs:.1f} of {has:.0f}{'' if fits[-1] else ', NO'} | {run.assumed} | {run.source} |"
        )
    yield ""
    mean = 100 * statistics.mean(map(abs, errors))
    yield (
        f"{len(errors)} trainings: {mean:.1f} % off on average, {sum(inside)} inside their 90 % "
        f"interval, {sum(fits)} said to fit (all did)."
    )


def main() -> None:
    """Print the table, and keep it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table there too")
    arguments = parser.parse_args()
    text = "\n".join(table(every()))
    print(text)
    if arguments.write:
        arguments.write.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
