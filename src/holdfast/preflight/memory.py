"""Memory: how much is free, how fast it is copied, and whether patterns written over a part of it are read back as they were."""

from __future__ import annotations

import time

import numpy as np

from holdfast.checkpoint.memory import available_bytes
from holdfast.preflight.check import Check, Place, bad, ok, warn

_QUICK_BYTES, _FULL_BYTES = 128 << 20, 1 << 30
_RANK_BYTES = 1 << 30  # Less than this a rank, and the first real model does not fit.
_SLOW_BYTES_PER_S = 1e9  # Any machine of this century copies faster; one that does not is swapping or being throttled.


def look(place: Place) -> list[Check]:
    free = available_bytes()
    wanted = _FULL_BYTES if place.full else _QUICK_BYTES
    if free < 4 * wanted:
        said = f"{free / 2**30:.1f} GiB free: too little to test, or to train"
        return [bad("memory", said, "end what fills it (`ps aux --sort -rss | head`)", free_bytes=free)]
    words = np.empty(wanted // 8, dtype=np.uint64)
    return [patterns(words), bandwidth(words, free, place.ranks)]


def patterns(words: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> Check:
    """Each bit both ways, and each word by its own address, so that two lines that are tied together are seen too."""
    for pattern in (0x5555555555555555, 0xAAAAAAAAAAAAAAAA):
        words.fill(np.uint64(pattern))
        if not (words == np.uint64(pattern)).all():
            return _wrong(words, np.full(1, pattern, dtype=np.uint64))
    words[:] = np.arange(len(words), dtype=np.uint64)
    wanted = np.arange(len(words), dtype=np.uint64)
    return ok("memory", f"{words.nbytes >> 20} MiB written with patterns and read back alike") if (words == wanted).all() else _wrong(words, wanted)


def _wrong(words: np.ndarray[tuple[int], np.dtype[np.uint64]], wanted: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> Check:
    count = int((words != wanted).sum())
    said = f"{count} of {len(words)} words were not read back as written"
    return bad("memory", said, "take the machine out of service: its memory loses bits", culprit="memory")


def bandwidth(words: np.ndarray[tuple[int], np.dtype[np.uint64]], free_bytes: int, ranks: int) -> Check:
    copy, best = np.empty_like(words), 0.0
    for _ in range(3):
        began = time.perf_counter()
        np.copyto(copy, words)
        best = max(best, words.nbytes / (time.perf_counter() - began))
    told = f"{free_bytes / 2**30:.1f} GiB free, copied at {best / 1e9:.1f} GB/s"
    if best < _SLOW_BYTES_PER_S:
        return warn("memory", told, "see whether the machine swaps (`vmstat 1`) or its memory is throttled", bytes_per_s=best, free_bytes=free_bytes)
    if free_bytes < ranks * _RANK_BYTES:
        return warn("memory", f"{told}, for {ranks} ranks", "lower --nproc-per-node, or end what fills it", bytes_per_s=best, free_bytes=free_bytes)
    return ok("memory", told, bytes_per_s=best, free_bytes=free_bytes)
