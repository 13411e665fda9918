"""The clock of the probes. This folder stands below the chronometer and cannot use its own."""

from time import perf_counter as now_s

__all__ = ["now_s"]
