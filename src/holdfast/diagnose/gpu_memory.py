"""GPU memory: what torch's own words about an out-of-memory say, and whose fault that makes it.

    the job's own size     a smaller micro-batch helps
    fragmented             the memory is there, in pieces: other segments help before anything else
    held                   another process has it: nothing of the job's own helps for long
    too small              one allocation alone is more than the card has
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.domain.gpu_holder import GpuHolder

_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SIZE = r"([\d.]+) (bytes|[KMGT]iB)"
_TRIED = re.compile(rf"Tried to allocate {_SIZE}")
_CAPACITY = re.compile(rf"GPU (\d+) has a total capacity of {_SIZE} of which {_SIZE} is free")
_ALLOWED = re.compile(rf"{_SIZE} allowed")
_OWN = re.compile(rf"this process has {_SIZE} memory in use")
_OTHER = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_ALLOCATED = re.compile(rf"Of the allocated memory {_SIZE} is allocated by PyTorch")
_UNUSED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_OTHERS_SHARE = 0.1  # Of the card: what others hold below this is contexts and displays.


class Shortage(StrEnum):
    SIZE = "size"
    FRAGMENTED = "fragmented"
    HELD = "held"
    TOO_SMALL = "too_small"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShortage:
    kind: Shortage
    because: str


def gpu_shortage(message: str, holders: Sequence[GpuHolder] = ()) -> GpuShortage | None:
    """What an out-of-memory on a GPU comes from, by the message of torch.OutOfMemoryError; None where it is no such message.

    `holders` are the processes that have memory on the node's cards, where somebody looked.
    """
    found = _TRIED.search(message)
    if found is None:
        return None
    tried, capacity = _bytes(found), _CAPACITY.search(message)
    total, free = (_bytes(capacity, 2), _bytes(capacity, 4)) if capacity else (0, 0)
    allowed = _found(_ALLOWED, message) or total
    unused = _found(_UNUSED, message)
    if 0 < allowed < tried:
        return GpuShortage(kind=Shortage.TOO_SMALL, because=f"it asked for {_words(tried)} at once, and may have {_words(allowed)} in all")
    if unused >= tried:
        said = f"it asked for {_words(tried)} while {_words(unused)} lay unused in its own segments: the memory is there, in pieces"
        return GpuShortage(kind=Shortage.FRAGMENTED, because=said)
    own = _found(_OWN, message)
    others = _others(message, holders)
    held = total - free - own if own else sum(one.held_bytes for one in others)
    if total and held >= _OTHERS_SHARE * total and free + held >= tried:
        who = _named(others) or "nobody who can be seen from here"
        return GpuShortage(kind=Shortage.HELD, because=f"{_words(held)} of {_words(total)} are held by others: {who}")
    own = own or _found(_ALLOCATED, message)
    return GpuShortage(kind=Shortage.SIZE, because=f"it asked for {_words(tried)} more, with {_words(own)} of {_words(allowed)} in its own hands")


_NO_GPU = ("No CUDA GPUs are available", "no CUDA-capable device is detected", "CUDA driver initialization failed")
_NO_CUDA = "Torch not compiled with CUDA enabled"
_BUSY = ("all CUDA-capable devices are busy or unavailable", "CUDA-capable device(s) is/are busy")


def gpu_missing(message: str, gpus: int, holders: Sequence[GpuHolder] = ()) -> str:
    """Why a process came to no GPU: none there, or in others' hands. Empty where the message is about something else.

    `gpus` is how many cards NVML lists on the node, -1 where it could not be asked.
    """
    if _NO_CUDA in message:
        return "this torch was built without CUDA, whatever the node has: install a build with it"
    if any(words in message for words in _NO_GPU):
        if gpus == 0:
            return "there is no GPU on the node"
        seen = f"the node has {gpus}, and the process may see none of them: look at CUDA_VISIBLE_DEVICES and at the driver's state"
        return seen if gpus > 0 else "no GPU was found, and the driver could not be asked how many there are"
    if any(words in message for words in _BUSY):
        named = _named([one for one in holders if not one.ours])
        return f"the GPU is in the hands of {named}" if named else "the GPU is busy or unavailable, and no process is seen that holds it"
    return ""


def is_about_gpu(message: str) -> bool:
    """Whether who holds the GPUs of the node is worth a look."""
    return any(words in message for words in (*_NO_GPU, *_BUSY)) or _TRIED.search(message) is not None


def _named(holders: Sequence[GpuHolder]) -> str:
    return ", ".join(f"process {one.pid}{f' of {one.user}' if one.user else ''} ({_words(one.held_bytes)})" for one in holders)


def _others(message: str, holders: Sequence[GpuHolder]) -> list[GpuHolder]:
    """Those that torch names, since it means one card; where it names none, all that are not ours on any card."""
    users = {one.pid: one.user for one in holders}
    ours = {one.pid for one in holders if one.ours}
    named = [GpuHolder(pid=int(found[1]), user=users.get(int(found[1]), ""), held_bytes=_bytes(found, 2)) for found in _OTHER.finditer(message)]
    return [one for one in named or holders if one.pid not in ours]


def _found(pattern: re.Pattern[str], message: str) -> int:
    found = pattern.search(message)
    return _bytes(found) if found else 0


def _bytes(found: re.Match[str], group: int = 1) -> int:
    try:
        return int(float(found[group]) * _UNITS[found[group + 1].lower()])
    except ValueError:  # "1.2.3" is no number.
        return 0


def _words(size: int) -> str:
    for unit, bytes in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= bytes:
            return f"{size / bytes:.1f} {unit}"
    return f"{size} bytes"
