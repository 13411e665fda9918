"""What the pure functions read out of traces: by hand for a GPU, recorded for the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_trace import (
    GEMM,
    NCCL,
    RELU,
    SGEMM,
    STEP_US,
    DeviceTrace,
    product,
    profile_of,
    training,
)

from hotlap.chronometer.profile.analyse import Left, analyse, memory_slope
from hotlap.chronometer.profile.classes import kernel_class, operator_class, uses_tensor_cores
from hotlap.chronometer.profile.collect import write_bounded
from hotlap.chronometer.profile.communication import find_skew
from hotlap.chronometer.profile.compiler import parse
from hotlap.chronometer.profile.costs import Product
from hotlap.chronometer.profile.products import count_tiles
from hotlap.chronometer.profile.sums import Roof
from hotlap.chronometer.profile.trace import read_items, read_trace
from hotlap.errors import RecordError
from hotlap.records.codec import from_json, to_json
from hotlap.records.profile import RankProfile


def test_time_by_class_is_that_of_the_kernels(tmp_path: Path) -> None:
    rank = profile_of(training(), tmp_path)
    us = {row.name: row.seconds * 1e6 for row in rank.classes}
    assert us == pytest.approx({"matmul": 300, "collective": 200, "elementwise": 98, "copy": 2})
    # The first step of a window on a device is left out: its pipeline was empty.
    assert rank.n_steps == 2


def test_idle_is_split_by_its_cause(tmp_path: Path) -> None:
    idle = profile_of(training(), tmp_path).idle
    assert idle is not None
    assert idle.data_s * 1e6 == pytest.approx(199)
    assert idle.sync_s * 1e6 == pytest.approx(200)
    assert idle.launch_s * 1e6 == pytest.approx(101)
    assert idle.collective_s == 0
    assert idle.total_s * 1e6 == pytest.approx(500)
    assert idle.share == pytest.approx(0.5)


def test_a_wait_of_the_host_for_other_ranks_is_a_cause_of_its_own(tmp_path: Path) -> None:
    trace = training()
    for event in trace.events:
        if event["name"].startswith("enumerate"):
            event["name"] = "gloo:all_reduce"
    idle = profile_of(trace, tmp_path).idle
    assert idle is not None
    assert idle.data_s == 0
    assert idle.collective_s * 1e6 == pytest.approx(199)


def test_communication_is_hidden_behind_the_product_only(tmp_path: Path) -> None:
    talk = profile_of(training(), tmp_path).communication
    assert talk is not None
    assert talk.calls == 1
    assert talk.total_s * 1e6 == pytest.approx(200)
    assert talk.hidden_s * 1e6 == pytest.approx(100)
    assert talk.exposed_s * 1e6 == pytest.approx(100)


def test_tensor_cores_and_types_of_products(tmp_path: Path) -> None:
    rank = profile_of(training(), tmp_path)
    assert rank.tensor_core_share == pytest.approx(200 / 300)
    assert rank.matmul_dtypes == pytest.approx({"bfloat16": 200e-6, "float32": 100e-6})


def test_a_product_of_fp32_on_tensor_cores_is_tf32(tmp_path: Path) -> None:
    trace = training()
    name = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64x32"
    for event in trace.events:
        event["name"] = name if event["name"] == SGEMM else event["name"]
    rank = profile_of(trace, tmp_path)
    assert rank.matmul_dtypes == pytest.approx({"bfloat16": 200e-6, "tf32": 100e-6})


def test_a_wait_is_one_call_with_its_line(tmp_path: Path) -> None:
    known = [row for row in profile_of(training(), tmp_path).syncs if row.site is not None]
    (sync,) = known
    assert sync.call == "aten::item"
    assert sync.site is not None
    assert (sync.site.file, sync.site.line) == ("train.py", 7)


@pytest.mark.parametrize(("in_pieces", "expected"), [(50, 40), (3, 3), (0, 0)])
def test_memory_is_in_pieces_where_tensors_lie_beside_it(in_pieces: int, expected: int) -> None:
    """40 were taken beyond the peak; what is free as a whole can be given back."""
    held = dict.fromkeys(("weights", "buffers", "gradients", "optimizer"), 10)
    account = {**held, "peak": 80, "reserved": 120, "in_pieces": in_pieces}
    left = Left(0, "node", 1, [{"memory": account}], None, None)
    memory = analyse(left, lambda device, dtypes: None, str).profile.memory
    assert memory is not None
    assert (memory.activations, memory.fragmentation) == (40, expected)


def test_wave_quantisation_of_a_big_product(tmp_path: Path) -> None:
    (big, small) = profile_of(training(), tmp_path).matmuls
    assert (big.m, big.n, big.k, big.dtype) == (2048, 1152, 512, "bfloat16")
    assert big.tiles == 16 * 9
    assert big.waves == pytest.approx(144 / 132)
    assert big.wave_efficiency == pytest.approx(144 / 264)  # 1.09 waves take two
    assert big.flops_per_s == pytest.approx(2 * 2048 * 1152 * 512 / 200e-6)
    assert small.wave_efficiency == pytest.approx(8 / 132)


def test_a_class_has_its_share_of_the_roofline(tmp_path: Path) -> None:
    roof = Roof(flops_per_s=1e14, bytes_per_s=1e12, source="a test")
    rank = profile_of(training(), tmp_path, roof)
    matmul = next(row for row in rank.classes if row.name == "matmul")
    flops = 2 * (2048 * 1152 * 512 + 256 * 256 * 64)
    assert matmul.flops == flops
    assert matmul.bound == "compute"
    assert matmul.roofline == pytest.approx(flops / 1e14 / 300e-6)
    assert "percentages of the roofline are against a test" in rank.notes


def test_a_roofline_is_that_of_each_type(tmp_path: Path) -> None:
    roof = Roof(flops_per_s=1e14, bytes_per_s=1e12, source="a test", others={"float32": 1e12})
    rank = profile_of(training(), tmp_path, roof)
    matmul = next(row for row in rank.classes if row.name == "matmul")
    seconds = 2 * 2048 * 1152 * 512 / 1e14 + 2 * 256 * 256 * 64 / 1e12
    assert matmul.roofline == pytest.approx(seconds / 300e-6)


@pytest.mark.parametrize(("update_us", "bytes_per_s"), [(8, 3e11), (12, None)])
def test_rates_are_of_the_time_whose_cost_is_known(
    tmp_path: Path, update_us: float, bytes_per_s: float | None
) -> None:
    """An addition of three megabytes in 10 µs, an update, an input that is only passed on."""
    trace = DeviceTrace()
    known = {"Input Dims": [[250_000], [250_000]], "Input type": ["float", "float"]}
    for step in range(3):
        at = 10_000 + step * STEP_US
        trace.mark(at)
        trace.launch("aten::add", RELU, at + 10, at + 100, 10, **known)
        trace.launch("aten::_fused_sgd_", "multi_tensor_apply", at + 20, at + 200, update_us)
        trace.add("cpu_op", "aten::contiguous", at + 40, 5, **known)
        trace.launch("aten::copy_", "copy_kernel", at + 50, at + 300, 10)
    trace.mark(10_000 + 3 * STEP_US)
    rank = profile_of(trace, tmp_path, Roof(None, 1e12, "a test"))
    rows = {row.name: row for row in rank.classes}
    expected = pytest.approx(bytes_per_s) if bytes_per_s else None
    assert rows["elementwise"].bytes_per_s == expected
    assert rows["elementwise"].bound == rows["copy"].bound == "memory"
    assert rows["copy"].bytes is None


@pytest.mark.parametrize("sparse", [None, 0, 1])
def test_a_product_of_a_sparse_tensor_has_no_flops(tmp_path: Path, sparse: int | None) -> None:
    """A trace tells the shape of one, and not how many numbers it stores."""
    strides = [[] if i == sparse else [64, 1] for i in range(2)]
    trace = DeviceTrace()
    for step in range(3):
        at = 10_000 + step * STEP_US
        trace.mark(at)
        given = {**product(64, 64, 64, "float"), "Input Strides": strides}
        trace.launch("aten::mm", SGEMM, at + 10, at + 100, 10, **given)
    trace.mark(10_000 + 3 * STEP_US)
    rank = profile_of(trace, tmp_path)
    (row,) = rank.classes
    assert row.name == "matmul"
    assert row.flops == (2 * 64**3 if sparse is None else None)
    assert len(rank.matmuls) == (sparse is None)


def test_a_device_without_kernels_in_the_trace_is_told(tmp_path: Path) -> None:
    trace = training()
    trace.events = [
        event for event in trace.events if event["cat"] in ("cpu_op", "user_annotation")
    ]
    rank = profile_of(trace, tmp_path)
    assert rank.idle is None
    assert any("saw no kernel of NVIDIA H200" in note for note in rank.notes)


def test_a_profile_comes_back_from_json_as_it_was(tmp_path: Path) -> None:
    rank = profile_of(training(), tmp_path)
    assert from_json(RankProfile, to_json(rank), "") == rank


@pytest.mark.parametrize(
    ("name", "operator", "kind"),
    [
        (GEMM, "matmul", "matmul"),
        (GEMM, "conv", "conv"),
        (GEMM, "attention", "attention"),
        (NCCL, None, "collective"),
        (RELU, "elementwise", "elementwise"),
        (RELU, "norm", "norm"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNN", None, "matmul"),
        ("void cudnn::cnn::implicit_convolve_sgemm<float, float>", None, "conv"),
        ("void pytorch_flash::flash_fwd_kernel<...>", None, "attention"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel", None, "norm"),
        ("void cudnn::ops::nchwToNhwcKernel<float>", "conv", "copy"),
        ("void cudnn::fusion::convert_dq_to_16bits<true>", "attention", "attention"),
        ("triton_poi_fused_add_relu_0", None, "elementwise"),
        ("triton_tem_fused_mm_1", None, "matmul"),
        ("some_kernel_of_a_user", None, "other"),
    ],
)
def test_kernels_by_name(name: str, operator: str | None, kind: str) -> None:
    assert kernel_class(name, operator) == kind  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", "matmul"),
        ("aten::linear", "matmul"),
        ("aten::convolution_backward", "conv"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::native_layer_norm_backward", "norm"),
        ("aten::native_batch_norm", "norm"),
        ("aten::_foreach_addcdiv_", "elementwise"),
        ("aten::threshold_backward", "elementwise"),
        ("aten::_log_softmax_backward_data", "elementwise"),
        ("aten::linalg_vector_norm", "elementwise"),
        ("aten::hardsigmoid_backward", "elementwise"),
        ("aten::_prelu_kernel_backward", "elementwise"),
        ("aten::copy_", "copy"),
        ("c10d::allreduce_", "collective"),
        ("gloo:all_reduce", "collective"),
        ("aten::empty", "other"),
        ("autograd::engine::evaluate_function: ConvolutionBackward0", "other"),
    ],
)
def test_operators_by_name(name: str, kind: str) -> None:
    assert operator_class(name) == kind


def test_tensor_cores_by_name() -> None:
    assert uses_tensor_cores(GEMM)
    assert uses_tensor_cores("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNN")
    assert uses_tensor_cores("cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4")
    assert not uses_tensor_cores(SGEMM)
    assert not uses_tensor_cores("cutlass_80_simt_sgemm_128x32_8x5_tn_align1")
    assert uses_tensor_cores("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc")
    assert not uses_tensor_cores("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_ffma_x")


def test_tiles_of_a_product() -> None:
    assert count_tiles(Product(1, 2304, 1536, 4096, "bfloat16"), "gemm_128x256_x") == 18 * 6
    assert count_tiles(Product(4, 128, 128, 64, "bfloat16"), GEMM) == 4
    assert count_tiles(Product(1, 128, 128, 64, "bfloat16"), "a kernel without a tile") is None


def test_the_last_rank_to_come_is_the_straggler() -> None:
    # Two collectives of 10 µs transfer each; rank 1 comes 40 µs late to both.
    spans = {0: [(0.0, 50.0), (100.0, 150.0)], 1: [(40.0, 50.0), (140.0, 150.0)]}
    skew, why_none = find_skew(spans, 2, {0: 100e-6, 1: 100e-6})
    assert why_none == ""
    assert skew is not None
    assert skew.transfer_s == pytest.approx(10e-6)
    assert skew.straggler == 1
    assert [row.waiting_s for row in skew.ranks] == pytest.approx([40e-6, 0.0])


def test_level_ranks_have_no_straggler_and_odd_ones_no_skew() -> None:
    spans = {0: [(0.0, 50.0)], 1: [(0.0, 51.0)]}
    skew, _ = find_skew(spans, 1, {0: 1e-3, 1: 1e-3})
    assert skew is not None
    assert skew.straggler is None
    spans[1].append((60.0, 70.0))
    assert find_skew(spans, 1, {})[0] is None
    assert "different numbers" in find_skew(spans, 1, {})[1]
    assert find_skew({0: [(0.0, 1.0)]}, 1, {}) == (None, "")


def test_memory_slope() -> None:
    assert memory_slope([100 + 8 * i for i in range(30)]) == 8
    assert memory_slope([0, 50, 100, *[1000] * 20]) == 0
    assert memory_slope([1, 2, 3]) is None


def test_a_trace_is_cut_to_its_bound_and_says_so(tmp_path: Path) -> None:
    path = training().write(tmp_path / "trace.json.gz")
    n = sum(1 for key, _ in read_items(path) if key == "traceEvents")
    cut = tmp_path / "cut.json.gz"
    assert write_bounded(read_items(path), cut, n - 5) == 5
    assert sum(1 for key, _ in read_items(cut) if key == "traceEvents") == n - 5
    assert write_bounded(read_items(path), cut, n) == 0
    assert read_trace(cut) == read_trace(path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"traceEvents": [', '{"traceEvents": [{"ph": "X"', '{"traceEvents": 3}', "\x00"],
)
def test_a_damaged_trace_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"the trace t\.json cannot be read"):
        read_trace(path)


def test_what_dynamo_says_is_understood() -> None:
    message = (
        "Graph break in user code at /a/train.py:17\n"
        "Graph Break Reason: Encountered graph break when attempting to trace CALL: f(x):\n\n"
        "Unsupported Tensor.item() call\n  Explanation: …\n\nUser code traceback:\n  File …"
    )
    assert parse(message) == {
        "graph_break": "Unsupported Tensor.item() call",
        "file": "/a/train.py",
        "line": 17,
    }
    again = (
        "Recompiling function forward in /a/train.py:13\n"
        "    triggered by the following guard failure(s):\n"
        "    - 0/0: tensor 'x' size mismatch at index 0. expected 6, actual 8"
    )
    assert parse(again) == {
        "recompile": "tensor 'x' size mismatch at index 0. expected 6, actual 8",
        "function": "forward",
        "file": "/a/train.py",
        "line": 13,
    }
    assert parse("something else") == {}


def test_a_recorded_trace_of_a_cpu() -> None:
    """One step of scripts/profiled.py, recorded with torch 2.13."""
    read = read_trace(Path(__file__).parent / "recorded" / "cpu.json.gz")
    rank = analyse(Left(0, "node", 1, [], read, None), lambda device, dtypes: None, str).profile
    assert (rank.device, rank.n_steps, rank.n_line_steps) == ("cpu", 1, 0)
    flops = {row.name: row.flops for row in rank.classes}
    assert flops["matmul"] == 3 * 2 * (16 * 2 * 16) * 64 * (64 + 10)
    assert flops["conv"] == 2 * (2 * 16 * 8 * 16 * 16 * 27)
    assert flops["attention"] == (2 + 5) * 2 * (16 * 2 * 16 * 16) * 64
    assert set(rank.matmul_dtypes) == {"float32"}
    assert rank.idle is None
    assert rank.communication is None
