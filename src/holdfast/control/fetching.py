"""What the remote store has that memory and disk have not: looked for, and fetched, before a gang is started.

Asks        when this control looks for the first time, when what is here is older than what was saved, and when nothing is here. Otherwise never: a
            recovery does not wait for a store.
Falls back  on what is here, and says why, when the store does not list what it has in time, gives out, or has kept nothing whole.
Refuses     to begin from the beginning when nothing is here and the store has not said that it has nothing either.

The work is done in a thread, one search at a time: a later one ends the one before it, and what that fetched is not fetched again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.checkpoint.errors import CheckpointCorrupt, CheckpointMismatch
from holdfast.checkpoint.layout import Chunk, Manifest
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.checkpoint.remote import Remote

_LIST_WITHIN_S: Final = 10.0

Key = tuple[int, int]  # Generation and step; newer is greater.
NOTHING: Final[Key] = (-1, -1)


class NothingToGoOnFrom(HoldfastError):
    """Nothing is here, and what the store has cannot be had."""


class Fetching:
    """`note` takes what a person should read, once each; `progress` is what goes on now, if anything does."""

    def __init__(self, url: str, checkpoints: Path, *, note: Callable[[str], None], list_within_s: float = _LIST_WITHIN_S) -> None:
        self._url, self._checkpoints, self._note, self._list_within_s = url, checkpoints, note, list_within_s
        self._asked = False
        self._stop = threading.Event()  # Of the search that goes on now.
        self._lock = asyncio.Lock()
        self.progress = ""

    async def bring_newer(self, here: Key, *, saved_step: int, distrusted: Collection[str]) -> None:
        """See that the newest there is lies on the disk; raises NothingToGoOnFrom."""
        if self._asked and here != NOTHING and here[1] >= saved_step:
            return
        self.stop()
        async with self._lock:
            self._stop = stop = threading.Event()
            try:
                await asyncio.to_thread(self._bring, here, frozenset(distrusted), stop)
            finally:
                self.progress = ""
            if stop.is_set():
                raise NothingToGoOnFrom("the search was given up: a later one goes on, or the job ends.")
            self._asked = True

    def stop(self) -> None:
        """Within a moment, whatever the store does."""
        self._stop.set()

    def _bring(self, here: Key, distrusted: frozenset[str], stop: threading.Event) -> None:
        refused: list[str] = []
        try:
            remote = self._open()
            for name in self._newer(remote, here, stop):
                if name in distrusted:
                    continue
                try:
                    self._fetch(remote, name, stop)
                    return
                except (CheckpointCorrupt, CheckpointMismatch) as error:
                    refused.append(str(error))
                    self._note(f"{name} in the remote store is passed over: {error}")
        except HoldfastError as error:
            refused.append(str(error))
        if stop.is_set() or not refused:
            return
        if here == NOTHING:
            raise NothingToGoOnFrom(
                f"nothing is saved here, and what the remote store has cannot be had: {refused[-1]} Nothing is started from scratch: mend the store and "
                "resume, or go on without it with --remote ''"
            )
        self._note(f"the job goes on from what is saved here, since the remote store could not give anything newer: {refused[-1]}")

    def _open(self) -> Remote:
        from holdfast.checkpoint.remote_address import open_remote  # Only here: control without a remote store stays light.

        return open_remote(self._url)

    def _newer(self, remote: Remote, here: Key, stop: threading.Event) -> tuple[str, ...]:
        from holdfast.checkpoint.remote_files import RemoteUnavailable, Stopped

        end = time.monotonic() + self._list_within_s
        try:
            return remote.names(newer_than=here, stop=lambda: stop.is_set() or time.monotonic() > end)
        except Stopped:
            raise RemoteUnavailable(f"{remote.url} did not say what it has within {self._list_within_s:g} s.") from None

    def _fetch(self, remote: Remote, name: str, stop: threading.Event) -> None:
        self.progress = f"fetching {name} from the remote store"
        total = remote.manifest(name, stop=stop.is_set).size_bytes
        done, began = 0, time.monotonic()

        def fetched(chunk: Chunk) -> None:
            nonlocal done
            done += chunk.size_bytes
            self.progress = f"fetching {name} from the remote store, {_size(total)}: {10 * done // max(total, 1)}0 % are here"

        manifest: Manifest = remote.download(name, self._checkpoints, progress=fetched, stop=stop.is_set)
        self._note(f"step {manifest.step} came from the remote store: {_size(total)} in {time.monotonic() - began:.1f} s")


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.3g} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.3g} MB"
