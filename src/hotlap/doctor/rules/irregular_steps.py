"""Some steps take much longer than most, without their data: a wait that comes now and then.

The gain is from the mean to the usual of them. Waits for data have rules of their own: workers
bring their batches at once, one step waits and the next ones do not.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "irregular_steps"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Mean, median and the slow tenth."""
    step = training.run.spreads_s.get("train")
    if training.run.steps.measured < limits.least_steps or step is None or not step.median:
        return
    if training.habits.of("compiled").get("n_again"):
        return  # compiling again takes a while: the rule on that says so
    if step.mean < limits.most_mean_over_median * step.median:
        return
    yield Finding(
        NAME,
        "note",
        f"steps are irregular: the mean is {step.mean / step.median:.2g} times the median",
        (f"median {step.median * 1e3:.3g} ms, slowest tenth from {step.p90 * 1e3:.3g} ms",),
        without((step.mean - step.median) / training.step.mean),
        "look for what comes now and then: a cold cache, other jobs, inputs of other sizes",
    )


RULE = training_rule(NAME, check)
