"""Which lines of a block deserve a closer look: found by four letters at a time, in numpy, at some 140 MB a second.

Every word that speaks of trouble has four letters in a row that few other words have. All runs of four bytes of a block are looked up in one table; what is
found is a hint and no more, for the lines are then read with care. Lines without a hint are never made into text, which is what lets a log of 200 MB be read
in seconds.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

TROUBLE: Final = 1
PROGRESS: Final = 2
START: Final = 4
_IS_NAN: Final = 16
GRAVE: Final = 8  # Trouble that is worth a look even in a flood.

_TROUBLE: Final = (
    # error, exception or exceeded, traceback, failed, fatal, killed, aborted, segmentation fault, segfault, panic, timeout, timed out
    "erro", "exce", "trac", "fail", "fata", "kill", "abor", "segm", "segf", "pani", "eout", "imed",
    # out of memory, oom in its spellings, Xid, cancelled, terminate, exit, exited with, no space or no such, denied, refused, reset by, broken pipe
    "f me", "oom-", " oom", "oom_", "(oom", "ooms", "oomk", " xid", "canc", "rmin", "exit", "xite", "no s", "deni", "refu", "t by", "peer", "pipe",
    # corrupt or interrupt, unable, cannot, can't, invalid, warning, core dumped, assert, evicted, preempted, symbol, mismatch, missing, unexpected
    "rrup", "unab", "cann", "an't", "inva", "warn", "dump", "asse", "evic", "pree", "symb", "mism", "miss", "unex",
    # watchdog, shutdown or shut down, lost, died, dead, hang or hung, unhandled, unreachable or unrecognized, stale, the driver, signals by name and as a word
    "watc", "shut", "lost", "died", "dead", "hung", "hang", "unha", "unre", "tale", "nvrm", "sigs", "sigt", "sigk", "sigb", "siga", "sigi", "sigh", "gnal",
    # I/O error, ECC, machine check, quota, overflow or underflow, diverged, the schedulers, retry, disconnected, UNAVAILABLE, exhausted, INTERNAL:, stragglers
    "i/o ", "ecc ", "mce:", "edac", "quot", "rflo", "dive", "slur", "srun", "etry", "isco", "unav", "exha", "nal:", "unim", "rott", "xplo", "herm", "lowd",
    "stal", "stuc", "sigu",
    # not found, permission, not responding, read-only, task blocked for, time limit, maintenance, not finite, errno, words of other languages
    "t fo", "no m", "perm", "t re", "-onl", "d fo", "e li", "aint", "nite", "errn", "fehl", "erre", "orte", "prte", "mpi_",
    # A frame of Python, a frame of C++, what(), the stack of a signal; NaN and infinity as values.
    'le "', "rame", "hat(", "*** ", ":nan", "=nan", "inf,", "inf ", "inf}", "inf*", "-inf", "nan,", "nan*",
    # Go, Ray, causes, traps, and what the kernel says when it gives up.
    "goro", "rays", "rayt", "caus", "trap", "oops", "bug:",
)  # fmt: skip
_GRAVE: Final = ("trac", "fata", "segf", "segm", "pani", "nvrm", "slur", " xid", "oom-", "oom_", "canc", "rmin", "watc")
_NAN: Final = (" nan",)
_PROGRESS: Final = ("loss", "step", "iter", "poch", "it/s", "s/it", "ppl=", "ppl:", "ppl ", "batc", "samp")
_START: Final = ("runn", "omp_", "star", "laun", "ace(", "cmd ", "entr", "worl", "nb: ")
_MULTIPLIER: Final = np.uint32(2654435761)  # Knuth's, of the golden ratio: neighbours are spread.
_SHIFT: Final = np.uint32(12)
_LOWER: Final = np.uint32(0x20202020)


def hints(data: bytes) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
    """Places in the block, in order, and what each hints at."""
    table = _table()
    places, kinds = [], []
    for offset in range(4):
        count = (len(data) - offset) // 4
        if count <= 0:
            continue
        fours = np.frombuffer(data, "<u4", offset=offset, count=count) | _LOWER
        fours *= _MULTIPLIER
        fours >>= _SHIFT
        found = table[fours]
        at = np.flatnonzero(found)
        places.append(at * 4 + offset)
        kinds.append(found[at])
    if not places:
        return np.empty(0, np.intp), np.empty(0, np.uint8)
    place, kind = _without_counts(data, np.concatenate(places), np.concatenate(kinds))
    order = np.argsort(place, kind="stable")
    return place[order], kind[order]


def _without_counts(data: bytes, place: NDArray[np.intp], kind: NDArray[np.uint8]) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
    """Megatron counts "nan iterations" on every line it prints, which is no trouble; any other NaN is."""
    nan = np.flatnonzero(kind & _IS_NAN)
    if len(nan):
        after = np.minimum(place[nan] + len(" nan "), len(data) - 1)
        letters = np.frombuffer(data, np.uint8)
        trouble = nan[(letters[after] != ord("i")) | (letters[np.minimum(after + 1, len(data) - 1)] != ord("t"))]
        kind[trouble] |= TROUBLE
    return place, kind


@cache
def _table() -> NDArray[np.uint8]:
    table = np.zeros(1 << (32 - int(_SHIFT)), np.uint8)
    for words, kind in ((_TROUBLE, TROUBLE), (_PROGRESS, PROGRESS), (_START, START), (_GRAVE, GRAVE), (_NAN, _IS_NAN)):
        for word in words:
            four = np.frombuffer(word.encode(), "<u4") | _LOWER
            table[(four * _MULTIPLIER) >> _SHIFT] |= kind
    return table
