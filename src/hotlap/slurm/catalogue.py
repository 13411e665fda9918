"""The clusters that hotlap knows: those of the package and a user's own, which come first."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

from hotlap.errors import UsageError
from hotlap.records.cluster import Cluster
from hotlap.slurm.profile import read_profile

SHIPPED = Path(__file__).parent / "profiles"
VARIABLE = "HOTLAP_CLUSTER"
"""Names the cluster where `--cluster` does not."""


def own_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where a user's own profiles lie."""
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", ""), ".config")
    return Path(base) / "hotlap" / "clusters"


def profile_paths() -> dict[str, Path]:
    """The file of each known cluster; a user's own stands for one of the same name."""
    found: dict[str, Path] = {}
    for folder in (SHIPPED, own_folder()):
        if folder.is_dir():
            found |= {path.stem: path for path in sorted(folder.glob("*.toml"))}
    return found


def find_cluster(name: str) -> Cluster:
    """A cluster by its name, or by the path of a profile."""
    if name.endswith(".toml"):
        return read_profile(Path(name))
    paths = profile_paths()
    if name not in paths:
        near = difflib.get_close_matches(name, paths, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(paths)}"
        raise UsageError(f"there is no cluster '{name}'; {hint} (or a file: NAME.toml)")
    cluster = read_profile(paths[name])
    if cluster.name != name:
        raise UsageError(
            f"the cluster profile {paths[name]}: key 'name' is '{cluster.name}'; "
            f"'{name}' is expected, as the file is called"
        )
    return cluster


def find_by_slurm_name(slurm_name: str) -> Cluster | None:
    """The known cluster that calls itself so."""
    for name in profile_paths():
        cluster = find_cluster(name)
        if cluster.slurm_name == slurm_name:
            return cluster
    return None
