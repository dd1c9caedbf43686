"""Snapshots: the worker's side of saving through memory. `take` copies the state into a buffer that the agent keeps and makes durable; `find` gets it back.

There are two buffers, and they outlive the worker: the next one of its rank finds in them what to restore. One whose content is still needed is never
written over: if both are, the save is skipped.

On a GPU it is copied beside the training (`side.py`), into memory that the GPU reaches by itself (`pinned.py`).
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.checkpoint.commit import Shard
from holdfast.checkpoint.document import is_tensor, leaves, to_document
from holdfast.checkpoint.layout import parse_directory_name
from holdfast.checkpoint.memory import available_bytes
from holdfast.checkpoint.remove import Retention
from holdfast.checkpoint.snapshot import NONE, SPARE_BYTES, Buffer, Word, describe, offsets, peek
from holdfast.checkpoint.state import kind_of
from holdfast.trainer.pinned import pin, unpin
from holdfast.trainer.place import Place
from holdfast.trainer.say import Say
from holdfast.trainer.side import Side, Target, issue, optimizers_in, why_not

_SHARE_OF_MEMORY: Final = 0.4  # Of what is free, for one of the two buffers of every rank on the node: a snapshot must not cost the run its life.
_AT_ONCE_BYTES: Final = 64 << 20  # So much memory is there in a few hundredths of a second.
_PINNERS: Final = 4  # Threads, when somebody waits for it.
_VERIFY_S: Final = 5.0  # How long the agent may take to verify a snapshot before the disk is the better choice, besides what its size takes.
_VERIFY_BYTES_PER_S: Final = 200 << 20


class Snapshots:
    """The buffers of one rank in one generation."""

    def __init__(self, directory: Path, generation: int, place: Place, *, pieces: Mapping[str, Any], say: Say) -> None:
        self._directory, self._generation, self._place = directory, generation, place
        self._buffers = [Buffer.open(self._path(place.rank, which)) for which in (0, 1)]  # What the generation before left, if this node had this rank.
        self._pinned: dict[int, list[int]] = {}  # Which buffer is, and where; an empty list when the driver refused, as it would again.
        self._pieces, self._say = pieces, say
        self._side: Side | None = None
        self._preparing: threading.Thread | None = None
        self._durable = self._failed = NONE
        self.errno = 0  # Why the newest one that could not be made durable was not; 0: not known.

    def take_off(self) -> None:
        if self._side is None or self._side.take_off():
            for which in (0, 1):
                self._unpin(which)

    def _path(self, rank: int, which: int) -> Path:
        return self._directory / f"snapshot-{rank}-{which}"

    def prepare(self, sections: Mapping[str, Any]) -> None:
        """Make the buffers for a state like this one, beside the training: gigabytes of memory take seconds to get and to pin."""
        state = _State(sections)
        size_bytes = state.data_bytes + SPARE_BYTES
        gpu = next((tensor.device for tensor in state.tensors if tensor.is_cuda), None)

        def make() -> None:
            try:
                if gpu is not None:
                    _use(gpu)
                for which in (0, 1):
                    buffer = self._buffers[which]
                    if buffer is None or (buffer.data.nbytes < size_bytes and buffer.is_writable(0)):
                        self._make(which, size_bytes)
                    self._pin(which, workers=1)  # The training needs the cores more.
            except OSError:
                pass  # Not enough memory: the first save finds the same, and says it.
            finally:
                self._preparing = None

        if size_bytes < _AT_ONCE_BYTES:
            make()
        else:
            self._preparing = threading.Thread(target=make, name="holdfast-prepare", daemon=True)
            self._preparing.start()

    def take(self, shard: Shard, checkpoints: Path, retention: Retention, sections: Mapping[str, Any]) -> bool:
        """Copy a rank's state; False when no buffer is free. Raises OSError when there is not enough memory."""
        which = self._free(shard.step)
        if which is None:
            return False
        state = _State(sections)
        if shard.rank != 0 and "shared" in state.described:
            state.described["shared"]["kept"] = True  # Rank 0 makes it durable for all; here it is for those of this node who restore.
        note = describe(shard, checkpoints, retention, state.described)
        self._look()
        buffer = self._buffer(which, state.data_bytes + len(note))
        buffer.break_seal()
        side = self._side_for(state.tensors)
        if side is None:
            _copy(state.tensors, state.targets(buffer))
            buffer.seal(shard.step, shard.generation, state.data_bytes, note)
        else:
            side.copy(state, state.tensors, state.targets(buffer), lambda: buffer.seal(shard.step, shard.generation, state.data_bytes, note))
        return True

    def _free(self, step: int) -> int | None:
        """The buffer into which `step` may be copied now."""
        if self._preparing is not None or (self._side is not None and self._side.is_copying):
            return None
        return next((which for which, buffer in enumerate(self._buffers) if buffer is None or buffer.is_writable(step)), None)

    def has_room(self, step: int) -> bool:
        return self._free(step) is not None

    def ranks_with(self, step: int) -> set[int]:
        """The ranks of this node that have `step` in memory."""
        first = self._place.rank - self._place.local_rank
        ranks = range(first, first + self._place.local_world_size)
        heads = ((rank, peek(self._path(rank, which))) for rank in ranks for which in (0, 1))
        return {rank for rank, head in heads if head is not None and head.seal.key == (self._generation, step)}

    def wait_for_copy(self, *, within_s: float) -> None:
        """Until what was taken is sealed, or the time is up."""
        deadline = time.monotonic() + within_s
        while self._side is not None and self._side.is_copying and time.monotonic() < deadline:
            time.sleep(0.005)

    def find(self, name: str) -> tuple[Buffer, Buffer | None] | None:
        """This rank's part of the checkpoint `name`, and that with what all ranks hold alike, if this node's memory has them and the agent finds them sound."""
        place = self._place
        first = place.rank - place.local_rank  # Of the ranks on this node: the one that keeps what all hold alike.
        own = self._sound(name, self._buffers)
        if own is None or place.local_rank == 0:
            return None if own is None else (own, own)
        return own, self._sound(name, [Buffer.open(self._path(first, which)) for which in (0, 1)])

    def _sound(self, name: str, buffers: Sequence[Buffer | None]) -> Buffer | None:
        step, generation = parse_directory_name(name) or (NONE, NONE)
        buffer = next((buffer for buffer in buffers if buffer is not None and buffer.head.seal.key == (generation, step)), None)
        if buffer is None:
            return None
        deadline = time.monotonic() + _VERIFY_S + buffer.data.nbytes / _VERIFY_BYTES_PER_S
        while not buffer.head.said(Word.SOUND):
            if buffer.head.said(Word.DAMAGED) or time.monotonic() > deadline:
                why = "is damaged" if buffer.head.said(Word.DAMAGED) else "was not verified in time"
                self._say.line(f"{name} in this node's memory {why}: it is read from the disk.")
                return None
            time.sleep(0.002)
        return buffer

    def pin(self, found: Buffer) -> None:
        """Let the GPU reach one that was found, if it is this rank's."""
        if found in self._buffers:
            self._pin(self._buffers.index(found))

    @property
    def durable(self) -> int:
        """The newest step that the agent has made durable."""
        self._look()
        return self._durable

    @property
    def failed(self) -> int:
        """The newest step that it could not."""
        self._look()
        return self._failed

    def _look(self) -> None:
        """Take note of what is said of a content before it is written over."""
        for buffer in self._buffers:
            head = buffer.head if buffer is not None else None
            if head is not None and head.seal.generation == self._generation:
                self._durable = max(self._durable, head.seal.step if head.said(Word.DURABLE) else NONE)
                if head.said(Word.FAILED) and head.seal.step >= self._failed:
                    self._failed, self.errno = head.seal.step, head.errno

    def settle(self, *, within_s: float) -> bool:
        """Wait until nothing waits to be made durable; whether that came true."""
        deadline = time.monotonic() + within_s
        while not self._is_quiet():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def _is_quiet(self) -> bool:
        busy = self._preparing is not None or (self._side is not None and self._side.is_copying)
        return not busy and not any(buffer is not None and buffer.head.is_waiting for buffer in self._buffers)

    def _buffer(self, which: int, size_bytes: int) -> Buffer:
        buffer = self._buffers[which]
        if buffer is None or buffer.data.nbytes < size_bytes:
            buffer = self._make(which, size_bytes + SPARE_BYTES)
        self._pin(which)
        return buffer

    def _make(self, which: int, size_bytes: int) -> Buffer:
        self._unpin(which)
        self._buffers[which] = None
        path = self._path(self._place.rank, which)
        path.unlink(missing_ok=True)  # One that was too small.
        free_bytes, sharers = available_bytes(), self._place.local_world_size
        if size_bytes * sharers > _SHARE_OF_MEMORY * free_bytes:
            ranks = f" and {sharers} ranks share the node" if sharers > 1 else ""
            raise OSError(errno.ENOMEM, f"it takes {size_bytes / 1e9:.1f} GB{ranks}, and {free_bytes / 1e9:.1f} GB are free")
        buffer = self._buffers[which] = Buffer.create(path, size_bytes)
        return buffer

    def _pin(self, which: int, *, workers: int = _PINNERS) -> None:
        import torch

        buffer = self._buffers[which]
        if buffer is not None and which not in self._pinned and torch.cuda.is_initialized():
            self._pinned[which] = pin(buffer, workers=workers)

    def _unpin(self, which: int) -> None:
        unpin(self._pinned.pop(which, []))

    def _side_for(self, tensors: Sequence[Any]) -> Side | None:
        """Where to copy on the side; None where there is no GPU, or no optimizer of which it is known when it steps."""
        if self._side is None and any(tensor.is_cuda for tensor in tensors):
            optimizers = optimizers_in(self._pieces)
            reason = why_not(optimizers)
            if reason:
                self._say.once("side", f"snapshots are not copied beside the training, but before it goes on: {reason}.")
            else:
                self._side = Side(optimizers, self._say)
        return self._side


class _State:
    """A rank's state as it is to lie in a buffer: the sections described, and the tensors with their offsets."""

    def __init__(self, sections: Mapping[str, Any]) -> None:
        self.described: dict[str, Any] = {}
        self.tensors: list[Any] = []
        inside: dict[str, list[Any]] = {}
        for name, value in sections.items():
            inside[name] = []
            self.described[name] = {"document": to_document(value, inside[name])}
            self.tensors += inside[name]
        self._offsets, self.data_bytes = offsets([tensor.nbytes for tensor in self.tensors])
        begin = 0
        for name, tensors in inside.items():
            placed = zip(tensors, self._offsets[begin : begin + len(tensors)], strict=True)
            self.described[name]["tensors"] = [{"kind": kind_of(tensor), "offset": offset, "size": tensor.nbytes} for tensor, offset in placed]
            begin += len(tensors)

    def targets(self, buffer: Buffer) -> list[Target | None]:
        import torch

        return [
            Target(torch.frombuffer(buffer.data, dtype=tensor.dtype, count=tensor.numel(), offset=offset), offset) if tensor.nbytes else None
            for tensor, offset in zip(self.tensors, self._offsets, strict=True)
        ]

    def path_of(self, number: int) -> str:
        """The name of a tensor, for a message."""
        begin = 0
        for name, section in self.described.items():
            if number < begin + len(section["tensors"]):
                return next((path for path, leaf in leaves(section["document"]) if is_tensor(leaf) and leaf["n"] == number - begin), name)
            begin += len(section["tensors"])
        return "a tensor"


def _use(gpu: Any) -> None:
    """Each thread has a GPU of its own, at first the first one: pinning memory there would wake it for nothing."""
    import torch

    torch.cuda.set_device(gpu)


def _copy(tensors: Sequence[Any], targets: Sequence[Target | None]) -> None:
    """Copy, and come back when it is done."""
    import torch

    issue(tensors, targets)
    if any(tensor.is_cuda for tensor in tensors):
        torch.cuda.synchronize()
