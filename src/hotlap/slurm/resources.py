"""From 'N GPUs of this kind for T hours' to what Slurm is asked for.

A place is a partition with a QoS. Those that can run the job come back, the best first: the
default QoS where it allows the job, else the shortest that does, for short ones start sooner.
Where none can, the error says which limit stands in the way and what the nearest is that can run.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hotlap.errors import UsageError
from hotlap.records.cluster import Cluster, NodeType, Partition, Qos
from hotlap.records.job import Ask, Association, Resources, Rights

NO_LIMIT = Qos()


@dataclass(frozen=True, slots=True)
class _Place:
    key: str
    partition: Partition
    node: NodeType
    qos_name: str | None
    qos: Qos

    @property
    def max_hours(self) -> float | None:
        return _least(self.partition.max_hours, self.qos.max_hours)

    @property
    def max_gpus(self) -> float | None:
        """Of one job, in whole nodes where nodes are what is limited."""
        nodes = _least(self.partition.max_nodes, self.qos.max_nodes)
        in_nodes = None if nodes is None else nodes * self.node.gpus
        return _least(in_nodes, self.qos.max_gpus_per_job, self.qos.max_gpus_per_user)

    def has(self, gpus: int, hours: float) -> bool:
        return (self.max_hours is None or hours <= self.max_hours) and (
            self.max_gpus is None or gpus <= self.max_gpus
        )

    def __str__(self) -> str:
        return f"{self.key} with {self.qos_name}" if self.qos_name else self.key


def choose(cluster: Cluster, ask: Ask, rights: Rights | None = None) -> list[Resources]:
    """All the ways to run it, the best first; a UsageError where there is none."""
    if ask.hours <= 0:
        raise UsageError(f"--hours is {ask.hours:g}; a number above zero is expected")
    partitions = _partitions(cluster, ask)
    places = [place for key in partitions for place in _places(cluster, key, ask, rights)]
    if not places:
        raise UsageError(_no_qos(cluster, partitions, ask, rights))
    defaults = {one.default_qos for one in rights.associations} if rights else set()
    places.sort(key=lambda place: _rank(place, ask, defaults))
    fitting = [place for place in places if place.has(ask.gpus, ask.hours)]
    if not fitting:
        raise UsageError(_nearest(places, ask))
    shaped = [(place, _shape(place.node, ask)) for place in fitting]
    if all(isinstance(shape, str) for _, shape in shaped):
        raise UsageError(str(shaped[0][1]))
    return [
        _resources(cluster, place, shape, ask, rights)
        for place in fitting
        if not isinstance(shape := _shape(place.node, ask), str)
    ]


def _rank(place: _Place, ask: Ask, defaults: set[str]) -> tuple[bool, bool, bool, float]:
    # Whole nodes for a part of one are paid for nothing.
    wastes = place.partition.exclusive and ask.gpus % place.node.gpus != 0
    defaults = {place.partition.default_qos} if place.partition.default_qos else defaults
    is_default = place.qos_name is None or place.qos_name in defaults
    hours = float("inf") if place.max_hours is None else place.max_hours
    return wastes, not place.partition.default, not is_default, hours


def _partitions(cluster: Cluster, ask: Ask) -> list[str]:
    """Those of the wanted kind, or the default one where none is named."""
    if ask.partition is not None:
        keys = [
            key for key in cluster.partitions if ask.partition in (key, cluster.partition_name(key))
        ]
        if not keys:
            names = ", ".join(cluster.partitions)
            raise UsageError(
                f"{cluster.name} has no partition '{ask.partition}'; there are {names}"
            )
    else:
        keys = list(cluster.partitions)
    if ask.gpu is not None:
        keys = [key for key in keys if _is_kind(_node(cluster, key).gpu, ask.gpu)]
        if not keys:
            kinds = ", ".join(dict.fromkeys(_node(cluster, key).gpu for key in cluster.partitions))
            where = f"partition {ask.partition}" if ask.partition else cluster.name
            raise UsageError(f"{where} has no GPU '{ask.gpu}'; {cluster.name} has {kinds}")
    elif ask.partition is None:
        kinds_seen = {_node(cluster, key).gpu for key in keys}
        if len(kinds_seen) > 1:
            keys = [key for key in keys if cluster.partitions[key].default]
        if not keys:
            raise UsageError(
                f"--gpu is not given; {cluster.name} has {', '.join(sorted(kinds_seen))}"
            )
    if ask.constraint is not None:
        same = [key for key in keys if cluster.partitions[key].constraint == ask.constraint]
        keys = same or keys
    return keys


def _is_kind(gpu: str, wanted: str) -> bool:
    wanted = wanted.lower()
    return gpu == wanted or gpu.startswith(f"{wanted}-") or wanted.startswith(f"{gpu}-")


def _node(cluster: Cluster, key: str) -> NodeType:
    return cluster.nodes[cluster.partitions[key].node]


def _places(cluster: Cluster, key: str, ask: Ask, rights: Rights | None) -> list[_Place]:
    partition, node = cluster.partitions[key], _node(cluster, key)
    known = cluster.qos_of(key)
    if ask.qos is not None:
        known = {ask.qos: known.get(ask.qos, NO_LIMIT)}
    if not known:  # the profile names none: Slurm takes the user's own
        return [_Place(key, partition, node, None, NO_LIMIT)]
    allowed = _allowed_qos(cluster, key, ask, rights)
    if allowed is not None:
        known = {name: one for name, one in known.items() if name in allowed}
    return [_Place(key, partition, node, name, one) for name, one in known.items()]


def _associations(cluster: Cluster, key: str, ask: Ask, rights: Rights) -> list[Association]:
    """Those that can pay there: of the account that is named, that must be, or that is taken."""
    suffix = cluster.partitions[key].account_suffix
    name = cluster.partition_name(key)
    wanted = _named_account(cluster, key, ask, rights) or ("" if suffix else rights.default_account)
    return [
        one
        for one in rights.associations
        if one.partition in ("", name)
        and (one.account == wanted if wanted else one.account.endswith(suffix or ""))
    ]


def _named_account(cluster: Cluster, key: str, ask: Ask, rights: Rights | None) -> str | None:
    """The account that is named; of a project alone, the one that pays there."""
    suffix, account = cluster.partitions[key].account_suffix, ask.account
    is_mine = rights is not None and account in {one.account for one in rights.associations}
    if not (account and suffix) or account.endswith(suffix) or is_mine:
        return account
    if suffix[0] in account:
        raise UsageError(
            f"--account is '{account}'; {cluster.partition_name(key)} takes accounts that end in "
            f"{suffix}"
        )
    return f"{account}{suffix}"


def _allowed_qos(cluster: Cluster, key: str, ask: Ask, rights: Rights | None) -> set[str] | None:
    """The QoS a user may have there; None where that is not known."""
    if rights is None:
        return None
    found = _associations(cluster, key, ask, rights)
    if not found and ask.account:
        accounts = ", ".join(dict.fromkeys(one.account for one in rights.associations))
        raise UsageError(f"you have no account '{ask.account}' there; yours are {accounts}")
    return {name for one in found for name in one.qos}


def _no_qos(cluster: Cluster, partitions: list[str], ask: Ask, rights: Rights | None) -> str:
    mine = sorted({name for one in rights.associations for name in one.qos}) if rights else []
    there = sorted({name for key in partitions for name in cluster.qos_of(key)})
    suffixes = {cluster.partitions[key].account_suffix for key in partitions} - {None}
    accounts = sorted({one.account for one in rights.associations}) if rights else []
    if ask.qos is not None:
        return f"you have no QoS '{ask.qos}' on {partitions[0]}; yours are {', '.join(mine)}"
    if suffixes and not any(a.endswith(str(s)) for a in accounts for s in suffixes):
        return (
            f"{partitions[0]} takes accounts that end in {' or '.join(map(str, suffixes))}; "
            f"yours are {', '.join(accounts)}"
        )
    return (
        f"{partitions[0]} takes the QoS {', '.join(there) or 'of no name'}; "
        f"yours are {', '.join(mine) or 'none'}"
    )


# Limits -----------------------------------------------------------------------------------------


def _nearest(places: list[_Place], ask: Ask) -> str:
    """Which limit stands in the way, and the nearest requests that can run."""
    wanted = f"{_gpus(ask.gpus)} for {ask.hours:g} h"
    wide = [place for place in places if place.has(ask.gpus, 0)]
    long = [place for place in places if place.has(0, ask.hours)]
    offers = []
    if wide:
        best = max(wide, key=lambda place: place.max_hours or 0)
        offers.append(f"{_gpus(ask.gpus)} for {best.max_hours:g} h ({best})")
    if long:
        best = max(long, key=lambda place: place.max_gpus or 0)
        offers.append(f"{_gpus(int(best.max_gpus or 0))} for {ask.hours:g} h ({best})")
    if not offers:
        best = max(places, key=lambda place: ((place.max_hours or 0), (place.max_gpus or 0)))
        offers.append(f"{_gpus(int(best.max_gpus or 0))} for {best.max_hours:g} h ({best})")
    nearest = " or ".join(offers)
    return f"{wanted} is more than partition and QoS allow; the nearest that can run: {nearest}"


def _gpus(n: int) -> str:
    return "1 GPU" if n == 1 else f"{n} GPUs"


def _shape(node: NodeType, ask: Ask) -> tuple[int, int] | str:
    """Nodes and GPUs on each, or why there is no such shape."""
    if ask.gpus_per_node is not None:
        if ask.gpus_per_node > node.gpus:
            return f"--gpus-per-node is {ask.gpus_per_node}; a node has {_gpus(node.gpus)}"
        if ask.gpus % ask.gpus_per_node:
            return (
                f"--gpus {ask.gpus} does not come out even with --gpus-per-node {ask.gpus_per_node}"
            )
        return ask.gpus // ask.gpus_per_node, ask.gpus_per_node
    if ask.gpus <= node.gpus:
        return 1, ask.gpus
    if ask.gpus % node.gpus == 0:
        return ask.gpus // node.gpus, node.gpus
    fewer = ask.gpus // node.gpus * node.gpus
    nodes = ceil(ask.gpus / node.gpus)
    even = (
        ""
        if ask.gpus % nodes
        else (f", or say --gpus-per-node {ask.gpus // nodes} for {nodes} nodes that are not full")
    )
    return (
        f"--gpus {ask.gpus} does not fill nodes of {_gpus(node.gpus)}: {fewer} or "
        f"{fewer + node.gpus} would{even}"
    )


def _resources(
    cluster: Cluster,
    place: _Place,
    shape: tuple[int, int],
    ask: Ask,
    rights: Rights | None,
) -> Resources:
    nodes, per_node = shape
    node, partition = place.node, place.partition
    tasks = {"gpu": per_node, "node": 1, "once": 1}[ask.launcher]
    # Slurm's hint against hardware threads has it count cores.
    cpus_per_gpu = node.cores_per_gpu * (1 if cluster.hint else node.threads_per_core)
    memory = int(node.memory_gb * per_node / node.gpus) if node.memory_gb else None
    return Resources(
        nodes=nodes,
        tasks_per_node=tasks,
        gpus_per_node=per_node,
        cpus_per_task=cpus_per_gpu * per_node // tasks,
        hours=ask.hours,
        gres=node.gres,
        memory_gb=memory if node.asks_memory else None,
        partition=cluster.partition_name(place.key) or None,
        constraint=ask.constraint or partition.constraint,
        account=_named_account(cluster, place.key, ask, rights)
        or _account(cluster, place, ask, rights),
        qos=place.qos_name,
        billed_gpus=nodes * (node.gpus if partition.exclusive else per_node),
        charge_per_gpu_hour=partition.charge_per_gpu_hour,
        unit=cluster.unit,
    )


def _account(cluster: Cluster, place: _Place, ask: Ask, rights: Rights | None) -> str | None:
    """The one account that a user can have meant; None leaves it to Slurm's default."""
    if rights is None:
        return None
    names = {
        one.account
        for one in _associations(cluster, place.key, ask, rights)
        if place.qos_name is None or place.qos_name in one.qos
    }
    if place.partition.account_suffix and len(names) > 1:
        raise UsageError(
            f"several accounts can pay for {place}: {', '.join(sorted(names))}; "
            "choose one with --account"
        )
    return names.pop() if len(names) == 1 else None


def _least(*limits: float | None) -> float | None:
    return min((one for one in limits if one is not None), default=None)
