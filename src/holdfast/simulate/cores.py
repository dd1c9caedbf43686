"""The same work for many inputs, on every core. Each process is a fresh one, and none outlives who started it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import wait as wait_for
from typing import Any, TypeVar

from holdfast.errors import HoldfastError

In = TypeVar("In")
Out = TypeVar("Out")
_LOOKS_S = 0.2


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


_far: Any = None  # Of each piece of work how far it is, in memory that parent and children share.


def reached(piece: int, far: int) -> None:
    """Say how far a piece of work is, to whoever watches."""
    if _far is not None:
        _far[piece] = far


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Is shown how far each of so many pieces is, several times a second."""

    pieces: int
    look: Callable[[Sequence[int]], None]


def on_cores(do: Callable[[In], Out], inputs: Iterable[In], processes: int, watch: Watch | None = None) -> Iterator[Out]:
    """What came of each, as it comes; in this process where one is enough and nobody watches. `do` must be at the top of a module: others have to find it."""
    if processes <= 1 and watch is None:
        yield from map(do, inputs)
        return
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    far = context.RawArray("q", watch.pieces) if watch is not None else None
    pool = ProcessPoolExecutor(max(1, processes), mp_context=context, initializer=_begin, initargs=(far,))
    left, busy = iter(inputs), set[Future[Out]]()
    try:
        busy = {pool.submit(do, one) for one in islice(left, 2 * processes)}  # No more than that: there may be millions.
        while busy:
            done, busy = wait(busy, timeout=_LOOKS_S if watch is not None else None, return_when=FIRST_COMPLETED)
            if watch is not None and far is not None:
                watch.look(far)
            busy |= {pool.submit(do, one) for one in islice(left, len(done))}
            yield from [one.result() for one in done]
    except BrokenProcessPool:
        raise HoldfastError("a process that took its share of the work was killed, as happens for want of memory; ask for less at once") from None
    finally:
        for process in set(multiprocessing.active_children()) - others if busy else ():
            process.terminate()  # Nobody waits for what it works on.
        pool.shutdown(cancel_futures=True)


def _begin(far: Any) -> None:
    """Ctrl-C reaches all: the parent tells of it. And whoever ends without a word, killed perhaps, leaves nobody behind."""
    global _far
    _far = far
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is a child"
    wait_for([parent.sentinel])
    os._exit(1)
