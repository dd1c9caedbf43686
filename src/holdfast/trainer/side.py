"""The copy beside the training: on a GPU nothing waits for a snapshot but the optimizer's next step, and that on the GPU and only for what it changes.

    training stream   step 10 ─┬─ what no optimizer owns ─┬─ forward and backward of step 11 ────┬─ optimizer.step ─ step 12
    side stream                └──────────────────────────┴ stage ─ the rest, copied to the host ┴─ what was staged, copied to the host
    a thread                                                                                             waits for the copy ─ seals

A step is often shorter than the copy. By how much is seen at the first save; that part is staged from then on: copied within the GPU, in a hundredth of the
time, and brought to the host while the training goes on. It takes only memory that is free, and gives it back to the allocator at once.

Only what a registered optimizer owns is copied here, because only its next step is known to wait. Somebody else who writes to such a tensor meanwhile is
noticed by its version counter, and the snapshot is thrown away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from holdfast.checkpoint.snapshot import NONE, within_stretches
from holdfast.checkpoint.state import in_order
from holdfast.trainer.say import Say

_SHARE_OF_FREE: Final = 0.25  # Of the GPU's free memory, for staging: the training may still grow.
_MARGIN: Final = 1.15  # No two steps take the same time.
_LEAVING_S: Final = 2.0  # A copy under way is waited for when the gang is left: 7 GB take 0.14 s, and behind a collective that hangs it never ends.


@dataclass(slots=True)
class Target:
    """Where in a buffer a tensor goes: memory of the same kind, flat, and its offset. None for one that has no bytes."""

    memory: Any
    offset: int


class Named(Protocol):
    """A state whose tensors have names, for messages."""

    def path_of(self, number: int) -> str: ...


@dataclass(slots=True)
class _Copy:
    """A copy under way. `changed` is the number of a tensor that somebody wrote to before the optimizer stepped; None until that is known."""

    began: Any
    safe: Any  # From here on the optimizer may step.
    done: Any
    direct_bytes: int
    watched: list[tuple[int, Any, int]]  # Number, tensor, version.
    stepped: Any = None  # Where the optimizer wanted to step.
    lock: threading.Lock = field(default_factory=threading.Lock)
    changed: int | None = None

    def judge(self) -> int:
        """Whether a tensor has changed so far. The first answer counts: after the optimizer has stepped all of them have."""
        with self.lock:
            if self.changed is None:
                self.changed = next((number for number, tensor, version in self.watched if tensor._version != version), NONE)
            return self.changed

    @property
    def late_bytes(self) -> float:
        """How much was not yet copied when the optimizer wanted to step."""
        if self.stepped is None or not self.stepped.query():
            return 0.0
        late, took = self.stepped.elapsed_time(self.safe), self.began.elapsed_time(self.safe)
        return float(self.direct_bytes * late / took) if took > 0 else 0.0


class Side:
    """The side stream, the hooks that make optimizers wait for it, and the thread that seals."""

    def __init__(self, optimizers: Sequence[Any], say: Say) -> None:
        import torch

        cuda: Any = torch.cuda
        self._optimizers, self._say = optimizers, say
        self._stream = cuda.Stream()
        self._copy: _Copy | None = None
        self._wanted_bytes, self._held_bytes = 0, 0  # For staging: what the last copies asked for, and what the allocator has got for it so far.
        self._handles = [optimizer.register_step_pre_hook(self._before_step) for optimizer in optimizers]

    def take_off(self) -> bool:
        """Whether nobody writes to the buffers any more."""
        for handle in self._handles:
            handle.remove()
        copy, until = self._copy, time.monotonic() + _LEAVING_S
        while copy is not None and not copy.done.query():
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True

    @property
    def is_copying(self) -> bool:
        return self._copy is not None

    def copy(self, state: Named, tensors: Sequence[Any], targets: Sequence[Target | None], seal: Callable[[], None]) -> None:
        import torch

        cuda: Any = torch.cuda
        owned = self._owned()
        mine = [number for number, tensor in enumerate(tensors) if tensor.is_cuda and tensor.data_ptr() in owned]
        rest = sorted(set(range(len(targets))) - set(mine))
        issue([tensors[number] for number in rest], [targets[number] for number in rest])
        self._stream.wait_stream(cuda.current_stream())
        with cuda.stream(self._stream):
            began, safe = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            done = cuda.Event(blocking=True)  # Whoever waits sleeps: a thread that spins would keep the driver from the training.
            began.record(self._stream)
            staged = self._stage([(number, tensors[number]) for number in mine])
            direct = [number for number in mine if number not in staged]
            issue([tensors[number] for number in direct], [targets[number] for number in direct])
            safe.record(self._stream)
            issue(list(staged.values()), [targets[number] for number in staged])
            done.record(self._stream)
        watched = [(number, tensors[number], tensors[number]._version) for number in mine]
        self._copy = copy = _Copy(began, safe, done, sum(tensors[number].nbytes for number in direct), watched)
        threading.Thread(target=self._seal, args=(copy, state, seal), name="holdfast-snapshot", daemon=True).start()

    def _stage(self, tensors: Sequence[tuple[int, Any]]) -> dict[int, Any]:
        """Copies on the GPU of as many tensors as are wanted and there is room for, by number. The allocator gives their memory to nobody before the side
        stream is done with it, and holds it for the next save unless the training needs it.
        """
        import torch

        cuda: Any = torch.cuda
        room = self._held_bytes
        if self._wanted_bytes > room:
            room = max(room, int(_SHARE_OF_FREE * cuda.mem_get_info()[0]))
        staged: dict[int, Any] = {}
        size = 0
        try:
            for number, tensor in reversed(tensors):
                if size >= self._wanted_bytes:
                    break
                if size + tensor.nbytes <= room:
                    staged[number] = in_order(tensor).clone()
                    size += tensor.nbytes
        except cuda.OutOfMemoryError:
            self._wanted_bytes = self._held_bytes = 0  # It is free, but not in one piece; or the training took back what was held for us.
        self._held_bytes = max(self._held_bytes, size)
        return staged

    def _before_step(self, *_: Any) -> None:
        """Ahead of every optimizer step: let the GPU finish the copy before it changes what is copied. The thread does not wait."""
        import torch

        cuda: Any = torch.cuda
        copy = self._copy
        if copy is not None:
            copy.judge()
            stream = cuda.current_stream()
            if copy.stepped is None:
                stepped = cuda.Event(enable_timing=True)
                stepped.record(stream)
                copy.stepped = stepped
            stream.wait_event(copy.safe)

    def _seal(self, copy: _Copy, state: Named, seal: Callable[[], None]) -> None:
        copy.done.synchronize()
        self._wanted_bytes += int(_MARGIN * max(0.0, copy.late_bytes))
        changed = copy.judge()
        if changed == NONE:
            seal()
        else:
            path = state.path_of(changed)
            self._say.once("changed", f"a snapshot is thrown away: {path} was written to while it was copied, and not by its optimizer's step.")
        self._copy = None

    def _owned(self) -> set[int]:
        """The addresses of all that the registered optimizers own."""
        found = set()
        for optimizer in self._optimizers:
            for parameter in _parameters(optimizer):
                found.add(_address(parameter))
                found |= {_address(value) for value in optimizer.state.get(parameter, {}).values() if hasattr(value, "data_ptr")}
        return found


def issue(tensors: Sequence[Any], targets: Sequence[Target | None]) -> None:
    """Copy: from the CPU at once; from a GPU in the current stream, behind what it has to do."""
    for tensor, target in zip(tensors, targets, strict=True):
        if target is not None:
            source, item_bytes = in_order(tensor).reshape(-1), tensor.element_size()
            for begin, end in within_stretches(target.offset, tensor.nbytes):
                part = slice((begin - target.offset) // item_bytes, (end - target.offset) // item_bytes)
                target.memory[part].copy_(source[part], non_blocking=True)


def optimizers_in(pieces: Mapping[str, Any]) -> list[Any]:
    import torch

    return [piece for piece in pieces.values() if isinstance(piece, torch.optim.Optimizer)]


def why_not(optimizers: Sequence[Any]) -> str:
    """Why it is not known when these optimizers step, or nothing."""
    if not optimizers:
        return "guard() was given no optimizer, so nobody says when the parameters change"
    if any(group.get("capturable") for optimizer in optimizers for group in optimizer.param_groups):
        return "an optimizer is capturable, and a captured step runs no hooks"
    if any(hasattr(optimizer.step, "_torchdynamo_orig_callable") for optimizer in optimizers):
        return "an optimizer's step is compiled, and may run without its hooks"
    if any(hasattr(parameter, "_in_backward_optimizers") for optimizer in optimizers for parameter in _parameters(optimizer)):
        return "an optimizer steps in the backward pass"
    return ""


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _address(tensor: Any) -> int:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.data_ptr())
