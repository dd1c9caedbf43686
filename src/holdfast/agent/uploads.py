"""Uploads: complete checkpoints are sent to a remote store, beside training and never in its way.

Sees        manifests in the directory of checkpoints, looked for every few seconds.
Does        sends the newest; then older ones that a rule of `keep` wants for longer than the newest are. What it came too late for is skipped.
Says        one sentence when the store begins to fail, one when it works again, and `status` at any time.
Is wrong    when each node has checkpoints of its own: a checkpoint whose chunks lie on several nodes is complete on none of them.

All work is done in one thread that nobody waits for: a store that is slow, hangs or is gone delays neither the agent nor its end. `Sender` is what an agent
has: it sends for as long as rank 0 runs on this node, so that one agent does.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.checkpoint.found import CheckpointFound, list_complete, newest_complete
from holdfast.checkpoint.layout import parse_directory_name
from holdfast.checkpoint.remove import Retention, kept
from holdfast.errors import HoldfastError
from holdfast.wire.messages import Uploading

if TYPE_CHECKING:
    from holdfast.checkpoint.remote import Remote

_LOOK_EVERY_S: Final = 2.0
_FINISH_LOOK_EVERY_S: Final = 0.05
_HERE_EVERY_S: Final = 0.2
_PAUSE_S: Final = 5.0  # After a failure, at most; doubled for each further one.
_PAUSE_S_MAX: Final = 300.0
_LINGER_S: Final = 15.0  # Rank 0 that is started again in this time is back; else it runs elsewhere, and its agent there goes on.


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadStatus:
    """How the uploads stand, for showing."""

    step: int | None = None  # Of the newest checkpoint that is known to be in the store.
    sending: str = ""
    waiting: tuple[str, ...] = ()
    error: str = ""  # What is wrong, as long as it is.


def say(line: str) -> None:
    print(f"holdfast agent: {line}", file=sys.stderr, flush=True)


class Uploads:
    """Sends what is complete under `checkpoints` to the store at `url`. With `keep`, what no rule of it wants is removed there; without, nothing ever is."""

    def __init__(
        self, checkpoints: Path, url: str, *, keep: Retention | None = None, say: Callable[[str], None] = say, look_every_s: float = _LOOK_EVERY_S
    ) -> None:
        self._checkpoints, self._url, self._keep, self._say, self._look_every_s = checkpoints, url, keep, say, look_every_s
        self._remote: Remote | None = None
        self._there: set[str] | None = None  # Names that are in the store, or were until no rule wanted them there: they are not sent again.
        self.failures = 0
        self._failing: type[Exception] | None = None  # The kind that was last told of.
        self._status = UploadStatus()
        self._stop, self._wake = threading.Event(), threading.Event()

    @property
    def status(self) -> UploadStatus:
        return self._status

    async def run(self) -> None:
        """Until cancelled, which is immediate: what is being sent is given up, and found and gone on with by the next agent."""
        self.start()
        try:
            await asyncio.Event().wait()
        finally:
            self.stop()

    def start(self) -> None:
        threading.Thread(target=self._work, name="holdfast-uploads", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    async def finish(self, *, within_s: float) -> str:
        """Stop; before that the newest checkpoint has so much time to arrive, or none if the store fails anyway. The name of one that did not, else nothing."""
        deadline = time.monotonic() + within_s
        self._look_every_s = _FINISH_LOOK_EVERY_S
        self._wake.set()
        while (missing := await asyncio.to_thread(self._newest_missing)) and not self.failures and time.monotonic() < deadline:
            await asyncio.sleep(_FINISH_LOOK_EVERY_S)
        self.stop()
        return missing

    def _newest_missing(self) -> str:
        newest = newest_complete(self._checkpoints)
        return newest.name if newest is not None and newest.name not in (self._there or ()) else ""

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self._send_what_waits()
            except Exception as error:  # Whatever it was: training goes on, and the next look tries again.
                self._note_failure(error)
            self._wake.wait(self._pause_s())
            self._wake.clear()

    def _pause_s(self) -> float:
        if not self.failures:
            return self._look_every_s
        return self._look_every_s + random.uniform(0, min(_PAUSE_S_MAX, _PAUSE_S * 2 ** min(self.failures, 10)))

    def _send_what_waits(self) -> None:
        """One checkpoint after the other, and a new look before each: by then there may be a newer one."""
        while not self._stop.is_set() and (waiting := self._waiting()):
            one = waiting[0]
            self._status = replace(self._status, sending=one.name, waiting=tuple(other.name for other in waiting[1:]))
            remote = self._open()
            try:
                remote.upload(self._checkpoints, one.name, stop=self._stop.is_set)
            except HoldfastError:
                if one.name in {found.name for found in list_complete(self._checkpoints)}:
                    raise
                continue  # Training has removed it meanwhile; a newer one is there.
            self._names_there().add(one.name)
            if self._keep is not None:
                remote.prune(self._keep, now=time.time(), stop=self._stop.is_set)
            self._note_success()
        self._status = replace(self._status, sending="", waiting=())

    def _waiting(self) -> list[CheckpointFound]:
        """What is to be sent, the most urgent first."""
        line = list_complete(self._checkpoints)
        due = [*line[:1], *(one for one in line[1:] if one.name in self._lasting(line))]
        return [one for one in due if one.name not in self._names_there()] if due else []

    def _lasting(self, line: Sequence[CheckpointFound]) -> set[str]:
        """Those that a rule wants for another reason than that they are new."""
        if self._keep is None:
            return set()
        new = {one.name for one in line[:2]}  # Which no rule lets go, so that it cannot be seen whether one wants them.
        stepped = {one.name for one in line if self._keep.every and one.step % self._keep.every == 0}
        return kept(line, replace(self._keep, last=0), now=time.time()) - new | stepped

    def _names_there(self) -> set[str]:
        """Asked for once: from then on all that is there was put there from here, or by an agent whose uploads ours finds when it begins its own."""
        if self._there is None:
            found = self._open().list(stop=self._stop.is_set)
            self._there = {one.name for one in found}
            self._status = replace(self._status, step=found[0].step if found else None)
        return self._there

    def _open(self) -> Remote:
        if self._remote is None:
            from holdfast.checkpoint.remote_address import open_remote  # Only here: an agent without a remote store stays light.

            self._remote = open_remote(self._url)
        return self._remote

    def _note_failure(self, error: Exception) -> None:
        if self._stop.is_set():
            return
        # The words of our own errors hold no secret; those of others may.
        told = str(error) if isinstance(error, HoldfastError) else f"of a {type(error).__name__} that nobody expected."
        if self._failing is not type(error):
            self._say(f"checkpoints are not uploaded: {told} Training goes on, and it is tried again.")
        self._failing = type(error)
        self.failures += 1
        waiting = tuple(name for name in (self._status.sending, *self._status.waiting) if name)
        self._status = replace(self._status, sending="", waiting=waiting, error=told)

    def _note_success(self) -> None:
        if self.failures:
            self._say(f"uploading checkpoints works again, after {self.failures} failed tries.")
        self.failures, self._failing = 0, None
        newest = next((one.step for one in list_complete(self._checkpoints) if one.name in self._names_there()), self._status.step)
        self._status = replace(self._status, sending="", error="", step=newest)


class Sender:
    """Sends to the store at `url` while rank 0 is `here`; with no `url`, nothing."""

    def __init__(self, checkpoints: Path, url: str, *, here: Callable[[], bool], linger_s: float = _LINGER_S) -> None:
        self._checkpoints, self._url, self._here, self._linger_s = checkpoints, url, here, linger_s
        self._uploads: Uploads | None = None
        self._missing = ""  # What was not there at the end.

    async def run(self) -> None:
        seen_at = -math.inf
        while True:
            if self._here():
                seen_at = time.monotonic()
            if time.monotonic() - seen_at > self._linger_s:
                self.stop()
            elif self._uploads is None:
                self._start()
            await asyncio.sleep(_HERE_EVERY_S)

    def stop(self) -> None:
        if self._uploads is not None:
            self._uploads.stop()
            self._uploads = None

    async def finish(self, *, within_s: float) -> None:
        """Before rank 0's node leaves: what it saved last has so much time."""
        if self._url and within_s:
            uploads = self._uploads or self._start()
            self._missing = await uploads.finish(within_s=within_s)

    def _start(self) -> Uploads:
        self._uploads = Uploads(self._checkpoints, self._url)
        self._uploads.start()
        return self._uploads

    @property
    def lasting_error(self) -> str:
        """What is wrong with the store, once a second try has failed too: one that stumbled is asked again within seconds."""
        return self._uploads.status.error if self._uploads is not None and self._uploads.failures > 1 else ""

    def reading(self) -> Uploading | None:
        if self._uploads is None:
            return None
        status = self._uploads.status
        under_way = next((name for name in (self._missing, status.sending, *status.waiting) if name), "")
        missing, _ = parse_directory_name(under_way) or (-1, -1)
        return Uploading(step=-1 if status.step is None else status.step, missing=missing, error=status.error)
