"""What a lever gets to work with in the training process.

A lever says what it wants changed: the arguments of every DataLoader or optimizer that is made, a
model before its first training call, what goes into or comes out of each outermost call of a model,
an attribute of torch. The process does it, can undo it, and reports what was really done, so that
a lever that found nothing to change is not credited with anything.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from hotlap.levers.common.blocks import describe_blocks
from hotlap.levers.common.losses import is_of_probabilities, n_logits
from hotlap.levers.common.makers import made_by, trainer
from hotlap.levers.common.optimizers import has_group_rates, has_tensor_options

Report = Callable[..., None]
"""Writes an event: keys and values that go into JSON."""

ModelChange = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
InputChange = Callable[
    [Any, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]
]
OutputChange = Callable[[Any, Any], Any]
ArgumentChange = Callable[[type, dict[str, Any]], Callable[[Any], None] | None]
"""Changes arguments in place; what it returns is called with the object that was made of them."""


class Process:
    """One training process and the changes that levers made to it."""

    def __init__(self, torch: Any, session: Any, report: Report) -> None:
        self._torch, self._session, self._report = torch, session, report
        self._pid = os.getpid()
        self._undo: list[Callable[[], None]] = []
        self.lever = ""
        """The name of the one at work."""
        self._levers: dict[str, str] = {}
        self._on_model: list[tuple[str, ModelChange]] = []
        self._on_input: list[tuple[str, InputChange]] = []
        self._on_output: list[tuple[str, OutputChange]] = []
        self._contexts: list[tuple[str, Callable[[Any], Any]]] = []
        self._on_loader: list[tuple[str, ArgumentChange]] = []
        self._on_optimizer: list[tuple[str, ArgumentChange]] = []
        self._numbers: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        """Of the models that were met."""
        self._n_met = 0
        self._lazy_models: WeakSet[Any] = WeakSet()
        self._awaits_lazy_models = False
        self._datasets: set[int] = set()
        """Of the loaders that were seen, by their ids."""
        self._in_model_change = False
        self._in_constructor = False

    # Levers -----------------------------------------------------------------------------------

    def apply(self, lever: Any, value: str) -> None:
        """Apply a lever once; a failure is reported and leaves the training as it was."""
        if lever.name in self._levers:
            return
        self._levers[lever.name] = value
        self.as_lever(lever.name, lever.apply, self._torch, value, self)

    def undo(self) -> None:
        """Take back everything, the last change first."""
        while self._undo:
            self._undo.pop()()
        wishes: tuple[list[Any], ...] = (
            *(self._on_model, self._on_input, self._on_output),
            *(self._contexts, self._on_loader, self._on_optimizer),
        )
        for changes in wishes:
            changes.clear()
        self._levers.clear()

    def did(self, what: str) -> None:
        """Report what the lever at work has changed."""
        self._report(done=self.lever, what=what)

    def failed(self, why: str) -> None:
        """Report that the lever at work could not be applied."""
        self._report(failed=self.lever, why=why)

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that levers were applied to.

        A worker of a DataLoader is one: whatever touches CUDA there ends it.
        """
        return os.getpid() != self._pid

    def as_lever(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a part of a lever; an error of it is reported and goes no further."""
        before, self.lever = self.lever, name
        try:
            return function(*arguments)
        except Exception as error:
            self.failed(f"{type(error).__name__}: {error}")
            return None
        finally:
            self.lever = before

    # What a lever can ask for -----------------------------------------------------------------

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set an attribute, and set it back on undo."""
        missing = object()
        old = owner.__dict__.get(name, missing) if hasattr(owner, "__dict__") else missing
        is_own = old is not missing
        before = old if is_own else getattr(owner, name, missing)
        setattr(owner, name, new)

        def restore() -> None:
            if is_own or (before is not missing and not isinstance(owner, type)):
                setattr(owner, name, before)
            else:
                delattr(owner, name)

        self._undo.append(restore)

    def on_undo(self, function: Callable[[], None]) -> None:
        """Have a function called on undo."""
        self._undo.append(function)

    def on_model(self, change: ModelChange) -> None:
        """Change every model before its first training call: change(module, args, kwargs)."""
        self._on_model.append((self.lever, change))

    def on_input(self, change: InputChange) -> None:
        """Change what each outermost call gets: args, kwargs = change(module, args, kwargs)."""
        self._on_input.append((self.lever, change))
        self._take_calls()

    def on_output(self, change: OutputChange) -> None:
        """Change what comes out of each outermost call: result = change(module, result)."""
        self._on_output.append((self.lever, change))
        self._take_calls()

    def around_calls(self, context: Callable[[Any], Any]) -> None:
        """Run each outermost call in the context manager that `context(module)` gives."""
        self._contexts.append((self.lever, context))
        self._take_calls()

    def on_loader(self, change: ArgumentChange) -> None:
        """Change the arguments of every DataLoader: change(class, arguments by name)."""
        self._on_loader.append((self.lever, change))

    def on_optimizer(self, change: ArgumentChange) -> None:
        """Change the arguments of every optimizer of torch's: change(class, arguments by name)."""
        self._on_optimizer.append((self.lever, change))

    # How it is done ---------------------------------------------------------------------------

    def watch(self) -> None:
        """Put in what sees models, loaders and others being made. Done once, before levers."""
        self._session.new_module = self._meet_model
        loader_class = self._torch.utils.data.DataLoader
        self._see_constructor(loader_class, self._on_loader, self._describe_loader)
        for kind in vars(self._torch.optim).values():
            if _is_an_optimizer(kind, self._torch.optim.Optimizer):
                self._see_constructor(kind, self._on_optimizer, self._describe_optimizer)
        self._see_ddp(self._torch.nn.parallel.DistributedDataParallel)
        self.first_call(self._torch.Tensor, "backward", self._see_backward)
        self.first_call(self._torch.amp.GradScaler, "__init__", self._see_scaler)
        self._see_anomaly_detection()

    def first_call(self, owner: Any, name: str, see: Callable[..., None]) -> None:
        """Have `see(*args)` called at the first call of a method, which is then as it was."""
        original, seen = owner.__dict__[name], list[bool]()

        @functools.wraps(original)
        def once(*args: Any, **kwargs: Any) -> Any:
            if owner.__dict__.get(name) is once:  # and not what a lever has put around it
                setattr(owner, name, original)
            with contextlib.suppress(Exception):
                if not seen:
                    seen.append(True)
                    see(*args)
            return original(*args, **kwargs)

        setattr(owner, name, once)

    def _see_constructor(
        self,
        kind: type,
        changes: list[tuple[str, ArgumentChange]],
        describe: Callable[[dict[str, Any]], dict[str, Any] | None],
    ) -> None:
        original = vars(kind)["__init__"]
        signature = inspect.signature(original)
        what = "loader" if changes is self._on_loader else "optimizer"

        @functools.wraps(original)
        def constructor(self_: Any, *args: Any, **kwargs: Any) -> None:
            try:
                bound = signature.bind(self_, *args, **kwargs)
                bound.apply_defaults()
            except TypeError:  # a wrong call raises as it would without us
                original(self_, *args, **kwargs)
                return
            name = next(iter(bound.arguments))
            arguments = {k: v for k, v in bound.arguments.items() if k != name}
            if self._in_constructor:  # of a class derived from this one, which was changed already
                original(self_, **arguments)
                return
            with contextlib.suppress(Exception):
                facts = describe(arguments)
                if facts is not None:
                    self._report_seen(what, {"kind": type(self_).__name__, **facts})
            self._in_constructor = True
            try:
                made = [(one, self.as_lever(one, f, kind, arguments)) for one, f in changes]
                original(self_, **arguments)
            finally:
                self._in_constructor = False
            for lever, see in made:
                if see is not None:
                    self.as_lever(lever, see, self_)

        kind.__init__ = constructor  # type: ignore[misc]

    def _see_ddp(self, kind: Any) -> None:
        original = kind.__init__

        @functools.wraps(original)
        def constructor(self_: Any, *args: Any, **kwargs: Any) -> None:
            self._report_seen("ddp", {})
            original(self_, *args, **kwargs)

        kind.__init__ = constructor

    def _describe_loader(self, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """Facts; none of a loader that a framework makes of one that was seen."""
        dataset, maker = arguments.get("dataset"), made_by(is_users_file)
        if maker and id(dataset) in self._datasets:
            return None
        self._datasets.add(id(dataset))
        names = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "batch_size")
        facts = {name: arguments.get(name) for name in names}
        facts["made_by"] = maker
        context = arguments.get("multiprocessing_context")
        facts["shuffle"] = bool(arguments.get("shuffle")) or arguments.get("sampler") is not None
        facts["has_sampler"] = arguments.get("sampler") is not None
        facts["has_batch_sampler"] = arguments.get("batch_sampler") is not None
        facts["has_collate"] = arguments.get("collate_fn") is not None
        facts["drop_last"] = bool(arguments.get("drop_last"))
        facts["dataset"] = type(dataset).__name__
        facts["is_iterable"] = isinstance(dataset, self._torch.utils.data.IterableDataset)
        facts["has_torchvision"] = "torchvision.transforms" in sys.modules
        facts["start_method"] = (
            context if isinstance(context, str) or context is None else str(context)
        )
        return facts

    def _describe_optimizer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        names = ("fused", "foreach", "differentiable", "capturable", "lr")
        facts = {name: arguments.get(name) for name in names if name in arguments}
        if not isinstance(facts.get("lr"), (int, float)):
            facts.pop("lr", None)
        facts["has_tensor_options"] = has_tensor_options(self._torch, arguments)
        facts["has_group_rates"] = has_group_rates(arguments)
        facts["made_by"] = made_by(is_users_file)
        return facts

    def _see_backward(self, loss: Any, *args: Any) -> None:
        facts = {"n_logits": n_logits(loss), "of_probabilities": is_of_probabilities(loss)}
        self._report_seen("backward", facts)

    def _see_scaler(self, *args: Any) -> None:
        self._report_seen("scaler", {})

    def _see_anomaly_detection(self) -> None:
        """Where it is switched on: a call, or a `with`, both of which end in this function."""
        original, told = self._torch.set_anomaly_enabled, set[Any]()

        @functools.wraps(original)
        def set_anomaly_enabled(enabled: bool, *args: Any, **kwargs: Any) -> None:
            original(enabled, *args, **kwargs)
            site = user_site() if enabled else None
            if enabled and site not in told:  # a loop may do it in every step
                told.add(site)
                caller = type(sys._getframe(1).f_locals.get("self")).__name__
                self._report_seen("anomaly", {"call": caller})

        self._torch.set_anomaly_enabled = set_anomaly_enabled

    def _meet_model(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._in_model_change or next(module.parameters(), None) is None:
            return  # a criterion is a module too, with nothing in it to change
        with contextlib.suppress(Exception):
            self._report(seen="process", facts=self._describe_process(module, args, kwargs))
        if self._is_lazy(module):
            self._wait_for(module)
            return
        self._in_model_change = True
        try:
            with contextlib.suppress(Exception):
                facts = self._describe_model(module, args, kwargs)
                self._report_seen("model", {**facts, **self._place_among_models(module)})
            for lever, change in self._on_model:
                self.as_lever(lever, change, module, args, kwargs)
        finally:
            self._in_model_change = False

    def _is_lazy(self, module: Any) -> bool:
        """Whether it has layers that find their sizes, and get their weights, at the first call."""
        is_lazy = self._torch.nn.parameter.is_lazy
        return any(map(is_lazy, (*module.parameters(), *module.buffers())))

    def _wait_for(self, lazy_model: Any) -> None:
        """Meet it at its first training call with all weights there."""
        if not self._awaits_lazy_models:
            self._awaits_lazy_models = True
            told_before = self._session.on_training_call

            def see(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                if module in self._lazy_models and not self._is_lazy(module):
                    self._lazy_models.discard(module)
                    self._meet_model(module, args, kwargs)
                if told_before is not None:
                    told_before(module, args, kwargs)

            self._session.on_training_call = see
        self._lazy_models.add(lazy_model)

    def _describe_model(self, module: Any, args: Any, kwargs: Any) -> dict[str, Any]:
        torch = self._torch
        kinds: dict[str, int] = {}
        for part in module.modules():
            kinds[type(part).__name__] = kinds.get(type(part).__name__, 0) + 1
        convolutions = [p for p in module.parameters() if p.dim() == 4]
        given = (*args, *kwargs.values())
        tensors = [one for one in given if isinstance(one, torch.Tensor)]
        linears = [part for part in module.modules() if type(part) is torch.nn.Linear]
        return {
            "kind": type(module).__name__,
            "n_parameters": sum(p.numel() for p in module.parameters()),
            "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in module.parameters()}),
            "kinds": kinds,
            "linears": sorted({(part.in_features, part.out_features) for part in linears}),
            "inputs": [
                [list(t.shape), str(t.dtype).removeprefix("torch."), t.device.type] for t in tensors
            ],
            "takes_tensor_first": bool(given) and isinstance(given[0], torch.Tensor),
            "trainer": trainer(),
            "forward_is_torchs": _is_forward_torchs(torch, module),
            "is_compiled": is_compiled(module),
            "is_compiled_in_name": _is_compiled_in_name(torch, module),
            "is_ddp": "DistributedDataParallel" in kinds,
            "is_channels_last": bool(convolutions) and is_channels_last(torch, convolutions),
            "in_autocast": torch.is_autocast_enabled(_device_type(torch, module, tensors)),
            **describe_blocks(torch, module),
        }

    def _place_among_models(self, module: Any) -> dict[str, Any]:
        """A number for this model, with those of the ones met before that it holds or is held by.

        A part may be called by itself: before its model is, for a shape, or after it.
        """
        met = {id(one): number for one, number in self._numbers.items()}
        holds = [met[id(part)] for part in module.modules() if id(part) in met]
        held_by = [n for one, n in self._numbers.items() if _is_part(module, one)]
        self._n_met += 1
        number = self._numbers[module] = f"{os.getpid()}-{self._n_met}"
        return {"number": number, "holds": holds, "held_by": held_by}

    def _describe_process(self, module: Any, args: Any, kwargs: Any) -> dict[str, Any]:
        torch = self._torch
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        device = _device_type(torch, module, tensors)
        facts: dict[str, Any] = {
            "torch": torch.__version__,
            "device": device,
            "is_rocm": torch.version.hip is not None,
            "flags": {
                "matmul_precision": _matmul_precision(torch),
                "cudnn_benchmark": torch.backends.cudnn.benchmark,
                "cudnn_deterministic": torch.backends.cudnn.deterministic,
                "deterministic": torch.are_deterministic_algorithms_enabled(),
                "anomaly": torch.is_anomaly_enabled(),
                "n_threads": torch.get_num_threads(),
                "gc_threshold": list(gc.get_threshold()),
                "fp16_accumulation": bool(
                    getattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", False)
                ),
                "fp16_reductions": bool(
                    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
                ),
            },
        }
        if device == "cuda":
            facts["device_name"] = torch.cuda.get_device_name()
            facts["capability"] = list(torch.cuda.get_device_capability())
        return facts

    def _report_seen(self, what: str, facts: dict[str, Any]) -> None:
        with contextlib.suppress(Exception):
            self._report(seen=what, site=user_site(), facts=facts)

    def _take_calls(self) -> None:
        self._session.around_call = self._call
        if not any(f == self._give_calls_back for f in self._undo):
            self._undo.append(self._give_calls_back)

    def _give_calls_back(self) -> None:
        self._session.around_call = None

    def _call(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for lever, change in self._on_input:
            changed = self.as_lever(lever, change, module, args, kwargs)
            if changed is not None:
                args, kwargs = changed
        call = module._compiled_call_impl or module._call_impl
        with contextlib.ExitStack() as stack:
            for lever, context in self._contexts:
                self.as_lever(lever, lambda c=context: stack.enter_context(c(module)))
            result = call(*args, **kwargs)
        for lever, output_change in self._on_output:
            changed = self.as_lever(lever, output_change, module, result)
            result = result if changed is None else changed
        return result


def _is_an_optimizer(kind: Any, base: type) -> bool:
    is_derived = isinstance(kind, type) and issubclass(kind, base) and kind is not base
    return is_derived and "__init__" in vars(kind)


def _is_forward_torchs(torch: Any, module: Any) -> bool:
    """Whether this is a model of a class of torch's, or of one that adds no forward of its own."""
    is_ddp = isinstance(module, torch.nn.parallel.DistributedDataParallel)
    forward = (module.module if is_ddp else module).forward
    return str(getattr(forward, "__module__", "")).startswith("torch.")


def _is_compiled_in_name(torch: Any, module: Any) -> bool:
    """Whether `module.compile()` was called, which compiles nothing of a forward of torch's."""
    name = getattr(module._compiled_call_impl, "__name__", "")
    return name == "_call_impl" and _is_forward_torchs(torch, module)


def _is_part(module: Any, model: Any) -> bool:
    return any(part is module for part in model.modules())


def is_compiled(module: Any) -> bool:
    """Whether this model or any part of it is compiled, by the script or by a lever."""
    return any(
        part._compiled_call_impl is not None or type(part).__name__ == "OptimizedModule"
        for part in module.modules()
    )


def is_channels_last(torch: Any, weights: list[Any]) -> bool:
    """Whether convolutions have their channels innermost, by their weights.

    Those of one input channel or one pixel are in both orders at once, as torch has it: where there
    are no others, the strides tell that only a change of order gives them.
    """
    last = torch.channels_last
    telling = [one for one in weights if not one.is_contiguous()]
    plain = [one for one in weights if not one.is_contiguous(memory_format=last)]
    if telling or plain:
        return not plain
    return all(one.stride(1) == 1 and one.stride(3) == one.shape[1] for one in weights)


def _matmul_precision(torch: Any) -> str:
    """As torch names it; what a script sets by the names of torch 2.9 is told by these alone."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return str(torch.backends.cuda.matmul.fp32_precision)


def _device_type(torch: Any, module: Any, tensors: list[Any]) -> str:
    first = next(iter(module.parameters()), None)
    if first is not None:
        return str(first.device.type)
    return str(tensors[0].device.type) if tensors else "cpu"


@functools.cache
def _not_the_users() -> tuple[str, ...]:
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = {here, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib"))}
    torch = sys.modules.get("torch")
    if torch is not None and torch.__file__:
        paths.add(os.path.dirname(os.path.abspath(torch.__file__)))
    return (*(path + os.sep for path in paths if path), "<")


def user_site() -> tuple[str, int] | None:
    """The innermost line of the user's own source that led here."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users_file(file):
            return os.path.abspath(file), frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


def is_users_file(file: str) -> bool:
    """Whether a source file is neither Python's nor torch's nor of an installed package."""
    return not file.startswith(_not_the_users()) and "site-packages" not in file
