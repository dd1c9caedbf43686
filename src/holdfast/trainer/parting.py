"""Parting: how a rank of a broken gang gets out of its loop alive, with the last step it has whole.

    the agent ──"part"──► a thread that waits at a pipe ──┬─ shuts the sockets of the process group: a collective fails where it waits
                                                          └─ a signal to the main thread: Python code is left with `Parted`

`Parted` is raised by the signal's handler, which runs in the main thread itself, so that where that thread is can be known for certain: never within our own
code (a save, a beat), and never from the first optimizer's step on until the loop asks for the next one. A step is either done on a rank or it is not. A loop
that waits for data is left there (`loaders.py`).

What changes in a step beside weights and the optimizer's state (buffers, modes, rates, random numbers, small pieces of the script's own) is copied at the end
of every step in which an optimizer stepped. One in which none did (gradients are still gathered, or it failed and the loop swallowed that) is not whole by
itself: it is done again with the steps up to the next that is.

Where the state is sharded and nobody else holds a rank's part, nothing is copied and no step is whole: a rank leaves where it is, and all go back to a
checkpoint. Where replicas hold each part (HSDP) a rank has its part whole, and a lost one gets it from a rank that holds the same.
"""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, Final, TypeVar

from holdfast.checkpoint.pieces import capture, shared_names, state_of, unwrapped, with_optimizers
from holdfast.checkpoint.plain import is_dtensor, mesh_key, to_plain
from holdfast.domain.beat import SHARDED, WAITS, WHOLE
from holdfast.trainer import sockets
from holdfast.trainer.beats import Beats
from holdfast.trainer.random_streams import Raw, Streams, as_captured, draw

PART, REJOIN = "part", "rejoin"  # The agent's words.
NOTHING_WHOLE: Final = -1
_SIGNAL: Final = signal.SIGRTMIN + 12
_AGAIN_S: Final = 0.02  # A signal may come at a moment when nothing can be raised, and user code may swallow what is: it is sent until the loop is left.
_SAY_WHY_S: Final = 0.5  # From then on it is written down, so often, what is in the way.
_FINISH_S: Final = 0.5  # So long a rank that is past its optimizer may take to its next step before the sockets are shut under it.
_TENSOR_HOOKS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")
_LIGHT_BYTES: Final = 1 << 20  # What pieces besides models and optimizers may hold: it is copied at every step.
Item = TypeVar("Item")
Returned = TypeVar("Returned")


class Parted(BaseException):
    """The gang has broken: this rank is to leave its loop and to wait for its new place. Not an Exception, so that a loop's own handlers let it pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a rank brings along: the newest step it holds whole. The tensors are those it trained with."""

    step: int = NOTHING_WHOLE
    states: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    randomness: Mapping[str, Any] = field(default_factory=dict)  # As they were after that step,
    drawn: Mapping[str, Any] = field(default_factory=dict)  # and where they were when the loop was left.
    world_size: int = 0  # Of the gang that was left.


class Parting:
    """One process's readiness to part, from the function that rejoins to its end. Made in the main thread."""

    def __init__(self, directory: Path) -> None:
        self._directory, self.pipe = directory, directory / f"rejoin-{os.getpid()}"
        self.wanted = threading.Event()
        self._has_place, self._lock = threading.Event(), threading.Lock()
        self._main, self._owner = threading.get_ident(), os.getpid()
        self._generation, self._before = 0, sockets.opened()
        self._inside = True  # Our own code runs, not the loop's body.
        self._committed = False  # An optimizer has begun to step, and the loop has not asked for the next step.
        self._waits = False
        self._told = 0  # How often it was raised that this rank is to leave.
        self._boundary: _Boundary | None = None
        self._beats: Beats | None = None
        self._handles: list[Any] = []
        self._seen_to_step = False  # Whether one of torch's optimizers was given to `guard`: of another kind nobody is told when it steps.
        self.left_after = NOTHING_WHOLE  # The last step that this rank finished before it left.
        self.first_hook = 0  # Of those that are put anywhere since the function was called.
        self.torn = False  # It left after its optimizer had stepped, and before the loop asked for the next step.

    # The agent's word.

    def listen(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.pipe.unlink()
        os.mkfifo(self.pipe, 0o600)
        signal.signal(_SIGNAL, self._asked)
        self._fd = os.open(self.pipe, os.O_RDWR | os.O_CLOEXEC)  # With an end to write to held open a reader never sees the end of it.
        threading.Thread(target=self._hear, name="holdfast-rejoin", daemon=True).start()

    def close(self) -> None:
        """The function has ended: nothing is left that could be parted from."""
        self._inside = True
        signal.signal(_SIGNAL, signal.SIG_IGN)  # One may be on its way.
        with contextlib.suppress(OSError):
            self.pipe.unlink()
            os.write(self._fd, b"\n")  # Wakes the thread, which ends.

    def _hear(self) -> None:
        with open(self._fd) as words:
            for line in words:
                word, _, generation = line.strip().partition(" ")
                if not word:
                    return
                # An agent that died and came back may say again what was done long ago.
                if word == PART and int(generation) == self._generation and not self._waits:
                    self.wanted.set()
                    threading.Thread(target=self._break_out, name="holdfast-part", daemon=True).start()
                elif word == REJOIN and int(generation) > self._generation and self._waits:
                    self._has_place.set()

    def _break_out(self) -> None:
        """Until the main thread waits for its place, or somebody loses patience and ends the process."""
        patient_until, generation = monotonic() + _FINISH_S, self._generation
        say_at = monotonic() + _SAY_WHY_S
        _abort_nccl()
        while True:
            with self._lock:  # Else the next gang's sockets might be shut by one who was held up.
                if self._waits or self._generation != generation:
                    return
                if not self._committed or monotonic() > patient_until:
                    sockets.shut(self._before)
                if monotonic() > say_at:
                    say_at = monotonic() + _SAY_WHY_S
                    say_why_not(self._directory, self._why_late())
            signal.pthread_kill(self._main, _SIGNAL)
            self._has_place.wait(_AGAIN_S)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._owner and self.wanted.is_set() and not (self._inside or self._committed) and _is_called(frame):
            self._told += 1
            raise Parted

    def _why_late(self) -> str:
        """For whoever gives this rank up."""
        frame = sys._current_frames().get(self._main)
        where = f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})" if frame is not None else "no frame"
        if self._told:
            return f"it was told {self._told} times to leave, and its script swallows that or takes long to clean up: it is in {where}"
        if self._inside:
            return f"it is in Holdfast's own code, which is not left in the middle: {where}"
        if self._committed:
            return f"its optimizer has stepped, and the loop does not ask for the next step: it is in {where}"
        return f"the call that it is in does not come back to Python: {where}"

    # The loop.

    def begin(self, generation: int) -> None:
        """The function is called: whatever it opens from here on belongs to the gang."""
        with self._lock:
            self._generation, self._before = generation, sockets.opened()
            self.wanted.clear()
            self._has_place.clear()
            self._inside = self._committed = self._waits = False
            self._told = 0
        self._boundary = None
        self.first_hook = hooks_so_far()

    def call(self, function: Callable[[], Returned]) -> Returned:
        """What is raised out of the function passes through here; below this frame nothing is raised."""
        return function()

    def watch_parts(self, beats: Beats) -> None:
        """`guard` was called in it, with parts of what nobody holds whole."""
        self._beats = beats
        beats.flags |= SHARDED

    def watch(self, pieces: Mapping[str, Any], beats: Beats, streams: Streams) -> None:
        """`guard` was called in it, with what other ranks hold too."""
        import torch

        self._beats, self._boundary = beats, _Boundary(pieces, streams)
        optimizers = [piece for piece in pieces.values() if isinstance(piece, torch.optim.Optimizer)]
        models = [piece for piece in pieces.values() if isinstance(piece, torch.nn.parallel.DistributedDataParallel) or _parts_in(piece)]
        self._seen_to_step = bool(optimizers)
        self._handles = [optimizer.register_step_pre_hook(self._commit) for optimizer in optimizers]
        self._handles += [model.register_forward_hook(self._forwarded) for model in models]

    def _forwarded(self, *_: Any) -> None:
        """From here on the others may finish this step without this rank."""
        if not self._committed and self._boundary is not None:
            self._boundary.foresee()

    def _commit(self, *_: Any) -> None:
        self._committed = True

    def through(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items; while the loop works on one, it may be raised out of it."""
        self._inside = True
        for item in items:
            self._inside = False
            if self.wanted.is_set():
                raise Parted
            yield item
            self._inside = True
        self._inside = False

    @contextlib.contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Within our own code, a loader is asked for a batch: that may take as long as the storage does."""
        self._inside = False
        try:
            yield
        finally:
            self._inside = True

    def complete(self, step: int, progress: Mapping[str, Any]) -> None:
        """`step` is done on this rank. Without an optimizer's step in it weights are still those of the last step that is whole."""
        if self._boundary is not None:
            self._boundary.at = step
            if self._committed or not self._seen_to_step:
                self._boundary.copy(step, progress)
        self._committed = False

    def give_up(self, why: str) -> None:
        """This rank holds nothing whole any more, since what it has cannot be copied."""
        self._boundary, self._committed = None, False
        say_why_not(self.pipe.parent, why)

    # Leaving.

    def keep(self) -> Kept:
        """What this rank has whole. The optimizer's hooks and the gang's own are taken off."""
        boundary, self._boundary = self._boundary, None
        self._inside = True
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.torn = boundary is not None and self._committed
        if boundary is not None:
            boundary.put_back_modes()
        if boundary is None or boundary.step == NOTHING_WHOLE or self._committed:
            return Kept()
        return boundary.keep()

    def shut(self) -> None:
        """Shut the group's sockets here too: whoever saw by itself that a peer is gone may be out of its loop before the thread has come to it, and the
        group's own threads would wait for those who live for good.
        """
        with self._lock:
            sockets.shut(self._before)

    def say_that_it_waits(self, step: int) -> None:
        with self._lock:
            self._waits = True
            _reason(self._directory).unlink(missing_ok=True)
        if self._beats is not None:
            self.left_after = self._beats.step
            if step != NOTHING_WHOLE:
                self._beats.step = step
                self._beats.flags |= WHOLE
            self._beats.flags |= WAITS
            self._beats.enter("rejoin")
            self._beats = None

    def wait(self, within_s: float) -> bool:
        """Whether the new place is written down."""
        return self._has_place.wait(within_s)


class _Boundary:
    """Copies of what changes within a step before the optimizer steps."""

    def __init__(self, pieces: Mapping[str, Any], streams: Streams) -> None:
        import torch

        self.step = self.at = NOTHING_WHOLE  # The last one that is whole; the last one that is done.
        self._pieces, self._streams = pieces, streams
        modules = [unwrapped(piece) for piece in pieces.values() if isinstance(unwrapped(piece), torch.nn.Module)]
        self._modules = [part for module in modules for part in module.modules()]
        self._groups = [group for piece in pieces.values() if isinstance(piece, torch.optim.Optimizer) for group in piece.param_groups]
        self._modes = [module.training for module in self._modules]
        self._settings: list[dict[str, Any]] = []
        self._buffers = [buffer for module in modules for buffer in module.buffers()]
        self._copies = [buffer.detach().clone() for buffer in self._buffers]
        heavy = (torch.nn.Module, torch.optim.Optimizer)
        self._light = {name: piece for name, piece in pieces.items() if not isinstance(unwrapped(piece), heavy)}
        self._states: dict[str, Any] = {}
        self._progress: Mapping[str, Any] = {}
        self._raw: Raw | None = None

    def copy(self, step: int, progress: Mapping[str, Any]) -> None:
        import torch

        if self._buffers:
            with torch.no_grad():
                torch._foreach_copy_(self._copies, self._buffers)
        self._states = {name: copy.deepcopy(state_of(name, piece)) for name, piece in self._light.items()}
        self._modes = [module.training for module in self._modules]
        self._settings = [{name: _apart(value) for name, value in group.items() if name != "params"} for group in self._groups]
        self._progress, self._raw = progress, draw()
        self.step = step
        self._streams.note(step, self._raw)

    def foresee(self) -> None:
        """Where the random numbers will be after this step, if nothing more is drawn."""
        if self.step != NOTHING_WHOLE:
            self._streams.note(self.at + 1, draw(), done=False)

    def put_back_modes(self) -> None:
        """A model that lives on may be evaluated just now, also where all go back to a checkpoint."""
        for module, training in zip(self._modules, self._modes, strict=True):
            module.training = training

    def keep(self) -> Kept:
        import torch

        assert self._raw is not None
        with torch.no_grad():
            for buffer, kept in zip(self._buffers, self._copies, strict=True):
                buffer.copy_(kept)
        for group, settings in zip(self._groups, self._settings, strict=True):
            group.update(settings)  # A scheduler may have gone ahead of its copy.
        states = capture({name: piece for name, piece in self._pieces.items() if name not in self._light})
        states |= {name: to_plain(state, name) for name, state in self._states.items()}
        return Kept(step=self.step, states=states, progress=self._progress, randomness=as_captured(self._raw), drawn=as_captured(draw()))


def _apart(value: Any) -> Any:
    """A setting that does not change with the one in use: a rate may be a tensor."""
    return value.detach().clone() if hasattr(value, "detach") else value


def say_why_not(directory: Path, why: str) -> None:
    """For the incident, when a gang breaks in which this process cannot be kept."""
    with contextlib.suppress(OSError):
        _reason(directory).write_text(why)


def _reason(directory: Path) -> Path:
    return directory / f"cannot-{os.getpid()}"


def _is_called(frame: FrameType | None) -> bool:
    """Whether the function is still under way, and not already left with an exception of its own."""
    while frame is not None and frame.f_code is not Parting.call.__code__:
        frame = frame.f_back
    return frame is not None


def release(pieces: Mapping[str, Any], *, since: int) -> None:
    """Models and scalers as they are before a step, with nothing of the old gang on them, and no hook that was put there `since`: the function that rejoins
    puts its hooks there again when it is called again.
    """
    import torch

    for piece in map(unwrapped, pieces.values()):
        _unhook(piece, since)
        if isinstance(piece, torch.nn.parallel.DistributedDataParallel):
            piece._remove_autograd_hooks()  # A reference to it that stays somewhere must not take part in the next gang's backward pass.
        if isinstance(piece, torch.nn.Module):
            piece.zero_grad(set_to_none=True)
        if isinstance(piece, torch.amp.GradScaler):
            piece._per_optimizer_states.clear()  # Gradients that were unscaled in the step that was broken off.


def hooks_so_far() -> int:
    """The number that the next hook gets: torch counts all of them."""
    import torch

    return int(torch.utils.hooks.RemovableHandle.next_id)


def _unhook(piece: Any, since: int) -> None:
    import torch

    module = isinstance(piece, torch.nn.Module)
    for one in (*piece.modules(), *piece.parameters()) if module else (piece,) if isinstance(piece, torch.optim.Optimizer) else ():
        names = _TENSOR_HOOKS if isinstance(one, torch.Tensor) else [name for name in vars(one) if name.startswith("_") and "_hooks" in name]
        for table in (table for table in (getattr(one, name, None) for name in names) if isinstance(table, dict)):
            for number in [number for number in table if type(number) is int and number >= since]:
                del table[number]


def sharded(pieces: Mapping[str, Any]) -> list[Any]:
    """The parameters of models of which each rank holds a part."""
    return [parameter for piece in pieces.values() for parameter in _parts_in(piece)]


def _parts_in(piece: Any) -> list[Any]:
    import torch

    module = unwrapped(piece)
    return [parameter for parameter in module.parameters() if is_dtensor(parameter)] if isinstance(module, torch.nn.Module) else []


def held_by_several(pieces: Mapping[str, Any]) -> bool:
    """Whether other ranks hold the same parts: all parameters are sharded, on one mesh, of which a dimension replicates every one of them (HSDP)."""
    import torch

    parts = sharded(pieces)
    modules = [module for module in map(unwrapped, pieces.values()) if isinstance(module, torch.nn.Module)]
    whole = any(not is_dtensor(parameter) for module in modules for parameter in module.parameters())
    if not parts or whole or len({mesh_key(part.device_mesh) for part in parts}) > 1:
        return False
    sizes = parts[0].device_mesh.mesh.shape
    return any(size > 1 and all(part.placements[place].is_replicate() for part in parts) for place, size in enumerate(sizes))


def why_not(pieces: Mapping[str, Any]) -> str:
    """Why a live peer could not give a rank this state, or nothing."""
    import torch

    by_part = [name for name, piece in pieces.items() if _parts_in(piece)]
    shared = with_optimizers(pieces, by_part) if held_by_several(pieces) else shared_names(pieces)
    if not any(isinstance(unwrapped(pieces[name]), torch.nn.Module) for name in shared):
        return "no model among its pieces is kept alike on all ranks by DistributedDataParallel"
    own = [name for name, piece in pieces.items() if isinstance(piece, torch.optim.Optimizer) and name not in shared]
    if own or not any(isinstance(piece, torch.optim.Optimizer) for piece in pieces.values()):
        return f"{own[0]} optimizes what is no part of a model that other ranks hold too" if own else "there is no optimizer among its pieces"
    light = {name: piece for name, piece in pieces.items() if not isinstance(unwrapped(piece), (torch.nn.Module, torch.optim.Optimizer))}
    for name, piece in light.items():
        if _bytes_in(state_of(name, piece)) > _LIGHT_BYTES:
            return f"{name} holds more than {_LIGHT_BYTES >> 20} MiB, which would have to be copied at every step"
    return ""


def _bytes_in(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_bytes_in, value.values()))
    if isinstance(value, list | tuple | set):
        return sum(map(_bytes_in, value))
    return int(getattr(value, "nbytes", 8))


def _abort_nccl() -> None:
    """NCCL can abort; gloo cannot. An abort may hang itself, and is left to: the agent has a deadline for all of it."""
    import torch.distributed as distributed

    with contextlib.suppress(RuntimeError, ValueError):  # The main thread may just have left the group.
        if not distributed.is_initialized() or "nccl" not in distributed.get_backend():
            return
        threading.Thread(target=distributed.distributed_c10d._abort_process_group, name="holdfast-abort", daemon=True).start()
