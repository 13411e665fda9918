"""The options of `hotlap plan`."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from hotlap.cli import options
from hotlap.planner.layout import RECOMPUTE
from hotlap.planner.precision import OPTIMIZERS, PRECISIONS
from hotlap.planner.transformer import GATES

SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def number(text: str) -> float:
    """A number above zero: 300e9, 300B, 1.4T."""
    shown = text.strip()
    factor = SUFFIXES.get(shown[-1:].lower(), 1.0)
    try:
        value = float(shown[:-1] if factor != 1.0 else shown) * factor
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(
            f"'{text}' was found; a number above zero is expected, such as 300e9 or 300B"
        )
    return value


def whole(text: str) -> int:
    """A whole number above zero, in any of these forms."""
    value = number(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"'{text}' was found; a whole number is expected")
    return int(value)


def share(text: str) -> float:
    """At least 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' was found; a share from 0 to 1 is expected")
    return value


def make_parser() -> options.Parser:
    """With the options in groups."""
    parser = options.Parser(
        prog="hotlap plan",
        usage="hotlap plan [MODEL] --gpu KIND --gpus N --batch N [options]",
        description="Predict memory, step time, days, energy and cost of a training, each with a "
        "90 % interval, for a layout or for the best one. Nothing runs on a GPU.",
        epilog="`hotlap plan --list-gpus` lists the kinds. Counts may be written 300e9 or 300B.",
    )
    _model_options(parser)
    _training_options(parser)
    _cluster_options(parser)
    _cost_options(parser)
    _output_options(parser)
    return parser


def _model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the model")
    group.add_argument(
        "model", nargs="?", metavar="MODEL", help="package.module:factory, or a config.json"
    )
    group.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an argument of the factory, its value as JSON or a word",
    )
    group.add_argument("--params", type=whole, help="parameters, where nothing else is known")
    for name in ("layers", "hidden", "heads", "ffn", "vocab"):
        group.add_argument(f"--{name}", type=whole, metavar="N", help=argparse.SUPPRESS)
    group.add_argument("--kv-heads", type=whole, metavar="N", help="of grouped queries")
    group.add_argument("--experts", type=whole, metavar="N", help="of each block")
    group.add_argument("--experts-per-token", type=whole, metavar="N")
    group.add_argument("--decoder-layers", type=whole, metavar="N", help="of an encoder-decoder")
    group.add_argument("--gated", action="store_true", help="SwiGLU: three matrices, not two")
    group.add_argument("--untied", action="store_true", help="the output layer is its own")
    group.add_argument("--no-bias", action="store_true", help="norms and layers without bias")
    group.add_argument("--dropout", action="store_true", help="masks are kept for backward")
    group.description = "sizes instead of MODEL: --layers --hidden --heads --ffn --vocab"


def _training_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the training")
    group.add_argument("--batch", type=whole, metavar="N", help="global, sequences or images")
    group.add_argument("--micro-batch", type=whole, metavar="N", help="a backward and replica")
    group.add_argument("--seq", type=whole, metavar="TOKENS", help="tokens of a sequence")
    group.add_argument("--image-size", type=whole, metavar="PIXELS", help="of a square image")
    group.add_argument("--channels", type=whole, default=3, metavar="N", help="of an image (3)")
    group.add_argument("--precision", help=", ".join(PRECISIONS))
    group.add_argument("--optimizer", help=", ".join(OPTIMIZERS))
    group.add_argument(
        "--recompute", choices=RECOMPUTE, help="activations computed again (searched for)"
    )
    group.add_argument(
        "--attention", choices=("fused", "plain"), default="fused", help="flash attention (fused)"
    )
    group.add_argument(
        "--gate",
        choices=tuple(GATES),
        default="fused",
        help="a gated layer's kernel: plain torch, fused, or lean: its product computed again",
    )
    group.add_argument("--compile", action="store_true", help="torch.compile(model)")
    group.add_argument(
        "--compile-loss",
        action="store_true",
        help="the loss along with the model, as hotlap train does",
    )
    group.add_argument(
        "--channels-last", action="store_true", help="images lie so in memory, in eager mode too"
    )
    group.add_argument(
        "--fused", action="store_true", help="the optimizer of a traced model is torch's fused one"
    )
    group.add_argument(
        "--no-overlap", action="store_true", help="communication waits for computing"
    )
    group.add_argument(
        "--overlap-tensor",
        action="store_true",
        help="tensor parallel sums travel beside products, in pieces",
    )
    group.add_argument("--layout", metavar="'dp=8 tp=2'", help="not searched for: this one")
    group.add_argument("--data-rate", type=number, metavar="N", help="samples/s of the loaders")


def _cluster_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the GPUs")
    group.add_argument("--cluster", metavar="NAME", help="of `hotlap clusters`, or NAME.toml")
    group.add_argument("--gpu", metavar="KIND", help="such as a100-80gb")
    group.add_argument("--gpus", type=whole, metavar="N")
    group.add_argument("--gpus-per-node", type=whole, metavar="N")
    group.add_argument(
        "--interconnect", type=number, metavar="GB/s", help="of a node to others, one way, in all"
    )
    group.add_argument(
        "--host-memory", type=number, metavar="GIB", help="of a node's own, to offload to"
    )
    group.add_argument(
        "--host-link", type=number, metavar="GB/s", help="of a GPU to its host (PCIe's), one way"
    )
    group.add_argument(
        "--margin", type=share, default=0.08, metavar="SHARE", help="of memory left free (0.08)"
    )
    group.add_argument("--list-gpus", action="store_true", help="the kinds and their figures")


def _cost_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how long and how much")
    group.add_argument("--tokens", type=number, metavar="N", help="to train on in all")
    group.add_argument("--samples", type=number, metavar="N", help="the same, of images")
    group.add_argument("--epochs", type=number, metavar="N", help="over --dataset samples")
    group.add_argument("--dataset", type=number, metavar="N", help="samples of an epoch")
    group.add_argument(
        "--rate",
        type=number,
        metavar="FLOP/s",
        help="of a GPU, recomputation included, where known",
    )
    group.add_argument(
        "--goodput", type=float, default=1.0, metavar="SHARE", help="of the time trained in (1)"
    )
    group.add_argument("--watts", type=number, metavar="W", help="of a GPU (the chip's most)")
    group.add_argument("--pue", type=float, default=1.0, metavar="F", help="of the centre (1)")
    group.add_argument("--co2", type=float, metavar="G/KWH", help="of the grid")
    group.add_argument("--price", type=float, metavar="MONEY", help="of a GPU-hour")
    group.add_argument("--budget", metavar="AMOUNT", help="what 10000gpu-hours, 30days or 5MWh buy")


def _output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what comes of it")
    group.add_argument(
        "--machine",
        metavar="FILE",
        help="calibrate by what `hotlap doctor --json FILE` measured, or `here`: by the last one",
    )
    group.add_argument("--run", metavar="RUN", help="calibrate by a Run of the same model")
    group.add_argument("--check", metavar="RUN", help="compare with what a Run measured")
    group.add_argument(
        "--emit", type=Path, metavar="FILE", help="write a recipe for `hotlap train`"
    )
    group.add_argument(
        "--html", type=Path, metavar="FILE", help="write the plan with its plots as one page"
    )
    options.add_json(parser)
    options.add_runs_dir(parser)
