"""Notices: that this node will go, read from a file or heard as a signal, and told to control, which has the gang leave it before.

    a file appears, changes, vanishes ─┐
    SIGUSR1, SIGTERM to the agent ─────┴─► what is new ─► NodeCordoned with the time it goes · NodeUncordoned when it was withdrawn

The file is what a Slurm prolog, a Kubernetes preStop hook or a watcher of cloud metadata can write: plain text, with a time before the reason if it has one, or
JSON, also as AWS, Google and Azure say it. Slurm sends a signal before an allocation ends (`--signal=USR1@120`), and says in the environment when that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import msgspec

from holdfast.domain.event import Event, NodeCordoned, NodeUncordoned
from holdfast.domain.notice import Notice

UNSAID_S = 30.0  # What Google, Azure and Kubernetes give at the least, counted from when it was written.
PASSED_S = 120.0  # A notice whose time has passed by so much is over: the node did not go, or has come back with the file still there.
_LOOK_EVERY_S = 1.0
_FILE_BYTES_MAX = 64 << 10
_EPOCH_MIN = 1e9  # A smaller number is so many seconds after the notice was written.
_NOTHING = frozenset({"", "false", "none", "{}", "[]", "null"})  # What metadata says when there is nothing to say.
_TIMES, _REASONS = ("at", "time", "NotBefore"), ("reason", "action", "EventType")
_HARMLESS = "Freeze"  # Azure stops the machine for some seconds, and it goes on.
_ENDS_AT = "SLURM_JOB_END_TIME"


class Notices:
    """A file counts as long as it is there, a signal for good: it is not sent again, so it is kept in `kept` for the agent that comes after us. That one
    tells what is so whatever it is, since nobody knows how much of what we told has arrived."""

    def __init__(self, node: str, path: Path, tell: Callable[[Event], None], *, kept: Path) -> None:
        self._node, self._path, self._tell, self._kept = node, path, tell, kept
        self._told: Notice | None = None
        self._heard: Notice | None = None
        self._empty = 0  # Looks in a row that found nothing.
        self._unsure = kept.exists()
        with contextlib.suppress(OSError, msgspec.DecodeError):
            self._heard = msgspec.json.decode(kept.read_bytes(), type=Notice | None)

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_LOOK_EVERY_S)

    def look(self) -> None:
        """Tell what is new."""
        some = [one for one in (read(self._path), self._heard) if one is not None and time.time() - one.goes_at <= PASSED_S]
        found = min(some, key=lambda one: one.goes_at, default=None)
        self._empty = self._empty + 1 if found is None else 0
        if self._told is not None and self._empty == 1:
            return  # Whoever writes the file may just have emptied it, to write it anew.
        if found is not None and (self._unsure or not found.is_like(self._told)):
            self._keep()
            self._tell(NodeCordoned(at=0.0, node=self._node, because=found.because, drain=True, goes_at=found.goes_at))
        elif found is None and (self._unsure or self._told is not None):
            self._tell(NodeUncordoned(at=0.0, node=self._node, withdrawn=True))
        self._told, self._unsure = found, False

    def _keep(self) -> None:
        with contextlib.suppress(OSError):  # On a full disk the agent after us will know less.
            self._kept.write_bytes(msgspec.json.encode(self._heard))

    def signalled(self, number: signal.Signals, *, within_s: float) -> None:
        """Somebody sent us a signal that means: it ends soon. When, Slurm says; else it is `within_s` from now."""
        goes_at = _slurm_ends_at(os.environ) if number is signal.SIGUSR1 else None
        self._heard = Notice(because=f"its agent was sent {number.name}", goes_at=goes_at or time.time() + within_s)
        self.look()


def read(path: Path) -> Notice | None:
    """What the file says; None: there is none, or nothing in it."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return parse(file.read(_FILE_BYTES_MAX).decode(errors="replace"), written_at=os.fstat(file.fileno()).st_mtime)
    return None


def parse(text: str, *, written_at: float) -> Notice | None:
    text = text.strip()
    if text.lower() in _NOTHING:
        return None
    if text[0] in "{[":
        try:
            return _from_json(json.loads(text), written_at)
        except (ValueError, RecursionError):
            return None  # It is just being written, and the next look finds it whole; or it is nothing that anybody means.
    first, _, rest = text.partition(" ")
    goes_at = _time(first, written_at)
    said = rest if goes_at is not None else "" if text.lower() == "true" else text
    return _notice(said, goes_at, written_at)


def _from_json(found: Any, written_at: float) -> Notice | None:
    """One notice, or the first to come true of a list of them."""
    if isinstance(found, dict) and isinstance(found.get("Events"), list):
        found = found["Events"]
    if isinstance(found, list):
        some = [notice for one in found if (notice := _from_json(one, written_at)) is not None]
        return min(some, key=lambda notice: notice.goes_at, default=None)
    if not isinstance(found, dict) or found.get("EventType") == _HARMLESS:
        return None
    goes_at = next((_time(found[key], written_at) for key in _TIMES if key in found), None)
    return _notice(str(next((found[key] for key in _REASONS if found.get(key)), "")), goes_at, written_at)


def _notice(reason: str, goes_at: float | None, written_at: float) -> Notice:
    said = " ".join(reason.split()).encode(errors="replace").decode()  # JSON may hold half a character, which nobody could be told.
    because = f"it is to go: {said}" if said else "it is to go"
    return Notice(because=because, goes_at=written_at + UNSAID_S if goes_at is None else goes_at)


def _time(said: object, written_at: float) -> float | None:
    """Seconds since the epoch or since it was written, ISO 8601, or as mail and web servers write times; None: it is no time."""
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        number = float(said)  # type: ignore[arg-type]
        if not 0.0 <= number < math.inf:
            return None
        return number if number >= _EPOCH_MIN else written_at + number
    for reader in (datetime.fromisoformat, parsedate_to_datetime):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            found = reader(str(said))
            return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    return None


def _slurm_ends_at(environment: Mapping[str, str]) -> float | None:
    with contextlib.suppress(ValueError, KeyError):
        ends_at = float(environment[_ENDS_AT])
        return ends_at if ends_at > time.time() else None
    return None
