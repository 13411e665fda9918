"""What one device can do, measured with the torch that is there.

    torch_ceilings cuda:0 12.5 'matmul bf16' 'memory copy'

Each measurement gets its share of the seconds that are left. It repeats blocks of work, each long
enough for the clock, and tells the best block: a ceiling is what the device can do, and everything
that disturbs makes a block slower. Matrices are random, for those of zeros draw less power and
run faster than any training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hotlap.machine.child import tell
from hotlap.machine.clock import now_s

BLOCK_S = 0.05
"""At least this long, so that the end of a block is not what is measured."""
LEAST_S, MOST_S = 0.2, 4.0
"""For one measurement: less shows nothing, more brings no more."""
FIRST_PRODUCT = {"cuda": 4096, "cpu": 512}
LARGEST_PRODUCT = {"cuda": 8192, "cpu": 4096}
LARGEST_COPY_BYTES = {"cuda": 2 << 30, "cpu": 256 << 20}
TRANSFER_BYTES = 256 << 20
N_LAUNCHES = 200
N_BLOCKS, WIDTH, N_HEADS, PATCH, N_CLASSES = 12, 64, 4, 16, 10
"""Of the small model: as many operations as ViT-B has, each over in a few microseconds."""
FIRST_WITH_TF32 = FIRST_WITH_BF16 = (8, 0)
FIRST_WITH_FP8 = (8, 9)


class NotHere(Exception):
    """The device has no such thing; the message says what."""


class Bench:
    """Times work on one device."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch, self.device = torch, torch.device(device)
        self.kind = self.device.type

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if self.kind == "cuda":
            self.torch.cuda.synchronize(self.device)

    def best_s(self, work: Callable[[], Any], seconds: float) -> float:
        """Seconds of one call, in the best block of those that fit into the time."""
        begin = now_s()
        n = self._calls_a_block(work)
        best = self._block_s(work, n)
        while now_s() - begin + best * n < seconds:
            best = min(best, self._block_s(work, n))
        return best

    def _calls_a_block(self, work: Callable[[], Any]) -> int:
        self._block_s(work, 2)  # the first calls choose algorithms and warm caches
        return max(1, round(BLOCK_S / max(self._block_s(work, 1), 1e-7)))

    def _block_s(self, work: Callable[[], Any], n: int) -> float:
        self.wait()
        begin = now_s()
        for _ in range(n):
            work()
        self.wait()
        return (now_s() - begin) / n

    def capability(self) -> tuple[int, int]:
        """Of an NVIDIA GPU; (0, 0) elsewhere, where there is neither TF32 nor fp8 as here."""
        if self.kind != "cuda" or self.torch.version.hip:
            return (0, 0)
        capability: tuple[int, int] = self.torch.cuda.get_device_capability(self.device)
        return capability


def main(argv: Sequence[str]) -> None:
    """Tell of each measurement that it begins, and what came of it."""
    device, seconds, names = argv[0], float(argv[1]), argv[2:]
    begin = now_s()
    import torch

    bench = Bench(torch, device)
    # A torch that took all the time to be imported still gets a moment for each measurement.
    deadline = max(begin + seconds, now_s() + LEAST_S * len(names))
    for i, name in enumerate(names):
        left = max(LEAST_S, deadline - now_s())
        tell({"begin": name})
        try:
            value, note = _measure(bench, name, min(MOST_S, left / (len(names) - i)))
        except NotHere as error:
            value, note = None, str(error)
        except Exception as error:
            lines = str(error).splitlines()
            value, note = None, lines[0][:120] if lines else type(error).__name__
        tell({"done": name, "value": value, "note": note})


def _measure(bench: Bench, name: str, seconds: float) -> tuple[float, str]:
    if name.startswith("matmul "):
        return _matmul(bench, name.removeprefix("matmul "), seconds)
    if name == "memory copy":
        return _copy(bench, seconds)
    if name in ("launch latency", "smallest operation"):
        return _launch(bench, seconds)
    if name == "step of a small model":
        return _small_step(bench, seconds)
    return _transfer(bench, name, seconds)


def _matmul(bench: Bench, kind: str, seconds: float) -> tuple[float, str]:
    n = FIRST_PRODUCT[bench.kind]
    best = bench.best_s(_product(bench, kind, n), 0.0)
    # As large as fits into a few calls: small matrices do not fill a device.
    while n < LARGEST_PRODUCT[bench.kind] and best * 8 < seconds / 8:
        n *= 2
        best = bench.best_s(_product(bench, kind, n), 0.0)
    best = min(best, bench.best_s(_product(bench, kind, n), seconds / 2))
    return 2 * n**3 / best, f"{n} x {n}"


def _product(bench: Bench, kind: str, n: int) -> Callable[[], Any]:
    torch = bench.torch
    if kind == "fp8":
        return _fp8_product(bench, n)
    if kind == "tf32" and bench.capability() < FIRST_WITH_TF32:
        raise NotHere("this device has no TF32")
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    names = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    dtype = getattr(torch, names[kind])
    a, b = (torch.randn(n, n, device=bench.device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _fp8_product(bench: Bench, n: int) -> Callable[[], Any]:
    torch = bench.torch
    if bench.capability() < FIRST_WITH_FP8:
        raise NotHere("this device has no fp8")
    dtype = torch.float8_e4m3fn
    a, b = (torch.randn(n, n, device=bench.device).to(dtype) for _ in range(2))
    one = torch.ones((), device=bench.device)
    options = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
    return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, **options)


def _copy(bench: Bench, seconds: float) -> tuple[float, str]:
    n_bytes = LARGEST_COPY_BYTES[bench.kind]
    if bench.kind == "cuda":
        n_bytes = min(n_bytes, bench.torch.cuda.mem_get_info(bench.device)[0] // 8)
    source = bench.torch.ones(n_bytes, dtype=bench.torch.uint8, device=bench.device)
    target = bench.torch.empty_like(source)
    best = bench.best_s(lambda: target.copy_(source), seconds)
    return 2 * n_bytes / best, f"{n_bytes >> 20} MiB, read and written"


def _launch(bench: Bench, seconds: float) -> tuple[float, str]:
    """Of the host, for the smallest kernel: the device is done before the next one comes."""
    one = bench.torch.zeros(1, device=bench.device)

    def work() -> None:
        for _ in range(N_LAUNCHES):
            one.add_(1)

    return bench.best_s(work, min(seconds, 1.0)) / N_LAUNCHES, "an addition of one number"


def _small_step(bench: Bench, seconds: float) -> tuple[float, str]:
    """Of the host, for all that a training launches: a device is done before the next kernel comes.

    Forward and backward in 16 bits, as trainings are that have to wait for their host.
    """
    torch = bench.torch
    with torch.device(bench.device):
        model = _small_model(torch)
        images = torch.randn(2, 3, 2 * PATCH, 2 * PATCH)
        labels = torch.zeros(2, dtype=torch.int64)
    dtype = torch.bfloat16 if bench.capability() >= FIRST_WITH_BF16 else torch.float16

    def work() -> None:
        with torch.autocast(bench.kind, dtype, enabled=bench.kind == "cuda"):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        model.zero_grad()

    return bench.best_s(work, seconds), "forward and backward of 12 layers, 64 wide"


def _small_model(torch: Any) -> Any:
    """A vision transformer."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.gelu = nn.GELU()

        def forward(self, x: Any) -> Any:
            heads = self.qkv(self.attention_norm(x)).unflatten(-1, (N_HEADS, 3, -1))
            parts = heads.transpose(1, 2).unbind(-2)
            seen = functional.scaled_dot_product_attention(*parts)
            x = x + self.output(seen.transpose(1, 2).flatten(2))
            return x + self.down(self.gelu(self.up(self.mlp_norm(x))))

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
            self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
            self.blocks = nn.Sequential(*(Block() for _ in range(N_BLOCKS)))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, N_CLASSES)

        def forward(self, images: Any) -> Any:
            patches = self.patches(images).flatten(2).transpose(1, 2)
            tokens = torch.cat((self.class_token.expand(len(images), -1, -1), patches), dim=1)
            return self.head(self.norm(self.blocks(tokens)[:, 0]))

    return Model()


def _transfer(bench: Bench, name: str, seconds: float) -> tuple[float, str]:
    torch = bench.torch
    host = torch.ones(TRANSFER_BYTES, dtype=torch.uint8)
    if name.endswith("pinned"):
        host = host.pin_memory()
    device = torch.empty(TRANSFER_BYTES, dtype=torch.uint8, device=bench.device)
    target, source = (device, host) if name.startswith("host to device") else (host, device)
    best = bench.best_s(lambda: target.copy_(source, non_blocking=True), seconds)
    return TRANSFER_BYTES / best, f"{TRANSFER_BYTES >> 20} MiB"
