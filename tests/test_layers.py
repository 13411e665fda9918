"""The layer rule: a folder imports only from the folders below it, and torch only where it may.

The order is that of the design. Imports inside functions count as well; what `if TYPE_CHECKING`
holds does not, for it never runs.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "hotlap"
LAYERS = (
    *("records", "machine", "chronometer", "levers", "doctor", "planner", "tuner", "data"),
    *("distributed", "models", "trainer", "slurm", "sweep", "report", "cli"),
)
FREE = ("hotlap", "hotlap.errors", "hotlap.wording")
"""May be imported by all: the package's own version, its errors, and how numbers are told."""
MAY_IMPORT_TORCH = ("data", "distributed", "models", "trainer")
IN_THE_USERS_PROCESS = ("records", "chronometer", "levers")
"""Standard library only, but for what they find there, imported when it is needed."""
FOUND_THERE = ("torch", "pynvml")
NOT_A_LEVER = ("levers/__init__", "levers/common/")
LEVER_PARTS = "hotlap.levers.common."
"""What levers are made of, and may import."""


@dataclass(frozen=True)
class Import:
    """One import statement, made absolute."""

    where: str
    layer: str
    """The folder it stands in; empty for a file of the package itself."""
    module: str
    is_top_level: bool

    @property
    def target_layer(self) -> str:
        parts = self.module.split(".")
        return parts[1] if parts[0] == "hotlap" and len(parts) > 1 else ""


def imports(root: Path) -> Iterator[Import]:
    """Every import below a package folder."""
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        layer = inside.parts[0] if len(inside.parts) > 1 else ""
        package = ["hotlap", *inside.parent.parts]
        for node, is_top_level in _statements(ast.parse(path.read_text()), True):
            for module in _modules(node, package):
                yield Import(f"{inside}:{node.lineno}", layer, module, is_top_level)


def _statements(
    node: ast.AST, is_top_level: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, is_top_level
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _statements(ast.Module([other], []), is_top_level)
        else:
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _statements(child, is_top_level and not is_function)


def _modules(node: ast.Import | ast.ImportFrom, package: list[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = package[: len(package) + 1 - node.level] if node.level else []
    module = ".".join([*base, *([node.module] if node.module else [])])
    if module == "hotlap":  # `from hotlap import records` is an import of the folder
        names = [alias.name for alias in node.names]
        yield from (f"hotlap.{name}" if name in LAYERS else "hotlap" for name in names)
    else:
        yield module


def breaches(root: Path) -> list[str]:
    """Where the rule is broken, in words."""
    return [f"{one.where}: {what}" for one in imports(root) for what in _breaks(one)]


def _breaks(one: Import) -> Iterator[str]:
    top = one.module.split(".")[0]
    if one.layer in LAYERS:
        if top == "hotlap" and one.module not in FREE:
            if one.target_layer not in LAYERS:
                yield f"{one.module} is in no layer"
            elif LAYERS.index(one.target_layer) > LAYERS.index(one.layer):
                yield f"{one.layer} imports {one.module}, which stands above it"
        is_lever = one.layer == "levers" and not one.where.startswith(NOT_A_LEVER)
        if is_lever and one.target_layer == "levers" and not one.module.startswith(LEVER_PARTS):
            yield f"a lever imports {one.module}"
    elif one.layer:
        yield f"{one.layer} is no folder of the design"
    if top == "torch" and one.is_top_level and one.layer not in MAY_IMPORT_TORCH:
        yield f"{one.module} is imported at the top"
    is_foreign = top not in sys.stdlib_module_names and top != "hotlap"
    if one.layer in IN_THE_USERS_PROCESS and is_foreign:
        if top not in FOUND_THERE:
            yield f"{one.module} is neither in the standard library nor found beside torch"
        elif one.is_top_level and top != "torch":
            yield f"{one.module} is imported at the top"


def test_no_folder_imports_from_one_above_it() -> None:
    assert breaches(PACKAGE) == []


def test_the_walk_sees_the_imports_that_are_there() -> None:
    found = {(one.layer, one.target_layer) for one in imports(PACKAGE)}
    assert {("cli", "records"), ("chronometer", "records"), ("chronometer", "machine")} <= found
    assert any(one.layer == "chronometer" and not one.is_top_level for one in imports(PACKAGE))


@pytest.mark.parametrize(
    ("file", "code", "breach"),
    [
        ("records/run.py", "from hotlap.chronometer import merge", "stands above"),
        ("records/run.py", "from ..chronometer.merge import merge", "stands above"),
        ("records/run.py", "from hotlap import chronometer", "stands above"),
        ("machine/host.py", "def f():\n    import hotlap.cli.time", "stands above"),
        ("report/html.py", "from hotlap.cli import options", "stands above"),
        ("records/run.py", "import torch", "at the top"),
        ("cli/time.py", "from torch import nn", "at the top"),
        (
            "tuner/trial.py",
            "try:\n    import torch.nn\nfinally:\n    pass",
            "at the top",
        ),
        ("report/html.py", "class A:\n    import torch", "at the top"),
        ("__init__.py", "import torch", "at the top"),
        ("chronometer/power.py", "import pynvml", "at the top"),
        ("chronometer/power.py", "def f():\n    import numpy", "neither"),
        ("records/run.py", "import attrs", "neither"),
        ("levers/compile.py", "from hotlap.levers.amp import AMP", "a lever imports"),
        ("levers/compile.py", "from .amp import AMP", "a lever imports"),
        ("records/run.py", "import hotlap.utils", "in no layer"),
        ("utils/misc.py", "import os", "no folder of the design"),
    ],
)
def test_a_planted_breach_is_found(tmp_path: Path, file: str, code: str, breach: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    (found,) = breaches(tmp_path)
    assert breach in found
    assert found.startswith(file)


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("cli/time.py", "from hotlap.records.run import Run\nfrom hotlap.report import terminal"),
        ("records/run.py", "from hotlap.errors import RecordError\nfrom hotlap import __version__"),
        ("records/run.py", "from .codec import read_json"),
        ("chronometer/flops.py", "def f():\n    import torch\n    import pynvml"),
        ("data/feed.py", "import torch\nimport numpy"),
        ("levers/__init__.py", "from hotlap.levers import amp, compile"),
        ("levers/compile.py", "from hotlap.levers.common.lever import Lever"),
        ("records/run.py", "if TYPE_CHECKING:\n    import torch\n    import hotlap.cli"),
    ],
)
def test_what_the_rule_allows_is_no_breach(tmp_path: Path, file: str, code: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    assert breaches(tmp_path) == []


LAUNCHER = """
import contextlib, io, sys
from hotlap.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(sys.argv[1:])
loaded = sorted({"torch", "numpy", "pynvml"} & sys.modules.keys())
print(loaded)
"""


@pytest.mark.parametrize(
    "words",
    [
        ("--version",),
        ("--help",),
        (),
        ("time", "--help"),
        ("doctor", "--help"),
        ("profile", "--help"),
        ("profile", "missing.py"),
        ("profile", "true"),
        ("doctor", "--no-measure", "--quiet"),
        ("time", "true"),
        ("tune", "--help"),
        ("tune", "missing.py"),
        ("run", "--help"),
        ("run", "missing.py"),
        ("plan", "--help"),
        ("plan", "--list-gpus"),
        ("plan", "--params", "1B"),
        ("runs",),
        ("compare", "x", "y"),
        ("clusters",),
        ("submit", "--cluster", "lumi", "--hours", "99", "true"),
        ("queue", "--help"),
        ("logs", "3"),
        ("cancel", "--help"),
        ("efficiency", "--help"),
    ],
    ids=" ".join,
)
def test_a_command_starts_without_torch(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "[]\n", done.stderr
