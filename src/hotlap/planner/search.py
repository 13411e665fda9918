"""Look for the layout with the shortest step that fits, and say why the others lost.

What is tried: tensor parallel inside a node, pipelines (1F1B, interleaved, zero-bubble), context
parallel for long sequences, expert parallel, replicas with and without ZeRO, full and hybrid
sharding, each recomputation, micro-batches by powers of two and by halves of a replica's share.
Memory is cheap to predict and comes first; only layouts that fit are timed.

Activations go to the host where its memory is known to be enough and that is clearly faster than to
compute them again. Where nothing fits the GPUs alone, activations are tried there, then the
optimizer, then both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hotlap.planner.calibration import Calibration
from hotlap.planner.cluster import Gpus
from hotlap.planner.emit import trainer_lacks
from hotlap.planner.layers import Model
from hotlap.planner.layout import RECOMPUTE, Layout, Recompute, refusal
from hotlap.planner.memory import training_memory
from hotlap.planner.offload import host_memory
from hotlap.planner.predict import Prediction, Scale, predict
from hotlap.planner.training import Training
from hotlap.records.plan import Alternative

LONG_SEQUENCE = 16384
"""Tokens from which on context parallelism is tried."""
MOST_MICRO = 1024
N_ALTERNATIVES = 8
WORTH = 0.05
"""Of a step that the host's memory has to save: it is shared, and its links are known less well."""
LAST_RESORTS = (
    {"offload_activations": 1},
    {"offload": 1},
    {"offload": 1, "offload_activations": 1},
)


@dataclass(frozen=True, slots=True)
class Found:
    """The best layout and the others, best first."""

    best: Prediction | None
    others: tuple[Alternative, ...]
    n_tried: int
    n_fitting: int


@dataclass(frozen=True, slots=True)
class Space:
    """What is given, and so not searched."""

    model: Model
    gpus: Gpus
    training: Training
    recompute: Recompute | None
    micro_batch: int | None
    limit_bytes: float
    by: Calibration
    scale: Scale
    is_for_the_trainer: bool = False
    """Only layouts that the reference trainer has."""


def search(space: Space) -> Found:
    """Every layout that the model allows."""
    found = _search(space, layouts(space))
    for resort in LAST_RESORTS if found.best is None else ():
        offloaded = (replace(one, **resort) for one in layouts(space))  # type: ignore[arg-type]
        with_host = _search(space, (one for one in offloaded if _host_may(one)))
        if with_host.best:
            return with_host
    return found


def _host_may(layout: Layout) -> bool:
    """An optimizer that every replica has whole is not updated by the host of each."""
    return not layout.offload or layout.zero > 0 or layout.dp == 1


def search_like(space: Space, layout: Layout) -> Prediction | None:
    """The best that keeps a layout's tensor, context and pipeline parallelism."""
    kept = (layout.tp, layout.cp, layout.pp)
    same = (one for one in layouts(space) if (one.tp, one.cp, one.pp) == kept)
    return _search(space, same).best


def _search(space: Space, candidates: Iterable[Layout]) -> Found:
    fitting: list[Prediction] = []
    closest: dict[str, tuple[float, Layout, Training]] = {}
    n_tried = 0
    for layout in candidates:
        for training in trainings(space, layout):
            fits = False
            for one in _kept_ways(space, layout):
                n_tried += 1
                if space.is_for_the_trainer and trainer_lacks(one):
                    continue
                memory = training_memory(space.model, training, one)
                needed = memory.total + space.scale.memory_bytes
                if needed <= space.limit_bytes and _host_has_room(space, training, one):
                    fits = True
                    how = (space.by, space.scale, memory)
                    fitting.append(predict(space.model, space.gpus, training, one, *how))
                    # What is computed again costs time: the first that fits is the fastest,
                    # unless the way to the host shows.
                    if not fitting[-1].time.offload:
                        break
                elif space.limit_bytes < needed < closest.get(family(one), (float("inf"),))[0]:
                    closest[family(one)] = (needed, one, training)
            if not fits:
                break  # nor do larger micro-batches
    fitting = _ranked(fitting)
    best = fitting[0] if fitting else None
    others = (*_slower(fitting), *_too_large(closest, fitting, space.limit_bytes))
    return Found(best, others[:N_ALTERNATIVES], n_tried, len(fitting))


def _kept_ways(space: Space, layout: Layout) -> Iterator[Layout]:
    """What becomes of activations: kept, sent to the host, computed again; dearer ones later."""
    recomputes = (space.recompute,) if space.recompute else _recomputes(space.model)
    plain = [replace(layout, recompute=recompute) for recompute in recomputes]
    if layout.offload_activations or not space.gpus.host_memory_bytes:
        yield from plain
        return
    yield plain[0]
    yield from (replace(one, offload_activations=1) for one in plain)
    yield from plain[1:]


def _recomputes(model: Model) -> tuple[Recompute, ...]:
    """Fused attention keeps no scores: to compute them again frees nothing."""
    has_scores = any(layer.kept != layer.kept_selective for layer, _ in model.groups())
    return RECOMPUTE if has_scores else ("none", "full")


def _host_has_room(space: Space, training: Training, layout: Layout) -> bool:
    limit = space.gpus.host_memory_bytes
    if limit is None or not (layout.offload or layout.offload_activations):
        return True
    needed = host_memory(space.model, training, layout).total
    return needed * min(space.gpus.n, space.gpus.per_node) <= limit


def _ranked(fitting: list[Prediction]) -> list[Prediction]:
    """The fastest first; one that needs the host's memory has to be clearly faster."""

    def cost(one: Prediction) -> float:
        needs_host = one.layout.offload or one.layout.offload_activations
        return one.step_s * (1 + WORTH if needs_host else 1)

    return sorted(fitting, key=cost)


def layouts(space: Space) -> Iterator[Layout]:
    """All ways to cut the model over all GPUs; what is computed again is left open."""
    model, n = space.model, space.gpus.n
    inside = min(space.gpus.per_node, n)
    for tp in _divisors(inside) if model.n_heads else [1]:
        for cp in _contexts(model, n // tp):
            for pp in _divisors(n // (tp * cp)):
                n_data = n // (tp * cp * pp)
                for shape in _data_layouts(n_data, max(1, inside // tp), model.n_experts, pp > 1):
                    one = replace(shape, tp=tp, cp=cp, pp=pp, sp=int(tp > 1))
                    yield one
                    if pp > 1:
                        yield replace(one, schedule="zero-bubble")
                        yield from (replace(one, v=v, schedule="interleaved") for v in (2, 4))


def _contexts(model: Model, n: int) -> list[int]:
    if model.tokens_per_sample < LONG_SEQUENCE or model.n_heads is None:
        return [1]
    return [cp for cp in _divisors(n) if cp <= 8]


def _data_layouts(n: int, inside: int, n_experts: int, is_pipeline: bool) -> Iterator[Layout]:
    """A pipeline's stages keep what they gather: to do it again each micro-batch costs too much."""
    experts = [ep for ep in _divisors(n) if n_experts % ep == 0] if n_experts > 1 else [1]
    for ep in experts:
        if ep == 1:  # trainers that part experts share the optimizer's state out too
            yield Layout(dp=n)
        if n == 1:
            continue
        yield Layout(dp=n, ep=ep, zero=1)
        yield Layout(shard=n, ep=ep, reshard=0)
        if not is_pipeline:
            yield Layout(dp=n, ep=ep, zero=2)
            yield Layout(shard=n, ep=ep)
        if 1 < inside < n and n % inside == 0:
            yield Layout(dp=n // inside, shard=inside, ep=ep, reshard=int(not is_pipeline))


def trainings(space: Space, layout: Layout) -> Iterator[Training]:
    """The micro-batches that a layout allows, the smallest first."""
    share = space.training.batch // layout.n_data
    for micro in [space.micro_batch] if space.micro_batch else _micro_batches(share):
        if not refusal(layout, space.model, space.gpus.n, space.training.batch, micro):
            yield replace(space.training, micro_batch=micro)


def _micro_batches(share: int) -> list[int]:
    """Powers of two, and what one replica gets of the batch, whole and halved."""
    powers = {2**i for i in range(MOST_MICRO.bit_length())}
    halves = {share >> i for i in range(share.bit_length()) if share % 2**i == 0}
    return sorted(one for one in powers | halves if 0 < one <= min(MOST_MICRO, share))


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def family(layout: Layout) -> str:
    """Layouts that differ in more than details: one alternative of each is shown."""
    return str(replace(layout, v=1, schedule="1f1b", reshard=1, zero=0))


def _slower(fitting: list[Prediction]) -> Iterator[Alternative]:
    seen = {family(fitting[0].layout)} if fitting else set()
    for one in fitting[1:]:
        if family(one.layout) in seen:
            continue
        seen.add(family(one.layout))
        yield Alternative(
            str(one.layout),
            one.training.micro_batch,
            one.layout.recompute,
            one.step_s,
            one.memory_bytes,
            True,
            why_slower(one, fitting[0]),
        )


def why_slower(one: Prediction, best: Prediction) -> str:
    """The cause that grew most."""
    if one.step_s < best.step_s:
        return f"{100 * (1 - one.step_s / best.step_s):.0f} % faster, but needs the host's memory"
    names = {
        "products": "products",
        "streams": "memory traffic",
        "communication": "communication",
        "bubble": "the pipeline's bubble",
        "host": "launches",
        "offload": "the link to the host",
    }
    grown = {name: getattr(one.time, name) - getattr(best.time, name) for name in names}
    worst = max(grown, key=lambda name: grown[name])
    slower = 100 * (one.step_s / best.step_s - 1)
    share = 100 * getattr(one.time, worst) / one.time.total
    return f"{slower:.0f} % slower: {names[worst]} {share:.0f} % of its step"


def _too_large(
    closest: dict[str, tuple[float, Layout, Training]],
    fitting: list[Prediction],
    limit_bytes: float,
) -> Iterator[Alternative]:
    fits = {family(one.layout) for one in fitting}
    for needed, layout, training in sorted(closest.values(), key=lambda one: one[0]):
        if family(layout) not in fits:
            yield Alternative(
                str(layout),
                training.micro_batch,
                layout.recompute,
                None,
                needed,
                False,
                f"needs {needed / 2**30:.1f} GiB, {limit_bytes / 2**30:.1f} are there",
            )
