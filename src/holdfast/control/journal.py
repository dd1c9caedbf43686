"""The journal: every event a job's control accepted, and what was decided on it. One SQLite file a job.

An event and the effects chosen on it are one transaction, synced to disk before any effect is performed and before the event is acknowledged. So a
control that is killed at any moment forgets nothing it acted on: on start the newest snapshot is loaded, the events after it are taken again, and effects
that were never answered are sent again. A snapshot carries the version of the state; one of another version is not used, and the events decide anew only
within the version that wrote them.

A disk that is full does not end the job: the journal has pages in reserve that are on the disk already, and uses them when it gets no new ones.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from holdfast.core import Core
from holdfast.domain.effect import Effect
from holdfast.domain.event import Event, JobResumed, JobSubmitted
from holdfast.domain.job import JobSpec
from holdfast.domain.state import State
from holdfast.errors import HoldfastError
from holdfast.wire.codec import decode_effect, decode_event, encode

SCHEMA = 1
SNAPSHOT_EVERY = 200
_RESERVE_BYTES: Final = 256 << 10  # For some hundred events: in the file, and as much in the log.
_FREE_PAGES: Final = 32  # With fewer left of it in the file, as much is taken again.
_LOG_PAGES: Final = 32  # With so many the log is copied into the file and begins again.
_ROOM_BYTES: Final = 4 << 20  # A disk with less left keeps it for others.

_TABLES = """
CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY, at REAL NOT NULL, schema INTEGER NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS effects (id TEXT PRIMARY KEY, seq INTEGER NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS effects_of_event ON effects (seq);
CREATE TABLE IF NOT EXISTS reserve (body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS snapshots (seq INTEGER PRIMARY KEY, schema INTEGER NOT NULL, body BLOB NOT NULL) STRICT;
"""


class JournalUnusable(HoldfastError):
    """The journal cannot be opened, read or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    seq: int
    event: Event
    effects: tuple[Effect, ...]


class Journal:
    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        if read_only and not path.exists():
            raise JournalUnusable(f"there is no journal at {path}; the job was never started, or its state was removed")
        try:
            uri = f"file:{quote(str(path))}?mode={'ro' if read_only else 'rwc'}"
            self._db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0)
            if not read_only:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.execute("PRAGMA secure_delete=OFF")  # Else every page of the reserve would be written once more to let go of it.
                self._db.execute(f"PRAGMA wal_autocheckpoint={_LOG_PAGES}")
                self._db.executescript(f"BEGIN;{_TABLES}COMMIT;")  # All at once: somebody may look at a job that is only just there.
                self._reserve()
            self._seq: int = self._db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]
        except sqlite3.Error as error:
            raise JournalUnusable(f"the journal {path} cannot be opened: {error}; check that its directory is writable and its disk is not full") from error

    @contextmanager
    def together(self) -> Iterator[None]:
        """All that is appended inside is one synced transaction; durable when this is left. One sync serves many events that came at once."""
        before = self._seq
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise JournalUnusable(f"the journal {self.path} cannot be written: {error}; free space on its disk, then resume the job") from error
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
                self._seq = before
        self._reserve()

    def _reserve(self) -> None:
        """Take pages while there is room: in the file, where they are free to be used, and in the log, whose own room is used again from its beginning."""
        few = self._db.execute("PRAGMA freelist_count").fetchone()[0] < _FREE_PAGES
        disk = os.statvfs(self.path.parent)
        if few and disk.f_bavail * disk.f_frsize >= _ROOM_BYTES:
            with contextlib.suppress(sqlite3.OperationalError):  # It has just become full, and what there is must do.
                self._db.execute("INSERT INTO reserve VALUES (zeroblob(?))", (_RESERVE_BYTES,))
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                self._db.execute("DELETE FROM reserve")

    def append(self, event: Event, effects: Sequence[Effect], state: State) -> None:
        """Write down an event and what was decided on it. On its own it is durable when this returns; else when `together` is left."""
        if not self._db.in_transaction:
            with self.together():
                self.append(event, effects, state)
            return
        self._seq += 1
        self._db.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", (self._seq, event.at, SCHEMA, *encode(event)))
        self._db.executemany("INSERT INTO effects VALUES (?, ?, ?, ?)", [(effect.id, self._seq, *encode(effect)) for effect in effects])
        if self._seq % SNAPSHOT_EVERY == 0:
            self._db.execute("INSERT INTO snapshots VALUES (?, ?, ?)", (self._seq, SCHEMA, msgspec.json.encode(state)))
            self._db.execute("DELETE FROM snapshots WHERE seq < ?", (self._seq - SNAPSHOT_EVERY,))

    def load(self) -> Core:
        """The core as it was after the last event."""
        row = self._db.execute("SELECT seq, body FROM snapshots WHERE schema = ? ORDER BY seq DESC LIMIT 1", (SCHEMA,)).fetchone()
        core, after = (Core(msgspec.json.decode(row[1], type=State)), row[0]) if row else (Core(), 0)
        for entry in self.entries(after=after):
            core.step(entry.event)
        return core

    def entries(self, *, after: int = 0) -> Iterator[Entry]:
        for seq, kind, body in self._db.execute("SELECT seq, kind, body FROM events WHERE seq > ? ORDER BY seq", (after,)):
            rows = self._db.execute("SELECT kind, body FROM effects WHERE seq = ? ORDER BY rowid", (seq,))
            yield Entry(seq=seq, event=decode_event(kind, body), effects=tuple(decode_effect(*row) for row in rows))

    def runs(self) -> list[tuple[float, JobSpec]]:
        """When each run of the job began, and how it was to be run."""
        events = (decode_event(*row) for row in self._db.execute("SELECT kind, body FROM events WHERE kind IN ('JobSubmitted', 'JobResumed') ORDER BY seq"))
        return [(event.at, event.spec) for event in events if isinstance(event, JobSubmitted | JobResumed)]

    def effects(self, ids: Iterable[str]) -> tuple[Effect, ...]:
        """Effects by id, in the order they were chosen."""
        wanted = tuple(ids)
        marks = ", ".join("?" * len(wanted))
        rows = self._db.execute(f"SELECT kind, body FROM effects WHERE id IN ({marks}) ORDER BY rowid", wanted)
        return tuple(decode_effect(*row) for row in rows)

    def close(self) -> None:
        self._db.close()
