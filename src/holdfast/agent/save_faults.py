"""Save faults: why saves of this node fail, and whether the next one will fit.

    Persist, a worker's own saves, uploads ─► failures ─┐
    statvfs and the newest manifest, once a second ─────┴─► detect.save_failed ─► findings and signals, said to control once a second

The disk is looked at in a thread: one that hangs holds up nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from holdfast.agent.persist import Persist, free_bytes
from holdfast.checkpoint.found import list_directories, read_manifest
from holdfast.checkpoint.layout import CHUNKS, MANIFEST, RETIRED, Manifest, parse_directory_name
from holdfast.detect.save_failed import NONE, Failure, Room, SaveFailed
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.gauges import FAILED_STEPS, SAVE_FAILED, Gauge
from holdfast.domain.signal import Signal

_LOOK_EVERY_S: Final = 1.0
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_FILES_BESIDE: Final = 4  # The directory, its chunks', a receipt and the manifest.


class SaveFaults:
    """What is wrong with saving on this node. It belongs to the agent's thread."""

    def __init__(self, node: str, checkpoints: Path, persist: Persist, *, url: str = "", upload_error: Callable[[], str] = lambda: "") -> None:
        self._node, self._checkpoints, self._persist, self._url, self._upload_error = node, checkpoints, persist, url, upload_error
        self._detector = SaveFailed(node=node, directory=str(checkpoints))
        self._disk = _Disk(checkpoints)
        self._room: Room | None = None
        self._newest = NONE
        self._told: dict[int, float] = {}  # Rank to the failure of its own that was taken.
        self._upload: Finding | None = None
        self._failures = 0
        self.ended: dict[str, str] = {}  # How a finding came to its end, by key.

    async def run(self) -> None:
        stop = threading.Event()
        threading.Thread(target=self._disk.watch, args=(stop,), name="holdfast-room", daemon=True).start()
        try:
            while True:
                self._disk.prepared_bytes = self._persist.prepared_bytes()
                seen, self._disk.seen = self._disk.seen, None
                if seen is not None:
                    self._newest, self._room = seen
                    # What is under way takes room and gives it back, or is complete in a moment: only what has settled tells.
                    self._detector.look(None if self._persist.is_busy else self._room, self._newest, time.time())
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            stop.set()

    def take(self, tables: Mapping[int, Iterable[Gauge]]) -> list[Finding]:
        """What is wrong now, with what the workers and the agent have met since it was asked last. Nothing here waits for a disk."""
        now = time.time()
        while self._persist.failures:
            refused = self._persist.failures.popleft()
            generation, step = refused.key
            if refused.free_bytes is not None and self._room is not None:
                self._room = replace(self._room, free_bytes=refused.free_bytes)
            self._failed(Failure(generation=generation, step=step, said=refused.said, full=refused.errno in _FULL), now)
        for rank, table in tables.items():
            value = next((gauge.value for gauge in table if gauge.name == SAVE_FAILED), 0.0)
            if value and self._told.get(rank) != value:
                self._told[rank] = value
                step, number = divmod(int(value), FAILED_STEPS)
                said = os.strerror(number) if number else "the worker could not write it, and its log says why"
                self._failed(Failure(generation=self._persist.generation, step=step, said=said, full=number in _FULL), now)
        self._look_at_uploads(now)
        self.ended |= self._detector.ended
        found = [*self._detector.standing, *([self._upload] if self._upload is not None else [])]
        for finding in found:
            self.ended.pop(finding.key, None)
        return found

    def signals(self) -> list[Signal]:
        found = [Signal("saves_failing", float(self._detector.is_failing), ""), Signal("saves_failed_total", self._failures, "")]
        if self._room is not None and self._room.needs_bytes > self._room.begun_bytes:
            found.append(Signal("disk_save_needs_bytes", self._room.needs_bytes - self._room.begun_bytes, str(self._checkpoints)))
        return found

    def _failed(self, failure: Failure, now: float) -> None:
        self._failures += 1
        self._detector.failed(failure, self._room, self._newest, now)

    def _look_at_uploads(self, now: float) -> None:
        error = self._upload_error()
        if error and self._upload is None:
            from holdfast.checkpoint.remote_address import redacted  # Only here: an agent without a remote store stays light.

            url = redacted(self._url)
            because = f"checkpoints cannot be uploaded to {url}: {error} They are kept here, and another machine would go on from an older one"
            self._upload = Finding(kind="upload_failed", node=self._node, of=url, since=now, severity=Severity.CRITICAL, because=because)
        elif self._upload is not None and not error:
            self.ended[self._upload.key] = "uploading checkpoints works again, and the newest is sent"
            self._upload = None


class _Disk:
    """What is asked of the file system of the checkpoints, in a thread that nobody waits for: one that hangs must not hold up the agent's end."""

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints
        self._known: tuple[str, Manifest] | None = None
        self.prepared_bytes = 0  # Before the first save, what one takes at least.
        self.seen: tuple[tuple[int, int], Room] | None = None  # At the last look, until it was taken.

    def watch(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):  # Others change the directory meanwhile; the next look is in a second.
                self.seen = self._look()
            stop.wait(_LOOK_EVERY_S)

    def _look(self) -> tuple[tuple[int, int], Room] | None:
        """The newest complete checkpoint's generation and step, and the room there is; None when nothing can be seen."""
        try:
            stat = os.statvfs(self._checkpoints)
        except OSError:
            return None
        manifest = self._newest()
        block, files = stat.f_frsize, list(self._torn_files())
        own = [chunk.size_bytes for chunk in manifest.chunks if chunk.home == manifest.name] if manifest is not None else [self.prepared_bytes]
        room = Room(
            free_bytes=free_bytes(stat), size_bytes=stat.f_blocks * block, begun_bytes=sum(files),
            needs_bytes=sum(-(-size // block) * block for size in own) if sum(own) else 0.0,
            free_files=stat.f_favail + len(files) if stat.f_files else float("inf"), needs_files=len(own) + _FILES_BESIDE if sum(own) else 0.0,
        )  # fmt: skip
        return (manifest.generation, manifest.step) if manifest is not None else NONE, room

    def _newest(self) -> Manifest | None:
        """Reads only the newest manifest, and once."""
        named = [(name[1], name[0], path) for path in list_directories(self._checkpoints) if (name := parse_directory_name(path.name)) is not None]
        for _, _, path in sorted(named, reverse=True):
            if self._known is not None and self._known[0] == path.name and (path / MANIFEST).exists():
                return self._known[1]
            manifest = read_manifest(path, MANIFEST)
            if manifest is not None:
                self._known = path.name, manifest
                return manifest
        return None

    def _torn_files(self) -> Iterable[int]:
        """The sizes of the chunks that belong to no complete checkpoint, nor are kept for one."""
        for path in list_directories(self._checkpoints):
            if not (path / MANIFEST).exists() and not (path / RETIRED).exists():
                with contextlib.suppress(OSError):
                    for entry in os.scandir(path / CHUNKS):
                        with contextlib.suppress(OSError):  # It is being removed.
                            yield entry.stat().st_size
