"""The levers of data loading, each seen to take effect in a real training."""

from __future__ import annotations

import ast
import contextlib
import gc
import itertools
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lever_runs import SITE, a_loader, a_workload, run_with
from running import SCRIPTS, run_hotlap
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from hotlap.levers import (
    batch_size,
    bucket_by_length,
    device_prefetch,
    persistent_workers,
    pin_memory,
    prefetch_factor,
    start_method,
    workers,
)
from hotlap.levers.common.edits import change_arguments, tell
from hotlap.levers.common.inside import Orders
from hotlap.levers.common.loaders import given_workers
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Seen, Site, Workload, read_events

# Workers ---------------------------------------------------------------------------------------

LOADERS = """
import json, os, sys
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Pids(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([float(os.getpid()), os.getppid() == MAIN])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(8))


MAIN = os.getpid()

if __name__ == "__main__":
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loader = DataLoader(Pids(), batch_size=2)
    pids = []
    for epoch in range(2):
        for batch in loader:
            pids.append(batch[:, 0].tolist())
            model(batch * 0).sum().backward()
            optimizer.step()
    stream = DataLoader(Stream(), batch_size=2)
    print(json.dumps({
        "workers": loader.num_workers,
        "persistent": loader.persistent_workers,
        "prefetch": loader.prefetch_factor,
        "context": loader.multiprocessing_context.get_start_method(),
        "n_pids": len({pid for batch in pids for pid in batch}),
        "in_main": any(pid == MAIN for batch in pids for pid in batch),
        "stream": [b.tolist() for b in stream],
        "stream_workers": stream.num_workers,
    }))
"""


def test_loader_levers_work_together(tmp_path: Path) -> None:
    script = tmp_path / "loaders.py"
    script.write_text(LOADERS)
    result, events = run_with(
        tmp_path,
        script,
        workers="2",
        persistent_workers="on",
        prefetch_factor="4",
        start_method="spawn",
    )
    assert result.truth == {
        "workers": 2,
        "persistent": True,
        "prefetch": 4,
        "context": "spawn",
        "n_pids": 2,  # of both epochs together: the workers stayed
        "in_main": False,
        "stream": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "stream_workers": 0,
    }
    assert events.done == {
        "workers": ["the loader of Pids has 2 workers, it had 0"],
        "persistent_workers": ["the workers of Pids stay"],
        "prefetch_factor": ["each worker of Pids makes 4 batches in advance, it was 2"],
        "start_method": ["the workers of Pids are started by 'spawn', it was 'fork'"],
    }


def test_workers_change_no_loss(tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "with").mkdir()
    levers = {"prefetch_factor": "4", "persistent_workers": "on", "start_method": "spawn"}
    alone, nothing = run_with(tmp_path / "without", SCRIPTS / "loader.py", **levers)
    assert nothing.done == {}  # there are no workers
    levers = {"workers": "2", "prefetch_factor": "4", "gc_pauses": "freeze"}
    changed, events = run_with(tmp_path / "with", SCRIPTS / "loader.py", **levers)
    assert set(events.done) == set(levers)
    assert changed.printed_losses() == alone.printed_losses()


def test_values_of_workers() -> None:
    assert workers.values(a_workload(a_loader())) == ("4", "2", "8")
    assert workers.values(a_workload(a_loader(), n_cpus=1)) == ("1", "2")
    assert workers.values(a_workload(a_loader(), n_cpus=200)) == ("32", "16")
    assert workers.values(a_workload(a_loader(num_workers=4))) == ("8",)


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (a_workload(), "no DataLoader"),
        (a_workload(a_loader(), phases_s={"data": 0.001, "forward": 1.0}), "0.1% of the step"),
        (a_workload(a_loader(is_iterable=True)), "iterable"),
        (a_workload(a_loader(num_workers=8)), "as many workers"),
    ],
)
def test_when_workers_are_not_tried(workload: Workload, reason: str) -> None:
    decision = workers.applies(workload)
    assert not decision.yes
    assert reason in decision.reason


def test_loader_levers_decide_and_edit() -> None:
    has_workers = a_workload(a_loader(num_workers=2, prefetch_factor=4))
    levers = (persistent_workers, prefetch_factor, start_method)
    assert all(lever.applies(has_workers).yes for lever in levers)
    assert all("'workers'" in one.applies(a_workload(a_loader())).reason for one in levers)
    iterable = a_workload(a_loader(is_iterable=True))
    assert not any(lever.applies(iterable).yes for lever in levers)
    assert prefetch_factor.values(has_workers) == ("8",)
    stays = a_workload(a_loader(num_workers=2, persistent_workers=True))
    assert not persistent_workers.applies(stays).yes
    chosen = a_workload(a_loader(num_workers=2, start_method="spawn"))
    assert not start_method.applies(chosen).yes
    twice = a_workload(a_loader(), a_loader())
    expected = (change_arguments(SITE, "DataLoader", num_workers="4"),)
    assert workers.edit("4", twice) == expected


class Holds(Dataset[Any]):
    def __init__(self, held: Any) -> None:
        self.held = held
        self.me = self  # whoever looks into it has to end

    def __getitem__(self, index: int) -> Any:
        return self.held


HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda tensor: TensorDataset(tensor),
    "a part": lambda tensor: Subset(TensorDataset(tensor), [0]),
    "parts together": lambda tensor: ConcatDataset([Subset(TensorDataset(tensor), [0])] * 2),
    "in a dictionary": lambda tensor: Holds({"images": tensor}),
    "in samples": lambda tensor: Holds([(tensor, 0), (tensor, 1)]),
    "as a list": lambda tensor: [tensor, tensor],
}


@pytest.mark.parametrize("name", HOLDERS)
def test_a_dataset_on_a_device_gets_no_workers(name: str) -> None:
    hold = HOLDERS[name]
    assert workers._is_on_device(torch, hold(torch.empty(4, device="meta")))
    assert not workers._is_on_device(torch, hold(torch.empty(4)))


class Pids(Dataset[torch.Tensor]):
    """Which sample it is, and who made it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), os.getpid()], dtype=torch.float64)


@pytest.fixture
def persistent(casts: Casts) -> Iterator[DataLoader[torch.Tensor]]:
    """A loader whose worker stays by the lever, with prefetching below it."""

    process = Process(torch, SimpleNamespace(), lambda **event: None)
    persistent_workers.apply(torch, "on", process)
    ((_, change),) = process._on_loader
    arguments: dict[str, Any] = {"dataset": Pids(), "num_workers": 1, "persistent_workers": False}
    change(DataLoader, arguments)
    yield DataLoader(batch_size=2, **arguments)
    process.undo()


def numbers(batch: torch.Tensor) -> list[float]:
    """Moved, so that it is prefetched."""
    made: list[float] = batch.to(torch.float32)[:, 0].tolist()
    return made


@pytest.mark.parametrize("at", range(4))
def test_a_loop_inside_a_loop_over_the_same_loader_leaves_that_alone(
    persistent: DataLoader[torch.Tensor], at: int
) -> None:
    for _ in range(2):
        seen, inner = [], []
        for i, batch in enumerate(persistent):
            seen += numbers(batch)
            if i == at:
                inner = [number for other in persistent for number in numbers(other)]
        assert seen == inner == list(range(8))


def test_workers_stay_where_a_loop_was_left_or_its_iterator_has_a_name(
    persistent: DataLoader[torch.Tensor],
) -> None:
    pids = {int(batch[0, 1]) for batch in persistent}
    for batch in persistent:
        pids.add(int(batch[0, 1]))
        break
    iterator = iter(persistent)
    for _ in range(10):  # epochs of four batches
        try:
            batch = next(iterator)
        except StopIteration:
            iterator = iter(persistent)
            batch = next(iterator)
        pids.add(int(batch[0, 1]))
    assert len(pids) == 1


WITH_WORKERS = {
    "persistent_workers": (persistent_workers, "on", "True"),
    "prefetch_factor": (prefetch_factor, "4", "4"),
    "multiprocessing_context": (start_method, "spawn", '"spawn"'),
}


@pytest.mark.parametrize("keyword", WITH_WORKERS)
def test_loaders_without_workers_are_not_given_what_torch_refuses_them(keyword: str) -> None:
    lever, value, text = WITH_WORKERS[keyword]
    with pytest.raises(ValueError, match="num_workers"):
        DataLoader(range(4), **{keyword: ast.literal_eval(text)})  # type: ignore[arg-type]
    other = Site("train.py", 8)
    two = a_workload(a_loader(num_workers=4), replace(a_loader(), site=other))
    expected = change_arguments(SITE, "DataLoader", **{keyword: text})
    assert lever.edit(value, two) == (expected,)
    assert lever.edit(value, given_workers(two, 2)) == (
        expected,
        change_arguments(other, "DataLoader", **{keyword: text}),
    )
    assert lever.edit(value, a_workload(a_loader())) == ()
    (told,) = lever.edit(value, a_workload(a_loader(num_workers=4), a_loader()))
    assert (told.kind, told.site) == ("told", SITE)
    assert f"{keyword}={text}" in told.text


def test_only_loaders_that_are_given_workers_count_as_having_them() -> None:
    before = a_workload(a_loader(), a_loader(num_workers=8), a_loader(is_iterable=True))
    after = given_workers(before, 4)
    assert [one.facts["num_workers"] for one in after.loaders] == [4, 8, 0]
    assert given_workers(before, 0) == before


# Copies to the device --------------------------------------------------------------------------


def test_pinning_waits_for_what_says_so() -> None:
    assert pin_memory.says_itself((), {"non_blocking": False})
    assert pin_memory.says_itself(("cuda", False), {})
    assert not pin_memory.says_itself(("cuda", torch.float16), {"copy": True})
    assert not pin_memory.applies(a_workload(a_loader())).yes
    assert pin_memory.applies(a_workload(a_loader(), device="cuda")).yes
    pinned = a_workload(a_loader(pin_memory=True), device="cuda")
    assert not pin_memory.applies(pinned).yes


@pytest.fixture
def asked_for_pins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """With the lever applied: the tensors that were asked whether they are pinned."""

    asked: list[Any] = []

    def is_pinned(tensor: Any) -> bool:
        asked.append(tensor)
        return False

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.Tensor, "is_pinned", is_pinned)
    process = Process(torch, SimpleNamespace(), lambda **event: None)
    pin_memory.apply(torch, "on", process)
    yield asked
    process.undo()


def test_only_a_tensor_that_goes_to_a_gpu_is_asked_whether_it_is_pinned(
    asked_for_pins: list[Any],
) -> None:
    tensor = torch.ones(2)
    other = torch.ones(1, dtype=torch.float64)
    tensor.to(torch.float16)
    tensor.to(dtype=torch.float16)
    tensor.to("cpu")
    tensor.to(device=torch.device("cpu"), dtype=torch.float16)
    tensor.to(other)
    tensor.to(tensor=other)
    tensor.to("meta")
    assert asked_for_pins == []


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("to", ("cuda",), {}),
        ("to", ("cuda:0", torch.float16), {}),
        ("to", (), {"device": "cuda"}),
        ("to", (), {"device": torch.device("cuda", 0), "dtype": torch.float16}),
        ("to", (0,), {}),
        ("cuda", (), {}),
    ],
)
def test_a_forked_worker_is_not_asked_for_pinned_tensors(
    asked_for_pins: list[Any], monkeypatch: pytest.MonkeyPatch, name: str, args: Any, kwargs: Any
) -> None:
    tensor = torch.ones(2)
    with contextlib.suppress(AssertionError, RuntimeError):  # there may be no GPU
        getattr(tensor, name)(*args, **kwargs)
    assert len(asked_for_pins) == 1
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with contextlib.suppress(AssertionError, RuntimeError):
        getattr(tensor, name)(*args, **kwargs)
    assert len(asked_for_pins) == 1


def test_a_tensor_on_a_gpu_can_be_the_target() -> None:
    on_gpu = type("OnGpu", (torch.Tensor,), {"is_cuda": True})()
    assert pin_memory.names_gpu(torch, (on_gpu,), {})
    assert pin_memory.names_gpu(torch, (), {"tensor": on_gpu})
    assert not pin_memory.names_gpu(torch, (torch.ones(1),), {})


@pytest.mark.parametrize("lever", [pin_memory, device_prefetch])
def test_a_loader_that_a_forked_worker_makes_is_not_pinned(
    lever: Any, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    process = Process(torch, SimpleNamespace(), lambda **event: None)
    lever.apply(torch, "on", process)
    ((_, change),) = process._on_loader
    here = {"pin_memory": False, "dataset": []}
    in_worker = dict(here)
    change(DataLoader, here)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    change(DataLoader, in_worker)
    process.undo()
    assert (here["pin_memory"], in_worker["pin_memory"]) == (True, False)


@pytest.mark.parametrize("lever", [pin_memory, device_prefetch])
def test_what_is_on_the_device_already_is_not_pinned(
    lever: Any, monkeypatch: pytest.MonkeyPatch
) -> None:

    pinned: list[Any] = []

    def pin(tensor: Any) -> Any:
        assert tensor.is_cpu, "only dense CPU tensors can be pinned"  # as a GPU's tensor says
        pinned.append(tensor)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    process = Process(torch, SimpleNamespace(), lambda **event: None)
    lever.apply(torch, "on", process)
    here, there = torch.ones(2), torch.ones(2, device="meta")
    batch = {"images": [there, here], "labels": (there, here), "weights": there}
    result = torch.utils.data._utils.pin_memory.pin_memory(batch, "cuda")
    process.undo()
    assert pinned == [here, here]
    assert result == batch


TORCHS_NEXT = torch.utils.data.dataloader._BaseDataLoaderIter.__next__


class Casts:
    """Moves to another type, in the place of moves to another device: real, and done on a CPU."""

    def __init__(self) -> None:
        self.n_made = self.n_handed_over = 0

    def is_move(self, tensor: Any, result: Any) -> bool:
        return bool(result.dtype != tensor.dtype)

    def run(self, device: Any, function: Callable[[], Any]) -> tuple[Any, Any]:
        self.n_made += 1
        return function(), None

    def hand_over(self, result: Any, event: Any) -> None:
        self.n_handed_over += 1


@pytest.fixture
def casts() -> Iterator[Casts]:
    """Prefetching of casts is installed in this process, and undone."""

    iterator_class = torch.utils.data.dataloader._BaseDataLoaderIter
    workers_class = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    owners = (workers_class._next_data, iterator_class._reset, torch.Tensor.to, torch.Tensor.cuda)
    process = Process(torch, SimpleNamespace(), lambda **event: None)
    stream = Casts()
    device_prefetch.install(torch, process, stream)
    yield stream
    process.undo()
    assert owners == (
        *(workers_class._next_data, iterator_class._reset),
        *(torch.Tensor.to, torch.Tensor.cuda),
    )


@pytest.mark.parametrize("persist", [False, True])
def test_a_batch_is_fetched_one_ahead_and_its_move_found_made(casts: Casts, persist: bool) -> None:
    dataset = TensorDataset(torch.arange(10.0), torch.arange(10))
    loader = DataLoader(dataset, batch_size=2, num_workers=1, persistent_workers=persist)
    for _ in range(2):  # the second epoch begins anew, also with the same iterator
        casts.n_made = casts.n_handed_over = 0
        seen = []
        for values, labels in loader:
            assert values.dtype == torch.float32  # the script's batch is as it was
            seen += values.to(torch.float64).tolist()
            assert labels.sum().item() == sum(seen[-2:])
        assert seen == list(range(10))
        assert casts.n_made == casts.n_handed_over == 3  # all but the first two batches


@pytest.mark.parametrize("persist", [False, True])
def test_no_batch_is_lost_where_the_chronometer_marks_less_for_a_while(
    casts: Casts, monkeypatch: pytest.MonkeyPatch, persist: bool
) -> None:
    """As it does on a GPU that waits for its host: it sets `__next__` to one of torch's own."""
    iterator_class = torch.utils.data.dataloader._BaseDataLoaderIter
    dataset = TensorDataset(torch.arange(20.0))
    loader = DataLoader(dataset, batch_size=2, num_workers=1, persistent_workers=persist)
    for _ in range(2):
        seen = []
        casts.n_handed_over = 0
        for i, (values,) in enumerate(loader):
            seen += values.to(torch.float64).tolist()
            if i == 4:
                monkeypatch.setattr(iterator_class, "__next__", lambda self: TORCHS_NEXT(self))
            if i == 6:
                monkeypatch.setattr(iterator_class, "__next__", TORCHS_NEXT)
        assert seen == list(range(20))
        assert casts.n_handed_over == 8  # all but the first two batches


def test_a_batch_that_the_training_makes_itself_draws_its_numbers_in_turn(casts: Casts) -> None:
    """Those of the loop come between them."""

    class Noisy(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.rand(1)

    torch.manual_seed(0)
    expected = [torch.rand(1).item() for _ in range(10)]
    torch.manual_seed(0)
    loader = DataLoader(Noisy(), sampler=torch.utils.data.SequentialSampler(range(5)))
    iterator = iter(loader)
    torch.manual_seed(0)  # what the iterator draws for its workers is not looked at
    seen = []
    for value in iterator:
        seen += [value.to(torch.float64).float().item(), torch.rand(1).item()]
    assert seen == expected
    assert casts.n_made == 0


def test_a_batch_that_was_changed_is_moved_again(casts: Casts) -> None:
    loader = DataLoader(TensorDataset(torch.arange(6.0)), num_workers=1)
    for (values,) in loader:
        before = values.item()
        values.add_(100)
        assert values.to(torch.float64).item() == before + 100
        assert values.to(torch.float64) is not values.to(torch.float64)
    assert casts.n_made > 0
    assert casts.n_handed_over == 0


def test_a_forked_worker_copies_nothing_ahead(
    casts: Casts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for (values,) in DataLoader(TensorDataset(torch.arange(6.0)), num_workers=1):
        values.to(torch.float64)
    assert casts.n_made == 0


def test_what_is_not_asked_for_is_not_copied(casts: Casts) -> None:
    loader = DataLoader(TensorDataset(torch.arange(20.0)), num_workers=1)
    for i, (values,) in enumerate(loader):
        if i < 3:
            values.to(torch.float64)
    assert casts.n_made < 6
    assert [values.item() for (values,) in loader] == list(range(20))


def test_a_loop_that_is_left_early_starts_over(casts: Casts) -> None:
    loader = DataLoader(TensorDataset(torch.arange(8.0)), num_workers=1, persistent_workers=True)
    for _ in range(2):
        firsts = []
        for (values,) in itertools.islice(loader, 4):
            firsts.append(values.to(torch.float64).item())
        assert firsts == [0, 1, 2, 3]


def test_an_error_comes_at_the_call_that_it_belongs_to(casts: Casts) -> None:
    class Breaks(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 4:
                raise RuntimeError("sample 4 is broken")
            return torch.tensor(float(index))

    iterator = iter(DataLoader(Breaks(), num_workers=1))
    assert [next(iterator).to(torch.float64).item() for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="sample 4"):
        next(iterator)
    assert next(iterator).item() == 5
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_workers_go_with_the_last_loop_over_them(casts: Casts) -> None:
    """And not whenever Python collects its garbage, which may be in another worker."""
    iterator = iter(DataLoader(TensorDataset(torch.arange(6.0)), num_workers=1))
    gone = weakref.ref(iterator)
    gc.disable()
    try:
        for (values,) in iterator:
            values.to(torch.float64)
        del iterator
        assert gone() is None
    finally:
        gc.enable()


# The batch -------------------------------------------------------------------------------------

BATCHES = """
import json
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Words(Dataset):
    def __init__(self):
        lengths = torch.randint(1, 100, (400,)).tolist()
        self.words = [torch.ones(length, 1) for length in lengths]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return self.words[index], index


def pad(samples):
    words, indices = zip(*samples)
    return nn.utils.rnn.pad_sequence(words, batch_first=True), torch.tensor(indices)


model = nn.Linear(1, 1)
torch.optim.SGD(model.parameters(), lr=0.1)
adam = torch.optim.AdamW([{"params": [model.weight], "lr": 0.01}, {"params": [model.bias]}], lr=1.0)
scheduler = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: 1.0)
loader = DataLoader(Words(), batch_size=4, shuffle=True, collate_fn=pad)
padded = whole = 0
order = []
for words, indices in loader:
    model(words).mean().backward()
    adam.step()
    scheduler.step()
    padded += words.numel()
    whole += words.sum().item()
    order += indices.tolist()
print(json.dumps({
    "batch_size": loader.batch_size,
    "n_batches": len(loader),
    "rates": [group["lr"] for group in adam.param_groups],
    "padding": 1 - whole / padded,
    "is_whole": sorted(order) == list(range(400)),
    "is_shuffled": order != sorted(order),
}))
"""


def test_larger_batches_with_buckets(tmp_path: Path) -> None:
    script = tmp_path / "batches.py"
    script.write_text(BATCHES)
    result, events = run_with(tmp_path, script, batch_size="x4", bucket_by_length="on")
    truth = result.truth
    assert truth["batch_size"] == 16
    assert truth["n_batches"] == 25
    assert truth["rates"] == pytest.approx([0.02, 2.0])  # the square root of 4, once
    assert truth["is_whole"]
    assert truth["is_shuffled"]
    assert truth["padding"] < 0.15  # about 0.45 with batches of 16 in any order
    assert events.done == {
        "batch_size": [
            "the learning rate of SGD is 0.4, not 0.1",
            "the learning rate of AdamW is 2, not 1.0",
            "batches of Words have 16 samples, not 4",
        ],
        "bucket_by_length": ["batches of Words hold samples of like length"],
    }


def test_a_loader_that_cannot_be_described_is_made_all_the_same() -> None:
    class Loader:
        def __init__(self, size: int) -> None:
            self.size = size

    def describe(arguments: dict[str, Any]) -> dict[str, Any]:
        raise ValueError

    process = Process(torch, SimpleNamespace(), lambda **event: None)
    process._see_constructor(Loader, process._on_loader, describe)
    assert Loader(3).size == 3


WITHOUT_LOADER = """
import torch

model = torch.nn.Linear(8, 4)
groups = [{"params": [model.weight], "lr": 0.01}, {"params": [model.bias]}]
optimizer = torch.optim.AdamW(groups, lr=0.001)
scheduler = torch.optim.lr_scheduler.SCHEDULER
table = torch.randn(100, 8)
for step in range(20):
    model(table[torch.randperm(100)[:32]]).square().mean().backward()
    optimizer.step()
    scheduler.step(*STEP)
"""
SCHEDULERS = {
    "CosineAnnealingLR(optimizer, 50)": (),
    "ReduceLROnPlateau(optimizer)": (1.0,),
    "OneCycleLR(optimizer, max_lr=0.1, total_steps=30)": (),
    "LambdaLR(optimizer, lambda step: (step + 1) / 30)": (),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize(("value", "why"), [("x4", "no DataLoader"), ("x4:7", "32 rows, not 28")])
def test_where_no_batch_grows_the_learning_rate_is_what_it_was(
    tmp_path: Path, value: str, why: str, scheduler: str
) -> None:
    script = tmp_path / "train.py"
    step = repr(SCHEDULERS[scheduler])
    script.write_text(WITHOUT_LOADER.replace("SCHEDULER", scheduler).replace("STEP", step))
    for name in "01":
        (tmp_path / name).mkdir()
    plain, larger = (
        run_hotlap(
            str(script),
            folder=tmp_path / str(len(levers)),
            options=("--quiet",),
            env=Orders(levers, seed=0).to_environment(),
        )
        for levers in ({}, {"batch_size": value})
    )
    assert why in read_events(larger.folder).failed["batch_size"]
    assert larger.run["loss"] == plain.run["loss"]


def test_batch_size_edits_loader_and_rate() -> None:
    adam = Seen(SITE, {"kind": "Adam", "lr": 0.001})
    workload = a_workload(a_loader(batch_size=32), optimizers=(adam,))
    assert batch_size.applies(workload).yes
    assert batch_size.edit("x4", workload) == (
        change_arguments(SITE, "DataLoader", batch_size="128"),
        change_arguments(SITE, "Adam", lr="0.002"),
    )
    own_batches = a_workload(a_loader(batch_size=1, has_batch_sampler=True))
    assert not batch_size.applies(own_batches).yes
    assert batch_size.rate_scale("LBFGS", 2) is None


def test_rates_that_the_edit_does_not_reach_are_told_in_words() -> None:
    """The lever scales them: of parameter groups, and tensors."""
    groups = Seen(SITE, {"kind": "SGD", "lr": 0.02, "has_group_rates": True})
    tensor = Seen(Site("train.py", 8), {"kind": "Adam", "has_tensor_options": True})
    others = Seen(SITE, {"kind": "LBFGS", "lr": 1.0, "has_group_rates": True})
    assert batch_size.edit("x4", a_workload(optimizers=(groups, tensor, others))) == (
        change_arguments(SITE, "SGD", lr="0.08"),
        tell(SITE, "each lr that a parameter group has of its own times 4"),
        tell(Site("train.py", 8), "the learning rate of Adam times 2"),
    )


def test_sizes_and_rates_that_differ_on_one_line_are_told_in_words() -> None:
    """A helper makes them: no one value would be right for all."""
    sizes, rates = (32, 256), (1e-4, 4e-4)
    workload = a_workload(
        *(a_loader(batch_size=size) for size in sizes),
        replace(a_loader(batch_size=32), site=Site("train.py", 8)),
        optimizers=tuple(Seen(SITE, {"kind": "Adam", "lr": rate}) for rate in rates),
    )
    assert batch_size.edit("x4", workload) == (
        tell(SITE, "DataLoader(..., batch_size=128) where it is 32"),
        tell(SITE, "DataLoader(..., batch_size=1024) where it is 256"),
        change_arguments(Site("train.py", 8), "DataLoader", batch_size="128"),
        tell(SITE, "Adam(..., lr=0.0002) where it is 0.0001"),
        tell(SITE, "Adam(..., lr=0.0008) where it is 0.0004"),
    )


def test_buckets_keep_the_partial_batch_last_and_are_new_each_epoch() -> None:
    lengths = torch.randint(1, 50, (103,)).tolist()
    sampler = bucket_by_length.ByLength(torch, lengths, 10, None)
    first, second = list(sampler), list(sampler)
    assert len(sampler) == len(first)
    assert sorted(first) == list(range(103))
    assert first != second
    seeded = [
        list(bucket_by_length.ByLength(torch, lengths, 10, torch.Generator().manual_seed(1)))
        for _ in range(2)
    ]
    assert seeded[0] == seeded[1]


@pytest.mark.parametrize(
    ("dataset", "lengths"),
    [
        ([("abc", 1), ("a", 0), ("abcdef", 1)], [3, 1, 6]),
        ([{"ids": [1] * n, "label": 0} for n in (1, 9)], [1, 9]),
        ([torch.zeros(3, n, n) for n in (8, 80)], None),  # pictures: as many channels each
        ([torch.tensor(1.0), torch.tensor(2.0)], None),
        (SimpleNamespace(lengths=[1, 2]), None),
        ([], None),
    ],
)
def test_lengths_of_a_dataset(dataset: Any, lengths: list[int] | None) -> None:
    assert bucket_by_length.lengths_of(torch, dataset) == lengths


def test_lengths_that_take_long_are_not_read() -> None:
    class Slow(Dataset[list[int]]):
        n_read = 0

        def __len__(self) -> int:
            return 10_000_000

        def __getitem__(self, index: int) -> list[int]:
            self.n_read += 1
            return [0] * (1 + index % 7)

    dataset = Slow()
    assert bucket_by_length.lengths_of(torch, dataset) is None
    assert dataset.n_read <= 40
