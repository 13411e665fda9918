"""Which accounts and QoS a user has, as `sacctmgr` tells every user of themself."""

from __future__ import annotations

import getpass

from hotlap.records.job import Association, Rights
from hotlap.slurm import programs


def own_rights() -> Rights | None:
    """A user's own; None where the cluster keeps no accounts, or none of theirs."""
    if not programs.is_there("sacctmgr"):
        return None
    user = getpass.getuser()
    rows = _show(["associations", f"user={user}", "format=Account,Partition,QOS,DefaultQOS"])
    found = [Association(a, p, tuple(filter(None, qos.split(","))), d) for a, p, qos, d in rows]
    defaults = _show(["user", user, "format=DefaultAccount"])
    return Rights(tuple(found), defaults[0][0] if defaults else "") if found else None


def _show(words: list[str]) -> list[list[str]]:
    done = programs.attempt(["sacctmgr", "--noheader", "--parsable2", "show", *words])
    n_columns = words[-1].count(",") + 1
    rows = [] if done.returncode else [line.split("|") for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == n_columns]
