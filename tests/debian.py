"""Programs that tests talk to and that Debian packages: installed where they are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

import pytest


def install_missing(packages: Mapping[str, str], what: str) -> None:
    """Each package comes with a program by which to see that it is there."""
    missing = [package for package, program in packages.items() if not shutil.which(program)]
    if not missing:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        pytest.fail(f"these tests need {what}; install what Debian calls {missing}")
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
        done = subprocess.run(
            [*apt, *words], env=environment, capture_output=True, text=True, timeout=240
        )
        if done.returncode:
            pytest.fail(f"apt-get {' '.join(words)}: {done.stderr[-2000:]}")
