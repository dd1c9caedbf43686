"""Pinned memory: `pin` lets the GPU write to a buffer and read from it by itself; without that a copy takes four times as long, and works as well.

The driver does nothing else for the process while it registers memory. So pages are brought in beforehand, which takes ten times as long as the rest, and a
buffer is registered in stretches: the training, which has queued work for the GPU ahead, does not notice. Nothing may be copied across the border of two
stretches (CUDA refuses it), so whoever copies does it in `within_stretches`.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Final

from holdfast.checkpoint.chunks import several_at_a_time
from holdfast.checkpoint.snapshot import STRETCH_BYTES, Buffer

_LIBC: Final = ctypes.CDLL(None)
_MADV_POPULATE_WRITE: Final = 23  # Since Linux 5.14.


def pin(buffer: Buffer, *, workers: int) -> list[int]:
    """The addresses of the stretches that are registered now; not all when the driver refuses. So many threads bring pages in."""
    import torch

    cuda: Any = torch.cuda
    begin, size, pinned = _address_of(buffer), buffer.data.nbytes, list[int]()
    stretches = [(begin + offset, min(STRETCH_BYTES, size - offset)) for offset in range(0, size, STRETCH_BYTES)]
    for address, length in several_at_a_time(_bring_in, stretches, workers=workers):
        if cuda.cudart().cudaHostRegister(address, length, 0) != cuda.cudart().cudaError.success:
            _forget_error()
            break  # It would refuse the next one too.
        pinned.append(address)
    return pinned


def _bring_in(stretch: tuple[int, int]) -> tuple[int, int]:
    """Without the interpreter's lock, which `mmap.madvise` holds. Whether it works is no matter: what is missing is brought in when it is registered."""
    _LIBC.madvise(ctypes.c_void_p(stretch[0]), ctypes.c_size_t(stretch[1]), _MADV_POPULATE_WRITE)
    return stretch


def unpin(pinned: list[int]) -> None:
    import torch

    cuda: Any = torch.cuda
    for address in pinned:
        if cuda.cudart().cudaHostUnregister(address) != cuda.cudart().cudaError.success:
            _forget_error()


def _address_of(buffer: Buffer) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer.data))


def _forget_error() -> None:
    """CUDA keeps an error until somebody asks for it, and the next one who does is the training: it has nothing to do with ours."""
    maps = Path("/proc/self/maps").read_text().split()
    library = next((path for path in maps if "/libcudart" in path), None)
    if library is not None:
        ctypes.CDLL(library).cudaGetLastError()
