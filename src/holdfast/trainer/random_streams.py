"""Streams: where the random numbers of a rank are after each step, in memory that outlives its process.

A rank that is killed takes its generators with it, and nobody else has the like. So at every step they are written into a file of the node's shared memory, and
the process that takes its place goes on drawing where it stopped. There are two places, since the others may be one step further:

    a step is whole ─► one place: where it is        a forward pass is done ─► the other one: where it will be after the step, if nothing more is drawn

Is wrong    when a loop draws random numbers after its forward pass, and the rank is killed after that; and on another node there is no such file.
Costs       some 60 microseconds each time, for functions that rejoin alone.
"""

from __future__ import annotations

import mmap
import random
import struct
import sys
from pathlib import Path
from typing import Any, Final

_HEAD: Final = struct.Struct("<QqIIId")  # A sequence number, the step, the bytes of torch, NumPy and CUDA; and what Python's has for a pair of numbers.
_NUMPY: Final = struct.Struct("<iid")  # After its key.
_PYTHON: Final = struct.Struct("<625I")
_TAIL: Final = struct.Struct("<Q")
_PLACE_BYTES: Final = 16 << 10
_NO_GAUSS: Final = float("inf")

Raw = tuple[Any, Any, Any, Any]  # Python's, torch's, NumPy's, CUDA's.


def draw() -> Raw:
    """All generators as they are, as cheaply as they say it."""
    import torch

    numpy, cuda = sys.modules.get("numpy"), torch.cuda
    state = random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy is not None else None
    return (*state, cuda.get_rng_state() if cuda.is_initialized() else None)


def as_captured(raw: Raw) -> dict[str, Any]:
    """The same as `capture_randomness` would have it."""
    (version, words, gauss), torch_state, numpy_state, cuda_state = raw
    state: dict[str, Any] = {"python": [version, list(words), gauss], "torch": torch_state}
    if numpy_state is not None:
        name, keys, position, has_gauss, cached = numpy_state
        state["numpy"] = [str(name), keys.tolist(), int(position), int(has_gauss), float(cached)]
    if cuda_state is not None:
        state["cuda"] = cuda_state
    return state


class Streams:
    """The record of one rank, to be written to."""

    def __init__(self, path: Path) -> None:
        if not path.exists() or path.stat().st_size != 2 * _PLACE_BYTES:
            path.write_bytes(bytes(2 * _PLACE_BYTES))
            path.chmod(0o600)
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 2 * _PLACE_BYTES)
        self._memory[:] = bytes(2 * _PLACE_BYTES)  # Whoever is lost before its first step in this gang was nowhere.
        self._seq, self._whole = 1, 1

    def note(self, step: int, raw: Raw, *, done: bool = True) -> None:
        """Beside the place of the last step that was `done`, which then counts no more."""
        (_, words, gauss), torch_state, numpy_state, cuda_state = raw
        parts = [torch_state.numpy().tobytes(), b"", cuda_state.numpy().tobytes() if cuda_state is not None else b""]
        if numpy_state is not None and numpy_state[0] == "MT19937":
            parts[1] = numpy_state[1].tobytes() + _NUMPY.pack(*map(int, numpy_state[2:4]), float(numpy_state[4]))
        self._seq += 1
        sizes = [len(part) for part in parts]
        head = _HEAD.pack(self._seq, step, *sizes, _NO_GAUSS if gauss is None else gauss)
        body = b"".join((head, _PYTHON.pack(*words), *parts, _TAIL.pack(self._seq)))
        if len(body) <= _PLACE_BYTES:
            place = 1 - self._whole
            self._whole = place if done else self._whole
            at = place * _PLACE_BYTES
            self._memory[at : at + _HEAD.size] = bytes(_HEAD.size)  # Whoever is killed here leaves nothing that could be taken for a whole one.
            self._memory[at : at + len(body)] = body


def found(path: Path, step: int) -> dict[str, Any]:
    """Where the rank that wrote there was after `step`, as `capture_randomness` has it; empty when it cannot be known."""
    try:
        record = path.read_bytes()
    except OSError:
        return {}
    for place in (record[:_PLACE_BYTES], record[_PLACE_BYTES:]):
        seq, its_step, torch_bytes, numpy_bytes, cuda_bytes, gauss = _HEAD.unpack_from(place)
        end = _HEAD.size + _PYTHON.size + torch_bytes + numpy_bytes + cuda_bytes
        if seq and its_step == step and end + _TAIL.size <= len(place) and _TAIL.unpack_from(place, end) == (seq,):
            return _read(place[_HEAD.size : end], torch_bytes, numpy_bytes, cuda_bytes, None if gauss == _NO_GAUSS else gauss)
    return {}


def _read(body: bytes, torch_bytes: int, numpy_bytes: int, cuda_bytes: int, gauss: float | None) -> dict[str, Any]:
    import torch

    words, rest = _PYTHON.unpack_from(body), body[_PYTHON.size :]
    own, numpy_state, cuda_state = rest[:torch_bytes], rest[torch_bytes : torch_bytes + numpy_bytes], rest[torch_bytes + numpy_bytes :]
    state: dict[str, Any] = {"python": [3, list(words), gauss], "torch": torch.frombuffer(bytearray(own), dtype=torch.uint8)}
    if numpy_bytes:
        keys = struct.unpack_from("<624I", numpy_state)
        position, has_gauss, cached = _NUMPY.unpack_from(numpy_state, numpy_bytes - _NUMPY.size)
        state["numpy"] = ["MT19937", list(keys), position, has_gauss, cached]
    if cuda_bytes:
        state["cuda"] = torch.frombuffer(bytearray(cuda_state), dtype=torch.uint8)
    return state
