"""Archives of recordings: the same bytes from the same records, and one put into another.

    python tests/doctor/records_archive.py tests/doctor/h200.tar.gz new.tar.gz

puts the cases of the second into the first, whose Machine stays.
"""

from __future__ import annotations

import argparse
import gzip
import io
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

TESTS, PROJECT = "@TESTS@", "@PROJECT@"
"""The folder of the tests and that of the whole project, in what was recorded."""


def pack(folder: Path, archive: Path) -> None:
    """All files below a folder, without what tells who packed them and when."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(one for one in folder.rglob("*") if one.is_file()):
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size, entry.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                tar.addfile(entry, file)
    archive.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))


def as_if_alone(value: Any) -> Any:
    """A profile without lines of the process that ran the script: `python train.py` has none."""
    if isinstance(value, list):
        return [as_if_alone(one) for one in value if not (_is_ours(one) and "share" in one)]
    if isinstance(value, dict):
        kept = {key: as_if_alone(one) for key, one in value.items()}
        return {**kept, "site": None} if _is_ours(value) else kept
    return value


def _is_ours(entry: Any) -> bool:
    site = entry.get("site") if isinstance(entry, dict) else None
    return bool(site) and site["file"].startswith((TESTS, PROJECT))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("archive", type=Path)
    parser.add_argument("added", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root, added = Path(folder) / "all", Path(folder) / "added"
        for archive, target in ((arguments.archive, root), (arguments.added, added)):
            with tarfile.open(archive) as tar:
                tar.extractall(target, filter="data")
        for case in sorted(path for path in added.iterdir() if path.is_dir()):
            shutil.rmtree(root / case.name, ignore_errors=True)
            shutil.copytree(case, root / case.name)
            print(case.name)
        pack(root, arguments.archive)


if __name__ == "__main__":
    main()
