"""What the benchmarks of the trainer say, on the screen and in a file."""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import torch
from turns import Turns


def add_common(parser: argparse.ArgumentParser, rounds: int, seconds: float) -> None:
    """Options that all of them have."""
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--tiny", action="store_true", help="small sizes and short blocks: to try the script")
    add("--rounds", type=int, default=rounds, help="blocks of each loop (default: %(default)s)")
    add("--seconds", type=float, default=seconds, help="of a block (default: %(default)s)")
    add("--out", type=Path, metavar="FOLDER", help="write the figures there, as JSON")


def where(device: str) -> str:
    """The device and the versions."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU ({platform.machine()})"
    return f"{name}, torch {torch.__version__}, python {platform.python_version()}"


def report(
    arguments: argparse.Namespace,
    name: str,
    lines: list[str],
    figures: dict[str, Any],
    turns: Turns,
) -> None:
    """Print the lines, and write the figures with every block they come from."""
    print("\n".join(lines), flush=True)
    if arguments.out is None:
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    document = {
        "benchmark": name,
        "where": where(arguments.device),
        "arguments": {key: str(value) for key, value in vars(arguments).items()},
        "n_steps": turns.n_steps,
        "lines": lines,
        "figures": figures,
        "step_s": turns.step_s,
    }
    path = arguments.out / f"{name}.json"
    path.write_text(json.dumps(document, indent=1, default=_plain) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is no figure")
