"""Graceful stop: SIGTERM becomes "leave after this step", and all ranks leave after the same one.

A rank that has left can take no part in a collective, so nobody may go one step further than the others. There is no collective for this in the loop:

    1. A rank that was asked says so in the process group's store, together with the step it has finished, again after every step.
    2. A rank that was not asked looks into the store once a second, and then counts as asked. One signal to one rank is enough.
    3. When all ranks have spoken, the first to see it writes the step at which all leave: two beyond the highest said. Ranks that meet in a
       collective at every step are at most one step apart, so nobody is past it.

Is wrong     when ranks run far apart because they never meet, or without a process group: each leaves when it can, and the newest checkpoint
             that all of them had written is what remains.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any, Final

from holdfast.trainer.place import Place, process_group

EXIT_STOPPED: Final = 128 + signal.SIGTERM
_LOOK_EVERY_S: Final = 1.0
_MARGIN_STEPS: Final = 2


class Stop:
    """Whether to leave, asked after every step."""

    def __init__(self, place: Place) -> None:
        self.wanted = False
        self._place = place
        self._alone = place.world_size == 1
        self._store: Any = None
        self._leave_at: int | None = None
        self._look_at_s = monotonic() + _LOOK_EVERY_S
        self.waited_s = 0.0  # For the store, since the process began.
        self._put_back: Callable[[], object] = lambda: None
        self._handler: object = None

    def install(self) -> None:
        """Takes SIGTERM, and hands it on to the handler that had it; again where the script has set one of its own since. Only the main thread may, elsewhere
        the signal keeps its meaning."""
        if threading.current_thread() is not threading.main_thread() or (self._handler and signal.getsignal(signal.SIGTERM) is self._handler):
            return
        owner, before = os.getpid(), signal.getsignal(signal.SIGTERM)

        def asked(number: int, frame: FrameType | None) -> None:
            if os.getpid() != owner:  # A process forked from this one has no loop to leave, and must end as it would have.
                _pass_on(before, number, frame)
                return
            self.wanted = True
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, asked)
        self._handler = asked
        self._put_back = lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)

    def uninstall(self) -> None:
        """There is no loop to leave any more: the signal means again what it did."""
        self._put_back()

    def due(self, step: int) -> bool:
        """Whether to leave now, with `step` finished. Costs a comparison until somebody has asked."""
        if self._alone or (not self.wanted and monotonic() < self._look_at_s):
            return self.wanted
        began = monotonic()
        try:
            self._look_at_s = began + _LOOK_EVERY_S
            self.wanted = self.wanted or self._others_want()
            return self.wanted and self._agreed(step)
        except RuntimeError:  # The store is gone, and with it every way to agree: the others are being ended, or end as we do.
            self._alone = True
            return self.wanted
        finally:
            self.waited_s += monotonic() - began

    def _others_want(self) -> bool:
        store = self._open_store()
        return store is not None and bool(store.check(["wanted"]))

    def _agreed(self, step: int) -> bool:
        store = self._open_store()
        if store is None:
            return True
        if self._leave_at is None:
            _settle_gpu()
            store.set("wanted", "1")
            store.set(f"at/{self._place.rank}", str(step))
            self._leave_at = self._read_agreement(store)
        return self._leave_at is not None and step >= self._leave_at

    def _read_agreement(self, store: Any) -> int | None:
        if store.check(["leave_at"]):
            return int(store.get("leave_at"))
        said = [f"at/{rank}" for rank in range(self._place.world_size)]
        if not store.check(said):
            return None
        proposed = max(int(step) for step in store.multi_get(said)) + _MARGIN_STEPS
        return int(store.compare_set("leave_at", "", str(proposed)))

    def _open_store(self) -> Any:
        """A connection of our own to the process group's store, since one that waits for another thread's request would hold up a step."""
        group = process_group()
        if self._store is None and group is not None:
            self._store = group.PrefixStore(f"holdfast/stop/{self._place.generation}", group.distributed_c10d._get_default_store().clone())
        return self._store


def _pass_on(before: Callable[..., Any] | int | None, number: int, frame: FrameType | None) -> None:
    if callable(before):
        before(number, frame)
        return
    signal.signal(number, signal.SIG_DFL if before is None else before)
    if before != signal.SIG_IGN:
        os.kill(os.getpid(), number)


def _settle_gpu() -> None:
    """Let the GPU catch up with the loop: a loop that is many steps ahead of its GPU is also ahead of the other ranks. Only while stopping."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
