"""Wrong input is one sentence that names the option or key, and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotlap.cli import main

SIZES = "--layers 12 --hidden 768 --heads 12 --ffn 3072 --vocab 50257"
GPUS = "--gpu a100-80gb --gpus 8 --gpus-per-node 8"
STEP = "--seq 1024 --batch 64 --precision bf16 --optimizer adamw"
GIVEN = "--micro-batch 1 --recompute none --layout"


def sentence(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said about a wrong command line."""
    assert main(["plan", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (f"{STEP} {GPUS}", "the model is given in one way"),
        (f"{SIZES} --params 1B {STEP} {GPUS}", "several of them was found"),
        (f"{SIZES} {STEP} --gpus 8", "--gpu is not given"),
        (SIZES, "--gpu, --gpus, --batch, --precision and --optimizer are not given; they decide"),
        (f"{SIZES} {STEP} --gpu a100-80gb --gpus 8", "--gpus-per-node is not given"),
        (f"{SIZES} {STEP} --gpu b300 --gpus 8 --gpus-per-node 8", "--gpu is 'b300'; there are"),
        (f"{SIZES} {STEP} --gpu a100 --gpus 1", "a100-40gb"),
        (f"{SIZES} {STEP} --gpu a100-80gb --gpus 0", "--gpus: '0' was found"),
        (f"{SIZES} {STEP} --gpu a100-80gb --gpus -4", "--gpus: '-4' was found"),
        (f"{SIZES} {STEP} --gpu a100-80gb --gpus 2.5", "--gpus: '2.5' was found"),
        (
            f"{SIZES} {STEP} --gpu a100-80gb --gpus 12 --gpus-per-node 8 --interconnect 100",
            "multiple of --gpus-per-node, 8",
        ),
        (
            f"{SIZES} {STEP} --gpu a100-80gb --gpus 16 --gpus-per-node 8",
            "--interconnect is missing",
        ),
        (
            f"--layers 12 --hidden 770 --heads 12 --ffn 3072 --vocab 50257 {STEP} {GPUS}",
            "heads is 12; it has to divide hidden, which is 770",
        ),
        (
            f"--layers 12 --hidden 768 --heads 12 --vocab 50257 {STEP} {GPUS}",
            "--ffn is not given",
        ),
        (f"--layers 12 {STEP} {GPUS}", "--hidden, --heads, --ffn and --vocab are not given"),
        (f"{SIZES} --kv-heads 5 {STEP} {GPUS}", "they have to divide heads, 12"),
        (f"{SIZES} --experts 2 --experts-per-token 3 {STEP} {GPUS}", "there are 2 experts"),
        (f"{SIZES} --batch 64 --precision bf16 --optimizer adamw {GPUS}", "--seq is not given"),
        (f"{SIZES} --seq 1024 --precision bf16 --optimizer adamw {GPUS}", "--batch is not given"),
        (f"{SIZES} --seq 1024 --batch 64 --optimizer adamw {GPUS}", "--precision is not given"),
        (f"{SIZES} --seq 9 --batch 64 --precision int8 --optimizer adamw {GPUS}", "'int8'; there"),
        (f"{SIZES} --seq 9 --batch 64 --precision bf16 --optimizer adamz {GPUS}", "'adamz'; there"),
        (
            f"{SIZES} --seq 9 --batch 64 --precision fp8 --optimizer adamw {GPUS}",
            "has no products in fp8",
        ),
        (
            f"{SIZES} {STEP} --gpu v100-32gb --gpus 1",
            "--precision is bf16; NVIDIA V100 SXM2 32 GB has no bf16: use fp16",
        ),
        (
            f"{SIZES} --seq 9 --batch 7 --precision bf16 --optimizer adamw --gpu a100-80gb "
            "--gpus 16 --gpus-per-node 8 --interconnect 100 --micro-batch 2",
            "--batch is 7 in micro-batches of 2; no layout of 16 GPUs",
        ),
        (f"{SIZES} --experts 8 {STEP} {GPUS}", "--experts-per-token is not given"),
        (f"{SIZES} {STEP} {GPUS} --image-size 224", "--image-size is for a model given as"),
        (f"{SIZES} {STEP} {GPUS} --arg width=3", "--arg is for a model given as"),
        (f"{SIZES} {STEP} {GPUS} --channels-last", "--channels-last is for a model given as"),
        (f"{SIZES} {STEP} {GPUS} --micro-batch 3", "--batch is 64 in micro-batches of 3; no lay"),
        (f"{SIZES} {STEP} {GPUS} --goodput 1.5", "--goodput is 1.5"),
        (f"{SIZES} {STEP} {GPUS} --goodput 0", "--goodput is 0"),
        (f"{SIZES} {STEP} {GPUS} --pue 0.5", "--pue is 0.5"),
        (f"{SIZES} {STEP} {GPUS} --co2 -1", "--co2 is -1"),
        (f"{SIZES} {STEP} {GPUS} --pue nan", "--pue is nan; it has to be at least 1"),
        (f"{SIZES} {STEP} {GPUS} --price inf", "--price is inf; it has to be a number"),
        (f"{SIZES} {STEP} {GPUS} --host-memory 0", "--host-memory: '0' was found"),
        (f"{SIZES} {STEP} {GPUS} --gate soft", "choose from 'plain', 'fused', 'lean'"),
        (f"{SIZES} {STEP} {GPUS} --html /proc/plan.html", "--html /proc/plan.html cannot be"),
        (
            f"{SIZES} {STEP} --gpu a100-80gb --gpus 1e9 --gpus-per-node 8 --interconnect 100",
            "--gpus is 1000000000; 1,000,000 are the most",
        ),
        (f"{SIZES.replace('12', '1e12', 1)} {STEP} {GPUS}", "100,000 are the most"),
        (f"{SIZES} {STEP} {GPUS} --tokens -5", "--tokens: '-5' was found"),
        (f"{SIZES} {STEP} {GPUS} --tokens nan", "--tokens: 'nan' was found"),
        (f"{SIZES} {STEP} {GPUS} --epochs 3", "--dataset is not given"),
        (f"{SIZES} {STEP} {GPUS} --budget 30bananas", "--budget is '30bananas'"),
        (f"{SIZES} {STEP} {GPUS} --run nothing", "no Run 'nothing'"),
        (f"{SIZES} {STEP} {GPUS} --check nothing", "no Run 'nothing'"),
        (f"{SIZES} {STEP} {GPUS} --emit /nowhere/x.toml", "--emit /nowhere/x.toml cannot"),
        (f"{SIZES} {STEP} {GPUS} --emit x.json", "ends in .toml"),
        (f"{SIZES} {STEP} {GPUS} --json /nowhere/x.json", "--json /nowhere/x.json cannot"),
        (f"{SIZES} {STEP} {GPUS} --margin 1.5", "--margin: '1.5' was found"),
        (
            "--params 1B --tokens 1B --gpu a100-80gb --gpus 8 --precision bf16 --optimizer adamw",
            "--rate is not given",
        ),
        (
            "--layers 96 --hidden 12288 --heads 96 --ffn 49152 --vocab 51200 "
            f"{STEP} --gpu a100-80gb --gpus 1",
            "no layout of transformer fits 1 a100-80gb",
        ),
    ],
)
def test_wrong_options(words: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in sentence(words.split(), capsys)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("dp=8 dp=4", "dp is given twice"),
        ("dp=8 offload_activations=2", "offload_activations=2; it has to be 0 to 1"),
        ("tp=8", "tp=8 has to divide the 12 heads"),
        ("pp=8 v=2", "needs 16 blocks; transformer has 12"),
        ("dp=3", "is for 3 GPUs; --gpus is 8"),
        ("dp=8 ep=2", "has no experts"),
        ("", "--layout is empty"),
        ("dp=8 zero=3", "stage 3 is written shard=N"),
        ("dp=8 sp=1", "sp=1 needs tensor parallelism"),
        ("dp=4 shard=2 zero=1", "exclude one another"),
        ("dp=8 v=2", "v=2 needs a pipeline"),
        ("banana=8", "'banana=8' was found"),
        ("dp=x", "dp=x; it has to be"),
        ("dp=0", "dp=0; it has to be"),
        ("dp=4 pp=2 v=2 schedule=zero-bubble", "has one part a stage; v=2 is for"),
        ("dp=4 pp=2 schedule=random", "schedule=random; there are 1f1b"),
    ],
)
def test_impossible_layouts(layout: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*f"{SIZES} {STEP} {GPUS} {GIVEN}".split(), layout]
    assert expected in sentence(words, capsys)


def test_too_few_micro_batches_for_no_bubble(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"{SIZES} --seq 1024 --batch 8 --precision bf16 --optimizer adamw {GPUS} {GIVEN}"
    layout = "dp=2 pp=4 schedule=zero-bubble"
    assert "at least 2 x pp - 1 = 7 micro-batches; there are 4" in sentence(
        [*words.split(), layout], capsys
    )


def test_a_batch_that_a_layout_does_not_divide(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"{SIZES} --seq 1024 --batch 12 --precision bf16 --optimizer adamw {GPUS} {GIVEN}"
    assert "--batch is 12; it has to be a multiple" in sentence([*words.split(), "dp=8"], capsys)


CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "intermediate_size": 128,
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hidden_size": None}, "has no key 'hidden_size'"),
        ({"num_hidden_layers": None}, "has no key 'num_hidden_layers'"),
        ({"intermediate_size": None}, "has no key 'intermediate_size'"),
        ({"vocab_size": "many"}, "key 'vocab_size' is 'many'"),
        ({"num_attention_heads": 0}, "key 'num_attention_heads' is 0"),
        ({"num_attention_heads": 3}, "heads is 3; it has to divide hidden"),
        ({"num_local_experts": 4}, "no key 'num_experts_per_tok'"),
        ({"kv_lora_rank": 512}, "key 'kv_lora_rank' was found"),
    ],
)
def test_a_config_without_what_is_needed(
    change: dict[str, object],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | change))
    assert expected in sentence([str(path), *f"{STEP} {GPUS}".split()], capsys)


@pytest.mark.parametrize(
    ("text", "expected"), [("[1", "it is not JSON"), ("[1]", "holds no object")]
)
def test_a_config_that_is_none(
    text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert expected in sentence([str(path), *f"{STEP} {GPUS}".split()], capsys)
