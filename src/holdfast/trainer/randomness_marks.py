"""Where the generators of a process are, told in a microsecond: `RandomnessMarks.read`, and `as_captured` for a checkpoint.

`random.getstate()` and `numpy.random.get_state()` build lists and take thirty microseconds. Their words lie in memory as they are, at an address that NumPy
tells; for Python's own generator it is found out, and compared with what `getstate` says before it is believed.

Is wrong    about the second number of a pair that NumPy's `randn` has drawn and not given out yet: it is taken as it is now.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

_WORDS: Final = 624
_PYTHON: Final = struct.Struct(f"<i{_WORDS}I")  # The position comes first,
_NUMPY: Final = struct.Struct(f"<{_WORDS}Ii")  # and in NumPy's last.

Marked = tuple[Any, Any, Any, Any, Any]  # torch's, Python's and its number of a pair, NumPy's, this GPU's.


class RandomnessMarks:
    """The generators of this process that nobody has to name: those of torch, Python and NumPy, and that of the GPU in use."""

    def __init__(self) -> None:
        import torch

        self._torch = torch.default_generator
        self._python = _python_reader()
        self._numpy = _numpy_reader()
        self._gpu: Any = torch.cuda.default_generators[torch.cuda.current_device()] if torch.cuda.is_initialized() else None

    def read(self) -> Marked:
        gpu = self._gpu.get_state() if self._gpu is not None else None
        return (self._torch.get_state(), self._python(), getattr(random._inst, "gauss_next", None), self._numpy(), gpu)

    def same(self, one: Marked, other: Marked) -> bool:
        return all(_same(mine, its) for mine, its in zip(one, other, strict=True))


def as_captured(marked: Marked, now: dict[str, Any]) -> dict[str, Any]:
    """What `capture_randomness` would have said when it was marked. `now`: what it says now."""
    torch_state, python, gauss, numpy, gpu = marked
    captured = now | {"torch": torch_state}
    if isinstance(python, bytes):
        position, *words = _PYTHON.unpack(python)
        captured["python"] = [now["python"][0], [*words, position], gauss]
    else:
        captured["python"] = [python[0], list(python[1]), python[2]]
    if numpy is not None and "numpy" in now:
        *keys, position = _NUMPY.unpack(numpy)
        captured["numpy"] = [now["numpy"][0], keys, position, *now["numpy"][3:]]
    if gpu is not None:
        captured["cuda"] = gpu
    return captured


def _same(one: Any, other: Any) -> bool:
    return bool(one.equal(other)) if hasattr(one, "equal") else bool(one == other)


def _python_reader() -> Callable[[], Any]:
    """Reads it from memory, where that is laid out as in CPython; else asks for it."""
    generator = random._inst
    if sys.implementation.name == "cpython":
        memory = _memory_at(id(generator) + object.__basicsize__, _PYTHON.size)
        position, *words = _PYTHON.unpack(bytes(memory))
        if (*words, position) == random.getstate()[1]:
            return lambda: bytes(memory)
    return random.getstate


def _numpy_reader() -> Callable[[], Any]:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return lambda: None
    generator: Any = numpy.random.get_bit_generator()
    if type(generator).__name__ != "MT19937":
        return lambda: None
    memory = _memory_at(generator.ctypes.state_address, _NUMPY.size)
    return lambda generator=generator: bytes(memory)  # type: ignore[misc]  # It must live as long as its memory is read.


def _memory_at(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")
