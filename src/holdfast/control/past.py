"""The past: incidents, service, runs and corrections of all jobs of one state directory. One SQLite file, `history.db`; any number of controls write at once.

Never in the way   write-ahead log, a busy timeout of seconds, no sync at a commit: a power cut takes the last minutes of a memory, and no job waits for it.
Written again      what is told twice, by a control that was restarted, is one row: everything has a key of its own.
Bounded            by age (`AGE_S`) and by number (`ROWS`), the oldest go first. Corrections stay.
Damaged            it is moved aside, which is said, and a new one is begun: a history is worth less than a job.
Newer              one that a newer Holdfast wrote is neither read nor written.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from holdfast.domain.past import Correction, PastIncident, PastRun, PastService
from holdfast.errors import HoldfastError

SCHEMA: Final = 1
AGE_S: Final = 365 * 86400.0
ROWS: Final = {"incidents": 50_000, "service": 200_000, "runs": 10_000}
BUSY_S: Final = 5.0
Kept = TypeVar("Kept")

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS incidents (job TEXT NOT NULL, number INTEGER NOT NULL, opened_ms INTEGER NOT NULL, at REAL NOT NULL, cause TEXT NOT NULL,
  node TEXT NOT NULL, fingerprint TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (job, number, opened_ms)) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS incidents_by_time ON incidents (at);
CREATE INDEX IF NOT EXISTS incidents_by_fingerprint ON incidents (fingerprint);
CREATE TABLE IF NOT EXISTS service (node TEXT NOT NULL, run TEXT NOT NULL, day INTEGER NOT NULL, seconds REAL NOT NULL, at REAL NOT NULL,
  PRIMARY KEY (node, run, day)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs (job TEXT NOT NULL, run TEXT NOT NULL, at REAL NOT NULL, body BLOB NOT NULL, PRIMARY KEY (job, run)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS corrections (number INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL, body BLOB NOT NULL) STRICT;
"""


class PastUnusable(HoldfastError):
    """The history cannot be opened, read or written."""

    moved = False  # It was damaged and is out of the way: the next try begins a new one.


class Past:
    """Opened when it is first needed. May be used by one thread at a time."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._read_only = read_only
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Past:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()
        self._database = None

    # What happened.

    def keep(self, *, incidents: Sequence[PastIncident] = (), service: Sequence[PastService] = (), runs: Sequence[PastRun] = ()) -> None:
        """One transaction. Raises PastUnusable where it cannot be written; the next one may work again."""
        rows = [
            (one.job, one.number, round(one.opened_at * 1000), one.opened_at, one.cause, one.node, one.fingerprint, msgspec.json.encode(one))
            for one in incidents
        ]
        ran = [(one.job, one.run, one.started_at, msgspec.json.encode(one)) for one in runs]
        with self._using() as database, database:
            database.executemany("INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            database.executemany("INSERT OR REPLACE INTO service VALUES (?, ?, ?, ?, ?)", [(*_service_row(one), one.day * 86400.0) for one in service])
            database.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", ran)

    def prune(self, now: float) -> None:
        """Drop what is too old, and what is too much. Done now and then, by whoever ends a job."""
        with self._using() as database, database:
            for table, most in ROWS.items():
                database.execute(f"DELETE FROM {table} WHERE at < ?", (now - AGE_S,))
                row = database.execute(f"SELECT at FROM {table} ORDER BY at DESC LIMIT 1 OFFSET ?", (most,)).fetchone()
                if row is not None:
                    database.execute(f"DELETE FROM {table} WHERE at <= ?", (row[0],))

    def correct(self, correction: Correction) -> Correction:
        """The same with the number it is listed under."""
        with self._using() as database, database:
            number = database.execute("SELECT coalesce(max(number), 0) + 1 FROM corrections").fetchone()[0]
            kept = replace(correction, number=number)
            database.execute("INSERT INTO corrections VALUES (?, ?, ?)", (number, kept.fingerprint, msgspec.json.encode(kept)))
        return kept

    def revoke(self, correction: Correction, at: float) -> None:
        kept = replace(correction, revoked_at=at)
        with self._using() as database, database:
            database.execute("UPDATE corrections SET body = ? WHERE number = ?", (msgspec.json.encode(kept), correction.number))

    # What is known.

    def incidents(self, *, since: float | None = None, node: str = "", job: str = "", fingerprint: str = "") -> list[PastIncident]:
        """Oldest first."""
        wanted = [("at >= ?", since), ("node = ?", node or None), ("job = ?", job or None), ("fingerprint = ?", fingerprint or None)]
        asked = [(clause, value) for clause, value in wanted if value is not None]
        where = f" WHERE {' AND '.join(clause for clause, _ in asked)}" if asked else ""
        rows = self._rows(f"SELECT body FROM incidents{where} ORDER BY at, job, number", [value for _, value in asked])
        return _decoded(rows, PastIncident)

    def incident(self, job: str, number: int) -> PastIncident | None:
        """The newest of this name: a job that was removed and made again counts its incidents anew."""
        rows = self._rows("SELECT body FROM incidents WHERE job = ? AND number = ? ORDER BY at DESC LIMIT 1", [job, number])
        return next(iter(_decoded(rows, PastIncident)), None)

    def service(self, *, since: float | None = None) -> list[PastService]:
        rows = self._rows("SELECT node, run, day, seconds FROM service WHERE at >= ? ORDER BY node, day, run", [since or 0.0])
        return [PastService(node=node, run=run, day=day, seconds=seconds) for node, run, day, seconds in rows]

    def runs(self, *, job: str = "") -> list[PastRun]:
        asked, values = (" WHERE job = ?", [job]) if job else ("", [])
        return _decoded(self._rows(f"SELECT body FROM runs{asked} ORDER BY at, job", values), PastRun)

    def corrections(self) -> list[Correction]:
        return _decoded(self._rows("SELECT body FROM corrections ORDER BY number", []), Correction)

    def _rows(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        if self._read_only and not self.path.exists():
            return []  # Nobody has written anything yet.
        with self._using() as database:
            return database.execute(query, values).fetchall()

    # The file.

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._opened()
        except (sqlite3.Error, OSError) as error:
            self.close()
            damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
            if damaged and not self._read_only:
                unusable = PastUnusable(self._moved_aside(error))
                unusable.moved = True
                raise unusable from error
            todo = "the next job moves it aside and begins a new one" if damaged else "check that its directory is writable and its disk is not full"
            raise PastUnusable(f"the history {self.path} cannot be used: {error}; {todo}") from error

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            if not self._read_only:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            uri = f"file:{quote(str(self.path))}?mode={'ro' if self._read_only else 'rwc'}"
            database = sqlite3.connect(uri, uri=True, timeout=BUSY_S, check_same_thread=False)
            self._database = database
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA:
                raise PastUnusable(f"the history {self.path} was written by a newer Holdfast (its version is {version}, ours {SCHEMA}): upgrade this one")
            if not self._read_only:
                if version < SCHEMA:
                    self._begun(database)
                database.execute("PRAGMA synchronous=NORMAL")
        return self._database

    def _begun(self, database: sqlite3.Connection) -> None:
        """Who begins a file while another does is refused at once, busy timeout or not: it is tried again until the other has done it."""
        self.path.chmod(0o600)
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                database.execute("PRAGMA journal_mode=WAL")
                database.executescript(_TABLES)
                database.execute(f"PRAGMA user_version={SCHEMA}")
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def _moved_aside(self, error: Exception) -> str:
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns() // 10**6}")
        with contextlib.suppress(OSError):
            self.path.rename(aside)
        for left in ("-wal", "-shm"):
            with contextlib.suppress(OSError):
                self.path.with_name(self.path.name + left).unlink()
        return f"the history {self.path} is damaged ({error}); it was moved to {aside.name}, and a new one is begun"


def _service_row(one: PastService) -> tuple[str, str, int, float]:
    return one.node, one.run, one.day, one.seconds


def _decoded(rows: Iterable[tuple[Any, ...]], kind: type[Kept]) -> list[Kept]:
    """A row that cannot be read, because it was written by hand or by a version between, is passed over: the others are worth having."""
    found = []
    for row in rows:
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(row[0], type=kind))
    return found
