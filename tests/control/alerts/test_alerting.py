"""Alerts as control holds them, with real web servers behind: what arrives, that a bad sink hurts nobody, and that nothing is lost by a restart."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from control.alerts.given import closed, incident, silence
from control.alerts.servers import Reply, Web, alertmanager, eventually, free_port, needs_alertmanager

from holdfast.control.alerts import alerting, delivery
from holdfast.control.alerts.alerting import Alerts
from holdfast.control.alerts.delivery import PAUSE_S_MAX, pause_s
from holdfast.control.alerts.outbox import Outbox, OutboxUnusable
from holdfast.control.alerts.reading import read_alerts
from holdfast.domain.finding import Severity
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.job import Outcome
from holdfast.domain.state import State

KEY = "k3y-that-nobody-may-see"
Make = Callable[..., Alerts]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_KEY", KEY)
    monkeypatch.setattr(delivery, "PAUSE_S", 0.05)
    monkeypatch.setattr(alerting, "_BROKEN_S", 0.05)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Alerts] = []

    def one(*sinks: str, incidents: tuple[Incident, ...] = (), wait: str = "0s") -> Alerts:
        names = [line.partition(":")[0] for line in sinks]
        rest = f"routes:\n  - {{to: [{', '.join(names)}], group_wait: {wait}, group_interval: 1s}}\n"
        text = "sinks:\n" + "".join(f"  {line}\n" for line in sinks) + rest
        read = read_alerts(text, "alerts.yaml")
        assert read.configuration is not None, [str(problem) for problem in read.problems]
        made.append(Alerts(tmp_path / "alerts.db", "train", read.configuration, (), incidents=incidents))
        made[-1].start()
        return made[-1]

    yield one
    for alerts in made:
        end(alerts)


def hook(name: str, url: str, timeout: str = "1s") -> str:
    return f"{name}: {{kind: webhook, url: '{url}', key_env: HOOK_KEY, timeout: {timeout}}}"


def end(alerts: Alerts) -> None:
    """As if the process had died: its threads let go, and nothing is flushed."""
    alerts._stop.set()
    alerts._wake.set()
    for sender in alerts._senders:
        sender.stop()


def state(*incidents: Incident, outcome: Outcome | None = None) -> State:
    return State(incidents=list(incidents), outcome=outcome, because="the budget is used up" if outcome else "")


def heard(web: Web) -> list[tuple[str, str]]:
    return [(alert["id"], alert["status"]) for got in web.got for alert in got.json["alerts"]]


def test_an_incident_leaves_the_job_when_it_opens_and_when_it_is_over(make: Make) -> None:
    with Web() as web:
        alerts = make(hook("pager", web.url))
        alerts.see(state(), 1.0)
        alerts.see(state(incident(1)), 2.0)
        eventually(lambda: heard(web) == [("train/1", "firing")])
        alerts.see(state(incident(1)), 3.0)
        alerts.see(state(closed(incident(1))), 4.0)
        eventually(lambda: heard(web) == [("train/1", "firing"), ("train/1", "resolved")])
        assert alerts.notes() == []


def test_a_bad_sink_harms_neither_control_nor_the_others(make: Make) -> None:
    with Web() as good, Web() as hanging, Web(Reply(500)) as failing, Web(Reply(403)) as refusing:
        hanging.hang = threading.Event()
        alerts = make(hook("good", good.url), hook("hanging", hanging.url, "30s"), hook("failing", failing.url), hook("refusing", refusing.url),
                      hook("gone", f"http://127.0.0.1:{free_port()}"))  # fmt: skip
        incidents: list[Incident] = []
        slowest = 0.0
        for number in range(1, 41):
            incidents.append(incident(number, kind=f"kind_{number}", severity=Severity.CRITICAL))
            begin = time.perf_counter()
            alerts.see(state(*incidents), float(number))
            slowest = max(slowest, time.perf_counter() - begin)
        assert slowest < 0.05, "control waited for alerts"
        eventually(lambda: {id for id, _ in heard(good)} == {f"train/{number}" for number in range(1, 41)})
        eventually(lambda: len(failing.got) >= 3 and len(refusing.got) >= 3)
        said = eventually(lambda: (notes := notes_of(alerts)) and len(notes) >= 3 and notes)
        assert len([note for note in said if "do not reach failing" in note]) == 1, "told once"
        assert len([note for note in said if "refusing refused an alert" in note]) == 1
        assert len([note for note in said if "do not reach gone" in note]) == 1
        assert len(hanging.got) == 1


def notes_of(alerts: Alerts, seen: dict[int, list[str]] = {}) -> list[str]:  # noqa: B006 - remembers what was taken before.
    kept = seen.setdefault(id(alerts), [])
    kept += alerts.notes()
    return kept


def test_it_is_tried_again_under_the_same_id_until_it_arrives(make: Make) -> None:
    with Web(Reply(500), Reply(503), Reply(200)) as web:
        alerts = make(hook("pager", web.url))
        alerts.see(state(incident(1)), 1.0)
        eventually(lambda: len(web.got) == 3)
        assert len({got.headers["idempotency-key"] for got in web.got}) == 1
        eventually(lambda: any("alerts reach pager again" in note for note in notes_of(alerts)))
        assert not alerts._outbox.waiting()
        assert alerts._outbox.history()[0].attempts == 3


def test_a_sink_that_says_when_to_come_again_is_left_alone_until_then(make: Make) -> None:
    with Web(Reply(429, {"Retry-After": "1"}), Reply(200)) as web:
        alerts = make(hook("pager", web.url))
        begin = time.monotonic()
        alerts.see(state(incident(1)), 1.0)
        eventually(lambda: len(web.got) == 2)
        assert time.monotonic() - begin >= 1.0


def test_what_is_refused_for_good_is_given_up_and_the_next_is_sent(make: Make) -> None:
    with Web(Reply(400), Reply(200)) as web:
        alerts = make(hook("pager", web.url))
        alerts.see(state(incident(1)), 1.0)
        eventually(lambda: alerts._outbox.history())
        assert alerts._outbox.history()[0].verdict == "refused"
        assert not alerts._outbox.waiting()
        alerts.see(state(incident(1), incident(2, kind="data_stall")), 2.0)
        eventually(lambda: ("train/2", "firing") in heard(web))
        eventually(lambda: any("again" in note for note in notes_of(alerts)))


def test_what_could_not_be_sent_is_sent_by_the_next_control_and_nothing_twice(make: Make) -> None:
    port = free_port()
    first = make(hook("pager", f"http://127.0.0.1:{port}"))
    first.see(state(incident(1)), 1.0)
    eventually(lambda: first._outbox.waiting() and first._outbox.waiting()[0].attempts)
    end(first)
    with Web(port=port) as web:
        second = make(hook("pager", f"http://127.0.0.1:{port}"), incidents=(incident(1),))
        second.see(state(incident(1)), 2.0)
        eventually(lambda: heard(web) == [("train/1", "firing")])
        end(second)
        third = make(hook("pager", f"http://127.0.0.1:{port}"), incidents=(incident(1),))
        third.see(state(incident(1)), 3.0)
        third.see(state(closed(incident(1))), 4.0)
        eventually(lambda: ("train/1", "resolved") in heard(web))
        assert heard(web) == [("train/1", "firing"), ("train/1", "resolved")]


def test_incidents_that_came_while_nothing_was_written_are_told_after_a_restart(make: Make) -> None:
    with Web() as web:
        first = make(hook("pager", web.url))
        first.see(state(), 1.0)
        first.see(state(incident(1)), 1.0)
        eventually(lambda: heard(web))
        end(first)
        # Journalled by a control that died before its alerts knew of them.
        both = (closed(incident(1)), incident(2, kind="data_stall"))
        second = make(hook("pager", web.url), incidents=both)
        second.see(state(*both), 2.0)
        eventually(lambda: {("train/1", "resolved"), ("train/2", "firing")} <= set(heard(web)))


def test_what_was_over_before_alerts_were_asked_for_is_history(make: Make) -> None:
    old = (closed(incident(1)), incident(2, kind="data_stall"))
    with Web() as web:
        alerts = make(hook("pager", web.url), incidents=old)
        alerts.see(state(*old), 1.0)
        eventually(lambda: heard(web))
        time.sleep(0.3)
        assert heard(web) == [("train/2", "firing")]


def test_a_journal_that_was_removed_ends_what_fired_by_it_and_its_numbers_are_used_again(make: Make) -> None:
    with Web() as web:
        first = make(hook("pager", web.url))
        first.see(state(incident(1)), 1.0)
        eventually(lambda: heard(web))
        end(first)
        second = make(hook("pager", web.url))
        second.see(state(), 2.0)
        eventually(lambda: heard(web)[-1] == ("train/1", "resolved"))
        second.see(state(incident(1, kind="data_stall")), 3.0)
        eventually(lambda: heard(web)[-1] == ("train/1", "firing"))
        told = {alert["fingerprint"] for got in web.got for alert in got.json["alerts"]}
        assert len(told) == 2


def test_whatever_a_sink_raises_it_is_tried_again_and_its_words_are_not_repeated(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def send(*_: object) -> None:
        raise ValueError(f"Invalid header value {KEY}")

    monkeypatch.setattr("holdfast.control.alerts.sinks.webhook.Webhook.send", send)
    alerts = make(hook("pager", "http://127.0.0.1:9/"))
    alerts.see(state(incident(1)), 1.0)
    (said,) = eventually(lambda: notes_of(alerts))
    assert "failed with a ValueError that nobody expected" in said
    assert KEY not in said
    assert alerts._outbox.waiting()


def test_a_mistake_of_ours_does_not_end_the_alerts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with Web() as web:
        alerts, plain, wrong = make(hook("pager", web.url)), alerting.alerts_of, [True, True]

        def alerts_of(*args: Any) -> Any:
            if wrong:
                wrong.pop()
                raise KeyError("ours")
            return plain(*args)

        monkeypatch.setattr(alerting, "alerts_of", alerts_of)
        alerts.see(state(incident(1)), 1.0)
        eventually(lambda: heard(web) == [("train/1", "firing")])
        assert len([note for note in alerts.notes() if "KeyError that nobody expected" in note]) == 1


def test_what_the_job_ended_on_fires_until_it_runs_again(make: Make) -> None:
    ended = (closed(incident(1, severity=Severity.WARNING), to=IncidentPhase.GAVE_UP),)
    with Web() as web:
        first = make(hook("pager", web.url))
        first.see(state(incident(1)), 1.0)
        first.see(state(*ended, outcome=Outcome.FAILED), 2.0)
        asyncio.run(first.finish(within_s=5.0))
        last = web.got[-1].json["alerts"][-1]
        assert (last["status"], last["given_up"], last["severity"]) == ("firing", True, "critical")
        assert "the budget is used up" in last["summary"]
        second = make(hook("pager", web.url), incidents=ended)
        second.see(state(*ended), 3.0)
        eventually(lambda: heard(web)[-1] == ("train/1", "resolved"))


def test_an_end_without_an_incident_is_told_and_is_over_when_the_job_runs_again(make: Make) -> None:
    with Web() as web:
        first = make(hook("pager", web.url))
        first.see(state(outcome=Outcome.BROKEN), 1.0)
        asyncio.run(first.finish(within_s=5.0))
        assert heard(web) == [("train/end", "firing")]
        second = make(hook("pager", web.url))
        second.see(state(), 2.0)
        eventually(lambda: heard(web)[-1] == ("train/end", "resolved"))


def test_the_end_of_a_job_waits_for_no_company_and_a_dead_sink_is_not_waited_for(make: Make) -> None:
    with Web() as web:
        alerts = make(hook("pager", web.url), hook("gone", f"http://127.0.0.1:{free_port()}"), wait="10m")
        alerts.see(state(incident(1)), 1.0)
        begin = time.monotonic()
        asyncio.run(alerts.finish(within_s=20.0))
        assert time.monotonic() - begin < 5.0
        assert heard(web) == [("train/1", "firing")]
        assert any("1 notification for gone could not be delivered yet; `holdfast alerts send train`" in note for note in alerts.notes())


def test_the_end_of_a_job_waits_only_so_long_for_a_sink_that_hangs(make: Make) -> None:
    with Web() as web:
        web.hang = threading.Event()
        alerts = make(hook("pager", web.url, "30s"))
        alerts.see(state(incident(1)), 1.0)
        begin = time.monotonic()
        asyncio.run(alerts.finish(within_s=0.5))
        assert time.monotonic() - begin < 2.0
        assert any("could not be delivered yet" in note for note in alerts.notes())


def test_a_silence_made_while_the_job_runs_holds_at_once(make: Make, tmp_path: Path) -> None:
    with Web() as web:
        alerts = make(hook("pager", web.url))
        beside = Outbox(tmp_path / "alerts.db")
        beside.silence(silence("node=node-0", until=time.time() + 1.0))
        alerts.see(state(incident(1)), 1.0)
        time.sleep(0.5)
        assert not web.got
        eventually(lambda: heard(web) == [("train/1", "firing")])
        beside.close()


def test_an_outbox_that_cannot_be_written_costs_nothing_but_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with Web() as web:
        alerts, full = make(hook("pager", web.url)), [True] * 3
        plain = alerts._outbox.commit

        def commit(*args: Any) -> Any:
            if full:
                full.pop()
                raise OutboxUnusable("the outbox cannot be written: disk full")
            return plain(*args)

        monkeypatch.setattr(alerts._outbox, "commit", commit)
        alerts.see(state(incident(1)), 1.0)
        eventually(lambda: heard(web) == [("train/1", "firing")])
        assert len([note for note in alerts.notes() if "disk full" in note]) == 1


def test_no_secret_is_in_the_outbox(make: Make, tmp_path: Path) -> None:
    with Web(Reply(403, body=f"{KEY} /hooks/T000SECRET".encode())) as web:
        alerts = make(hook("pager", f"{web.url}/hooks/T000SECRET"))
        alerts.see(state(incident(1)), 1.0)
        eventually(lambda: alerts._outbox.history())
    written = b"".join(path.read_bytes() for path in tmp_path.glob("alerts.db*"))
    assert b"train/1" in written or b"slow_rank" in written
    assert KEY.encode() not in written
    assert b"T000SECRET" not in written


@needs_alertmanager
def test_a_real_alertmanager_is_told_again_until_it_is_over(make: Make, tmp_path: Path) -> None:
    with alertmanager(tmp_path) as server:
        alerts = make(f"am: {{kind: alertmanager, url: '{server.url}', resend: 1s}}")
        alerts.see(state(incident(1)), time.time())
        first = eventually(lambda: server.alerts())[0]
        eventually(lambda: [one["endsAt"] for one in server.alerts()] > [first["endsAt"]])
        worse = replace(incident(1), findings=(replace(incident(1).findings[0], severity=Severity.CRITICAL),))
        alerts.see(state(worse), time.time())
        eventually(lambda: [one["labels"]["severity"] for one in server.alerts()] == ["critical"])
        alerts.see(state(closed(worse, at=time.time())), time.time())
        eventually(lambda: not server.alerts())


def test_pauses_grow_to_a_limit_and_differ_by_chance() -> None:
    assert [pause_s(failures, 1.0) / delivery.PAUSE_S for failures in (1, 2, 3, 4)] == [1, 2, 4, 8]
    assert pause_s(1, 0.0) == delivery.PAUSE_S / 2
    assert pause_s(10_000, 1.0) == PAUSE_S_MAX
