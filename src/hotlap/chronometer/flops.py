"""FLOPs of a training step, counted after the training on fake tensors.

At the first training call of a module its structure is kept: modules copied shallowly, parameters
as shapes. At the end of the process that copy is run once, forward and backward, on fake tensors
under torch's FLOP counter. The training itself is never slowed and never sees a dispatch mode; no
memory of the model is held; nothing is computed. Attention is counted on its plain path: the
model's FLOPs, without what a fused kernel computes again. What cannot be counted is unknown.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any, NamedTuple

from hotlap.chronometer.flop_counter import counting
from hotlap.chronometer.flop_formulas import UncountedError
from hotlap.chronometer.stored_numbers import is_sparse, note_stored_numbers, stored_numbers

MAX_MODULES = 16


class TensorSpec(NamedTuple):
    """What a fake tensor is made from."""

    shape: tuple[int, ...]
    dtype: Any
    device: Any
    requires_grad: bool
    layout: Any
    n_stored: int | None
    """Of a sparse one."""


class Snapshot(NamedTuple):
    """One module's structure and the arguments of its first training call."""

    module: Any
    args: Any
    kwargs: Any
    elements: int


class ModuleSnapshots:
    """The modules that were called from the loop, by index; index 0 stands for all others."""

    def __init__(self, torch: Any, indices: dict[int, int]) -> None:
        self._torch = torch
        self._indices = indices
        """By the module's id: what a hook looks up in the step."""
        self._snapshots: dict[int, Snapshot | str] = {}

    def add(self, module: Any, args: Any, kwargs: Any) -> int:
        """The index of a module that is seen for the first time; takes its snapshot."""
        index = len(self._snapshots) + 1
        if index > MAX_MODULES:
            index = 0
        self._indices[id(module)] = index
        if not index:
            return 0
        try:
            self._snapshots[index] = self._snapshot(module, args, kwargs)
        except Exception as error:
            self._snapshots[index] = f"{type(error).__name__}: {error}"
        return index

    def _snapshot(self, module: Any, args: Any, kwargs: Any) -> Snapshot:
        from hotlap.chronometer.session import first_tensor

        inner = unwrap(module)
        tensor = first_tensor(args or tuple(kwargs.values()), self._torch.Tensor)
        return Snapshot(
            self._copy(inner, {}),
            self._map_tensors(args),
            self._map_tensors(kwargs),
            tensor.numel() if tensor is not None else 0,
        )

    def _copy(self, module: Any, copies: dict[int, Any]) -> Any:
        """A module like this one, sharing all but its tensors, its children and its hooks."""
        if id(module) in copies:
            return copies[id(module)]
        state = dict(module.__dict__)
        copy = copies[id(module)] = object.__new__(type(module))
        object.__setattr__(copy, "__dict__", state)
        for name in ("_parameters", "_buffers"):
            state[name] = {key: self._spec(value, copies) for key, value in state[name].items()}
        for name, value in state.items():
            if isinstance(value, self._torch.Tensor):
                state[name] = self._spec(value, copies)
            elif type(value) is list:  # recurrent layers keep their weights in one as well
                state[name] = [self._spec(item, copies) for item in value]
            elif "hooks" in name and isinstance(value, dict):
                state[name] = type(value)()
        state["_compiled_call_impl"] = None
        # A forward set on the instance is bound to the original, and would keep all of it alive.
        state.pop("forward", None)
        state["_modules"] = {
            key: child if child is None else self._copy(unwrap(child), copies)
            for key, child in state["_modules"].items()
        }
        return copy

    def _spec(self, value: Any, specs: dict[int, Any]) -> Any:
        """A tensor's spec; the same one for the same tensor, so that tied stays tied."""
        if not isinstance(value, self._torch.Tensor):
            return value
        if hasattr(value, "device_mesh"):
            raise TypeError("its parameters are sharded")
        if id(value) not in specs:
            specs[id(value)] = TensorSpec(
                tuple(value.shape),
                value.dtype,
                value.device,
                value.requires_grad,
                value.layout,
                stored_numbers(value) if is_sparse(value) else None,
            )
        return specs[id(value)]

    def _map_tensors(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._map_tensors(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._map_tensors(item) for item in value)
        return self._spec(value, {})

    def count(self) -> dict[str, dict[str, Any]]:
        """FLOPs of one training call of each module, or why they are unknown."""
        results: dict[str, dict[str, Any]] = {}
        for index, snapshot in self._snapshots.items():
            if isinstance(snapshot, str):
                results[str(index)] = {"error": snapshot}
                continue
            # What a forward prints belongs to the training, not to the count of its FLOPs.
            silence = io.StringIO()
            with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
                try:
                    flops = self._count_one(snapshot)
                    results[str(index)] = {"flops": flops, "elements": snapshot.elements}
                except Exception as error:
                    results[str(index)] = {"error": _reason(error)}
        return results

    def _count_one(self, snapshot: Snapshot) -> float:
        torch = self._torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
            self._materialise(snapshot.module, {})
            args, kwargs = self._fakes(snapshot.args), self._fakes(snapshot.kwargs)
            with counting() as counter, sdpa_kernel(SDPBackend.MATH):
                losses = [t.float().sum() for t in self._outputs(snapshot.module(*args, **kwargs))]
                if losses:
                    sum(losses[1:], losses[0]).backward()
        return counter.total()

    def _materialise(self, module: Any, made: dict[int, Any]) -> None:
        """Put fake tensors where the specs are."""
        for child in module.modules():
            for holder in (child._parameters, child._buffers, child.__dict__):
                for key, value in holder.items():
                    if isinstance(value, TensorSpec):
                        holder[key] = self._fake(value, made, holder is child._parameters)
                    elif type(value) is list:
                        holder[key] = [
                            self._fake(item, made) if isinstance(item, TensorSpec) else item
                            for item in value
                        ]

    def _fake(self, spec: TensorSpec, made: dict[int, Any], is_parameter: bool = False) -> Any:
        if id(spec) not in made:
            tensor = self._torch.empty(
                spec.shape, dtype=spec.dtype, device=spec.device, layout=spec.layout
            )
            if is_parameter:
                tensor = self._torch.nn.Parameter(tensor, requires_grad=spec.requires_grad)
            elif spec.requires_grad:
                tensor.requires_grad_()
            if spec.n_stored is not None:
                note_stored_numbers(tensor, spec.n_stored)
            made[id(spec)] = tensor
        return made[id(spec)]

    def _fakes(self, value: Any) -> Any:
        if isinstance(value, TensorSpec):
            return self._fake(value, {})
        if isinstance(value, dict):
            return {key: self._fakes(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._fakes(item) for item in value)
        return value

    def _outputs(self, value: Any) -> list[Any]:
        """The differentiable tensors in what a module returned."""
        if isinstance(value, self._torch.Tensor):
            return [value] if value.requires_grad else []
        if hasattr(value, "values"):
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            return [tensor for item in value for tensor in self._outputs(item)]
        return []


def _reason(error: Exception) -> str:
    """Why FLOPs are unknown, in one line."""
    kind = type(error).__name__
    text = "".join(str(error).strip().splitlines()[:1])[:200]
    if isinstance(error, UncountedError):
        return text
    if kind in ("DynamicOutputShapeException", "DataDependentOutputException"):
        return f"they depend on the numbers in the batch ({text})"
    return f"{kind}: {text}"


def unwrap(module: Any) -> Any:
    """The user's own module inside torch.compile's or DistributedDataParallel's."""
    kind = type(module).__name__
    if kind == "OptimizedModule":
        return unwrap(module._orig_mod)
    if kind in ("DistributedDataParallel", "DataParallel"):
        return unwrap(module.module)
    return module
