"""Faults of trainings on a GPU, each a change of a well-tuned script in `gpu_scripts/`.

`record_on_gpu.py` runs them on a machine that has one and keeps what they left; `h200.tar.gz` is
what it kept on one H200 with torch 2.11, and the tests look at that, wherever they run. In the
profiles of 'strict fp32' and 'outside autocast' the types of products have been read anew from the
names of their kernels: when they were recorded, kernels without tensor cores were taken for TF32.
Lines of the process that runs the scripts have been taken out, as a recording does now.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Edits = dict[str, str]

SIZES = "BATCH, WIDTH, HIDDEN, N_CLASSES = 8192, 4096, 8192, 1024"
CONTEXT = "    with torch.autocast(device, torch.bfloat16):\n        loss = "
STEP = "    optimizer.step()\n"
ZERO = "    optimizer.zero_grad()\n"
LOOP = "for _ in range(400):\n"
SGD = "torch.optim.SGD(model.parameters(), lr=0.01, fused=True)"
PINNED = ", pin_memory=True)"
FUSED = "nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)"
BY_HAND = "torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, -1) @ v"
CAREFUL = (
    "class Careful(nn.Linear):\n"
    "    def forward(self, x):\n"
    "        with torch.autocast(device, enabled=False):\n"
    "            return super().forward(x.float())\n\n\n"
)
CHAIN = (
    "class Chain(nn.Module):\n"
    "    def forward(self, x):\n"
    "        for _ in range(6):\n"
    "            x = torch.tanh(x * 1.01 + 0.1)\n"
    "        return x\n\n\n"
)
CHANNELS_FIRST = {
    ", memory_format=torch.channels_last)": ")",
    "images = images.to(memory_format=torch.channels_last)\n": "",
}


def sizes(batch: int, width: int, hidden: int, n_classes: int = 1024) -> Edits:
    return {SIZES: f"{SIZES.split(' =')[0]} = {batch}, {width}, {hidden}, {n_classes}"}


def wide_filters(groups: str) -> Edits:
    """Convolutions of 7 by 7 in groups."""
    return {"3, padding=1, bias": f"7, padding=3, groups={groups}, bias"}


@dataclass(frozen=True)
class GpuCase:
    name: str
    base: str
    edits: Edits = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    """That fire on it, beside notes; none on a well-tuned one."""
    mended: str = ""
    """The case that it is without its fault: what the cure is worth can be told from the two."""


CASES = (
    GpuCase("dense", "dense"),
    # Half of its step is norms and activations, one kernel each: nothing but the compiler mends it.
    GpuCase("convs", "convs", rules=("elementwise",)),
    GpuCase("words", "words"),
    GpuCase("tiny", "dense", sizes(64, 64, 64, 8), ("launch_gaps", "small_batch")),
    # With so few samples the casts of the weights, which autocast makes in every step, take longer
    # than the products.
    GpuCase("thin", "dense", sizes(16, 8192, 16384), ("copies", "thin_products")),
    # Of two and a half waves, which the library has no better tiles for; its step is too short.
    GpuCase(
        "small odd tiles",
        "dense",
        sizes(1408, 3328, 3328, 3328),
        ("launch_gaps", "small_batch"),
    ),
    GpuCase(
        "odd tiles",
        "dense",
        {
            LOOP: f"odd = torch.randn(1408, 3328, device=device).bfloat16()\n{LOOP}",
            ZERO: f"    for _ in range(128):\n        odd.t() @ odd\n{ZERO}",
        },
        ("waves",),
        mended="even tiles",
    ),
    # As many FLOPs, to half a percent, in tiles that fill two waves.
    GpuCase(
        "even tiles",
        "dense",
        {
            LOOP: "left = torch.randn(1792, 3072, device=device).bfloat16()\n"
            f"right = torch.randn(1792, 2816, device=device).bfloat16()\n{LOOP}",
            ZERO: f"    for _ in range(128):\n        left.t() @ right\n{ZERO}",
        },
    ),
    GpuCase("odd sizes", "dense", sizes(8192, 4096, 8190), ("odd_linear",), mended="dense"),
    GpuCase(
        "strict fp32",
        "dense",
        {CONTEXT: "    if True:\n        loss = "},
        ("fp32_products",),
        mended="dense",
    ),
    GpuCase(
        "outside autocast",
        "dense",
        {
            "layers = [": f"{CAREFUL}layers = [",
            "nn.Linear(HIDDEN, HIDDEN)": "Careful(HIDDEN, HIDDEN)",
        },
        ("autocast_missed",),
        mended="dense",
    ),
    GpuCase(
        "chain",
        "dense",
        {"layers = [": f"{CHAIN}layers = [Chain(), ", "HIDDEN), nn.ReLU()]": "HIDDEN), Chain()]"},
        ("elementwise",),
    ),
    GpuCase(
        "sorting",
        "dense",
        {
            LOOP: f"long = torch.rand(1 << 26, device=device)\n{LOOP}",
            STEP: f"{STEP}    long.sort()\n",
        },
        ("dominant_op",),
        mended="dense",
    ),
    GpuCase(
        "copying",
        "dense",
        {
            LOOP: f"big = torch.rand(32768, 32768, device=device)\n{LOOP}",
            STEP: f"{STEP}    big.t().contiguous()\n",
        },
        ("copies",),
        mended="dense",
    ),
    GpuCase("reading", "dense", {STEP: f"{STEP}    loss.item()\n"}, ("syncs",), mended="dense"),
    GpuCase(
        "reading now and then",
        "dense",
        {
            LOOP: "for step in range(400):\n",
            STEP: f"{STEP}    if step % 100 == 99:\n        loss.item()\n",
        },
    ),
    GpuCase(
        "barrier",
        "dense",
        {STEP: f"{STEP}    torch.cuda.synchronize()\n"},
        ("barriers",),
        mended="dense",
    ),
    GpuCase(
        "optimizer",
        "dense",
        {
            SGD: "torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)",
            SIZES: sizes(1024, 8192, 8192)[SIZES],
        },
        ("slow_optimizer",),
    ),
    GpuCase(
        "full memory",
        "dense",
        {LOOP: f"filler = torch.empty(120 << 30, dtype=torch.uint8, device=device)\n{LOOP}"},
    ),
    # Blocks of 1 GiB are let go of, and what is kept is put into them: what is left of each is too
    # small for the next one.
    GpuCase(
        "memory in pieces",
        "dense",
        {
            LOOP: "kept = []\nfor _ in range(122):\n"
            "    torch.empty(1 << 30, dtype=torch.uint8, device=device)\n"
            "    kept.append(torch.empty(600 << 20, dtype=torch.uint8, device=device))\n"
            f"{LOOP}"
        },
        ("fragmentation",),
    ),
    # Blocks that were let go of as a whole: torch gives them back when it needs to.
    GpuCase(
        "memory let go of",
        "dense",
        {
            LOOP: "filler = torch.empty(80 << 30, dtype=torch.uint8, device=device)\n"
            "for i in range(40):\n"
            "    torch.empty((512 + i) << 21, dtype=torch.uint8, device=device)\n"
            f"{LOOP}"
        },
    ),
    GpuCase("depthwise", "convs", wide_filters("min(n_in, n_out)"), ("idle_tensor_cores",)),
    # The same with kernels of torch's own in place of cuDNN's. That it is not channels last
    # was put right in its record, which had misread weights of one input channel.
    GpuCase(
        "depthwise by torch",
        "convs",
        {**wide_filters("min(n_in, n_out)"), **CHANNELS_FIRST},
        ("channels_last", "idle_tensor_cores"),
    ),
    GpuCase(
        "groups of 64",
        "convs",
        {"padding=1, bias": "padding=1, groups=max(1, min(n_in, n_out) // 64), bias"},
        ("elementwise",),
    ),
    GpuCase(
        "contiguous",
        "convs",
        CHANNELS_FIRST,
        ("channels_last",),
        mended="convs",
    ),
    # A batch of tokens is 256 KB: neither copy costs anything.
    GpuCase("unpinned tokens", "words", {PINNED: ")"}, mended="words"),
    GpuCase("blocking tokens", "words", {", non_blocking=True)": ")"}, mended="words"),
    GpuCase("sounds", "sounds"),
    GpuCase("unpinned", "sounds", {PINNED: ")"}, ("pageable_copies",), mended="sounds"),
    GpuCase(
        "blocking",
        "sounds",
        {", non_blocking=True)": ")"},
        ("blocking_copies",),
        mended="sounds",
    ),
    # Its softmax is computed in fp32: the scores are cast there and back, and these are copies too.
    GpuCase(
        "attention by hand",
        "words",
        {FUSED: BY_HAND},
        ("attention_by_hand", "copies"),
        mended="words",
    ),
    GpuCase(
        "odd vocabulary",
        "words",
        {"= 8192, 1024, 2048, 16, 16": "= 8190, 1024, 2048, 16, 16"},
        ("odd_vocabulary",),
        mended="words",
    ),
)
"""Notes may be on any of them."""
