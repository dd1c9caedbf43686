"""The outbox: what must be sent, on disk before it is sent and until it has arrived. One SQLite file in the job's directory.

What routing remembers and the notifications it made are one synced transaction: after a crash at any moment nothing is lost, and what was perhaps sent is sent
again under the same id. Of one group and sink one notification waits, since a newer one takes the older into itself; the number for a sink and the age have
limits, and what goes over them is written down as dropped. Secrets are not in here: sinks are named, and their addresses and keys stay where they are.

May be used by several threads; the command line opens the same file beside control.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.control.alerts.matching import matcher
from holdfast.control.alerts.notification import Notification, merged
from holdfast.control.alerts.routes import Silence
from holdfast.errors import HoldfastError

SCHEMA = 1
WAITING_MAX = 500  # For one sink.
HISTORY_MAX = 1000

_TABLES = """
CREATE TABLE IF NOT EXISTS memory (id INTEGER PRIMARY KEY CHECK (id = 1), body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS waiting (id TEXT PRIMARY KEY, sink TEXT NOT NULL, member TEXT NOT NULL, at REAL NOT NULL, due REAL NOT NULL,
  attempts INTEGER NOT NULL, said TEXT NOT NULL, body BLOB NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS waiting_of_sink ON waiting (sink, due);
CREATE TABLE IF NOT EXISTS history (seq INTEGER PRIMARY KEY, id TEXT NOT NULL, sink TEXT NOT NULL, title TEXT NOT NULL, queued_at REAL NOT NULL,
  at REAL NOT NULL, verdict TEXT NOT NULL, attempts INTEGER NOT NULL, said TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS silences (id INTEGER PRIMARY KEY, matchers BLOB NOT NULL, until REAL NOT NULL, because TEXT NOT NULL) STRICT;
"""


class OutboxUnusable(HoldfastError):
    """It cannot be opened, read or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    notification: Notification
    due: float
    attempts: int
    said: str  # What the last try came to.
    since: float  # When the oldest of its news was written down.


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of a notification: delivered, refused or dropped."""

    id: str
    sink: str
    title: str
    queued_at: float
    at: float
    verdict: str
    attempts: int
    said: str


class Outbox:
    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._sending: set[str] = set()  # Being sent by this process now: left as they are.
        try:
            uri = f"file:{quote(str(path))}?mode={'ro' if read_only else 'rwc'}"
            self._db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0, check_same_thread=False)
            if not read_only:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.executescript(_TABLES)
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and not read_only:
                self._db.execute(f"PRAGMA user_version = {SCHEMA}")
        except sqlite3.Error as error:
            raise OutboxUnusable(f"the outbox of alerts {path} cannot be opened: {error}") from error
        if version not in (0, SCHEMA):
            self._db.close()
            raise OutboxUnusable(f"the outbox of alerts {path} is of version {version}, and this is version {SCHEMA}: move it away, and a new one is made")

    def memory(self) -> bytes | None:
        """What routing remembers, as it was written; None where nothing is."""
        rows = self._all("SELECT body FROM memory", ())
        return bytes(rows[0][0]) if rows else None

    def commit(self, memory: bytes, notifications: Sequence[Notification], now: float) -> list[Done]:
        """Write both down. What had to make room is returned."""
        with self._together():
            self._db.execute("INSERT OR REPLACE INTO memory VALUES (1, ?)", (memory,))
            for one in notifications:
                self._put(one)
            return [self._drop(row, now, "there were too many to keep") for sink in {one.sink for one in notifications} for row in self._over(sink)]

    # What waits.

    def take(self, sink: str, now: float, *, longest_s: float) -> Waiting | None:
        """The next for a sink, if one is due. From here until it is answered it is left as it is. No wait is longer than `longest_s`: what seems to be due
        after that was written by a clock that has been turned back since.
        """
        with self._together():
            rows = self._waiting("WHERE sink = ? AND NOT (due > ? AND due <= ?) ORDER BY due, at LIMIT ?",
                                 (sink, now, now + longest_s, len(self._sending) + 1))  # fmt: skip
            found = next((one for one in rows if one.notification.id not in self._sending), None)
            if found is not None:
                self._sending.add(found.notification.id)
            return found

    def next_due(self, sink: str) -> float | None:
        rows = self._all("SELECT min(due) FROM waiting WHERE sink = ?", (sink,))
        return rows[0][0] if rows else None

    def waiting(self) -> list[Waiting]:
        with self._lock:
            return self._waiting("ORDER BY sink, at", ())

    def later(self, one: Waiting, due: float, said: str) -> None:
        """It did not arrive. If there is newer news of its group by now, both become one."""
        id = one.notification.id
        with self._together():
            self._sending.discard(id)
            newer = self._waiting("WHERE sink = ? AND member = ? AND id != ?", (one.notification.sink, one.notification.group, id))
            if not newer:
                self._db.execute("UPDATE waiting SET due = ?, attempts = attempts + 1, said = ? WHERE id = ?", (due, said, id))
                return
            self._db.execute("DELETE FROM waiting WHERE id = ?", (id,))
            self._write(merged(one.notification, newer[-1].notification), due=due, attempts=one.attempts + 1, said=said, since=one.since)

    def done(self, one: Waiting, verdict: str, said: str, now: float) -> None:
        """It arrived, or never will. A repeat that arrived leaves no trace: some sinks are told every minute."""
        notification = one.notification
        with self._together():
            self._sending.discard(notification.id)
            self._db.execute("DELETE FROM waiting WHERE id = ?", (notification.id,))
            if not (notification.repeat and verdict == "delivered"):
                self._remember(one, verdict, said, now, attempts=one.attempts + 1)

    def drop_older(self, sink: str, than: float, now: float) -> list[Done]:
        with self._together():
            old = [one for one in self._waiting("WHERE sink = ? AND at < ?", (sink, than)) if one.notification.id not in self._sending]
            return [self._drop(one, now, one.said) for one in old]

    def history(self, limit: int = HISTORY_MAX) -> list[Done]:
        """Newest first."""
        rows = self._all("SELECT id, sink, title, queued_at, at, verdict, attempts, said FROM history ORDER BY seq DESC LIMIT ?", (limit,))
        return [Done(id=id, sink=sink, title=title, queued_at=queued_at, at=at, verdict=verdict, attempts=attempts, said=said)
                for id, sink, title, queued_at, at, verdict, attempts, said in rows]  # fmt: skip

    # Silences.

    def silence(self, silence: Silence) -> int:
        with self._together():
            body = msgspec.json.encode([str(one) for one in silence.match])
            made = self._db.execute("INSERT INTO silences (matchers, until, because) VALUES (?, ?, ?)", (body, silence.until, silence.because))
            return int(made.lastrowid or 0)

    def silences(self, now: float) -> list[Silence]:
        rows = self._all("SELECT id, matchers, until, because FROM silences WHERE until > ? ORDER BY id", (now,))
        return [Silence(id=id, match=tuple(matcher(text) for text in msgspec.json.decode(body, type=list[str])), until=until, because=because)
                for id, body, until, because in rows]  # fmt: skip

    def end_silence(self, id: int, now: float) -> bool:
        with self._together():
            return self._db.execute("UPDATE silences SET until = ? WHERE id = ? AND until > ?", (now, id, now)).rowcount == 1

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # Rows. All of these are called with the lock held.

    def _put(self, new: Notification) -> None:
        waiting = self._waiting("WHERE sink = ? AND member = ? ORDER BY at", (new.sink, new.group))
        older = next((one for one in waiting if one.notification.id not in self._sending), None)
        if older is None:
            self._write(new, due=new.at, attempts=0, said="", since=new.at)
            return
        self._db.execute("DELETE FROM waiting WHERE id = ?", (older.notification.id,))
        # What the sink was not told for so long counts from its first try; news of a group that waits does not make a dead sink be asked more often.
        self._write(merged(older.notification, new), due=older.due, attempts=older.attempts, said=older.said, since=older.since)

    def _write(self, one: Notification, *, due: float, attempts: int, said: str, since: float) -> None:
        row = (one.id, one.sink, one.group, since, due, attempts, said, msgspec.json.encode(one))
        self._db.execute("INSERT OR REPLACE INTO waiting VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def _waiting(self, where: str, values: Sequence[object]) -> list[Waiting]:
        rows = self._db.execute(f"SELECT at, due, attempts, said, body FROM waiting {where}", values).fetchall()
        return [Waiting(notification=msgspec.json.decode(body, type=Notification), due=due, attempts=attempts, said=said, since=at)
                for at, due, attempts, said, body in rows]  # fmt: skip

    def _over(self, sink: str) -> Iterable[Waiting]:
        count = self._db.execute("SELECT count(*) FROM waiting WHERE sink = ?", (sink,)).fetchone()[0]
        return self._waiting("WHERE sink = ? ORDER BY at LIMIT ?", (sink, max(0, count - WAITING_MAX)))

    def _drop(self, one: Waiting, now: float, said: str) -> Done:
        self._db.execute("DELETE FROM waiting WHERE id = ?", (one.notification.id,))
        return self._remember(one, "dropped", said, now, attempts=one.attempts)

    def _remember(self, one: Waiting, verdict: str, said: str, now: float, *, attempts: int) -> Done:
        sent = one.notification
        done = Done(id=sent.id, sink=sent.sink, title=sent.title, queued_at=one.since, at=now, verdict=verdict, attempts=attempts, said=said)
        self._db.execute("INSERT INTO history (id, sink, title, queued_at, at, verdict, attempts, said) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                         (done.id, done.sink, done.title, done.queued_at, done.at, done.verdict, done.attempts, done.said))  # fmt: skip
        self._db.execute("DELETE FROM history WHERE seq <= (SELECT max(seq) FROM history) - ?", (HISTORY_MAX,))
        return done

    @contextmanager
    def _together(self) -> Iterator[None]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise OutboxUnusable(f"the outbox of alerts {self.path} cannot be written: {error}") from error
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _all(self, query: str, values: Sequence[object]) -> list[Any]:
        """A reader of its own: takes the lock."""
        with self._lock:
            try:
                return self._db.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise OutboxUnusable(f"the outbox of alerts {self.path} cannot be read: {error}") from error
