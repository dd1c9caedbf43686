"""The journal on a real disk: what was appended is there, whoever dies."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from holdfast.control.journal import SNAPSHOT_EVERY, Journal, JournalUnusable
from holdfast.core import Core
from holdfast.domain.event import Event, JobSubmitted, NodeHeard, ProgressSeen
from holdfast.domain.job import JobSpec
from holdfast.simulate.judge import encoded

SPEC = JobSpec(job="j", argv=("train.py",))


def _events(count: int) -> list[Event]:
    events: list[Event] = [JobSubmitted(at=1.0, spec=SPEC), NodeHeard(at=2.0, node="n1", host="127.0.0.1")]
    return events + [ProgressSeen(at=3.0 + step, generation=1, step=step, save_s=0.0) for step in range(count - 2)]


def _write(journal: Journal, events: list[Event]) -> Core:
    core = journal.load()
    for event in events:
        journal.append(event, core.step(event), core.state)
    return core


def test_a_journal_read_again_gives_the_live_state_at_every_prefix(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    for event in _events(12):
        journal = Journal(path)
        core = _write(journal, [event])
        journal.close()
        again = Journal(path)
        assert encoded(again.load().state) == encoded(core.state)
        again.close()


def test_a_snapshot_shortens_the_way_and_changes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    core = _write(journal, _events(2 * SNAPSHOT_EVERY + 17))
    assert encoded(journal.load().state) == encoded(core.state)
    replayed = Core()
    for entry in journal.entries():
        assert replayed.step(entry.event) == entry.effects
    assert encoded(replayed.state) == encoded(core.state)
    journal.close()


def test_effects_are_found_again_by_id_in_the_order_they_were_chosen(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    core = _write(journal, _events(3))
    found = journal.effects(reversed(list(core.state.pending)))
    assert [type(effect).__name__ for effect in found] == ["StartStore", "FindCheckpoint"]
    assert journal.effects([]) == ()
    journal.close()


def test_a_writer_that_is_killed_in_the_middle_of_a_transaction_leaves_the_event_out(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path)
    core = _write(journal, _events(5))
    journal.close()
    child = os.fork()
    if child == 0:
        db = sqlite3.connect(path, isolation_level=None)
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO events VALUES (99, 1.0, 1, 'Ticked', x'7B7D')")
        os._exit(9)
    os.waitpid(child, 0)
    again = Journal(path)
    assert encoded(again.load().state) == encoded(core.state)
    again.close()


@pytest.mark.parametrize("name", ["a b", "what?", "50%", "a#b", "ü"])
def test_a_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    journal = Journal(tmp_path / name / "journal.db")
    _write(journal, _events(3))
    journal.close()
    assert (tmp_path / name / "journal.db").exists()


def test_a_full_disk_is_said_and_nothing_half_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    core = _write(journal, _events(5))
    before = encoded(core.state)
    journal._db.execute("PRAGMA max_page_count = 1")
    big = NodeHeard(at=50.0, node="n9", host="x" * 1_000_000)
    with pytest.raises(JournalUnusable, match="free space"):
        journal.append(big, (), core.state)
    assert encoded(journal.load().state) == before
    journal.close()


def test_a_disk_that_gives_no_more_pages_has_some_for_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    core = _write(journal, _events(5))
    journal._db.execute("PRAGMA max_page_count = 1")  # As many as there are now.
    for number in range(100):
        event = NodeHeard(at=50.0 + number, node="n1", host="x" * 100)
        journal.append(event, core.step(event), core.state)
    assert encoded(journal.load().state) == encoded(core.state)
    journal.close()


def test_a_journal_that_is_only_being_made_has_all_its_tables_or_none(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / f"{number}.db"
        maker = threading.Thread(target=lambda path: Journal(path).close(), args=(path,))
        maker.start()
        while maker.is_alive():
            with contextlib.suppress(JournalUnusable):
                journal = Journal(path, read_only=True)
                journal.load()
                journal.close()
        maker.join()


def test_a_journal_that_cannot_be_opened_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(JournalUnusable, match="writable"):
        Journal(tmp_path / "missing" / "journal.db")
    with pytest.raises(JournalUnusable, match="never started"):
        Journal(tmp_path / "journal.db", read_only=True)
    (tmp_path / "rubbish.db").write_bytes(b"this is not a data base" * 100)
    with pytest.raises(JournalUnusable, match="cannot be opened"):
        Journal(tmp_path / "rubbish.db")


def test_a_reader_does_not_disturb_the_writer(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    _write(journal, _events(5))
    reader = Journal(tmp_path / "journal.db", read_only=True)
    assert len(list(reader.entries())) == 5
    core = journal.load()
    event = ProgressSeen(at=99.0, generation=1, step=9, save_s=0.0)
    journal.append(event, core.step(event), core.state)
    assert len(list(reader.entries(after=5))) == 1
    reader.close()
    journal.close()
