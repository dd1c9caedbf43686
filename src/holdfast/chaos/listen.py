"""Listen: the script's side of orders. Two lines make a training script obey what any script can do; what is its own it asks for by name.

    orders = Listener(carries=("nan_from_data",))    # before the first step
    ...
    orders.listen(run.step)                          # in every step: sleeps, spins, leaks, raises … when that was ordered
    if "nan_from_data" in orders.active: ...         # what only this script can do

Without a directory to listen in it does nothing. Standard library only: it is imported by training scripts.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import string
import sys
import time
from pathlib import Path
from typing import Any

DIRECTORY = "HOLDFAST_CHAOS"  # Set by `holdfast run --chaos`.
BEATS = "beats"  # Step logs, as steps.py reads them.
ANYBODYS = ("asleep", "gil", "exception", "exit_at_start", "leak", "out_of_memory", "log_flood")
_LEAK_BYTES, _HOARD_BYTES, _FLOOD_BYTES = 2 << 20, 256 << 20, 1 << 20  # In every step.


class OrderedFault(RuntimeError):
    """Raised because that was ordered."""


class Listener:
    def __init__(self, directory: Path | None = None, *, rank: int | None = None, carries: tuple[str, ...] = ()) -> None:
        given = os.environ.get(DIRECTORY)
        self._directory = directory or (Path(given) if given else None)
        self._rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self._hoard: list[bytearray] = []
        self._heard: set[str] = set()
        self._beats = -1
        self.active: dict[str, float] = {}  # What is wrong at the moment, and until when.
        self._ordered_by: dict[str, str] = {}
        if self._directory is not None:
            self._begin(self._directory, (*ANYBODYS, *carries))

    def _begin(self, directory: Path, carries: tuple[str, ...]) -> None:
        """What was ordered in an earlier life is not done again, but for what was meant for this one."""
        for order in self._orders():
            self._heard.add(order["id"])
            if order.get("at_start"):
                (directory / f"do-{self._rank}").unlink()
                sys.exit(1)
        self._beats = os.open(directory / f"{BEATS}-{self._rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        new = directory / f"listens-{self._rank}.new"
        new.write_text(" ".join(carries))
        new.replace(directory / f"listens-{self._rank}")

    def new(self, step: int) -> list[dict[str, Any]]:
        """Orders that are due and were not heard before."""
        due = [order for order in self._orders() if order["id"] not in self._heard and not order.get("at_start") and step >= order.get("from_step", 0)]
        self._heard |= {order["id"] for order in due}
        return due

    def begin(self, order: dict[str, Any]) -> None:
        self.active[order["how"]] = time.time() + order.get("for_s", 1e9)
        self._ordered_by[order["how"]] = order["id"]

    def listen(self, step: int) -> None:
        """Take new orders, forget what is over, and do what any script can. Writes down that the step was come to, for launchers that show nothing."""
        if self._beats >= 0:
            os.write(self._beats, f"{step} {time.monotonic()} {os.getpid()}\n".encode())
        for order in self.new(step):
            self.begin(order)
        self.obey()

    def obey(self) -> None:
        over = self._over() if self.active else []
        for how in over:
            del self.active[how]
        if over:
            self._hoard.clear()
        if "leak" in self.active:
            self._hoard.append(bytearray(_LEAK_BYTES))
        if "out_of_memory" in self.active:
            self._hoard.append(bytearray(_HOARD_BYTES))
        if "log_flood" in self.active:
            print("x" * _FLOOD_BYTES)
        if "gil" in self.active:
            sum(itertools.repeat(0))  # For ever, and no other thread of the process runs again.
        if "asleep" in self.active:
            time.sleep(1e6)
        if "exception" in self.active:
            # Never the same twice: a fault that comes again in the same place, by its type, would rightly be called permanent.
            letters = "".join(random.choices(string.ascii_letters, k=8))
            raise type(f"OrderedFault{letters}", (OrderedFault,), {})(f"rank {self._rank} was ordered to raise")

    def _over(self) -> list[str]:
        """What has lasted long enough, or was taken back: the order is gone."""
        standing = {order["id"] for order in self._orders()}
        return [how for how, until in self.active.items() if time.time() > until or self._ordered_by[how] not in standing]

    def _orders(self) -> list[dict[str, Any]]:
        if self._directory is None:
            return []
        found = []
        for name in (f"do-{self._rank}", "do-all"):
            try:
                found.append(json.loads((self._directory / name).read_text()))
            except FileNotFoundError:
                continue
        return found
