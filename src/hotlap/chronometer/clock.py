"""The one host clock. Monotonic, so that it is the same for all processes of a machine."""

from time import perf_counter_ns as now_ns

__all__ = ["now_ns"]
