"""Split: where the time of a step goes: data, forward and backward, communication, optimizer, save.

    steps ask for data ─► forward, backward ─► last gradient here │ wait for the others ─► end of backward ─► optimizer ─► next

Sees        the optimizers and DDP models given to `guard`, and calls of torch.distributed's collectives. On a CPU with a clock, on a GPU with events that are
            read when they have happened: nothing waits for a GPU.
Says        seconds in each part since the process began, in the gauge table; the agent makes them seconds a step. Compute is what is left of a step.
Is wrong    where communication is neither DDP's nor a collective called by its name in torch.distributed (FSDP, a library's own): it counts as compute.
            Collectives on a GPU that run beside the computation are not waited for, and so cost nothing until the end of the backward pass, which is right.
Costs       some ten microseconds a step on a CPU. On a GPU a hundred, since nothing is in the processor's caches after a wait: so of short steps only some are
            measured there, five a second, and stand for those between them.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from functools import wraps
from time import perf_counter
from typing import Any, Final

from holdfast.domain.gauges import COMMUNICATED, COMMUNICATION, DATA, OPTIMIZER, SAVE, STEP, STEPS, GaugeTable

_COLLECTIVES: Final = (
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "barrier", "broadcast", "gather", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "scatter",
)  # fmt: skip
_PAIRS: Final = 8  # Of events on their way on a GPU; with more than that it is far behind, and a step goes unmeasured.


class Split:
    """One process's account. `install` puts the hooks in place, `write` puts the account where others read it."""

    def __init__(self, gauges: GaugeTable) -> None:
        self._gauges = gauges
        self._communication = _Part(gauges, COMMUNICATION)
        self._optimizer = _Part(gauges, OPTIMIZER)
        self._bytes = 0
        self._step_s = 0.0
        self._steps = 0
        self._since = perf_counter()
        self._paused_s = 0.0
        self._besides_s = 0.0
        self._written_step = 0
        self._hooks: list[_Optimizer | _Backward] = []
        self._spares = False  # Whether only some of the steps are measured.
        self.hooked = False  # Whether the one under way is one of them.
        self._measured_at = self._hooked_at = self._since

    def install(self, pieces: Mapping[str, Any]) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            return
        self._hooks += [_Optimizer(piece, self._optimizer) for piece in pieces.values() if isinstance(piece, torch.optim.Optimizer)]
        parallel = sys.modules.get("torch.nn.parallel")
        models = [piece for piece in pieces.values() if parallel is not None and isinstance(piece, parallel.DistributedDataParallel)]
        self._hooks += [_Backward(model, self._communication) for model in models]
        if models and parallel is not None:
            self._wrap(parallel.DistributedDataParallel, "_sync_buffers", self._synced)  # Of the class: a model with ours in it is not pickled.
        self._spares = self.hooked = _cuda() is not None
        for one in self._hooks:
            one.hook()
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            for name in _COLLECTIVES:  # Those that are called by name.
                self._wrap(distributed, name, self._timed)

    def uninstall(self) -> None:
        for one in self._hooks:
            one.unhook()
        self._hooks = []

    def hook(self) -> None:
        """Measure the step that begins, where not every one is."""
        if self._spares:
            self.hooked, self._hooked_at = True, perf_counter()
            for one in self._hooks:
                one.hook()

    def unhook(self) -> None:
        """The step that was measured is done, and stands for those since the last one: by time, so that one that took long does not stand for more."""
        now = perf_counter()
        self.hooked = False
        for one in self._hooks:
            one.unhook()
        self._communication.scale = self._optimizer.scale = (now - self._measured_at) / max(now - self._hooked_at, 1e-6)
        self._measured_at = now

    def pause(self, seconds: float) -> None:
        """Evaluation and the like are no part of a step."""
        self._paused_s += seconds
        self._measured_at += seconds

    def waited_besides(self, total_s: float) -> None:
        """So much was waited for others outside of collectives. A rank that is far from the store does not work longer for that."""
        self._communication.add(total_s - self._besides_s)
        self._besides_s = total_s

    def write(self, step: int, *, data_s: float, save_s: float) -> None:
        """Put the account where others read it, with `step` done. `data_s` and `save_s` are totals."""
        now = perf_counter()
        self._step_s += now - self._since - self._paused_s
        self._steps += step - self._written_step
        self._since, self._paused_s, self._written_step = now, 0.0, step
        self._communication.collect()
        self._optimizer.collect()
        put = self._gauges.set
        put(STEP, self._step_s)
        put(DATA, data_s)
        put(SAVE, save_s)
        put(STEPS, self._steps)  # Last: whoever reads between them sees a step whose parts are a little too long, and never the other way.

    def totals(self) -> dict[str, float]:
        """Seconds since the process began: of all steps, and of the parts that are measured here."""
        step_s = self._step_s + perf_counter() - self._since - self._paused_s
        return {"step": step_s, "communication": self._communication.total_s, "optimizer": self._optimizer.total_s}

    def restart(self, step: int) -> None:
        """What was done since the last account counts for nothing; `step` is done."""
        self._since, self._paused_s, self._written_step = perf_counter(), 0.0, step
        self._measured_at = self._hooked_at = self._since

    def _wrap(self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put a function of ours around one of torch's. One process may call `guard` more than once; the newest account counts."""
        plain = getattr(owner, name, None)
        if plain is not None:
            plain = getattr(plain, "_holdfast_plain", plain)
            timed = around(plain)
            timed._holdfast_plain = plain  # type: ignore[attr-defined]
            setattr(owner, name, timed)

    def _synced(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Before a forward pass DDP gives rank 0's buffers (BatchNorm has them) to all: whoever is early waits there, not at the end of the backward pass."""

        @wraps(plain)
        def timed(model: Any) -> None:
            if self._spares and not self.hooked:
                plain(model)
                return
            self._communication.begin()
            try:
                plain(model)
            finally:
                self._communication.end()

        return timed

    def _timed(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = perf_counter()
            try:
                return plain(*args, **kwargs)
            finally:
                tensor = next((value for value in (*args, *kwargs.values()) if hasattr(value, "nbytes")), None)
                if tensor is not None:
                    self._bytes += int(tensor.nbytes)
                    self._gauges.set(COMMUNICATED, self._bytes)
                if not kwargs.get("async_op") and not getattr(tensor, "is_cuda", False):
                    self._communication.add(perf_counter() - began)

        return timed


class _Part:
    """Seconds of one part: by the clock, or on a GPU by pairs of events."""

    def __init__(self, gauges: GaugeTable, name: str) -> None:
        self._gauges, self._name = gauges, name
        self.total_s = 0.0
        self.scale = 1.0  # What is measured on a GPU stands for so many times as much.
        self._began: float | None = None
        self._open: Any = None
        self._on_the_way: deque[tuple[Any, Any]] = deque()
        self._free: list[tuple[Any, Any]] = []

    def add(self, seconds: float) -> None:
        self.total_s += seconds
        self._gauges.set(self._name, self.total_s)

    def begin(self) -> None:
        cuda = _cuda()
        if cuda is None:
            self._began = perf_counter()
            return
        if len(self._on_the_way) >= _PAIRS // 2:
            self.collect()
        if len(self._on_the_way) < _PAIRS and not cuda.is_current_stream_capturing():
            self._open = self._free.pop() if self._free else (cuda.Event(enable_timing=True), cuda.Event(enable_timing=True))
            self._open[0].record()

    def end(self) -> None:
        if self._open is not None:
            self._open[1].record()
            self._on_the_way.append(self._open)
            self._open = None
        elif self._began is not None:
            self.add(perf_counter() - self._began)
            self._began = None

    def collect(self) -> None:
        """Take in what the GPU has done."""
        while self._on_the_way and self._on_the_way[0][1].query():
            pair = self._on_the_way.popleft()
            self.add(self.scale * pair[0].elapsed_time(pair[1]) / 1000.0)
            self._free.append(pair)


class _Optimizer:
    """From the beginning of an optimizer's step to its end."""

    def __init__(self, optimizer: Any, part: _Part) -> None:
        self._optimizer, self._part = optimizer, part
        self._handles: list[Any] = []

    def hook(self) -> None:
        begin, end = self._optimizer.register_step_pre_hook, self._optimizer.register_step_post_hook
        self._handles = [begin(lambda *_: self._part.begin()), end(lambda *_: self._part.end())]

    def unhook(self) -> None:
        for handle in self._handles:
            handle.remove()


class _Backward:
    """From the last gradient of this rank to the end of the backward pass, DDP waits for the other ranks.

    Which gradient comes last is learned: the first backward pass is watched with a hook on every parameter, and from then on the last one has the only hook.
    The end of the backward pass is a callback that is queued from a callback, because DDP queues its own, in which it waits, after the last gradient.
    """

    def __init__(self, model: Any, part: _Part) -> None:
        self._parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
        self._part = part
        self._handles: list[Any] = []
        self._last: Any = None

    def hook(self) -> None:
        if self._last is not None:
            self._handles = [self._last.register_post_accumulate_grad_hook(self._last_gradient)]
        else:
            self._handles = [parameter.register_post_accumulate_grad_hook(self._seen) for parameter in self._parameters]

    def unhook(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _seen(self, parameter: Any) -> None:
        """In the first backward pass: whoever came last is known at its end."""
        if self._last is None:
            self._queue(self._learned)
        self._last = parameter

    def _learned(self) -> None:
        self.unhook()
        self.hook()
        self._parameters = []

    def _last_gradient(self, _: Any) -> None:
        self._part.begin()
        self._queue(lambda: self._queue(self._part.end))

    def _queue(self, callback: Callable[[], None]) -> None:
        import torch

        torch.autograd.Variable._execution_engine.queue_callback(callback)


def _cuda() -> Any:
    """torch.cuda where this process uses a GPU, else None."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None

