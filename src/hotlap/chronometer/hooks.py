"""The hooks: the few functions of torch that every training loop goes through.

    data        DataLoader.__iter__, _BaseDataLoaderIter.__next__
    transfer    Tensor.to, Tensor.cuda, Tensor.copy_ (builds with a device only)
    forward     nn.Module.__call__, the outermost call
    backward    torch.autograd._engine_run_backward: Tensor.backward and autograd.grad alike
    optimizer   the global optimizer step hooks, GradScaler.step
    loss        GradScaler.scale, to know the loss before it was scaled

They are installed at the end of `import torch`, before dynamo loads: dynamo then takes the new
`nn.Module.__call__` for the original and goes straight to `forward`, as it does without hotlap.

What a hook does in the step is written flat, with few calls: between the kernels of a training the
caches are cold, and every Python call costs a microsecond.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable
from threading import get_ident
from typing import Any

from hotlap.chronometer import marks
from hotlap.chronometer.clock import now_ns
from hotlap.chronometer.dynamo import hide_from_dynamo
from hotlap.chronometer.instrument import instrument
from hotlap.chronometer.marks import (
    BACKWARD_BEGIN,
    BACKWARD_END,
    FETCH_BEGIN,
    FETCH_END,
    FORWARD_BEGIN,
    FORWARD_END,
    ITER_BEGIN,
    ITER_END,
    NO_LOSS,
    OPTIMIZER_BEGIN,
    OPTIMIZER_END,
    QUIET,
    TRANSFER_BEGIN,
    TRANSFER_END,
)
from hotlap.chronometer.samples import SampleCounter
from hotlap.chronometer.session import BACKWARDS_ALONE, Session, Settings, first_tensor

GRAD, TRAINING, FRESH = marks.GRAD << 8, marks.TRAINING << 8, marks.FRESH << 8
INSIDE_BACKWARD = 2
"""A value of `inside_module`, which is true of it as of any other call."""
STOP, QUIETLY = marks.STOP << 8, QUIET << 8


def install(torch: Any, settings: Settings | None = None) -> Session | None:
    """Instrument torch in this process; without settings of a launcher's, nothing happens."""
    settings = settings or Settings.from_environment()
    if settings is None:
        return None
    session = Session(torch, settings)
    hide_from_dynamo(torch, __name__.rpartition(".")[0])
    os.register_at_fork(after_in_child=session.after_fork)
    for hook in (_data, _forward, _backward, _optimizer, _scaler, _transfer):
        try:
            hook(torch, session)
        except Exception as error:
            name = hook.__name__.strip("_")
            session.early_notes.append(f"there is no {name} hook for this torch: {error}")
    return session


def _data(torch: Any, session: Session) -> None:
    loader_class = torch.utils.data.dataloader.DataLoader
    iterator_class = torch.utils.data.dataloader._BaseDataLoaderIter
    iterable_dataset = torch.utils.data.IterableDataset
    tensor_type, counter = torch.Tensor, SampleCounter(torch)
    extend, serials = session.buffer.extend, session.serials

    def begin_iter(loader: Any) -> int:
        if session.thread != get_ident() and not session.adopt_thread(ITER_BEGIN):
            return 0
        serial = session.n_iterators = session.n_iterators + 1
        if not session.backwards:
            session.counts_inputs = False
        session.log(ITER_BEGIN | serial << 16)
        return serial

    def end_iter(serial: int, iterator: Any) -> Any:
        length = -1
        try:
            # A serial is an epoch, not an object: persistent workers bring the same iterator back.
            serials[id(iterator)] = serial
            # An iterable dataset's length is a promise that DataLoader checks, with warnings.
            if not isinstance(iterator._dataset, iterable_dataset):
                length = len(iterator._index_sampler)
        except TypeError:
            length = -1  # a sampler need not know it
        except Exception as error:
            session.note(f"a loader's length is unknown: {type(error).__name__}: {error}")
        if serial:
            session.log(ITER_END | serial << 16, length)
        return iterator

    def failed_iter(serial: int) -> None:
        if serial:
            session.log(ITER_END | serial << 16, -1)

    def begin_fetch(iterator: Any) -> Any:
        if session.thread != get_ident() and not session.adopt_thread(FETCH_BEGIN):
            return None
        extend((now_ns(), FETCH_BEGIN | serials.get(id(iterator), 0) << 16, 0, 0))
        if session.has_events:
            session.device.mark()
        return iterator

    def n_samples(iterator: Any, batch: Any) -> int:
        try:
            if type(batch) is tensor_type:
                tensor = batch
            elif type(batch) is list and type(batch[0]) is tensor_type:
                tensor = batch[0]
            else:
                tensor = first_tensor(batch, tensor_type)
            if tensor is not None and tensor.dim():
                n: int = tensor.size(0)
                size = getattr(iterator._index_sampler, "batch_size", None)
                if n == size or (size is None and counter.is_plain(batch, n)):
                    return n  # as nearly always: the rest takes microseconds
            counted = counter.in_batch(batch, iterator)
            return -1 if counted is None else counted
        except IndexError:
            return -1  # an empty batch
        except Exception as error:
            session.note(f"samples were not counted: {type(error).__name__}: {error}")
        return -1

    def end_fetch(iterator: Any, batch: Any) -> Any:
        if iterator is not None:
            code = FETCH_END | serials.get(id(iterator), 0) << 16
            extend((now_ns(), code, n_samples(iterator, batch), 0))
            if session.has_events:
                session.device.mark()
        return batch

    def failed_fetch(iterator: Any) -> None:
        if iterator is not None:
            session.log(FETCH_END | STOP | serials.get(id(iterator), 0) << 16, -1)

    def quiet_fetch(iterator: Any, batch: Any) -> Any:
        if session.thread == get_ident():
            serial = serials.get(id(iterator), 0)
            extend((now_ns(), FETCH_END | QUIETLY | serial << 16, n_samples(iterator, batch), 0))
        return batch

    def failed_quiet_fetch(iterator: Any) -> None:
        if session.thread == get_ident():
            session.log(FETCH_END | QUIETLY | STOP | serials.get(id(iterator), 0) << 16, -1)

    loader_class.__iter__ = instrument(loader_class.__iter__, begin_iter, failed_iter, end_iter)
    original = iterator_class.__next__
    loud = instrument(original, begin_fetch, failed_fetch, end_fetch)
    quiet = instrument(original, None, failed_quiet_fetch, quiet_fetch)
    iterator_class.__next__ = loud

    def switch(is_quiet: bool) -> None:
        iterator_class.__next__ = quiet if is_quiet else loud

    session.switches.append(switch)


def _forward(torch: Any, session: Session) -> None:
    module_class, tensor_type = torch.nn.Module, torch.Tensor
    is_grad_enabled, is_wrapped = torch.is_grad_enabled, _test_for_wrapped(torch)
    extend, indices = session.buffer.extend, session.module_indices
    counter = SampleCounter(torch)
    last_inputs: dict[int, tuple[int, int]] = {}

    def is_fresh(module: int, tensor: Any) -> bool:
        """Whether a module is called on another tensor than the last time, or on a changed one."""
        version = 0 if tensor.is_inference() else tensor._version
        this = (id(tensor), version)
        if last_inputs.get(module) == this:
            return False
        last_inputs[module] = this
        return True

    def n_given(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        try:
            return counter.in_call(module, args, kwargs) or 0
        except Exception as error:
            session.note(f"samples were not counted: {type(error).__name__}: {error}")
        return 0

    def begin(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
        if session.thread != get_ident() and not session.adopt_thread(FORWARD_BEGIN):
            return None
        code, size = FORWARD_BEGIN, 0
        try:
            if module.training:
                code |= TRAINING
            tensor = args[0] if args else None
            if type(tensor) is not tensor_type:
                tensor = first_tensor(args or tuple(kwargs.values()), tensor_type)
            if tensor is not None:
                size = tensor.numel()
                if session.counts_inputs:
                    if not is_wrapped(tensor):
                        is_batch = args and tensor is args[0] and tensor.dim() > 1
                        n = tensor.size(0) if is_batch else n_given(module, args, kwargs)
                        size |= n << marks.SAMPLES_SHIFT
                    if is_fresh(id(module), tensor):
                        code |= FRESH
            if is_grad_enabled():
                index = indices.get(id(module))
                if index is None and session.modules is not None:
                    index = session.modules.add(module, args, kwargs)
                    if session.new_module is not None:
                        session.new_module(module, args, kwargs)
                code |= GRAD | (index or 0) << 16
                if session.on_training_call is not None:
                    session.on_training_call(module, args, kwargs)
        except Exception as error:
            session.note(f"a forward was only timed: {type(error).__name__}: {error}")
        session.inside_module = True
        extend((now_ns(), code, size, 0))
        if session.has_events:
            session.device.mark()
        # A forward that trains lasts until its backward; any other one has an end of its own.
        return code & (GRAD | TRAINING) != GRAD | TRAINING

    def end(is_marked: bool) -> None:
        session.log(FORWARD_END)

    module_class.__call__ = module_class._wrapped_call_impl = instrument(
        module_class._wrapped_call_impl,
        begin,
        end,
        outermost=(session, torch.compiler.is_dynamo_compiling),
    )


def _backward(torch: Any, session: Session) -> None:
    n_dispatch_modes = torch._C._len_torch_dispatch_stack
    is_wrapped = _test_for_wrapped(torch)
    tensor_type, buffer, extend = torch.Tensor, session.buffer, session.buffer.extend
    float_bits, int_bits = struct.Struct("=d").pack, struct.Struct("=q").unpack

    def begin(outputs: Any, args: Any, kwargs: Any) -> int | None:
        code = BACKWARD_BEGIN
        if not kwargs.get("accumulate_grad"):
            # Inside a forward, or under a tracer, `autograd.grad` is part of computing the loss.
            if session.inside_module or n_dispatch_modes():
                return None
            code |= GRAD
        if session.inside_module == INSIDE_BACKWARD:
            return None  # of a checkpoint, which runs its own part of this backward
        if session.thread != get_ident() and not session.adopt_thread(BACKWARD_BEGIN):
            return None
        if session.open_optimizers and not session.open_optimizers[-1]:
            # A backward inside an optimizer step that was given no closure: that step has raised.
            session.open_optimizers.clear()
            session.log(marks.OPTIMIZER_RAISED)
        session.backwards += 1
        was_inside, session.inside_module = session.inside_module, INSIDE_BACKWARD
        extend((now_ns(), code | session.quiet_flag, NO_LOSS, 0))
        if session.has_events:
            session.device.mark()
        try:
            loss = outputs[0] if type(outputs) is tuple else outputs
            if session.unscaled is not None:
                scaled, unscaled = session.unscaled
                session.unscaled = None
                if loss is scaled:
                    loss = unscaled
            if type(loss) is tensor_type and loss.numel() == 1 and not is_wrapped(loss):
                if loss.is_cpu:
                    (buffer[-2],) = int_bits(float_bits(loss.item()))
                else:
                    session.keep_loss(loss)
        except Exception as error:
            session.note(f"losses could not be kept: {type(error).__name__}: {error}")
        return was_inside

    def end(was_inside: int | None, result: Any) -> Any:
        if was_inside is not None:
            session.inside_module = was_inside
            extend((now_ns(), BACKWARD_END, 0, 0))
            if session.has_events:
                session.device.mark()
            if session.backwards > BACKWARDS_ALONE and not session.optimizers:
                session.boundaries.append(0)
                session.unprobed_left -= 1
                session.step_ended(now_ns())
        return result

    def failed(was_inside: int | None) -> None:
        if was_inside is not None:
            session.inside_module = was_inside
            session.log(BACKWARD_END | STOP)

    def failed_quietly(was_inside: int | None) -> None:
        if was_inside is not None:
            begun = len(buffer) - 3
            while begun > 0 and buffer[begun] & 0xFF != BACKWARD_BEGIN:
                begun -= marks.WORDS
            if begun > 0:
                buffer[begun] &= ~QUIETLY  # it has an end of its own, after all
            session.log(BACKWARD_END | STOP)

    original = torch.autograd._engine_run_backward
    loud = instrument(original, begin, failed, end)
    quiet = instrument(original, begin, failed_quietly, back_to=session)
    torch.autograd._engine_run_backward = loud

    def switch(is_quiet: bool) -> None:
        torch.autograd._engine_run_backward = quiet if is_quiet else loud

    session.switches.append(switch)


def _test_for_wrapped(torch: Any) -> Callable[[Any], bool]:
    """Whether a tensor is one inside of a transform of torch.func.

    It has no number that could be read, and lacks the dimension that a vmap maps over.
    """
    functorch = getattr(torch._C, "_functorch", None)
    test: Any = getattr(functorch, "is_functorch_wrapped_tensor", None)
    return test or (lambda tensor: False)  # a private name, which a torch need not have


def _optimizer(torch: Any, session: Session) -> None:
    import torch.optim.optimizer as optimizer_module  # `torch.optim` itself hides it

    is_tracing = torch.compiler.is_dynamo_compiling
    extend, optimizers = session.buffer.extend, session.optimizers

    def begin(optimizer: Any, args: Any, kwargs: Any) -> Any:
        if is_tracing():
            return
        if session.thread != get_ident() and not session.adopt_thread(OPTIMIZER_BEGIN):
            return
        has_closure = len(args) > 1 or "closure" in kwargs
        if has_closure:
            session.have_all_marks()
        index = optimizers.setdefault(id(optimizer), len(optimizers))
        session.open_optimizers.append(has_closure)
        extend((now_ns(), OPTIMIZER_BEGIN | index << 16, 0, 0))
        if session.has_events:
            session.device.mark()

    def end(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_tracing() or session.thread != get_ident():
            return
        is_quiet = session.quiet_flag
        if not (session.open_optimizers or is_quiet):
            return
        index = optimizers.setdefault(id(optimizer), len(optimizers))
        now = now_ns()
        extend((now, OPTIMIZER_END | session.end_flags | is_quiet | index << 16, 0, 0))
        if is_quiet:
            if len(args) > 1 or "closure" in kwargs:
                session.have_all_marks()
        else:
            session.open_optimizers.pop()
            if session.has_events:
                session.device.mark()
        if not session.open_optimizers:
            session.boundaries.append(index)
            session.unprobed_left -= 1
            if (
                session.unprobed_left <= 0
                or now > session.next_chore_ns
                or session.steps
                or session.on_step is not None
            ):
                session.step_ended(now)

    handle = optimizer_module.register_optimizer_step_pre_hook(begin)
    optimizer_module.register_optimizer_step_post_hook(end)
    session.begin_optimizer, session.end_optimizer = begin, end
    before_steps = optimizer_module._global_optimizer_pre_hooks

    def switch(is_quiet: bool) -> None:
        if is_quiet:
            before_steps.pop(handle.id, None)
        else:
            before_steps[handle.id] = begin

    session.switches.append(switch)


def _scaler(torch: Any, session: Session) -> None:
    scaler_class = torch.amp.GradScaler

    def before_scaling(scaler: Any, outputs: Any) -> Any:
        return outputs

    def after_scaling(unscaled: Any, scaled: Any) -> Any:
        session.unscaled = (scaled, unscaled)
        return scaled

    def begin_step(scaler: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
        session.have_all_marks()  # the optimizer's own step, if it is made, is inside of this one
        session.begin_optimizer(optimizer, (optimizer, *args), kwargs)
        return optimizer

    def end_step(optimizer: Any, result: Any) -> Any:
        session.end_optimizer(optimizer, (), {})
        return result

    def failed_step(optimizer: Any) -> None:
        if session.thread == get_ident():
            session.open_optimizers.clear()
            session.log(marks.OPTIMIZER_RAISED)

    scaler_class.scale = instrument(
        scaler_class.scale, before_scaling, lambda unscaled: None, after_scaling
    )
    scaler_class.step = instrument(scaler_class.step, begin_step, failed_step, end_step)


def _transfer(torch: Any, session: Session) -> None:
    """Methods written in C have no source: these three are wrapped, and show in a traceback."""
    if not (torch.version.cuda or torch.version.hip):
        return
    tensor_class, extend = torch.Tensor, session.buffer.extend
    is_tracing = torch.compiler.is_dynamo_compiling

    def recorded(original: Callable[..., Any], is_from_host: Callable[..., bool]) -> Any:
        @functools.wraps(original)
        def move(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not session.has_events or session.inside_module or is_tracing():
                return original(self, *args, **kwargs)
            device = session.device
            if (
                session.thread != get_ident()
                or not is_from_host(self, args)
                or not device.on_training_stream()
            ):
                return original(self, *args, **kwargs)
            extend((now_ns(), TRANSFER_BEGIN, 0, 0))
            device.mark()
            try:
                return original(self, *args, **kwargs)
            finally:
                extend((now_ns(), TRANSFER_END, 0, 0))
                device.mark()

        return move

    def host_tensor(self: Any, args: Any) -> bool:
        return not self.is_cuda

    def host_source(self: Any, args: Any) -> bool:
        return bool(self.is_cuda and args and not getattr(args[0], "is_cuda", True))

    tensor_class.to = recorded(tensor_class.to, host_tensor)
    tensor_class.cuda = recorded(tensor_class.cuda, host_tensor)
    tensor_class.copy_ = recorded(tensor_class.copy_, host_source)
