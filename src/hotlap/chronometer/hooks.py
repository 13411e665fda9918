"""The hooks: the few functions of torch that every training loop goes through.

    data        DataLoader.__iter__, _BaseDataLoaderIter.__next__
    transfer    Tensor.to, Tensor.cuda, Tensor.copy_ (builds with a device only)
    forward     nn.Module.__call__, the outermost call
    backward    torch.autograd._engine_run_backward: Tensor.backward and autograd.grad alike
    optimizer   the global optimizer step hooks, GradScaler.step
    loss        GradScaler.scale, to know the loss before it was scaled

They are installed at the end of `import torch`, before dynamo loads: dynamo then takes the new
`nn.Module.__call__` for the original and goes straight to `forward`, as it does without hotlap.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from hotlap.chronometer import marks
from hotlap.chronometer.instrument import instrument
from hotlap.chronometer.marks import code_word
from hotlap.chronometer.session import Session, Settings


def install(torch: Any) -> None:
    """Instrument torch in this process; without a launcher's settings, nothing happens."""
    settings = Settings.from_environment()
    if settings is None:
        return
    session = Session(torch, settings)
    os.register_at_fork(after_in_child=session.after_fork)
    for hook in (_data, _forward, _backward, _optimizer, _scaler, _transfer):
        try:
            hook(torch, session)
        except Exception as error:
            name = hook.__name__.strip("_")
            session.early_notes.append(f"there is no {name} hook for this torch: {error}")


def _data(torch: Any, session: Session) -> None:
    loader_class = torch.utils.data.dataloader.DataLoader
    iterator_class = torch.utils.data.dataloader._BaseDataLoaderIter
    iterable_dataset = torch.utils.data.IterableDataset

    def begin_iter(loader: Any) -> int:
        serial = session.n_iterators = session.n_iterators + 1
        return serial if session.begin(code_word(marks.ITER_BEGIN, 0, serial)) else 0

    def made_iterator(serial: int, iterator: Any) -> Any:
        # A serial is an epoch, not an object: persistent workers come back with the same iterator.
        session.serials[id(iterator)] = serial
        session.last_length = -1
        # An iterable dataset's length is a promise that DataLoader checks, with warnings.
        if not isinstance(iterator._dataset, iterable_dataset):
            session.last_length = len(iterator._index_sampler)
        return iterator

    def end_iter(serial: int) -> None:
        if serial:
            session.end(code_word(marks.ITER_END, 0, serial), session.last_length)

    def begin_fetch(iterator: Any) -> int:
        serial = session.serials.get(id(iterator), 0)
        session.last_samples = None
        return serial + 1 if session.begin(code_word(marks.FETCH_BEGIN, 0, serial)) else 0

    def fetched(scope: int, batch: Any) -> Any:
        if scope:
            session.last_samples = session.samples_of(batch)
        return batch

    def end_fetch(scope: int) -> None:
        if scope:
            samples = session.last_samples
            flags = marks.STOP if samples is None else 0
            session.end(code_word(marks.FETCH_END, flags, scope - 1), samples or -1)

    loader_class.__iter__ = instrument(
        loader_class.__iter__, begin_iter, end_iter, session.guarded(made_iterator)
    )
    iterator_class.__next__ = instrument(
        iterator_class.__next__, begin_fetch, end_fetch, session.guarded(fetched)
    )


def _forward(torch: Any, session: Session) -> None:
    module_class = torch.nn.Module

    def end(opened: bool) -> None:
        if opened:
            session.inside_module = False
            session.end(marks.FORWARD_END)

    names = {
        "__hotlap_session": session,
        "__hotlap_is_tracing": torch.compiler.is_dynamo_compiling,
    }
    module_class.__call__ = module_class._wrapped_call_impl = instrument(
        module_class._wrapped_call_impl,
        session.begin_forward,
        end,
        unless=("__hotlap_is_tracing() or __hotlap_session.inside_module", names),
    )


def _backward(torch: Any, session: Session) -> None:
    n_dispatch_modes = torch._C._len_torch_dispatch_stack

    def begin(outputs: Any, args: Any, kwargs: Any) -> Any:
        by_grad = not kwargs.get("accumulate_grad", False)
        # Inside a forward, or under a tracer, `autograd.grad` is part of what computes the loss.
        if by_grad and (session.inside_module or n_dispatch_modes()):
            return None
        was_inside = session.inside_module
        if not session.begin_backward(outputs, by_grad):
            return None
        session.inside_module = True
        return (was_inside,)

    def end(scope: Any) -> None:
        if scope:
            (session.inside_module,) = scope
            session.end(marks.BACKWARD_END)

    torch.autograd._engine_run_backward = instrument(torch.autograd._engine_run_backward, begin, end)


def _optimizer(torch: Any, session: Session) -> None:
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    is_tracing = torch.compiler.is_dynamo_compiling

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not is_tracing():
            session.begin_optimizer(optimizer, len(args) > 1 or bool(kwargs.get("closure")))

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not is_tracing():
            session.end_optimizer(optimizer)

    register_optimizer_step_pre_hook(before_step)
    register_optimizer_step_post_hook(after_step)


def _scaler(torch: Any, session: Session) -> None:
    scaler_class = torch.amp.GradScaler

    def scaled(scaler: Any, outputs: Any) -> Any:
        return outputs

    def remember(unscaled: Any, result: Any) -> Any:
        session.unscaled = (result, unscaled)
        return result

    def begin_step(scaler: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
        has_closure = bool(args or kwargs)
        return optimizer if session.begin_optimizer(optimizer, has_closure) else None

    def end_step(optimizer: Any) -> None:
        if optimizer is not None:
            session.end_optimizer(optimizer)

    scaler_class.scale = instrument(scaler_class.scale, scaled, lambda _: None, remember)
    scaler_class.step = instrument(scaler_class.step, begin_step, end_step)


def _transfer(torch: Any, session: Session) -> None:
    """Methods written in C have no source: these three are wrapped, and show in a traceback."""
    if not (torch.version.cuda or torch.version.hip):
        return
    tensor_class = torch.Tensor
    is_tracing = torch.compiler.is_dynamo_compiling

    def recorded(original: Callable[..., Any], is_from_host: Callable[..., bool]) -> Any:
        @functools.wraps(original)
        def move(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_tracing() or session.device is None or session.inside_module:
                return original(self, *args, **kwargs)
            if (
                not is_from_host(self, args)
                or not session.device.on_training_stream()
                or not session.begin(marks.TRANSFER_BEGIN)
            ):
                return original(self, *args, **kwargs)
            try:
                return original(self, *args, **kwargs)
            finally:
                session.end(marks.TRANSFER_END)

        return move

    def host_tensor(self: Any, args: Any) -> bool:
        return not self.is_cuda

    def host_source(self: Any, args: Any) -> bool:
        return bool(self.is_cuda and args and not getattr(args[0], "is_cuda", True))

    tensor_class.to = recorded(tensor_class.to, host_tensor)
    tensor_class.cuda = recorded(tensor_class.cuda, host_tensor)
    tensor_class.copy_ = recorded(tensor_class.copy_, host_source)
