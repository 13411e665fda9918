"""Lines of progress: rates are those of the training alone."""

from __future__ import annotations

from typing import Any

import pytest

from hotlap.trainer import progress as progress_module
from hotlap.trainer.checkpoint import Place
from hotlap.trainer.metrics import Figures
from hotlap.trainer.progress import Progress


def figures(n: int) -> Figures:
    return Figures(n, 1.0, float("nan"), float("nan"))


def test_a_validation_between_two_lines_is_not_in_their_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = [0.0]
    monkeypatch.setattr(progress_module, "now_ns", lambda: int(1e9 * seconds[0]))
    progress = Progress(True, 1000, "images")

    def told(place: Place, n: int) -> Any:
        return progress.tell(place, 0.1, figures(n))["images_per_s"]

    seconds[0] = 10.0
    assert told(Place(100), 6400) == pytest.approx(640)
    seconds[0] = 16.8  # 68 steps later a validation of half a minute
    progress.pause()
    seconds[0] = 46.8
    progress.tell_validation(Place(168, 1), figures(999))
    seconds[0] = 50.0
    assert told(Place(200, 1, 32), 6400) == pytest.approx(640)
    assert "left" in capsys.readouterr().err
    # 800 steps of a tenth of a second.
    seconds[0] = 60.0
    told(Place(300, 1, 132), 6400)
    assert "1 min 10 s left" in capsys.readouterr().err
