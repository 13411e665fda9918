"""The order of trials, the proof over many steps, and how both are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated import World, lever

from hotlap.levers import LEVERS
from hotlap.levers.common.lever import Decision
from hotlap.levers.common.workload import Seen, Workload
from hotlap.report.ladder import render_proof, render_sweep_end, render_sweep_point
from hotlap.tuner.order import order_levers
from hotlap.tuner.prove import conclude
from hotlap.tuner.sweep import SweepPoint, point_of

LOADER = Seen(None, {"num_workers": 0, "batch_size": 8, "shuffle": True, "is_iterable": False})
MODEL = Seen(None, {"kinds": {"Linear": 3}, "dtypes": ["float32"], "inputs": [], "n_parameters": 9})


def workload(**phases: float) -> Workload:
    return Workload(n_cpus=2, loaders=(LOADER,), models=(MODEL,), phases_s=phases)


def first_names(one: Workload, n: int = 1) -> list[str]:
    return [c.lever.name for c in order_levers(LEVERS, one, {}) if not c.not_tried][:n]


def test_a_data_bound_step_tries_the_loader_first() -> None:
    assert first_names(workload(data=0.8, forward=0.1, backward=0.1)) == ["workers"]


def test_a_step_bound_by_the_optimizer_tries_that_first() -> None:
    bound = workload(data=0.05, forward=0.1, backward=0.15, optimizer=0.7)
    bound = Workload(
        n_cpus=2,
        models=bound.models,
        optimizers=(Seen(None, {"kind": "AdamW", "fused": None, "foreach": None}),),
        phases_s=bound.phases_s,
    )
    assert first_names(bound) == ["fused_optimizer"]


def on_gpu(**facts: Any) -> Workload:
    """A model of linear layers on a GPU."""
    model = replace(MODEL, facts={**MODEL.facts, "inputs": [[[8, 9], "float32", "cuda"]]})
    return Workload(
        device="cuda",
        device_name="NVIDIA H200",
        capability=(9, 0),
        n_cpus=16,
        models=(model,),
        optimizers=(Seen(None, {"kind": "SGD", "fused": None, "foreach": None}),),
        flags={"matmul_precision": "highest"},
        phases_s={"data": 0.1, "forward": 0.3, "backward": 0.5, "optimizer": 0.1},
        **facts,
    )


def values_in_order(one: Workload, kept: dict[str, str]) -> list[str]:
    tried = [c for c in order_levers(LEVERS, one, kept) if not c.not_tried]
    return [f"{c.lever.name}={c.value}" for c in tried]


def test_a_busy_gpu_tries_precision_first_and_one_that_waits_tries_graphs() -> None:
    busy, waiting = on_gpu(), on_gpu(waits_for_host=True)
    assert values_in_order(busy, {})[:3] == [
        "bf16=autocast",
        "tf32=high",
        "compile=reduce-overhead",
    ]
    assert values_in_order(waiting, {})[:2] == ["cuda_graphs=on", "compile=reduce-overhead"]
    assert "cuda_graphs=on" not in values_in_order(busy, {})
    slow_kernels = {"bf16=autocast", "tf32=high", "fp16=autocast"}
    assert slow_kernels <= set(values_in_order(waiting, {})[4:])
    assert "tf32=high" not in values_in_order(busy, {"bf16": "autocast"})


def a_network(**kinds: int) -> Workload:
    """A model of such layers on a GPU."""
    one = on_gpu()
    facts = {**one.models[0].facts, "kinds": kinds, "is_channels_last": False}
    return replace(one, models=(Seen(None, facts),))


def test_convolutions_try_half_precision_in_the_order_that_tensor_cores_like() -> None:
    convolutional = a_network(Conv2d=53, Linear=1)
    first, second, *_ = order_levers(LEVERS, convolutional, {})
    assert first.settings == {"bf16": "autocast", "channels_last": "on"}
    assert first.promise > second.promise
    assert second.settings == {"bf16": "autocast"}
    assert [one.settings for one in order_levers(LEVERS, convolutional, {}) if one.together] == [
        first.settings
    ]
    for kept in ({"channels_last": "on"}, {"bf16": "autocast", "channels_last": "on"}):
        assert not any(one.together for one in order_levers(LEVERS, convolutional, kept))
    after_bf16 = order_levers(LEVERS, convolutional, {"bf16": "autocast"})
    assert {"channels_last": "on"} in [one.settings for one in after_bf16]


def test_fp16_leads_where_the_chip_has_no_bf16() -> None:
    turing = replace(a_network(Conv2d=53, Linear=1), capability=(7, 5), device_name="Tesla T4")
    pairs = [one.settings for one in order_levers(LEVERS, turing, {}) if one.together]
    assert pairs == [{"fp16": "autocast", "channels_last": "on"}]


@pytest.mark.parametrize(
    "one",
    [
        a_network(Conv2d=1, Linear=48),  # a vision transformer's patches
        a_network(Linear=3),
        replace(a_network(Conv2d=53, Linear=1), device="cpu"),
    ],
)
def test_other_models_try_levers_one_by_one(one: Workload) -> None:
    assert not any(candidate.together for candidate in order_levers(LEVERS, one, {}))


def test_memory_is_saved_by_levers_one_by_one() -> None:
    convolutional = a_network(Conv2d=53, Linear=1)
    for_memory = order_levers(LEVERS, convolutional, {}, objective="memory")
    assert not any(candidate.together for candidate in for_memory)


def test_dear_values_and_second_values_wait_for_what_promises_more() -> None:
    names = values_in_order(on_gpu(), {})
    assert names.index("compile=reduce-overhead") < names.index("compile=default")
    assert names.index("fused_optimizer=on") < names.index("compile=max-autotune")


def test_for_memory_what_saves_it_goes_first() -> None:
    levers = [
        lever("fast", saves=lambda workload: 0.8),
        lever("small", phases=(), saves_memory=True),
    ]
    for_memory = order_levers(levers, workload(forward=1.0), {}, objective="memory")
    assert [one.lever.name for one in for_memory] == ["small", "fast"]
    assert for_memory[0].promise > for_memory[1].promise > 0.0


@pytest.mark.parametrize(
    ("fields", "options", "reason"),
    [
        ({"applies": lambda w: Decision(False, "not today")}, {}, "not today"),
        ({"changes": "maths"}, {}, "it changes the maths; `--allow x` tries it"),
        ({"phases": (), "saves_memory": True}, {}, "it saves memory and no time"),
        ({"phases": ("transfer",)}, {}, "what it can shorten is 0% of the step"),
        ({"values": lambda w: ()}, {}, "no value of it is worth a trial here"),
        ({"only_with": lambda w: ("z",)}, {}, "of use together with z only"),
        ({"only_with": lambda w: ("y",)}, {}, ""),
        ({"needless_with": ("y",)}, {}, "y leaves nothing for it to do"),
        ({"needless_with": ("z",)}, {}, ""),
        ({"changes": "maths"}, {"allowed": ("x",)}, ""),
        ({"phases": (), "saves_memory": True}, {"objective": "memory"}, ""),
    ],
)
def test_what_is_not_tried_has_its_reason(
    fields: dict[str, object], options: dict[str, object], reason: str
) -> None:
    (one,) = order_levers([lever("x", **fields)], workload(forward=1.0), {"y": "on"}, **options)  # type: ignore[arg-type]
    assert one.not_tried.startswith(reason)
    assert bool(one.not_tried) == bool(reason)


def test_final_losses_are_equivalent_only_within_the_margin_said_before() -> None:
    seeds, baseline = (0, 1, 2, 3), [1.00, 1.02, 0.99, 1.01]
    near = conclude(500, seeds, baseline, [x + 0.001 * (-1) ** i for i, x in enumerate(baseline)])
    far = conclude(500, seeds, baseline, [x + 0.1 for x in baseline])
    vague = conclude(500, seeds, baseline, [0.8, 1.3, 0.7, 1.2])
    assert near.equivalent
    assert not far.equivalent
    assert not vague.equivalent  # the mean is right, but nothing is shown
    assert "final losses are equivalent" in render_proof(near)
    assert "NOT shown to be equivalent" in render_proof(vague)


def test_a_sweep_is_a_line_a_batch_size() -> None:
    points = [
        SweepPoint(1, 8.0, "ok", "", 1234.5, 2 << 30, 310.0, 0.25),
        SweepPoint(2, None, "oom", "no memory", None, None, None, None),
    ]
    first, second = map(render_sweep_point, points)
    assert first.split() == ["x1", "8", "1,234", "2.00", "GiB", "310", "W", "0.25", "ok"]
    assert second.split() == ["x2", "oom:", "no", "memory"]
    assert "x1 (8 samples a step) is the fastest" in render_sweep_end(points)


def test_a_sweep_names_the_fastest_batch_and_says_that_it_is_another_training() -> None:
    rates = {1: 100.0, 2: 180.0, 4: 170.0}
    points = [SweepPoint(n, 8.0 * n, "ok", "", r, None, None, None) for n, r in rates.items()]
    text = " ".join(render_sweep_end(points).split())
    assert "x2 (16 samples a step) is the fastest" in text
    assert "another batch is another training: its learning rate is to be chosen anew" in text
    # Steps a second say nothing of batches of another size.
    unknown = [replace(point, samples_per_step=None) for point in points]
    assert render_sweep_end(unknown) == ""


@pytest.mark.parametrize("state", ["cut short", "hung", "no effect"])
def test_a_batch_size_that_was_not_measured_to_the_end_has_no_figures(state: str) -> None:
    trial = World({}).make({"batch_size": "x2"}, 0, 32, 12, 60.0)
    if state == "no effect":
        trial = replace(trial, done={})
    else:
        trial = replace(trial, state=state, mean_w=310.0, energy_per_sample_j=0.2)  # type: ignore[arg-type]
    point = point_of(2, trial)
    assert point.state == state
    figures = (point.samples_per_step, point.samples_per_s, point.memory_bytes)
    assert (*figures, point.mean_w, point.energy_per_sample_j) == (None,) * 5


def test_another_value_of_what_is_kept_waits_for_what_is_not() -> None:
    """Its gain is there already; a larger batch may gain as much again."""
    facts = {"kinds": {"Linear": 4}, "dtypes": ["float32"]}
    workload = Workload(
        device="cuda",
        capability=(9, 0),
        loaders=(LOADER,),
        models=(Seen(None, facts),),
        optimizers=(Seen(None, {"kind": "AdamW", "fused": None, "foreach": None}),),
        phases_s={"forward": 0.3, "backward": 0.6, "optimizer": 0.1},
    )
    kept = {"bf16": "autocast", "compile": "reduce-overhead", "batch_size": "x2"}
    tried = [
        (one.lever.name, one.value)
        for one in order_levers(LEVERS, workload, kept, ("batch_size",))
        if not one.not_tried
    ]
    in_turn = [("batch_size", "x4"), ("fused_optimizer", "on"), ("compile", "default")]
    assert sorted(in_turn, key=tried.index) == in_turn
    assert "fp16" not in dict(tried)  # bf16 leaves nothing for it to do


@pytest.mark.parametrize(
    ("phases", "first"),
    [
        ({"data": 0.4, "transfer": 0.02, "forward": 0.03, "backward": 0.06}, "workers"),
        ({"data": 0.0, "transfer": 0.017, "forward": 0.015, "backward": 0.024}, "uint8_images"),
    ],
)
def test_what_batches_wait_for_decides_which_of_their_levers_comes_first(
    phases: dict[str, float], first: str
) -> None:
    """The loader where they are awaited, their bytes where they are only copied."""
    loader = {"num_workers": 0, "has_torchvision": True, "is_iterable": False, "pin_memory": False}
    model = {
        "kinds": {"Conv2d": 53},
        "dtypes": ["float32"],
        "inputs": [[[128, 3, 224, 224], "float32", "cuda"]],
    }
    workload = Workload(
        device="cuda",
        capability=(9, 0),
        n_cpus=16,
        loaders=(Seen(None, loader),),
        models=(Seen(None, model),),
        phases_s=phases,
    )
    kept = {"bf16": "autocast", "channels_last": "on"}
    tried = [one for one in order_levers(LEVERS, workload, kept) if one.lever.name not in kept]
    assert tried[0].lever.name == first


def test_larger_batches_are_tried_up_to_the_one_that_gains_no_more() -> None:
    def tried(kept: dict[str, str]) -> list[str]:
        candidates = order_levers(LEVERS, workload(forward=1.0), kept, ("batch_size",))
        return [c.value for c in candidates if c.lever.name == "batch_size" and not c.not_tried]

    assert tried({}) == ["x2", "x4", "x8"]
    assert tried({"batch_size": "x8"}) == ["x16", "x32", "x64"]
    assert tried({"batch_size": "x4096"}) == []
