"""The chip table: the vendor's peaks of each accelerator, with the document that states them.

What counts as a peak here:

- Rates are dense. Where a vendor prints only the rate with 2:4 sparsity, half of it stands here,
  written as a division so that the printed number can be found in the source.
- 16-bit and fp8 rates accumulate in fp32, as training does. Professional cards lose nothing by it;
  GeForce cards run at half the rate that is printed for fp16 accumulation.
- One row is what torch shows as one device: on an MI250X that is one of the two dies of the card.
- A chip that is not here is unknown, and a figure without a source is None. Neither is estimated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_GIB = 2**30
_GIGA = 1e9
_TERA = 1e12

# A driver keeps some memory for itself, and error correction on GDDR takes a sixteenth more. What
# is left of a whole chip is at least this share; what is left of a partition is far below it.
_LEAST_VISIBLE_SHARE = 0.85
_MOST_VISIBLE_SHARE = 1.02


@dataclass(frozen=True, slots=True)
class Chip:
    """One accelerator as torch shows it, with its vendor's figures."""

    name: str
    device_name_pattern: str
    """Regular expression for the whole device name, less a leading "NVIDIA" or "Tesla"."""
    memory_bytes: int
    """The "GB" of memory on a data sheet are binary: an A100 80 GB reports 81,920 MiB."""
    bandwidth_bytes_per_s: float
    fp32_flops_per_s: float
    """Plain fp32 matrix products, without TF32. AMD's are the matrix-core rate, which rocBLAS uses,
    and not the lower vector rate."""
    tf32_flops_per_s: float | None
    dense_16bit_flops_per_s: float | None
    """fp16 and bf16 alike, except where the row says otherwise."""
    fp8_flops_per_s: float | None
    power_max_w: float | None
    source: str


def find_chip(device_name: str, memory_bytes: int | None) -> Chip | None:
    """The row of a device, from the name that torch or nvidia-smi prints and the memory it shows.

    None for a name that the table does not know, and for a device with far less or more memory
    than the chip has: a partition, or a modified card, has other peaks.
    """
    matches = [
        chip for chip in CHIPS if _is_named(chip, device_name) and _has_memory(chip, memory_bytes)
    ]
    return matches[0] if len(matches) == 1 else None


def _is_named(chip: Chip, device_name: str) -> bool:
    # Older drivers print no "NVIDIA"; the V100 and the T4 are still called "Tesla".
    pattern = rf"(?:NVIDIA )?(?:Tesla )?(?:{chip.device_name_pattern})"
    return re.fullmatch(pattern, " ".join(device_name.split()), re.IGNORECASE) is not None


def _has_memory(chip: Chip, memory_bytes: int | None) -> bool:
    if memory_bytes is None:
        return True
    share = memory_bytes / chip.memory_bytes
    return _LEAST_VISIBLE_SHARE <= share <= _MOST_VISIBLE_SHARE


def _row(
    name: str,
    device_name_pattern: str,
    source: str,
    memory_gib: int,
    bandwidth_gb_per_s: float,
    fp32_tflops: float,
    tf32_tflops: float | None,
    dense_16bit_tflops: float | None,
    fp8_tflops: float | None,
    power_max_w: float | None,
) -> Chip:
    """A row in the units that data sheets use."""
    return Chip(
        name=name,
        device_name_pattern=device_name_pattern,
        memory_bytes=memory_gib * _GIB,
        bandwidth_bytes_per_s=bandwidth_gb_per_s * _GIGA,
        fp32_flops_per_s=fp32_tflops * _TERA,
        tf32_flops_per_s=_from_tera(tf32_tflops),
        dense_16bit_flops_per_s=_from_tera(dense_16bit_tflops),
        fp8_flops_per_s=_from_tera(fp8_tflops),
        power_max_w=power_max_w,
        source=source,
    )


def _from_tera(value: float | None) -> float | None:
    return None if value is None else value * _TERA


_V100 = (
    "NVIDIA V100 Tensor Core GPU data sheet 1165301 r5, https://images.nvidia.com/"
    "content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
)
_T4 = (
    "NVIDIA T4 Tensor Core GPU data sheet 951643; memory bandwidth from "
    "https://www.nvidia.com/en-us/data-center/tesla-t4/"
)
_A10 = (
    "NVIDIA A10 Tensor Core GPU data sheet, https://www.nvidia.com/content/dam/en-zz/Solutions/"
    "Data-Center/a10/pdf/datasheet-new/nvidia-a10-datasheet.pdf"
)
_A10G = (
    "NVIDIA A10G Tensor Core GPU for AWS data sheet, 17 February 2022, https://d1.awsstatic.com/"
    "product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"
)
_A30 = (
    "NVIDIA A30 Tensor Core GPU data sheet, March 2022, https://www.nvidia.com/content/dam/en-zz/"
    "Solutions/data-center/products/a30-gpu/pdf/a30-datasheet.pdf"
)
_A40 = (
    "NVIDIA A40 data sheet, "
    "https://images.nvidia.com/content/Solutions/data-center/a40/nvidia-a40-datasheet.pdf"
)
_A100 = (
    "NVIDIA A100 Tensor Core GPU data sheet 1758950 r4, https://www.nvidia.com/content/dam/en-zz/"
    "Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_GA102 = (
    "NVIDIA Ampere GA102 GPU Architecture white paper v2, "
    "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
)
_ADA = (
    "NVIDIA Ada GPU Architecture white paper v2.1, https://images.nvidia.com/aem-dam/"
    "Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
)
_ADA_PRO = (
    "NVIDIA Ada Lovelace Professional GPU Architecture white paper v1.1, https://images.nvidia.com/"
    "aem-dam/en-zz/Solutions/technologies/NVIDIA-ADA-GPU-PROVIZ-Architecture-Whitepaper_1.1.pdf"
)
_RTX_BLACKWELL = (
    "NVIDIA RTX Blackwell GPU Architecture white paper, https://images.nvidia.com/aem-dam/"
    "Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
)
_L4 = "NVIDIA L4 Tensor Core GPU data sheet, https://www.nvidia.com/en-us/data-center/l4/"
_L40 = (
    "NVIDIA L40 data sheet, January 2023, https://www.nvidia.com/content/dam/en-zz/Solutions/"
    "design-visualization/support-guide/NVIDIA-L40-Datasheet-January-2023.pdf"
)
_L40S = "NVIDIA L40S data sheet 2907810, https://www.nvidia.com/en-us/data-center/l40s/"
_H100 = "NVIDIA H100 Tensor Core GPU data sheet, https://www.nvidia.com/en-us/data-center/h100/"
_H100_PCIE = (
    "NVIDIA H100 Tensor Core GPU data sheet (the edition with a PCIe column), "
    "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet; "
    "power from product brief PB-11133-001"
)
_H200 = "NVIDIA H200 Tensor Core GPU data sheet, https://www.nvidia.com/en-us/data-center/h200/"
_H800 = (
    "NVIDIA H800 GPU data sheet, in a copy, as NVIDIA's site has none: "
    "https://www.scribd.com/document/777167019/NVIDIA-H800-GPU-Datasheet"
)
_GH200 = (
    "NVIDIA GH200 Grace Hopper Superchip data sheet 2705455, "
    "https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/"
)
_B200 = "NVIDIA HGX B200 data sheet, per GPU, https://www.nvidia.com/en-us/data-center/hgx/"
_GB200 = (
    "NVIDIA GB200 Grace Blackwell Superchip specification, half of a superchip, "
    "https://www.nvidia.com/en-us/data-center/gb200-nvl72/; "
    "power from the NVIDIA Blackwell Architecture technical brief"
)
_CDNA = (
    "AMD CDNA Architecture white paper, "
    "https://www.amd.com/system/files/documents/amd-cdna-whitepaper.pdf"
)
_CDNA_2 = (
    "AMD CDNA 2 Architecture white paper, table 1, https://www.amd.com/content/dam/amd/en/"
    "documents/instinct-business-docs/white-papers/amd-cdna2-white-paper.pdf"
)
_MI300X = (
    "AMD Instinct MI300X data sheet, https://www.amd.com/content/dam/amd/en/documents/"
    "instinct-tech-docs/data-sheets/amd-instinct-mi300x-data-sheet.pdf"
)
_MI325X = (
    "AMD Instinct MI325X specification, "
    "https://www.amd.com/en/products/accelerators/instinct/mi300/mi325x.html"
)

# A row is two lines: who it is and who says so, then
#     memory GiB, bandwidth GB/s, TFLOP/s in fp32, TF32, 16-bit and fp8, and the most power in W.
# fmt: off
CHIPS: tuple[Chip, ...] = (
    # On V100 and T4 the 16-bit rate is fp16's alone: they have no bf16 tensor cores.
    _row("NVIDIA V100 SXM2 16 GB", r"V100-SXM2-16GB", _V100,
         16, 900, 15.7, None, 125, None, 300),
    _row("NVIDIA V100 SXM2 32 GB", r"V100-SXM2-32GB", _V100,
         32, 900, 15.7, None, 125, None, 300),
    _row("NVIDIA V100 PCIe 16 GB", r"V100-PCIE-16GB", _V100,
         16, 900, 14, None, 112, None, 250),
    _row("NVIDIA V100 PCIe 32 GB", r"V100-PCIE-32GB", _V100,
         32, 900, 14, None, 112, None, 250),
    _row("NVIDIA T4", r"T4", _T4,
         16, 320, 8.1, None, 65, None, 70),
    _row("NVIDIA A10", r"A10", _A10,
         24, 600, 31.2, 62.5, 125, None, 150),
    # Not an A10 with another name: more fp32, and little more than half of the tensor rate.
    _row("NVIDIA A10G", r"A10G", _A10G,
         24, 600, 35, 35, 70, None, 300),
    _row("NVIDIA A30", r"A30", _A30,
         24, 933, 10.3, 82, 165, None, 165),
    _row("NVIDIA A40", r"A40", _A40,
         48, 696, 37.4, 74.8, 149.7, None, 300),
    _row("NVIDIA A100 PCIe 40 GB", r"A100-PCIE-40GB", _A100,
         40, 1555, 19.5, 156, 312, None, 250),
    _row("NVIDIA A100 SXM 40 GB", r"A100-SXM4-40GB", _A100,
         40, 1555, 19.5, 156, 312, None, 400),
    _row("NVIDIA A100 PCIe 80 GB", r"A100 80GB PCIe|A100-PCIE-80GB", _A100,
         80, 1935, 19.5, 156, 312, None, 300),
    _row("NVIDIA A100 SXM 80 GB", r"A100-SXM4-80GB", _A100,
         80, 2039, 19.5, 156, 312, None, 400),
    _row("NVIDIA GeForce RTX 3090", r"GeForce RTX 3090", _GA102,
         24, 936, 35.6, 35.6, 71, None, 350),
    _row("NVIDIA RTX A6000", r"RTX A6000", _GA102,
         48, 768, 38.7, 77.4, 154.8, None, 300),
    _row("NVIDIA L4", r"L4", _L4,
         24, 300, 30.3, 120 / 2, 242 / 2, 485 / 2, 72),
    # The data sheet gives the L40 half of the L40S's tensor rates, on the same die.
    _row("NVIDIA L40", r"L40", _L40,
         48, 864, 90.5, 90.5, 181.05, 362, 300),
    _row("NVIDIA L40S", r"L40S", _L40S,
         48, 864, 91.6, 183, 362.05, 733, 350),
    _row("NVIDIA GeForce RTX 4090", r"GeForce RTX 4090", _ADA,
         24, 1008, 82.6, 82.6, 165.2, 330.3, 450),
    _row("NVIDIA RTX 6000 Ada Generation", r"RTX 6000 Ada Generation", _ADA_PRO,
         48, 960, 91.1, 182.1, 364.2, 728.5, 300),
    _row("NVIDIA GeForce RTX 5090", r"GeForce RTX 5090", _RTX_BLACKWELL,
         32, 1792, 104.8, 104.8, 209.5, 419, 575),
    _row("NVIDIA H100 SXM", r"H100 80GB HBM3", _H100,
         80, 3350, 67, 989 / 2, 1979 / 2, 3958 / 2, 700),
    # HBM2e is on the PCIe card alone.
    _row("NVIDIA H100 PCIe", r"H100 PCIe|H100 80GB HBM2e", _H100_PCIE,
         80, 2000, 51, 756 / 2, 1513 / 2, 3026 / 2, 350),
    _row("NVIDIA H100 NVL", r"H100 NVL", _H100,
         94, 3900, 60, 835 / 2, 1671 / 2, 3341 / 2, 400),
    # An H100 with slower links between GPUs. Documents disagree about its power.
    _row("NVIDIA H800 SXM", r"H800(?: 80GB HBM3)?", _H800,
         80, 3350, 67, 989 / 2, 1979 / 2, 3958 / 2, None),
    _row("NVIDIA H800 PCIe", r"H800 PCIe", _H800,
         80, 2000, 51, 756 / 2, 1513 / 2, 3026 / 2, None),
    _row("NVIDIA H200 SXM", r"H200", _H200,
         141, 4800, 67, 989 / 2, 1979 / 2, 3958 / 2, 700),
    _row("NVIDIA H200 NVL", r"H200 NVL", _H200,
         141, 4800, 60, 835 / 2, 1671 / 2, 3341 / 2, 600),
    # 120 and 480 GB are the Grace CPU's memory. The data sheet states the power of the whole module
    # alone, with the CPU in it.
    _row("NVIDIA GH200 96 GB", r"GH200 (?:120GB|480GB)", _GH200,
         96, 4000, 67, 989 / 2, 1979 / 2, 3958 / 2, None),
    _row("NVIDIA GH200 144 GB", r"GH200 144G HBM3e", _GH200,
         144, 4900, 67, 989 / 2, 1979 / 2, 3958 / 2, None),
    _row("NVIDIA B200", r"B200", _B200,
         180, 7700, 75, 2200 / 2, 4500 / 2, 9000 / 2, 1000),
    # Two GPUs a superchip, hence the second division.
    _row("NVIDIA GB200", r"GB200", _GB200,
         372 // 2, 16000 / 2, 160 / 2, 5000 / 2 / 2, 10000 / 2 / 2, 20000 / 2 / 2, 1200),
    # The 16-bit rate is fp16's: bf16 runs at half of it, 92.3 TFLOP/s.
    _row("AMD Instinct MI100", r"AMD Instinct MI100", _CDNA,
         32, 1228.8, 46.1, None, 184.6, None, 300),
    _row("AMD Instinct MI210", r"AMD Instinct MI210", _CDNA_2,
         64, 1638.4, 45.3, None, 181, None, 300),
    # Per die (GCD), half of the card: torch shows each of the two as a device. Some drivers print
    # "AMD Instinct MI250X/MI250" for both cards, which cannot be told apart then.
    _row("AMD Instinct MI250 (one GCD)", r"AMD Instinct MI250", _CDNA_2,
         128 // 2, 3276.8 / 2, 90.5 / 2, None, 362.1 / 2, None, 560 / 2),
    _row("AMD Instinct MI250X (one GCD)", r"AMD Instinct MI250X", _CDNA_2,
         128 // 2, 3276.8 / 2, 95.7 / 2, None, 383 / 2, None, 560 / 2),
    # "VF" is a whole card handed to a virtual machine.
    _row("AMD Instinct MI300X", r"AMD Instinct MI300X(?: OAM| VF)?", _MI300X,
         192, 5300, 163.4, 653.7, 1307.4, 2614.9, 750),
    _row("AMD Instinct MI325X", r"AMD Instinct MI325X(?: OAM| VF)?", _MI325X,
         256, 6000, 163.4, 653.7, 1307.4, 2614.9, 1000),
)
# fmt: on
