"""Slurm's states and reasons in words."""

from __future__ import annotations

STATES = {
    "PENDING": "waiting",
    "RUNNING": "running",
    "COMPLETING": "ending",
    "COMPLETED": "done",
    "FAILED": "failed",
    "TIMEOUT": "ran out of time",
    "CANCELLED": "cancelled",
    "PREEMPTED": "gave way to another",
    "OUT_OF_MEMORY": "ran out of memory",
    "NODE_FAIL": "a node failed",
    "SUSPENDED": "suspended",
    "REQUEUED": "queued again",
    "CONFIGURING": "its nodes get ready",
    "BOOT_FAIL": "a node did not start",
    "DEADLINE": "missed its deadline",
    "SIGNALING": "is being signalled",
    "STAGE_OUT": "its files are copied",
    "RESV_DEL_HOLD": "held, its reservation is gone",
}

ENDED = (
    *("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "PREEMPTED", "OUT_OF_MEMORY"),
    "NODE_FAIL",
    "BOOT_FAIL",
    "DEADLINE",
)

REASONS = {
    "Priority": "others are before it",
    "Resources": "it is next, and waits for nodes to be free",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": "it waits for a job that failed: it will never start, cancel it",
    "BeginTime": "it is not yet time: Slurm waits a while before it starts a job again",
    "JobHeldUser": "you hold it: `scontrol release` lets it go",
    "JobHeldAdmin": "the administrators hold it",
    "JobArrayTaskLimit": "as many tasks of its array run as it allows",
    "QOSMaxJobsPerUserLimit": "as many of your jobs run as the QoS allows",
    "QOSMaxGRESPerUser": "your jobs have as many GPUs as the QoS allows",
    "QOSGrpGRES": "all jobs of this QoS have as many GPUs as it allows",
    "QOSMaxWallDurationPerJobLimit": "it asks for more time than the QoS allows",
    "QOSMaxGRESPerJob": "it asks for more GPUs than the QoS allows",
    "QOSGrpNodeLimit": "all jobs of this QoS have as many nodes as it allows",
    "AssocGrpGRES": "your account has as many GPUs as it may",
    "AssocGrpBillingMinutes": "the hours of your account are used up",
    "AssocGrpGRESMinutes": "the hours of your account are used up",
    "AssocGrpCPUMinutesLimit": "the hours of your account are used up",
    "AssocMaxJobsLimit": "as many jobs of your account run as it may have",
    "PartitionTimeLimit": "it asks for more time than the partition allows: it will never start",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows: it will never start",
    "PartitionDown": "the partition is down",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Reservation": "it waits for its reservation",
    "Licenses": "it waits for a licence",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no nodes are as it wants them: it will never start",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QoS is not valid",
    "launch failed requeued held": "it could not be started, and is held",
}

RAISES = {
    "age": "waiting",
    "fair-share": "having used less than others lately",
    "size": "its size",
    "partition": "its partition",
    "QoS": "its QoS",
}
"""What each part of a priority comes from."""


def state_in_words(state: str) -> str:
    """A state, as `CANCELLED by 0` too."""
    return STATES.get(state.split(" ")[0].rstrip("+"), state.lower())


def reason_in_words(reason: str) -> str:
    """Why a job waits; what is not known is shown as Slurm says it."""
    if reason in ("None", "", "(null)"):
        return ""
    return REASONS.get(reason.split(",")[0], reason)


def has_ended(state: str) -> bool:
    """Whether no more will come of a job."""
    return state.split(" ")[0].rstrip("+") in ENDED
