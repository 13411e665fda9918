"""The contract that every row of the chip table keeps, and which row a device name leads to."""

from __future__ import annotations

import dataclasses

import pytest

from hotlap.machine.chips import CHIPS, Chip, find_chip

MIB = 2**20

# Names as torch.cuda.get_device_name() and nvidia-smi print them.
DEVICE_NAMES: dict[str, tuple[str, ...]] = {
    "NVIDIA V100 SXM2 16 GB": ("Tesla V100-SXM2-16GB",),
    "NVIDIA V100 SXM2 32 GB": ("Tesla V100-SXM2-32GB",),
    "NVIDIA V100 PCIe 16 GB": ("Tesla V100-PCIE-16GB",),
    "NVIDIA V100 PCIe 32 GB": ("Tesla V100-PCIE-32GB",),
    "NVIDIA T4": ("Tesla T4", "NVIDIA T4"),
    "NVIDIA A10": ("NVIDIA A10",),
    "NVIDIA A10G": ("NVIDIA A10G",),
    "NVIDIA A30": ("NVIDIA A30",),
    "NVIDIA A40": ("NVIDIA A40",),
    "NVIDIA A100 PCIe 40 GB": ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"),
    "NVIDIA A100 SXM 40 GB": ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
    "NVIDIA A100 PCIe 80 GB": ("NVIDIA A100 80GB PCIe",),
    "NVIDIA A100 SXM 80 GB": ("NVIDIA A100-SXM4-80GB",),
    "NVIDIA GeForce RTX 3090": ("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
    "NVIDIA RTX A6000": ("NVIDIA RTX A6000", "RTX A6000"),
    "NVIDIA L4": ("NVIDIA L4",),
    "NVIDIA L40": ("NVIDIA L40",),
    "NVIDIA L40S": ("NVIDIA L40S",),
    "NVIDIA GeForce RTX 4090": ("NVIDIA GeForce RTX 4090",),
    "NVIDIA RTX 6000 Ada Generation": ("NVIDIA RTX 6000 Ada Generation",),
    "NVIDIA GeForce RTX 5090": ("NVIDIA GeForce RTX 5090",),
    "NVIDIA H100 SXM": ("NVIDIA H100 80GB HBM3",),
    "NVIDIA H100 PCIe": ("NVIDIA H100 PCIe",),
    "NVIDIA H100 NVL": ("NVIDIA H100 NVL",),
    "NVIDIA H800 SXM": ("NVIDIA H800",),
    "NVIDIA H800 PCIe": ("NVIDIA H800 PCIe",),
    "NVIDIA H200 SXM": ("NVIDIA H200",),
    "NVIDIA H200 NVL": ("NVIDIA H200 NVL",),
    "NVIDIA GH200 96 GB": ("NVIDIA GH200 480GB", "NVIDIA GH200 120GB"),
    "NVIDIA GH200 144 GB": ("NVIDIA GH200 144G HBM3e",),
    "NVIDIA B200": ("NVIDIA B200",),
    "NVIDIA GB200": ("NVIDIA GB200",),
    "AMD Instinct MI100": ("AMD Instinct MI100",),
    "AMD Instinct MI210": ("AMD Instinct MI210",),
    "AMD Instinct MI250 (one GCD)": ("AMD Instinct MI250",),
    "AMD Instinct MI250X (one GCD)": ("AMD Instinct MI250X",),
    "AMD Instinct MI300X": ("AMD Instinct MI300X", "AMD Instinct MI300X VF"),
    "AMD Instinct MI325X": ("AMD Instinct MI325X",),
}

UNKNOWN_NAMES = (
    "",
    "NVIDIA",
    "NVIDIA A100",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    "NVIDIA A100-SXM-64GB",
    "NVIDIA A100X",
    "NVIDIA A2",
    "NVIDIA A10M",
    "GRID A100-10C",
    "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
    "NVIDIA H100 NVL MIG 3g.47gb",
    "NVIDIA H20",
    "NVIDIA L20",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 5090 D",
    "NVIDIA GeForce RTX 5090 Laptop GPU",
    "NVIDIA RTX 5000 Ada Generation",
    "Quadro RTX 6000",
    "NVIDIA B300 SXM6 AC",
    "NVIDIA GB300",
    "Tesla V100S-PCIE-32GB",
    "Tesla V100-SXM3-32GB",
    "Tesla T40",
    "AMD Instinct MI250X/MI250",
    "AMD Instinct MI250X / MI250",
    "AMD Instinct MI300A",
    "AMD Instinct MI308X",
    "AMD Radeon RX 7900 XTX",
    "cpu",
)

# What a whole device of that name was seen to report.
VISIBLE_BYTES: tuple[tuple[str, int, str], ...] = (
    ("NVIDIA A100-SXM4-40GB", 42_405_855_232, "NVIDIA A100 SXM 40 GB"),
    ("NVIDIA A100-SXM4-80GB", 81_920 * MIB, "NVIDIA A100 SXM 80 GB"),
    ("NVIDIA A10G", 23_028 * MIB, "NVIDIA A10G"),
    ("NVIDIA L4", 23_034 * MIB, "NVIDIA L4"),
    ("NVIDIA L40", 46_068 * MIB, "NVIDIA L40"),
    ("NVIDIA L40S", 46_068 * MIB, "NVIDIA L40S"),
    ("NVIDIA GeForce RTX 3090", 24_576 * MIB, "NVIDIA GeForce RTX 3090"),
    ("NVIDIA GeForce RTX 4090", 24_564 * MIB, "NVIDIA GeForce RTX 4090"),
    ("NVIDIA GeForce RTX 4090", 23_028 * MIB, "NVIDIA GeForce RTX 4090"),
    ("NVIDIA GeForce RTX 5090", 32_607 * MIB, "NVIDIA GeForce RTX 5090"),
    ("NVIDIA H100 80GB HBM3", 81_559 * MIB, "NVIDIA H100 SXM"),
    ("NVIDIA H100 NVL", 95_830 * MIB, "NVIDIA H100 NVL"),
    ("NVIDIA H200", 143_771 * MIB, "NVIDIA H200 SXM"),
    ("NVIDIA GH200 144G HBM3e", 153_008_209_920, "NVIDIA GH200 144 GB"),
    ("NVIDIA B200", 183_359 * MIB, "NVIDIA B200"),
    ("AMD Instinct MI300X", 206_141_652_992, "AMD Instinct MI300X"),
)

every_chip = pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)


def name_of(chip: Chip | None) -> str | None:
    return None if chip is None else chip.name


@every_chip
def test_every_figure_is_positive_or_unknown(chip: Chip) -> None:
    figures = [value for value in dataclasses.astuple(chip) if isinstance(value, (int, float))]
    assert figures
    assert all(figure > 0 for figure in figures)


@every_chip
def test_a_narrower_type_is_never_slower(chip: Chip) -> None:
    narrowing = (
        chip.fp32_flops_per_s,
        chip.tf32_flops_per_s,
        chip.dense_16bit_flops_per_s,
        chip.fp8_flops_per_s,
    )
    known = [rate for rate in narrowing if rate is not None]
    assert known == sorted(known)


@every_chip
def test_rates_are_dense(chip: Chip) -> None:
    # Each type is twice the one before it, so one sparse rate that was not halved stands out.
    if chip.tf32_flops_per_s is not None and chip.dense_16bit_flops_per_s is not None:
        assert chip.dense_16bit_flops_per_s / chip.tf32_flops_per_s == pytest.approx(2, rel=0.03)
    if chip.fp8_flops_per_s is not None and chip.dense_16bit_flops_per_s is not None:
        assert chip.fp8_flops_per_s / chip.dense_16bit_flops_per_s == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize(
    ("device_name", "tflops"),
    [
        ("Tesla V100-SXM2-32GB", 125),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 990),
        ("NVIDIA H200", 990),
        ("NVIDIA B200", 2250),
        ("AMD Instinct MI250X", 383 / 2),
        ("AMD Instinct MI300X", 1307),
    ],
)
def test_the_16bit_peaks_that_the_field_quotes_are_here(device_name: str, tflops: float) -> None:
    chip = find_chip(device_name, None)
    assert chip is not None
    assert chip.dense_16bit_flops_per_s == pytest.approx(tflops * 1e12, rel=0.001)


@every_chip
def test_every_row_names_a_public_document_of_its_vendor(chip: Chip) -> None:
    vendor = chip.name.split()[0]
    assert chip.source.startswith(f"{vendor} ")
    assert "https://" in chip.source


def test_no_two_rows_share_a_name() -> None:
    assert len({chip.name for chip in CHIPS}) == len(CHIPS)


def test_every_row_has_a_device_name_in_this_test() -> None:
    assert set(DEVICE_NAMES) == {chip.name for chip in CHIPS}


@pytest.mark.parametrize(
    ("device_name", "row"), [(name, row) for row, names in DEVICE_NAMES.items() for name in names]
)
def test_a_device_name_leads_to_its_row_alone(device_name: str, row: str) -> None:
    assert name_of(find_chip(device_name, None)) == row


@pytest.mark.parametrize("device_name", UNKNOWN_NAMES)
def test_an_unknown_name_stays_unknown(device_name: str) -> None:
    assert find_chip(device_name, None) is None


@pytest.mark.parametrize(("device_name", "visible_bytes", "row"), VISIBLE_BYTES)
def test_a_whole_device_shows_less_memory_than_the_data_sheet_and_is_still_found(
    device_name: str, visible_bytes: int, row: str
) -> None:
    assert name_of(find_chip(device_name, visible_bytes)) == row


@pytest.mark.parametrize(
    ("device_name", "visible_gib"),
    [
        ("NVIDIA A100-SXM4-80GB", 10),  # a partition that hides its name
        ("AMD Instinct MI300X", 24),  # one of eight compute partitions
        ("NVIDIA GeForce RTX 4090", 48),  # rebuilt with other memory
        ("NVIDIA H800", 140),
        ("NVIDIA H200", 0),
    ],
)
def test_a_device_with_the_wrong_memory_is_unknown(device_name: str, visible_gib: int) -> None:
    assert find_chip(device_name, visible_gib * 2**30) is None


def test_case_and_spacing_of_a_name_do_not_matter() -> None:
    assert name_of(find_chip("  nvidia  h100 pcie ", None)) == "NVIDIA H100 PCIe"


@pytest.mark.parametrize("row", ["AMD Instinct MI250 (one GCD)", "AMD Instinct MI250X (one GCD)"])
def test_a_two_die_card_is_listed_as_one_die(row: str) -> None:
    chip = next(chip for chip in CHIPS if chip.name == row)
    assert chip.memory_bytes == 64 * 2**30
    assert chip.bandwidth_bytes_per_s == pytest.approx(1638.4e9)
