"""The outbox: on disk before it is sent, until it has arrived; bounded; shared by threads and the command line."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from control.alerts.given import alert, notification, over, silence

from holdfast.control.alerts import outbox as module
from holdfast.control.alerts.outbox import Outbox, OutboxUnusable

LONG_S = 3600.0


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    made = Outbox(tmp_path / "alerts.db")
    yield made
    made.close()


def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    first = Outbox(tmp_path / "alerts.db")
    first.commit(b"memory", [notification(alert(1), id="a", group="g1"), notification(alert(2), id="b", group="g2", sink="mail")], 100.0)
    first.close()
    again = Outbox(tmp_path / "alerts.db")
    assert again.memory() == b"memory"
    assert [(one.notification.id, one.notification.sink) for one in again.waiting()] == [("a", "chat"), ("b", "mail")]
    again.close()


def test_it_is_taken_once_and_is_gone_when_it_arrived(outbox: Outbox) -> None:
    outbox.commit(b"", [notification(id="a")], 100.0)
    one = outbox.take("chat", 100.0, longest_s=LONG_S)
    assert one is not None
    assert outbox.take("chat", 100.0, longest_s=LONG_S) is None
    assert outbox.take("mail", 100.0, longest_s=LONG_S) is None
    outbox.done(one, "delivered", "answered 200", 101.0)
    assert not outbox.waiting()
    assert [(done.id, done.verdict, done.attempts) for done in outbox.history()] == [("a", "delivered", 1)]


def test_what_did_not_arrive_waits_and_a_clock_turned_back_does_not_keep_it(outbox: Outbox) -> None:
    outbox.commit(b"", [notification(id="a", at=1e9)], 1e9)
    one = outbox.take("chat", 1e9, longest_s=LONG_S)
    assert one is not None
    outbox.later(one, 1e9 + 60, "answered 500")
    assert outbox.take("chat", 1e9 + 59, longest_s=LONG_S) is None
    assert outbox.next_due("chat") == 1e9 + 60
    again = outbox.take("chat", 1000.0, longest_s=LONG_S)
    assert again is not None
    assert (again.attempts, again.said) == (1, "answered 500")


def test_of_a_group_one_message_waits_with_the_newest_of_each_alert(outbox: Outbox) -> None:
    outbox.commit(b"", [notification(alert(1), id="a")], 100.0)
    outbox.commit(b"", [notification(over(alert(1)), alert(2), id="b", at=160.0)], 160.0)
    (one,) = outbox.waiting()
    assert one.notification.id == "b"
    assert one.since == 100.0
    assert [(each.incident, str(each.status)) for each in one.notification.alerts] == [(2, "firing"), (1, "resolved")]


def test_news_that_comes_while_it_is_sent_is_a_message_of_its_own_unless_that_failed(outbox: Outbox) -> None:
    outbox.commit(b"", [notification(alert(1), id="a")], 100.0)
    one = outbox.take("chat", 100.0, longest_s=LONG_S)
    assert one is not None
    outbox.commit(b"", [notification(over(alert(1)), id="b", at=160.0)], 160.0)
    assert len(outbox.waiting()) == 2
    outbox.later(one, 170.0, "answered 500")
    (both,) = outbox.waiting()
    assert both.notification.id == "b"
    assert both.attempts == 1
    assert not both.notification.firing


def test_there_are_never_more_than_so_many_for_a_sink(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 3)
    monkeypatch.setattr(module, "HISTORY_MAX", 5)
    for number in range(9):
        dropped = outbox.commit(b"", [notification(id=f"n{number}", group=f"g{number}", at=float(number))], 50.0)
        assert len(dropped) == (1 if number >= 3 else 0)
    assert [one.notification.id for one in outbox.waiting()] == ["n6", "n7", "n8"]
    assert [done.id for done in outbox.history()] == ["n5", "n4", "n3", "n2", "n1"]
    assert outbox.history()[0].verdict == "dropped"


def test_what_is_too_old_is_dropped_and_written_down(outbox: Outbox) -> None:
    outbox.commit(b"", [notification(id="old", at=10.0), notification(id="new", group="g2", at=90.0)], 90.0)
    assert [done.id for done in outbox.drop_older("chat", 50.0, 100.0)] == ["old"]
    assert [one.notification.id for one in outbox.waiting()] == ["new"]


def test_a_repeat_that_arrived_leaves_no_trace(outbox: Outbox) -> None:
    outbox.commit(b"", [notification(id="a", repeat=True)], 100.0)
    one = outbox.take("chat", 100.0, longest_s=LONG_S)
    assert one is not None
    outbox.done(one, "delivered", "answered 200", 101.0)
    assert not outbox.waiting()
    assert not outbox.history()


def test_a_silence_holds_until_its_end_or_until_it_is_ended(outbox: Outbox) -> None:
    first, second = outbox.silence(silence("node=a", "kind=~slow.*", until=200.0)), outbox.silence(silence("node=b", until=300.0))
    assert [(one.id, str(one)) for one in outbox.silences(100.0)] == [(first, "node=a, kind=~slow.*"), (second, "node=b")]
    assert outbox.end_silence(second, 150.0)
    assert not outbox.end_silence(second, 151.0)
    assert not outbox.end_silence(99, 150.0)
    assert [one.id for one in outbox.silences(150.0)] == [first]
    assert outbox.silences(200.0) == []


def test_state_and_messages_are_written_together_or_not_at_all(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox.commit(b"before", [], 100.0)
    monkeypatch.setattr(outbox, "_write", lambda *_, **__: (_ for _ in ()).throw(sqlite3.OperationalError("disk full")))
    with pytest.raises(OutboxUnusable, match="disk full"):
        outbox.commit(b"after", [notification()], 100.0)
    assert outbox.memory() == b"before"
    assert not outbox.waiting()


def test_one_of_another_version_is_not_guessed_at(tmp_path: Path) -> None:
    Outbox(tmp_path / "alerts.db").close()
    with sqlite3.connect(tmp_path / "alerts.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(OutboxUnusable, match="is of version 99"):
        Outbox(tmp_path / "alerts.db")


def test_a_file_that_is_no_outbox_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "alerts.db").write_bytes(b"no database at all, and long enough to be taken for one" * 20)
    with pytest.raises(OutboxUnusable, match="cannot be opened"):
        Outbox(tmp_path / "alerts.db")
