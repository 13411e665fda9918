"""For every rule on a training: a real script that has the fault, and its twin that has not.

A script is one of the well-tuned ones in `scripts/`, with some of its lines changed: the fault's,
or the twin's, which is as near to the fault as can be. A twin without changes is the script itself.

There is no GPU where these tests run. A case `on_gpu` is a real run on the CPU of which some facts
are then told otherwise (`told`), as a GPU would have told them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Edits = dict[str, str]


@dataclass(frozen=True)
class Pair:
    rule: str
    base: str
    fault: Edits = field(default_factory=dict)
    twin: Edits = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    """Facts of the faulty run, by their path in the Training."""
    twin_told: dict[str, Any] = field(default_factory=dict)
    on_gpu: bool = False
    machine: str = "cpu_node"

    @property
    def n_ranks(self) -> int:
        return 2 if self.base == "ranks" else 1


GPU = {
    "workload.device": "cuda",
    "workload.device_name": "NVIDIA H200",
    "workload.capability": (9, 0),
    "workload.models.0.facts.in_autocast": True,
    "workload.flags.cudnn_benchmark": True,
}
"""What makes a GPU of the CPU in all of a pair's facts, the model in autocast."""

TOP = "torch.manual_seed(0)\n"
LOOP = "for epoch in range(20):\n"
IMAGE_LOOP = "for _ in range(20):\n    for images, labels in loader:\n"
STEP = "        optimizer.step()\n"
ZERO = "        optimizer.zero_grad()\n"
MADE = "criterion = nn.CrossEntropyLoss()\n"
LOSS = "        loss = criterion(model(inputs), targets)\n"
BACKWARD = "        loss.backward()\n"
OPTIMIZER = "torch.optim.SGD(model.parameters(), lr=0.01, fused=True)"
LOADER = "shuffle=True, drop_last=True)"
ENDS = "nn.Dropout(0.1)]"
REDUCTIONS = "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction"
CHECKED = "torch.autograd.gradcheck(torch.tanh, torch.ones(2, dtype=float, requires_grad=True))"

SLOW = {
    TOP: "import time\n\n"
    "class Slow(TensorDataset):\n"
    "    def __getitem__(self, i):\n"
    "        time.sleep(0.003)\n"
    "        return super().__getitem__(i)\n\n" + TOP,
    "data = TensorDataset(torch.randn(1024": "data = Slow(torch.randn(1024",
}
BRISK = {**SLOW, TOP: SLOW[TOP].replace("0.003", "0.00002")}
"""As slow as not to matter."""
FILES = {
    TOP: "import time\nfrom pathlib import Path\n\n"
    "class Files(TensorDataset):\n"
    "    def __getitem__(self, i):\n"
    "        time.sleep(0.003)\n"
    "        Path(f'{i}.bin').read_bytes()\n"
    "        return super().__getitem__(i)\n\n"
    "for i in range(1024):\n"
    "    Path(f'{i}.bin').write_bytes(b'sample')\n" + TOP,
    "data = TensorDataset(torch.randn(1024": "data = Files(torch.randn(1024",
}


NO_WAIT = {"workload.phases_s": {"forward": 1.0}}
"""Whether steps this short wait for workers depends on what else the machine does."""


def prefetching(n: int) -> Edits:
    found = workers(2)[LOADER]
    return {LOADER: f"{found[:-1]}, prefetch_factor={n})"}


def workers(n: int, stay: bool = True) -> Edits:
    return {LOADER: f"{LOADER[:-1]}, num_workers={n}, persistent_workers={stay})"}


def behind_step(line: str) -> Edits:
    return {STEP: f"{STEP}        {line}\n"}


def at_top(line: str) -> Edits:
    return {TOP: f"{line}\n{TOP}"}


def around_loss(head: str) -> Edits:
    return {LOSS: f"        with {head}:\n    {LOSS}"}


def compiled(how: str) -> Edits:
    return {"\noptimizer = ": f"\nmodel = torch.compile(model, {how})\noptimizer = "}


SCALED = {
    MADE: f'{MADE}scaler = torch.amp.GradScaler("cpu")\n',
    BACKWARD: "        scaler.scale(loss).backward()\n",
    STEP: "        scaler.step(optimizer)\n        scaler.update()\n",
}
OVERFLOWING = {
    MADE: f"{SCALED[MADE]}n_calls = 0\n\n\n"
    "def spoil(gradient):\n"
    "    global n_calls\n"
    "    n_calls += 1\n"
    "    return gradient * FACTORS[n_calls % 2]\n\n\n"
    "model[0].weight.register_hook(spoil)\n"
}
INF, ONE = 'FACTORS = (1.0, float("inf"))', "FACTORS = (1.0, 1.0)"
FEW_SAMPLES = {"randn(1024, 64)": "randn(256, 64)", "randint(8, (1024,))": "randint(8, (256,))"}
MADE_ANEW = {LOOP: f"{LOOP}    loader = DataLoader(data, 64, shuffle=True, num_workers=2)\n"}
UNEVEN = {
    "randn(1024, 64)": "randn(1000, 64)",
    "randint(8, (1024,))": "randint(8, (1000,))",
    LOADER: "shuffle=True)",
}
OF_LENGTHS = {
    "loader = DataLoader(": "LENGTHS = [24, 32, 40, 48, 56, 64]\n\n\n"
    "def collate(rows):\n"
    "    n = LENGTHS[torch.randint(len(LENGTHS), ()).item()]\n"
    "    return tuple(torch.stack(column)[:, :n] for column in zip(*rows))\n\n\n"
    "loader = DataLoader(",
    "drop_last=True)": "drop_last=True, collate_fn=collate)",
}
SHARED_OUT = {
    LOADER: "sampler=sampler, drop_last=True)",
    "loader = DataLoader(": "sampler = torch.utils.data.DistributedSampler("
    "data, num_replicas=1, rank=0)\nloader = DataLoader(",
    "randn(1024, 64)": "randn(640, 64)",
    "randint(8, (1024,))": "randint(8, (640,))",
}
MANY_LAYERS = {ENDS: f"{ENDS}\nlayers += [nn.Identity() for _ in range(20)]"}
SOMETIMES = {
    ENDS: ENDS[:-1] + ", Sometimes()]",
    TOP: "import time\n\n"
    "class Sometimes(nn.Module):\n"
    "    n = 0\n\n"
    "    def forward(self, x):\n"
    "        Sometimes.n += 1\n"
    "        time.sleep(1.0 if Sometimes.n % EVERY == 0 else 0.0)\n"
    "        return x\n\n" + TOP,
}
SLEEPY = {
    "layers = [": "import time\n\n"
    "class Sleepy(nn.Module):\n"
    "    def forward(self, x):\n"
    "        time.sleep(WAITS[rank])\n"
    "        return x\n\n"
    "layers = [Sleepy(), ",
}
RANK_STEP = "        loss = nn.functional.cross_entropy(model(inputs), targets)\n" + ZERO + BACKWARD
HALVES = (
    ZERO + "        first, second = zip(inputs.chunk(2), targets.chunk(2))\n"
    "        with CONTEXT:\n"
    "            loss = nn.functional.cross_entropy(model(first[0]), first[1]) / 2\n"
    "            loss.backward()\n"
    "        loss = nn.functional.cross_entropy(model(second[0]), second[1]) / 2\n" + BACKWARD
)
BY_HAND = (
    "        y = torch.softmax(q @ k.transpose(-1, -2) / q.size(-1) ** 0.5, -1) @ v\n",
    "        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)\n",
)
TRANSFER = {"workload.phases_s.transfer": 10.0}
NOT_WAITING = {
    "inputs.to(device), targets.to(device)\n": "inputs.to(device, non_blocking=True), "
    "targets.to(device, non_blocking=True)\n"
}
PINNED = {**TRANSFER, "workload.loaders.0.facts.pin_memory": True}
PINNED |= {"workload.loaders.1.facts.pin_memory": True}


def called(name: str, n: int) -> dict[str, Any]:
    """A call of the watched ones, on the line of the optimizer's step."""
    return {"habits.calls": ((name, n, 0.001),)}


DATA = (
    Pair("loader_workers", "plain", SLOW, {**BRISK, **workers(2)}),
    Pair(
        "workers_few",
        "plain",
        {**SLOW, **workers(1)},
        {**BRISK, **workers(2)},
        told={"workload.n_cpus": 16},
        twin_told={"workload.n_cpus": 2},
    ),
    Pair(
        "cpus_too_slow",
        "plain",
        {**SLOW, **workers(2)},
        {**BRISK, **workers(2)},
        told={"workload.n_cpus": 2},
        twin_told={"workload.n_cpus": 2},
    ),
    Pair("workers_many", "plain", workers(8), workers(2)),
    Pair(
        "prefetch_many",
        "plain",
        prefetching(16),
        prefetching(4),
        told=NO_WAIT,
        twin_told=NO_WAIT,
    ),
    Pair(
        "workers_restart",
        "plain",
        {**FEW_SAMPLES, **workers(2, stay=False)},
        {**FEW_SAMPLES, **workers(2)},
    ),
    Pair(
        "workers_restart",
        "plain",
        {**FEW_SAMPLES, **MADE_ANEW},
        # Starts before the measured steps: these wait for no data, so that nothing is to be had.
        twin_told={"habits.calls": (("iter(loader)", 2, 5.0),)},
    ),
    Pair("many_files", "plain", {**FILES, **workers(2)}, {**BRISK, **workers(2)}),
    Pair(
        "array_lists",
        "plain",
        {**at_top("import numpy"), **behind_step("torch.tensor([numpy.zeros(4096)] * 64)")},
        {
            **at_top("import numpy"),
            **behind_step("torch.from_numpy(numpy.stack([numpy.zeros(4096)] * 64))"),
        },
    ),
    Pair(
        "longest_input",
        "text",
        OF_LENGTHS,
        {**OF_LENGTHS, "LENGTHS = ": "LENGTHS = [64] #"},
        on_gpu=True,
    ),
    Pair(
        "last_batch",
        "plain",
        {**compiled('backend="eager"'), **UNEVEN},
        {**compiled('backend="eager"'), **UNEVEN, LOADER: LOADER},
    ),
    Pair("padding", "text", {"data = Tensor": "tokens[:, 24:] = 0\ndata = Tensor"}),
    Pair(
        "sampler_epoch",
        "plain",
        SHARED_OUT,
        {**SHARED_OUT, LOOP: f"{LOOP}    sampler.set_epoch(epoch)\n"},
    ),
    Pair("same_data", "ranks", {"sampler=sampler, drop": "shuffle=True, drop"}),
    Pair("pageable_copies", "plain", {}, NOT_WAITING, TRANSFER, PINNED, on_gpu=True),
    Pair(
        "blocking_copies",
        "plain",
        twin=NOT_WAITING,
        told=PINNED,
        twin_told=PINNED,
        on_gpu=True,
    ),
)
PRECISION = (
    Pair("not_on_gpu", "plain", machine="gpu_node", twin_told=GPU),
    Pair(
        "fp32_products",
        "plain",
        told={"workload.models.0.facts.in_autocast": False},
        on_gpu=True,
    ),
    Pair(
        "float64",
        "plain",
        {
            MADE: f"{MADE}model.double()\n",
            "model(inputs)": "model(inputs.double())",
            "model(inputs.to(device))": "model(inputs.to(device).double())",
        },
    ),
    Pair(
        "half_parameters",
        "plain",
        {
            MADE: f"{MADE}model.half()\n",
            "model(inputs)": "model(inputs.half())",
            "model(inputs.to(device))": "model(inputs.to(device).half())",
        },
        {
            MADE: f"{MADE}model.bfloat16()\n",
            "model(inputs)": "model(inputs.bfloat16())",
            "model(inputs.to(device))": "model(inputs.to(device).bfloat16())",
        },
    ),
    Pair(
        "fp16_unscaled",
        "plain",
        around_loss('torch.autocast("cpu", torch.float16)'),
        {**SCALED, **around_loss('torch.autocast("cpu", torch.float16)')},
    ),
    Pair(
        "scaler_with_bf16",
        "plain",
        {**SCALED, **around_loss('torch.autocast("cpu", torch.bfloat16)')},
        around_loss('torch.autocast("cpu", torch.bfloat16)'),
    ),
    Pair(
        "scaler_skips",
        "plain",
        {**SCALED, **OVERFLOWING, **at_top(INF)},
        {**SCALED, **OVERFLOWING, **at_top(ONE)},
    ),
    Pair(
        "backward_in_autocast",
        "plain",
        {
            LOSS + ZERO + BACKWARD: '        with torch.autocast("cpu", torch.bfloat16):\n    '
            f"{LOSS}    {ZERO}    {BACKWARD}"
        },
        around_loss('torch.autocast("cpu", torch.bfloat16)'),
    ),
    Pair(
        "medium_precision",
        "plain",
        at_top('torch.set_float32_matmul_precision("medium")'),
        at_top('torch.set_float32_matmul_precision("high")'),
    ),
    Pair(
        "fp16_accumulation",
        "plain",
        at_top("torch.backends.cuda.matmul.allow_fp16_accumulation = True"),
        at_top("torch.backends.cuda.matmul.allow_fp16_accumulation = False"),
    ),
    Pair(
        "fp16_reductions",
        "plain",
        SCALED,
        {**SCALED, **at_top(f"{REDUCTIONS} = False")},
        told={"habits.facts.settings.autocast": "float16"},
        twin_told={"habits.facts.settings.autocast": "float16"},
        on_gpu=True,
    ),
)
LAYERS = (
    Pair(
        "odd_linear",
        "text",
        {"(WIDTH, 256)": "(WIDTH, 250)", "r(256,": "r(250,"},
        on_gpu=True,
    ),
    Pair("odd_linear", "plain", {"batch_size=64": "batch_size=60"}, on_gpu=True),
    Pair(
        "odd_channels",
        "images",
        {"block(16, 32)": "block(16, 30)", "r(32, 10)": "r(30, 10)"},
        on_gpu=True,
    ),
    Pair("head_size", "text", {"1024, 64, 64, 2": "1024, 72, 64, 2"}, on_gpu=True),
    Pair("odd_vocabulary", "text", {"1024, 64, 64, 2": "1030, 64, 64, 2"}, on_gpu=True),
    Pair(
        "head_size",
        "text",
        {
            "self.qkv = ": "self.heads = nn.MultiheadAttention(60, 5, batch_first=True)\n"
            "        self.qkv = ",
            "        return y.tr": "        self.heads(x[..., :60], x[..., :60], x[..., :60])\n"
            "        return y.tr",
        },
        {
            "self.qkv = ": "self.heads = nn.MultiheadAttention(64, 8, batch_first=True)\n"
            "        self.qkv = ",
            "        return y.tr": "        self.heads(x, x, x)\n        return y.tr",
        },
        on_gpu=True,
    ),
    Pair(
        "rnn_sizes",
        "text",
        {
            "self.wide = ": "self.memory = nn.GRU(WIDTH, 30)\n        self.wide = ",
            "        return self.out": "        self.memory(x)\n        return self.out",
        },
        {
            "self.wide = ": "self.memory = nn.GRU(WIDTH, 32)\n        self.wide = ",
            "        return self.out": "        self.memory(x)\n        return self.out",
        },
        on_gpu=True,
    ),
    Pair(
        "rnn_cells",
        "text",
        {
            "self.wide = ": "self.memory = nn.GRUCell(WIDTH, 32)\n        self.wide = ",
            "        return self.out": "        self.memory(x[:, 0])\n        return self.out",
        },
        {
            "self.wide = ": "self.memory = nn.GRU(WIDTH, 32)\n        self.wide = ",
            "        return self.out": "        self.memory(x)\n        return self.out",
        },
    ),
    Pair(
        "first_channels",
        "images",
        twin={"3, 16, 16)": "4, 16, 16)", "block(3, ": "block(4, "},
        told={"habits.facts.settings.autocast": "bfloat16"},
        twin_told={"habits.facts.settings.autocast": "bfloat16"},
        on_gpu=True,
    ),
    Pair(
        "channels_last",
        "images",
        {
            "model.to(memory_format=torch.channels_last)\n": "",
            "        images = images.to(memory_format=torch.channels_last)\n": "",
        },
    ),
    Pair("conv_bias", "images", {"bias=False": "bias=True"}),
    Pair("depthwise", "images", {"block(16, 16)": "block(16, 16, 16)"}),
    Pair("attention_by_hand", "text", {BY_HAND[1]: BY_HAND[0]}),
)
LOOPS = (
    Pair(
        "syncs",
        "plain",
        told=called("Tensor.item", 40),
        twin_told=called("Tensor.item", 1),
        on_gpu=True,
    ),
    Pair(
        "barriers",
        "plain",
        told=called("torch.cuda.synchronize", 40),
        twin_told=called("torch.cuda.synchronize", 1),
        on_gpu=True,
    ),
    Pair(
        "prints",
        "plain",
        {**at_top('torch.set_printoptions(profile="full")'), **behind_step("print(inputs)")},
        {**at_top('torch.set_printoptions(profile="full")'), **behind_step('print("step")')},
    ),
    Pair(
        "collects",
        "plain",
        {**at_top("import gc"), **behind_step("gc.collect()")},
        {**at_top("import gc"), LOOP: f"{LOOP}    gc.collect()\n"},
    ),
    Pair(
        "saves",
        "plain",
        behind_step('torch.save(model.state_dict(), "last.pt")'),
        {LOOP: f'{LOOP}    torch.save(model.state_dict(), "last.pt")\n'},
    ),
    Pair("keeps_graph", "plain", {"total += loss.detach()": "total += loss"}),
    Pair(
        "keeps_graph",
        "plain",
        {**at_top("losses = []"), **behind_step("losses.append(loss)")},
        {**at_top("losses = []"), **behind_step("losses.append(loss.item())")},
    ),
    Pair(
        "keeps_graph",
        "plain",
        told={"habits.facts.memory": [1_000_000 * i for i in range(20)]},
        twin_told={"habits.facts.memory": [1_000_000 * (i % 3) for i in range(20)]},
        on_gpu=True,
    ),
    Pair("validation_grad", "plain", {"with torch.inference_mode():": "if True:"}),
    Pair("trains_in_eval", "plain", {"    model.train()\n": "", LOOP: f"model.eval()\n{LOOP}"}),
    Pair("validates_in_training", "plain", {"    model.eval()\n": "", "    model.train()\n": ""}),
    Pair(
        "anomaly",
        "plain",
        at_top("torch.autograd.set_detect_anomaly(True)"),
        at_top("torch.autograd.set_detect_anomaly(False)"),
    ),
    Pair(
        "profiler_on",
        "plain",
        {LOOP: f"torch.autograd.profiler.profile().__enter__()\n{LOOP}"},
    ),
    Pair("gradcheck", "plain", behind_step(CHECKED), at_top(CHECKED)),
    Pair("zero_grad", "plain", {"zero_grad()": "zero_grad(set_to_none=False)"}),
    Pair("retain_graph", "plain", {"loss.backward()": "loss.backward(retain_graph=True)"}),
    Pair(
        "device_tensors",
        "plain",
        behind_step("noise = torch.randn(8, 8).to(device)"),
        behind_step("noise = torch.randn(8, 8, device=device)"),
        on_gpu=True,
    ),
    Pair(
        "wrong_clock",
        "plain",
        {**at_top("import time"), **behind_step("now = time.time()")},
        {
            **at_top("import time"),
            **behind_step("now = time.time()"),
            MADE: f"{MADE}if torch.cuda.is_available():\n    torch.cuda.synchronize()\n",
        },
        on_gpu=True,
    ),
    Pair(
        "loop_overhead",
        "plain",
        {**at_top("import time"), **behind_step("time.sleep(0.1)")},
        {**at_top("import time"), **behind_step("now = time.monotonic()")},
    ),
    Pair(
        "irregular_steps",
        "plain",
        {**SOMETIMES, **at_top(SOMETIMES[TOP].removesuffix(TOP) + "EVERY = 5")},
        {**SOMETIMES, **at_top(SOMETIMES[TOP].removesuffix(TOP) + "EVERY = 1000")},
    ),
    Pair("loss_not_finite", "plain", {LOSS: f'{LOSS[:-1]} * float("nan")\n'}),
)
KERNELS = (
    Pair(
        "slow_optimizer",
        "plain",
        {OPTIMIZER: "torch.optim.AdamW(model.parameters(), lr=1e-4)"},
        {OPTIMIZER: "torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)"},
    ),
    Pair(
        "cudnn_benchmark",
        "images",
        told={"workload.flags.cudnn_benchmark": False},
        on_gpu=True,
    ),
    Pair(
        "benchmark_varies",
        "images",
        {
            IMAGE_LOOP: f"{IMAGE_LOOP}        n += 1\n        images = images[..., : 8 + n % 8]\n",
            TOP: f"{TOP}n = 0\n",
            "nn.AvgPool2d(16)": "nn.AdaptiveAvgPool2d(1)",
        },
        on_gpu=True,
    ),
    Pair(
        "compile_missing",
        "plain",
        MANY_LAYERS,
        {**MANY_LAYERS, **compiled('backend="eager"')},
    ),
    Pair(
        "compile_nothing",
        "plain",
        {MADE: f'{MADE}model.compile(backend="eager")\n'},
        compiled('backend="eager"'),
    ),
    Pair(
        "graph_breaks",
        "text",
        {
            **compiled('backend="eager"'),
            "        x = x + self.mix(x)\n": "        x = x + self.mix(x)\n"
            "        torch._dynamo.graph_break()\n",
        },
        compiled('backend="eager"'),
    ),
    Pair(
        "recompiles",
        "text",
        {
            **compiled('backend="eager", dynamic=False'),
            "        logits = ": "        n = 1 + (n if 'n' in globals() else 0) % 6\n"
            "        inputs, targets = inputs[:, : 8 * n], targets[:, : 8 * n]\n        logits = ",
        },
        compiled('backend="eager", dynamic=False'),
    ),
    Pair(
        "threads_script",
        "plain",
        at_top("torch.set_num_threads(1)"),
        at_top("torch.set_num_threads(2)"),
        told={"workload.n_cpus": 2},
        twin_told={"workload.n_cpus": 2},
    ),
    Pair(
        "deterministic_script",
        "plain",
        at_top("torch.use_deterministic_algorithms(True)"),
        at_top("torch.use_deterministic_algorithms(False)"),
    ),
    Pair(
        "small_batch",
        "plain",
        told={"workload.waits_for_host": True, "run.memory.device_peak_bytes": 2 << 30},
        twin_told={"workload.waits_for_host": True, "run.memory.device_peak_bytes": 100 << 30},
        on_gpu=True,
    ),
    Pair(
        "memory_full",
        "plain",
        told={"run.memory.device_peak_bytes": 130 << 30},
        twin_told={"run.memory.device_peak_bytes": 100 << 30},
        on_gpu=True,
    ),
    Pair(
        "low_mfu",
        "plain",
        told={"run.flops.mfu": 0.02},
        twin_told={"run.flops.mfu": 0.3},
        on_gpu=True,
    ),
    Pair(
        "low_power",
        "plain",
        told={"run.power.mean_w": 150.0},
        twin_told={"run.power.mean_w": 600.0},
        on_gpu=True,
    ),
)


def made_in(order: str) -> Edits:
    """Layers made in some order and called in the right one, and a parameter that is not used."""
    called = "reversed(self.parts)" if order != "layers" else "self.parts"
    model = (
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.parts = nn.ModuleList({order})\n"
        "        self.spare = nn.Parameter(torch.zeros(8))\n\n"
        "    def forward(self, x):\n"
        f"        for part in {called}:\n"
        "            x = part(x)\n"
        "        return x\n\n\n"
    )
    return {
        "model = nn.Sequential(*layers)\n": f"{model}model = Model()\n",
        "bucket_view=True": "bucket_view=True, find_unused_parameters=True",
    }


RANKS = (
    Pair("data_parallel", "plain", {MADE: f"{MADE}model = nn.DataParallel(model)\n"}),
    Pair(
        "find_unused",
        "ranks",
        {"bucket_view=True": "bucket_view=True, find_unused_parameters=True"},
        {
            "bucket_view=True": "bucket_view=True, find_unused_parameters=True",
            "model = Dist": 'model.register_parameter("spare", nn.Parameter(torch.zeros(8)))\n'
            "model = Dist",
        },
    ),
    Pair("parameter_order", "ranks", made_in("reversed(layers)"), made_in("layers")),
    Pair("bucket_view", "ranks", {", gradient_as_bucket_view=True": ""}),
    Pair(
        "accumulation_sync",
        "ranks",
        {RANK_STEP: HALVES.replace("CONTEXT", "torch.enable_grad()")},
        {RANK_STEP: HALVES.replace("CONTEXT", "model.no_sync()")},
    ),
    Pair(
        "straggler",
        "ranks",
        {**SLEEPY, TOP: f"{TOP}WAITS = (0.0, 0.1)\n"},
        {**SLEEPY, TOP: f"{TOP}WAITS = (0.05, 0.05)\n"},
    ),
    Pair(
        "sync_batchnorm",
        "images",
        told={"workload.models.0.facts.kinds.SyncBatchNorm": 3},
        on_gpu=True,
    ),
)
PAIRS = (*DATA, *PRECISION, *LAYERS, *LOOPS, *KERNELS, *RANKS)

MUCH_TO_DO = {
    "layers = [nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), "
    "nn.Linear(1024, 8)]": "again = [nn.Linear(256, 256), nn.ReLU()] * 36\n"
    "layers = [nn.Linear(64, 256), *again, nn.Linear(256, 8)]",
    "batch_size=32": "batch_size=256",
}
"""For each byte that ranks exchange: one layer is called 36 times."""

WELL_TUNED: dict[str, tuple[str, Edits]] = {
    "plain": ("plain", {}),
    "convolutions": ("images", {}),
    "language": ("text", {}),
    "two ranks": ("ranks", MUCH_TO_DO),
    "workers": ("plain", {**BRISK, **workers(2)}),
    "compiled": ("plain", compiled('backend="eager"')),
    # With fewer samples the casts of the weights take a sixth of the step.
    "bf16": (
        "plain",
        {"batch_size=64": "batch_size=512", **around_loss('torch.autocast("cpu", torch.bfloat16)')},
    ),
    "fp16 with a scaler": (
        "plain",
        {**SCALED, **around_loss('torch.autocast("cpu", torch.float16)')},
    ),
    "accumulation on two ranks": (
        "ranks",
        {**MUCH_TO_DO, RANK_STEP: HALVES.replace("CONTEXT", "model.no_sync()")},
    ),
    "AdamW": ("plain", {OPTIMIZER: "torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)"}),
}
