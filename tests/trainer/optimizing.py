"""What the tests of the optimizers share: all names, and settings under which each one learns."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from hotlap.trainer.optimizers.settings import OptimizerName, OptimizerSettings

NAMES: tuple[OptimizerName, ...] = get_args(OptimizerName)
LR: dict[str, float] = {
    "sgd": 0.1,
    "adamw": 0.03,
    "lars": 0.05,
    "lamb": 0.03,
    "lion": 0.005,
    "muon": 0.03,
}
every_optimizer = pytest.mark.parametrize("name", NAMES)


def settings_of(name: Any, **values: Any) -> OptimizerSettings:
    if name == "lars":
        values.setdefault("trust_coefficient", 0.1)
    if name == "muon":
        values.setdefault("nesterov", True)
    return OptimizerSettings(**{"name": name, "lr": LR[name], **values})
