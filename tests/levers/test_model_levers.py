"""The levers on models and optimizers: what each does in a real process, and when it applies."""

from __future__ import annotations

import copy
import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from running import run_hotlap

from hotlap.levers import (
    LEVERS,
    attention,
    bf16,
    channels_last,
    checkpointing,
    compile,
    cudnn_benchmark,
    ddp,
    foreach_optimizer,
    four_channels,
    fp8,
    fp16,
    fused_optimizer,
    longest_input,
    pure_bf16,
)
from hotlap.levers.common.inside import Orders
from hotlap.levers.common.lever import Lever
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Seen, Site, Workload

HERE = Path(__file__).parent
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
"""On some virtual machines AMX is advertised and kills the process."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the probe saw, case by case."""
    env = {"HOTLAP_INSTALL": "probe_model_levers", "PYTHONPATH": str(HERE), **WITHOUT_AMX}
    folder = tmp_path_factory.mktemp("probe")
    result = run_hotlap("probe_model_levers.py", folder=folder, cwd=HERE, env=env)
    assert result.code == 0, result.stderr.decode()
    return result.truth


def far(found: dict[str, Any], baseline: dict[str, Any], what: str) -> float:
    """The largest relative distance of a list of figures from the baseline's."""
    pairs = zip(found[what], baseline[what], strict=True)
    return max(abs(a - b) / abs(b) for a, b in pairs)


@pytest.mark.parametrize("lever", [bf16, fp16])
def test_half_precision_rounds_and_gives_fp32_back(seen: dict[str, Any], lever: Any) -> None:
    found, plain = seen[lever.LEVER.name], seen["plain"]
    assert list(found["done"]) == [lever.LEVER.name]
    assert 0 < far(found, plain, "losses") < lever.LEVER.bound
    assert (found["dtype"], found["validation"]) == ("torch.float32", "torch.float32")


@pytest.mark.parametrize("name", ["pure_bf16", "pure bf16 in ddp"])
def test_pure_bf16_keeps_nothing_in_fp32_but_the_loss(seen: dict[str, Any], name: str) -> None:
    found, plain = seen[name], seen["plain" if name == "pure_bf16" else "plain in ddp"]
    assert list(found["done"]) == ["pure_bf16"]
    assert (found["kept in"], found["gradients in"]) == (["torch.bfloat16"], ["torch.bfloat16"])
    assert (plain["kept in"], plain["gradients in"]) == (["torch.float32"], ["torch.float32"])
    assert found["dtype"] == "torch.float32"
    assert 0 < far(found, plain, "losses") < 0.05


def test_pure_bf16_casts_validation_and_is_undone(seen: dict[str, Any]) -> None:
    found = seen["pure_bf16"]
    assert (found["validation"], found["after"]["dtype"]) == ("torch.float32", "torch.float32")


def test_fp16_leaves_gathered_and_clipped_gradients_unscaled(seen: dict[str, Any]) -> None:
    assert far(seen["fp16"], seen["plain"], "norms") < 2e-2


def test_fp16_skips_an_update_that_overflowed_and_is_undone(seen: dict[str, Any]) -> None:
    assert seen["overflow"]["changed"] == [False, True, True]
    assert seen["overflow"]["restored"] == [True, True]


def test_channels_last_moves_strides_and_puts_them_back(seen: dict[str, Any]) -> None:
    found = seen["channels_last"]
    assert found["done"]["channels_last"].startswith("3 convolutions")
    assert found["strides"] == [27, 1, 9, 3]
    assert found["after"]["strides"] == [27, 9, 3, 1]


def test_channels_last_comes_before_the_buckets_of_ddp(seen: dict[str, Any]) -> None:
    found, plain = seen["channels last in ddp"], seen["plain in ddp"]
    assert found["done"]
    assert found["strides"] == [27, 1, 9, 3]
    assert far(found, plain, "norms") < 1e-4
    assert far(found, plain, "losses") < 1e-5


def test_checkpointing_changes_nothing(seen: dict[str, Any]) -> None:
    found, plain = seen["checkpointing"], seen["plain"]
    assert found["done"]["checkpointing"].startswith("2 blocks")
    for what in ("losses", "norms", "statistics"):
        assert found[what] == plain[what]


@pytest.mark.parametrize("name", ["checkpointing", "four_channels"])
def test_swapped_classes_stay_out_of_copies_and_go_back(seen: dict[str, Any], name: str) -> None:
    found = seen[name]
    assert found["done"]
    assert found["kinds"] != found["after"]["kinds"]
    assert found["copied"] == found["after"]["kinds"]
    assert far(found, seen["plain"], "losses") < 1e-5


@pytest.mark.parametrize("argument", ["fused", "foreach"])
def test_optimizers_are_made_with_the_argument(seen: dict[str, Any], argument: str) -> None:
    found = seen[f"{argument}_optimizer"]
    assert found[argument] is True
    assert found["done"] == {f"{argument}_optimizer": f"AdamW is made with {argument}=True"}
    assert far(found, seen["plain"], "losses") < 1e-5


@pytest.mark.parametrize("name", ["fp8", "longest_input"])
def test_levers_for_gpus_say_nothing_on_a_cpu(seen: dict[str, Any], name: str) -> None:
    assert (seen[name]["done"], seen[name]["failed"]) == ({}, {})
    assert seen[name]["losses"] == seen["plain"]["losses"]


def test_attention_and_cudnn_flags_are_set_and_restored(seen: dict[str, Any]) -> None:
    found = seen["attention"]
    assert found["order"][0] == 3  # SDPBackend.CUDNN_ATTENTION
    assert found["benchmark"] is True
    assert list(found["done"]) == ["attention"]  # no convolution on a GPU was met
    assert found["restored"]


@pytest.mark.parametrize(
    ("value", "fact", "wanted"),
    [
        ("bucket_view", "view", True),
        ("static_graph", "static", True),
        ("bucket_50mb", "bucket_bytes", 50 * 2**20),
    ],
)
def test_ddp_gets_its_argument(seen: dict[str, Any], value: str, fact: str, wanted: Any) -> None:
    found = seen[value]
    assert found[fact] == wanted
    assert list(found["done"]) == ["ddp"]
    assert found["kept"] == [False, False]  # the script's own choice
    assert found["losses"] == seen["plain"]["losses"]
    assert found["restored"]


def test_compile_makes_one_graph_of_a_sequential(seen: dict[str, Any]) -> None:
    found = seen["compile"]
    assert (found["is_compiled"], found["n_graphs"], found["restored"]) == (True, 1, True)
    assert found["done"] == {"compile": "Sequential is compiled, mode 'default'"}
    assert found["result"][0] == pytest.approx(seen["eager"]["result"][0], rel=1e-5)
    assert seen["graphs of sequential"]["unique_graphs"] == 1
    assert seen["graphs of ddp"]["unique_graphs"] == 1


def test_compile_leaves_a_compiled_model_alone(seen: dict[str, Any]) -> None:
    found = seen["compiled by the script"]
    assert found["is_left_alone"]
    assert found["done"] == {}


def test_fp8_rounds_by_a_few_percent(seen: dict[str, Any]) -> None:
    found = seen["fp8 product"]
    assert "missing" not in found
    assert all(0 < distance < 0.1 for distance in found["alone"])
    assert found["compiled"] == pytest.approx(found["alone"], rel=1e-3)


@pytest.mark.parametrize("name", ["gpt2 in bf16", "gpt2 in pure bf16"])
def test_outputs_of_transformers_keep_their_type(seen: dict[str, Any], name: str) -> None:
    plain, found = seen["gpt2"], seen[name]
    assert (found["kind"], found["keys"], found["dtype"]) == (
        plain["kind"],
        plain["keys"],
        "torch.float32",
    )
    assert found["loss"] != plain["loss"]
    assert found["loss"] == pytest.approx(plain["loss"], rel=2e-2)


def test_transformers_are_checkpointed_by_their_own_switch(seen: dict[str, Any]) -> None:
    plain, found = seen["gpt2"], seen["gpt2 checkpointed"]
    assert (found["switch"], found["restored"]) == (True, True)
    assert (found["loss"], found["gradient"]) == (plain["loss"], plain["gradient"])


def test_no_case_failed(seen: dict[str, Any]) -> None:
    assert {case: found["failed"] for case, found in seen.items() if found.get("failed")} == {}


def test_half_precision_results_of_any_shape_become_fp32() -> None:
    import torch

    from hotlap.levers.common.autocast import to_fp32

    @dataclasses.dataclass(frozen=True)
    class Result:
        logits: Any
        name: str

    half, whole = torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.int64)
    changed = to_fp32(torch, {"a": [half, (whole, None)], "b": Result(half, "x")})
    assert changed["a"][0].dtype == torch.float32
    assert changed["a"][1] == (whole, None)
    assert isinstance(changed["b"], Result)
    assert changed["b"].logits.dtype == torch.float32
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize("kind", ["generator", "values", "ParameterList"])
def test_parameters_that_are_no_list_are_kept_for_torch(kind: str, is_grouped: bool) -> None:
    import torch

    from hotlap.levers.common.optimizers import all_tensors, keep_parameters

    model = torch.nn.Linear(2, 2)
    params: Any = {
        "generator": model.parameters(),
        "values": dict(model.named_parameters()).values(),
        "ParameterList": torch.nn.ParameterList(model.parameters()),
    }[kind]
    arguments = {
        "params": [{"params": params}] if is_grouped else params,
        "fused": None,
        "foreach": None,
    }
    keep_parameters(arguments)
    assert len(all_tensors(arguments)) == 2
    assert len(torch.optim.SGD(arguments["params"], lr=0.1).param_groups[0]["params"]) == 2


MODEL_SITE, OPTIMIZER_SITE, BACKWARD_SITE = Site("a.py", 9), Site("a.py", 5), Site("a.py", 11)


def workload(model: dict[str, Any] | None = None, **facts: Any) -> Workload:
    """A network on an H100, unless said otherwise."""
    kinds = {"Conv2d": 3, "Linear": 4, "Block": 2, "ModuleList": 1, "MultiheadAttention": 2}
    seen_model = {
        "kind": "Net",
        "kinds": kinds,
        "dtypes": ["float32"],
        "inputs": [[[8, 3, 32, 32], "float32", "cuda"]],
        "takes_tensor_first": True,
    }
    seen_model |= {"n_parameters": 10**7, "is_ddp": True, "blocks": ["Block"]} | (model or {})
    base = Workload(
        device="cuda",
        device_name="NVIDIA H100",
        capability=(9, 0),
        torch="2.13.0",
        world_size=2,
        models=(Seen(MODEL_SITE, seen_model),),
        optimizers=(Seen(OPTIMIZER_SITE, {"kind": "AdamW", "fused": None, "foreach": None}),),
        backwards=(Seen(BACKWARD_SITE, {}),),
        loaders=(Seen(None, {"has_collate": True}),),
    )
    return dataclasses.replace(base, **facts)


OLD = {"capability": (6, 1), "device_name": "NVIDIA P100"}
ON_CPU = {"device": "cpu", "capability": None}
FUSED = (Seen(OPTIMIZER_SITE, {"kind": "AdamW", "fused": False, "foreach": None}),)


@pytest.mark.parametrize(
    ("lever", "model", "facts", "reason"),
    [
        (bf16, {}, {}, ""),
        (bf16, {}, {**ON_CPU, "cpu_flags": frozenset({"avx512_bf16"})}, ""),
        (bf16, {}, ON_CPU, "no bf16 instructions"),
        (bf16, {}, OLD, "P100 has no bf16"),
        (bf16, {"in_autocast": True}, {}, "autocast already"),
        (bf16, {"dtypes": ["bfloat16"]}, {}, "not in fp32"),
        (bf16, {}, {"models": ()}, "no model"),
        (pure_bf16, {}, {}, ""),
        (pure_bf16, {}, OLD, "P100 has no bf16"),
        (pure_bf16, {"in_autocast": True}, {}, "autocast already"),
        (fp16, {}, {}, ""),
        (fp16, {}, ON_CPU, "for GPUs"),
        (fp16, {}, OLD, "no tensor cores"),
        (fp16, {}, {"uses_scaler": True}, "GradScaler"),
        (fp16, {}, {"optimizers": ()}, "no optimizer"),
        (fp16, {}, {"optimizers": (Seen(None, {"kind": "LBFGS"}),)}, "LBFGS"),
        (channels_last, {}, {}, ""),
        (channels_last, {"is_channels_last": True}, {}, "already"),
        (channels_last, {"kinds": {"Linear": 2}}, {}, "no two-dimensional"),
        (four_channels, {}, {}, ""),
        (four_channels, {}, ON_CPU, "not on a GPU"),
        (four_channels, {"inputs": [[[8, 1, 4, 4], "float32", "cuda"]]}, {}, "three channels"),
        (cudnn_benchmark, {}, {}, ""),
        (cudnn_benchmark, {}, ON_CPU, "not on one"),
        (cudnn_benchmark, {}, {"flags": {"cudnn_benchmark": True}}, "itself"),
        (cudnn_benchmark, {}, {"flags": {"cudnn_deterministic": True}}, "deterministic"),
        (cudnn_benchmark, {"kinds": {"Linear": 2}}, {}, "no convolutions"),
        (attention, {}, {}, ""),
        (attention, {}, ON_CPU, "NVIDIA GPUs only"),
        (attention, {}, {"torch": "2.4.1"}, "2.6"),
        (attention, {"kinds": {"Linear": 2}}, {}, "attention"),
        (fp8, {"linears": [[1024, 4096]]}, {}, ""),
        (fp8, {}, ON_CPU, "NVIDIA GPU"),
        (fp8, {}, {"capability": (8, 0), "device_name": "NVIDIA A100"}, "A100 has no fp8"),
        (fp8, {"linears": [[768, 3072]]}, {}, "1,024 features"),
        (checkpointing, {}, {}, ""),
        (checkpointing, {"blocks": []}, {}, "no repeated blocks"),
        (checkpointing, {"blocks": [], "has_checkpointing_switch": True}, {}, ""),
        (compile, {}, {}, ""),
        (compile, {"is_compiled": True}, {}, "already"),
        (ddp, {}, {}, ""),
        (ddp, {"is_ddp": False}, {}, "not in DistributedDataParallel"),
        (ddp, {}, {"world_size": 1}, "one process"),
        (fused_optimizer, {}, {}, ""),
        (fused_optimizer, {}, {"optimizers": FUSED}, "itself"),
        (fused_optimizer, {}, {"optimizers": (Seen(None, {"kind": "RMSprop"}),)}, "can be fused"),
        (foreach_optimizer, {}, ON_CPU, ""),
        (foreach_optimizer, {}, {}, "default on a GPU"),
        (foreach_optimizer, {}, {**ON_CPU, "optimizers": FUSED}, "itself"),
        (longest_input, {"kinds": {"Embedding": 1}}, {}, ""),
        (longest_input, {}, ON_CPU, "not on a GPU"),
        (longest_input, {"kinds": {"Embedding": 1}}, {"loaders": ()}, "default"),
    ],
)
def test_when_a_lever_applies(
    lever: Any, model: dict[str, Any], facts: dict[str, Any], reason: str
) -> None:
    decision = lever.LEVER.applies(workload(model, **facts))
    assert decision.yes == (not reason)
    assert reason in decision.reason


def test_compile_needs_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_cpu = workload(**ON_CPU)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "none is found (g++" in compile.LEVER.applies(on_cpu).reason
    found = tmp_path / "clang++"
    found.touch(mode=0o755)
    assert compile.LEVER.applies(on_cpu).yes
    assert compile.LEVER.environment("default", on_cpu) == {"CXX": "clang++"}


OURS = (
    *(bf16, fp16, cudnn_benchmark, attention, channels_last, four_channels, fp8, checkpointing),
    *(compile, ddp, fused_optimizer, foreach_optimizer, longest_input, pure_bf16),
)


@pytest.mark.parametrize("lever", [one.LEVER for one in OURS], ids=lambda one: one.name)
def test_every_value_has_an_edit(lever: Lever) -> None:
    for facts in ({}, ON_CPU):
        one = workload(**facts)
        for value in lever.values(one):
            edits = lever.edit(value, one)
            assert edits
            assert all(edit.text for edit in edits)


@pytest.mark.parametrize("lever", [one.LEVER for one in OURS], ids=lambda one: one.name)
def test_where_nothing_was_seen_no_edit_names_a_line(lever: Lever) -> None:
    for value in lever.values(Workload()):
        assert all(edit.site is None for edit in lever.edit(value, Workload()))


def test_edits_name_the_lines_of_the_script() -> None:
    (block,) = bf16.LEVER.edit("autocast", workload())
    assert (block.site, block.other_site) == (MODEL_SITE, BACKWARD_SITE)
    (before,) = compile.LEVER.edit("reduce-overhead", workload())
    assert (before.site, before.other_site) == (OPTIMIZER_SITE, MODEL_SITE)
    assert before.text == '{model}.compile(mode="reduce-overhead")'
    of_torch = {"kind": "Sequential", "forward_is_torchs": True}
    _, before = compile.LEVER.edit("default", workload(of_torch))
    assert before.text == 'compile_in_place({model}, mode="default")'
    _, before = compile.LEVER.edit(
        "default", workload({**of_torch, "kind": "DistributedDataParallel"})
    )
    assert before.text == 'compile_in_place({model}.module, mode="default")'
    (arguments,) = fused_optimizer.LEVER.edit("on", workload())
    assert (arguments.text, arguments.arguments) == ("AdamW", (("fused", "True"),))


def test_an_edit_does_not_reorder_weights_behind_the_back_of_ddp() -> None:
    made = Site("train.py", 5)
    in_ddp = workload({"is_ddp": True}, ddps=(Seen(made, {}),))
    reorder, _ = channels_last.LEVER.edit("on", in_ddp)
    assert (reorder.site, reorder.called) == (made, "DistributedDataParallel")
    reorder, _ = channels_last.LEVER.edit("on", workload({"is_ddp": True}))
    assert reorder.site is None  # a library of the user's makes it
    reorder, _ = channels_last.LEVER.edit("on", workload({"is_ddp": False}))
    assert reorder.site == OPTIMIZER_SITE


@pytest.mark.parametrize("result", ["Tensor", "tuple", "CausalLMOutput", None])
def test_pure_bf16_has_an_edit_only_where_it_knows_what_comes_out(result: str | None) -> None:
    results = (Seen(None, {"kind": result}),) if result else ()
    edits = pure_bf16.LEVER.edit("on", workload({"is_ddp": False}, results=results))
    if result in ("Tensor", "tuple"):
        functions, cast = edits
        assert (functions.kind, functions.site) == ("import", OPTIMIZER_SITE)
        assert (cast.site, cast.text) == (OPTIMIZER_SITE, "in_bf16({model})")
    else:
        cast, words = edits
        assert (cast.site, cast.text) == (OPTIMIZER_SITE, "{model}.to(torch.bfloat16)")
        assert (words.site, words.kind) == (MODEL_SITE, "told")


@pytest.mark.parametrize(
    ("inputs", "is_first", "kind"),
    [
        ([[[8, 3, 32, 32], "float32", "cuda"]], True, "call"),
        ([[[8, 3, 32, 32], "bfloat16", "cuda"], [[8], "int64", "cuda"]], True, "call"),
        ([[[8, 3, 32, 32], "uint8", "cuda"]], True, "told"),
        ([[[8, 3], "float32", "cuda"]], True, "told"),
        ([[[8, 3, 32, 32], "float32", "cuda"]], False, "told"),  # behind a dict or a list
        ([], False, "told"),
    ],
)
def test_channels_last_edits_a_call_only_where_images_go_in(
    inputs: list[Any], is_first: bool, kind: str
) -> None:
    facts = {"inputs": inputs, "takes_tensor_first": is_first, "is_ddp": False}
    _, call = channels_last.LEVER.edit("on", workload(facts))
    assert (call.kind, call.site) == (kind, MODEL_SITE)


@pytest.mark.parametrize(("before", "is_first"), [((), True), (({"scale": 2},), False)])
def test_a_model_tells_whether_a_tensor_is_the_first_that_it_takes(
    before: tuple[Any, ...], is_first: bool
) -> None:
    import torch

    events: list[dict[str, Any]] = []
    process = Process(torch, SimpleNamespace(), lambda **event: events.append(event))
    process._meet_model(torch.nn.Linear(2, 2), (*before, torch.ones(3, 2)), {})
    (facts,) = [event["facts"] for event in events if event.get("seen") == "model"]
    assert facts["inputs"] == [[[3, 2], "float32", "cpu"]]
    assert facts["takes_tensor_first"] is is_first


def test_the_edit_of_fp8_is_for_the_layers_of_the_lever() -> None:
    from torch import nn

    model = nn.Sequential(
        nn.Linear(1024, 1040, device="meta"),
        nn.Linear(1040, 1032, device="meta"),
        nn.Linear(1032, 512, device="meta"),
        nn.modules.linear.NonDynamicallyQuantizableLinear(1024, 1024, device="meta"),
        nn.Linear(1024, 1024, device="meta"),
    )
    (edit,) = fp8.LEVER.edit("per-tensor", workload())
    converted: list[str] = []

    def convert(model: Any, module_filter_fn: Any) -> None:
        """As torchao does it."""
        converted.extend(
            name
            for name, part in model.named_modules()
            if isinstance(part, nn.Linear) and module_filter_fn(part, name)
        )

    _, *lines = edit.text.replace("{model}", "model").splitlines()
    names = {"model": model, "convert_to_float8_training": convert, "torch": sys.modules["torch"]}
    exec("\n".join(lines), names)
    assert converted == ["0"]


PROBABILITIES = (Seen(BACKWARD_SITE, {"of_probabilities": True}),)


@pytest.mark.parametrize(("lever", "dtype"), [(bf16, "bfloat16"), (fp16, "float16")])
def test_a_loss_that_autocast_refuses_is_not_put_into_it(lever: Any, dtype: str) -> None:
    edits = lever.LEVER.edit("autocast", workload(backwards=PROBABILITIES))
    assert not any(edit.kind == "block" for edit in edits)
    head = f'with torch.autocast("cuda", dtype=torch.{dtype}): around the model\'s call alone'
    assert any(edit.kind == "told" and head in edit.text for edit in edits)
    on_cpu = lever.LEVER.edit("autocast", workload(backwards=PROBABILITIES, **ON_CPU))
    assert any(edit.kind == "block" for edit in on_cpu)


def test_a_binary_cross_entropy_of_probabilities_is_told_from_one_of_logits() -> None:
    import torch
    from torch.nn import functional as F

    from hotlap.levers.common.losses import is_of_probabilities

    logits, labels = torch.randn(4, requires_grad=True), torch.ones(4)
    assert is_of_probabilities(F.binary_cross_entropy(logits.sigmoid(), labels) / 2 + 1)
    assert not is_of_probabilities(F.binary_cross_entropy_with_logits(logits, labels))


def test_an_edit_casts_before_ddp_makes_its_buckets() -> None:
    made = Site("train.py", 5)
    cast, _ = pure_bf16.LEVER.edit("on", workload(ddps=(Seen(made, {}),)))
    assert (cast.site, cast.called) == (made, "DistributedDataParallel")
    results = (Seen(None, {"kind": "Tensor"}),)
    functions, cast = pure_bf16.LEVER.edit("on", workload(ddps=(Seen(made, {}),), results=results))
    assert (functions.site, cast.text) == (made, "{function}(in_bf16({first}){rest})")


def test_compile_comes_after_what_it_compiles() -> None:
    names = [lever.name for lever in LEVERS]
    for name in ("pure_bf16", "channels_last", "four_channels", "fp8", "checkpointing"):
        assert names.index(name) < names.index("compile")


@pytest.mark.parametrize("lever", [one.LEVER for one in OURS], ids=lambda one: one.name)
def test_values_reach_the_training_process_as_they_are(
    lever: Lever, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in lever.values(workload()):
        monkeypatch.setenv(
            Orders.VARIABLE, Orders({lever.name: value}).to_environment()[Orders.VARIABLE]
        )
        assert Orders.from_environment().levers == {lever.name: value}


def test_weights_that_lie_in_both_orders_are_channels_last_only_if_they_were_put_so() -> None:
    import torch
    from torch import nn

    from hotlap.levers.common.process import is_channels_last

    def weights(*convolutions: nn.Module, last: bool) -> list[Any]:
        model = nn.Sequential(*convolutions)
        if last:
            model.to(memory_format=torch.channels_last)
        return [one for one in model.parameters() if one.dim() == 4]

    depthwise, pointwise = nn.Conv2d(8, 8, 7, groups=8), nn.Conv2d(8, 16, 1)
    usual = nn.Conv2d(3, 8, 3)
    for some in ((depthwise,), (pointwise,), (depthwise, pointwise), (usual, depthwise, pointwise)):
        assert not is_channels_last(torch, weights(*some, last=False))
    for some in ((depthwise,), (pointwise,), (depthwise, pointwise), (usual, depthwise, pointwise)):
        assert is_channels_last(torch, weights(*some, last=True))
    # One that was made so by hand, beside those that nothing had to be done for.
    usual.weight.data = usual.weight.data.contiguous(memory_format=torch.channels_last)
    others = weights(nn.Conv2d(8, 8, 7, groups=8), nn.Conv2d(8, 16, 1), last=False)
    assert is_channels_last(torch, [usual.weight, *others])


def test_fp8_asks_nothing_of_cuda_for_a_model_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: asked.append("is it there?"))
    process = Process(torch, SimpleNamespace(), lambda **event: None)
    process.apply(fp8.LEVER, "per-tensor")
    asked.clear()
    process._meet_model(torch.nn.Sequential(torch.nn.Linear(4, 4)), (torch.ones(1, 4),), {})
    process.undo()
    assert asked == []


def test_weights_that_lie_in_both_orders_are_channels_last_by_their_strides() -> None:
    """As `model.to(memory_format=…)`, the lever's edit, makes them."""
    import torch

    events: list[dict[str, Any]] = []
    session = SimpleNamespace(around_call=None)
    process = Process(torch, session, lambda **event: events.append(event))
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, groups=8), torch.nn.Conv2d(8, 4, 1))
    images, before = torch.randn(2, 8, 6, 6), [one.stride() for one in model.parameters()]
    process.apply(channels_last.LEVER, "on")
    process._meet_model(model, (images,), {})
    after = [one.stride() for one in model.parameters()]
    assert session.around_call(model, (images,), {}).is_contiguous(
        memory_format=torch.channels_last
    )
    process.undo()
    assert [one.stride() for one in model.parameters()] == before != after
    assert [event["what"] for event in events if "done" in event] == [
        "2 convolutions of Sequential are channels last"
    ]
    model.to(memory_format=torch.channels_last)
    assert [one.stride() for one in model.parameters()] == after


def test_channels_last_does_not_compute_a_weight_that_is_computed_from_others() -> None:
    """A spectral norm goes on by one iteration whenever its weight is asked for."""
    import torch
    from torch.nn.utils.parametrizations import spectral_norm

    model = torch.nn.Sequential(spectral_norm(torch.nn.Conv2d(8, 4, 3)), torch.nn.Conv2d(4, 8, 3))
    before = {name: one.clone() for name, one in model.state_dict().items()}
    (reordered,) = channels_last._reorder_weights(torch, model)
    assert reordered is model[1].weight
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def trained_further(when: str, lever: bool) -> list[Any]:
    """Weights after some steps from a checkpoint that is loaded before or within the training."""
    import torch

    def training(n_steps: int) -> None:
        for _ in range(n_steps):
            optimizer.zero_grad(set_to_none=False)
            model(images).square().mean().backward()
            optimizer.step()

    torch.manual_seed(0)
    process = Process(torch, SimpleNamespace(around_call=None), lambda **event: None)
    images = torch.randn(4, 8, 6, 6)
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 4, 3), torch.nn.Conv2d(4, 2, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    training(3)
    checkpoint = copy.deepcopy(optimizer.state_dict())
    if lever:
        process.apply(channels_last.LEVER, "on")
        process._meet_model(model, (images,), {})
    if when == "within":
        training(2)
    optimizer.load_state_dict(checkpoint)
    training(5)
    weights = [one.detach().clone() for one in model.parameters()]
    process.undo()
    return weights


@pytest.mark.parametrize("when", ["before", "within"])
def test_states_of_a_checkpoint_follow_weights_that_are_channels_last(when: str) -> None:
    """Fused kernels go through the memory of both alike."""
    import torch

    expected, result = trained_further(when, lever=False), trained_further(when, lever=True)
    assert all(map(torch.allclose, expected, result))
    assert any(one.stride() != other.stride() for one, other in zip(expected, result, strict=True))


@pytest.mark.parametrize("is_parameter", [True, False])
def test_pure_bf16_leaves_complex_numbers_whole(is_parameter: bool) -> None:
    import torch

    events: list[dict[str, Any]] = []
    session = SimpleNamespace(around_call=None)
    process = Process(torch, session, lambda **event: events.append(event))
    model, phase = torch.nn.Linear(4, 4), torch.full((4,), 1 + 2j)
    if is_parameter:
        model.phase = torch.nn.Parameter(phase)
    else:
        model.register_buffer("phase", phase)
    process.apply(pure_bf16.LEVER, "on")
    process._meet_model(model, (torch.ones(1, 4),), {})
    process.undo()
    assert (model.weight.dtype, model.phase.dtype) == (torch.float32, torch.complex64)
    assert ["complex" in event["why"] for event in events if "failed" in event] == [True]


def test_pure_bf16_says_in_plain_words_that_torch_func_lets_no_weights_be_cast() -> None:
    import torch

    events: list[dict[str, Any]] = []
    session = SimpleNamespace(around_call=None)
    process = Process(torch, session, lambda **event: events.append(event))
    model = torch.nn.Linear(4, 1)

    def called(x: Any) -> Any:
        process._meet_model(model, (x,), {})
        return x.sum()

    process.apply(pure_bf16.LEVER, "on")
    torch.func.vmap(called)(torch.ones(2, 4))
    process.undo()
    (why,) = [event["why"] for event in events if "failed" in event]
    assert "Linear is first called inside a transform of torch.func" in why
    assert model.weight.dtype == torch.float32


def test_four_channels_takes_images_by_name() -> None:
    import torch

    model, images = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 8, 8)
    expected = model[0](images)
    process = Process(torch, SimpleNamespace(around_call=None), lambda **event: None)
    process.apply(four_channels.LEVER, "on")
    process._meet_model(model, (images,), {})
    assert type(model[0]) is not torch.nn.Conv2d
    result = model[0](input=images)
    process.undo()
    assert torch.allclose(result, expected, atol=1e-5)


def scaling_of(process: Any) -> Any:
    """What the lever fp16 scales gradients by, begun as a model on a GPU begins it."""
    import torch

    process.apply(fp16.LEVER, "autocast")
    cells = torch.autograd.backward.__closure__ or ()
    (found,) = [c.cell_contents for c in cells if isinstance(c.cell_contents, fp16.Scaling)]
    found.begin("cpu")
    return found


def test_fp16_unscales_what_two_optimizers_share_once() -> None:
    import torch

    process = Process(torch, SimpleNamespace(around_call=None), lambda **event: None)
    try:
        scaling_of(process)
        shared, own = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
        optimizers = [torch.optim.SGD(some, lr=0.1) for some in ([shared], [shared, own])]
        for _ in range(2):  # what was gathered before is scaled along, and unscaled again
            (shared.square().sum() + own.sum()).backward()
        assert (shared.grad.tolist(), own.grad.tolist()) == ([4.0] * 3, [2.0] * 3)  # type: ignore[union-attr]
        (shared * 1e38).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        assert shared.tolist() == [1.0] * 3  # both have seen that it overflowed
    finally:
        process.undo()


@pytest.mark.parametrize("in_optimizer", ["nothing", "one layer", "another model"])
def test_fp16_leaves_no_gradient_scaled_that_a_script_may_use(in_optimizer: str) -> None:
    """A script may do its updates itself, or some of them."""
    import torch

    process = Process(torch, SimpleNamespace(around_call=None), lambda **event: None)
    try:
        scaling_of(process)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        held = {"one layer": model[1], "another model": torch.nn.Linear(1, 1)}.get(in_optimizer)
        optimizer = held and torch.optim.SGD(held.parameters(), lr=0.1)
        process._meet_model(model, (torch.ones(4, 3),), {})
        expected = torch.autograd.grad(model(torch.ones(4, 3)).sum(), list(model.parameters()))
        for _ in range(2):
            model(torch.ones(4, 3)).sum().backward()
        found = [one.grad for one in model.parameters()]
        assert all(torch.equal(2 * one, other) for one, other in zip(expected, found, strict=True))  # type: ignore[arg-type]
        del optimizer
    finally:
        process.undo()


def test_fp16_scales_sparse_gradients() -> None:
    import torch

    process = Process(torch, SimpleNamespace(around_call=None), lambda **event: None)
    try:
        scaling_of(process)
        words = torch.nn.Embedding(5, 2, sparse=True)
        optimizer = torch.optim.SparseAdam(words.parameters())
        words(torch.tensor([1, 1, 3])).sum().backward()
        gradient = words.weight.grad
        assert gradient.to_dense().sum(1).tolist() == [0.0, 4.0, 0.0, 2.0, 0.0]  # type: ignore[union-attr]
        before = words.weight.detach().clone()
        optimizer.step()
        assert (words.weight != before).any(1).tolist() == [False, True, False, True, False]
    finally:
        process.undo()


def test_a_compiled_model_that_is_let_go_is_freed() -> None:
    import gc
    import weakref

    import torch

    process = Process(torch, SimpleNamespace(around_call=None), lambda **event: None)
    process.apply(compile.LEVER, "reduce-overhead")
    model = torch.nn.Linear(2, 2)
    process._meet_model(model, (torch.ones(1, 2),), {})
    assert model._compiled_call_impl is not None
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    process.undo()


@pytest.mark.parametrize("where", ["utils", "utils.parametrizations"])
def test_a_block_with_a_spectral_norm_is_not_run_twice(where: str) -> None:
    """Each of its forwards moves its vectors on."""
    import importlib

    import torch

    from hotlap.levers.common.blocks import repeated_blocks

    normed = importlib.import_module(f"torch.nn.{where}").spectral_norm
    blocks = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(4)]
    for block in blocks[:2]:
        normed(block[0])
    found = list(repeated_blocks(torch, torch.nn.ModuleList(blocks)))
    assert [any(one is block for one in found) for block in blocks] == [False, False, True, True]


def test_checkpointed_blocks_take_any_names() -> None:
    import torch

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x: Any, block: int = 0, context_fn: Any = None) -> Any:
            return self.layer(x) * block

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

        def forward(self, x: Any) -> Any:
            for i, block in enumerate(self.blocks, start=1):
                x = block(x, block=i, context_fn=None)
            return x

    torch.manual_seed(0)
    model, x = Net(), torch.ones(1, 2)
    expected = model(x)
    process = Process(torch, SimpleNamespace(around_call=None), lambda **event: None)
    process.apply(checkpointing.LEVER, "blocks")
    process._meet_model(model, (x,), {})
    result = model(x)
    result.sum().backward()
    process.undo()
    assert torch.equal(result, expected)
