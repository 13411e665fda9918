"""What was recorded on a GPU, put in place and read as the doctor reads a command that it ran."""

from __future__ import annotations

import tarfile
from pathlib import Path

from gpu_cases import GpuCase

from hotlap.chronometer.launch import Outcome
from hotlap.doctor.rule import Case
from hotlap.doctor.visit import read_visit, with_profile
from hotlap.records.codec import from_json, read_json
from hotlap.records.machine import Machine
from hotlap.records.profile import Profile
from hotlap.records.run import Run

ARCHIVE = Path(__file__).parent / "h200.tar.gz"


class GpuRecords:
    """The archive, unpacked."""

    def __init__(self, root: Path) -> None:
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(root, filter="data")
        self._root, self._cases = root, dict[str, Case]()
        self.machine = from_json(Machine, read_json(root / "machine.json"), "")
        self.names = {path.name.replace("-", " ") for path in root.iterdir() if path.is_dir()}

    def case(self, name: str) -> Case:
        """All that the doctor knows of one of them."""
        if name not in self._cases:
            self._cases[name] = self._read(self._root / name.replace(" ", "-"))
        return self._cases[name]

    def _read(self, folder: Path) -> Case:
        for path in folder.iterdir():
            path.write_text(path.read_text().replace("@FOLDER@", str(folder)))
        visit = read_visit(Outcome(Run.read(folder), folder, {}))
        visit = with_profile(visit, Profile.read(folder))
        assert visit.training is not None
        assert visit.training.is_on_gpu
        return Case(self.machine, visit.run, visit.training, profile=visit.profile)

    def times_longer(self, case: GpuCase) -> float:
        """Than the case without its fault: the gain that there really is."""
        ours, mended = self.case(case.name).training, self.case(case.mended).training
        assert ours is not None
        assert mended is not None
        return ours.step.mean / mended.step.mean
