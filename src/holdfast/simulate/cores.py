"""The same work for many inputs, on every core. Each process is a fresh one, and none outlives who started it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.connection import wait as wait_for
from typing import TypeVar

from holdfast.errors import HoldfastError

In = TypeVar("In")
Out = TypeVar("Out")


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def on_cores(do: Callable[[In], Out], inputs: Iterable[In], processes: int) -> Iterator[Out]:
    """What came of each, as it comes; in this process where one is enough. `do` must be at the top of a module, for other processes have to find it."""
    if processes <= 1:
        yield from map(do, inputs)
        return
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"), initializer=_begin)
    left, busy = iter(inputs), set[Future[Out]]()
    try:
        busy = {pool.submit(do, one) for one in islice(left, 2 * processes)}  # No more than that: there may be millions.
        while busy:
            done, busy = wait(busy, return_when=FIRST_COMPLETED)
            busy |= {pool.submit(do, one) for one in islice(left, len(done))}
            yield from [one.result() for one in done]
    except BrokenProcessPool:
        raise HoldfastError("a process that took its share of the work was killed, as happens for want of memory; ask for less at once") from None
    finally:
        for process in set(multiprocessing.active_children()) - others if busy else ():
            process.terminate()  # Nobody waits for what it works on.
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Ctrl-C reaches all: the parent tells of it. And whoever ends without a word, killed perhaps, leaves nobody behind."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is a child"
    wait_for([parent.sentinel])
    os._exit(1)
