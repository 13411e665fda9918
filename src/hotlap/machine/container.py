"""Whether this process runs in a container, and of what kind."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hotlap.machine.files import read

_VARIABLES = {
    "APPTAINER_CONTAINER": "Apptainer",
    "SINGULARITY_CONTAINER": "Singularity",
    "ENROOT_ROOTFS": "Enroot",
    "KUBERNETES_SERVICE_HOST": "Kubernetes",
}
_FILES = {".dockerenv": "Docker", "run/.containerenv": "Podman", ".singularity.d": "Singularity"}
_GROUPS = {"kubepods": "Kubernetes", "docker": "Docker", "libpod": "Podman", "lxc": "LXC"}


def find_container(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> str | None:
    """The kind of container; None outside of one."""
    for variable, kind in _VARIABLES.items():
        if variable in environ:
            return kind
    for file, kind in _FILES.items():
        if (root / file).exists():
            return kind
    groups = read(root / "proc/self/cgroup") or ""
    return next((kind for word, kind in _GROUPS.items() if word in groups), None)
