"""Routing: who is told what, and when. Examples first, then what must hold whatever happens."""

from __future__ import annotations

import msgspec
import pytest
from control.alerts.given import QUICK, alert, inhibit, over, route, router, silence, worse
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.control.alerts.notification import Notification, merged
from holdfast.control.alerts.routes import Outlet, Pace
from holdfast.control.alerts.routing import Memory, Router
from holdfast.domain.alert import Alert
from holdfast.domain.finding import Severity


def told(sent: list[Notification]) -> list[tuple[str, list[str]]]:
    return [(one.sink, [f"{alert.incident} {alert.status}" for alert in one.alerts]) for one in sent]


def test_what_comes_together_is_told_together_after_the_wait() -> None:
    one = router(route())
    one.take([alert(1)])
    assert one.look(100.0) == []
    one.take([alert(2)])
    assert one.look(109.9) == []
    assert told(one.look(110.0)) == [("chat", ["1 firing", "2 firing"])]
    assert one.look(111.0) == []


def test_news_waits_for_the_interval_and_what_is_old_for_the_repeat() -> None:
    one = router(route())
    one.take([alert(1)])
    one.look(0.0)
    assert one.look(10.0)
    one.take([alert(2)])
    assert one.look(20.0) == []
    assert told(one.look(70.0)) == [("chat", ["1 firing", "2 firing"])]
    assert one.look(669.0) == []
    (again,) = one.look(670.0)
    assert again.repeat
    assert len(again.alerts) == 2


def test_the_end_is_told_once_and_then_all_is_forgotten() -> None:
    one = router(route())
    one.take([alert(1)])
    one.look(0.0)
    one.look(10.0)
    one.take([over(alert(1))])
    assert one.look(20.0) == []
    assert told(one.look(70.0)) == [("chat", ["1 resolved"])]
    assert one.look(71.0) == []
    one.look(200.0)
    assert not one.memory.alerts
    assert not one.memory.groups
    assert not one.memory.told


def test_what_began_and_ended_before_it_could_be_told_is_told_once_as_over() -> None:
    one = router(route())
    one.take([alert(1)])
    one.look(0.0)
    one.take([over(alert(1))])
    assert told(one.look(10.0)) == [("chat", ["1 resolved"])]


def test_a_sink_that_wants_no_ends_hears_none_but_of_what_it_never_heard() -> None:
    one = router(route(), outlets={"chat": Outlet(name="chat", send_resolved=False)})
    one.take([alert(1)])
    one.look(0.0)
    one.look(10.0)
    one.take([over(alert(1)), over(alert(2))])
    one.look(20.0)
    assert told(one.look(70.0)) == [("chat", ["2 resolved"])]
    assert not one.memory.alerts


def test_the_first_route_that_matches_takes_it_and_others_only_after_continue() -> None:
    night = route("night", "severity=critical", to=("pager",), go_on=True)
    one = router(night, route("gpus", "kind=~gpu_.*", to=("gpus",)), route("rest", to=("chat",)))
    one.take([alert(1, kind="gpu_fault", severity=Severity.CRITICAL), alert(2, kind="gpu_fault"), alert(3)])
    one.look(0.0)
    assert sorted(told(one.look(10.0))) == [("chat", ["3 firing"]), ("gpus", ["1 firing", "2 firing"]), ("pager", ["1 firing"])]


def test_a_rule_may_name_its_route() -> None:
    one = router(route("rest", "kind!=never", to=("chat",)), route("storage", "kind=never", to=("disks",)), route("end"))
    one.take([alert(1, route="storage"), alert(2, route="nobody")])
    one.look(0.0)
    assert sorted(told(one.look(10.0))) == [("chat", ["2 firing"]), ("disks", ["1 firing"])]


def test_an_alert_reaches_a_sink_once_however_many_routes_name_it() -> None:
    one = router(route("a", go_on=True), route("b"))
    one.take([alert(1)])
    one.look(0.0)
    assert len(one.look(10.0)) == 1


def test_what_becomes_worse_does_not_wait() -> None:
    one = router(route())
    one.take([alert(1)])
    one.look(0.0)
    one.look(10.0)
    one.take([worse(alert(1))])
    (sent,) = one.look(11.0)
    assert sent.severity is Severity.CRITICAL
    assert sent.before["f1"]["severity"] == "warning"


def test_who_is_told_no_longer_hears_that_it_goes_on_elsewhere() -> None:
    one = router(route("night", "severity=critical", to=("pager",)), route("day", to=("chat",)))
    one.take([alert(1)])
    one.look(0.0)
    assert told(one.look(10.0)) == [("chat", ["1 firing"])]
    one.take([worse(alert(1))])
    one.look(20.0)
    assert told(one.look(30.0)) == [("pager", ["1 firing"])]
    (left,) = one.look(80.0)
    assert told([left]) == [("chat", ["1 resolved"])]
    assert "critical" in left.alerts[0].summary
    one.take([over(worse(alert(1)))])
    one.look(190.0)
    assert told(one.look(200.0)) == [("pager", ["1 resolved"])]


def test_a_silence_mutes_until_it_ends_and_then_what_still_fires_is_told() -> None:
    one, quiet = router(route()), [silence("node=gpu-7", until=1000.0)]
    one.take([alert(1, node="gpu-7")])
    one.look(0.0, quiet)
    assert one.look(999.0, quiet) == []
    assert "silenced (node=gpu-7)" in one.memory.muted["f1"]
    one.look(1000.0, quiet)
    assert told(one.look(1010.0, quiet)) == [("chat", ["1 firing"])]


def test_what_ends_under_a_silence_is_told_only_if_its_beginning_was() -> None:
    one, quiet = router(route()), [silence("job=train", until=1e9)]
    one.take([alert(1)])
    one.look(0.0)
    one.look(10.0)
    one.take([over(alert(1)), over(alert(2))])
    one.look(20.0, quiet)
    assert told(one.look(70.0, quiet)) == [("chat", ["1 resolved"])]
    assert not one.memory.alerts


def test_a_lost_node_mutes_what_is_on_it_and_on_no_other() -> None:
    one = router(route(), inhibitions=(inhibit("kind=silent_node", "kind!=silent_node", "node"),))
    one.take([alert(1, kind="silent_node", node="a"), alert(2, node="a"), alert(3, node="b"), alert(4), alert(5, kind="silent_node", node="b")])
    one.look(0.0)
    assert one.memory.muted == {"f2": "muted while train/1 (silent_node) fires", "f3": "muted while train/5 (silent_node) fires"}
    one.take([over(alert(1, kind="silent_node", node="a"))])
    one.look(20.0)
    assert "f2" not in one.memory.muted, "what muted it is over"


def test_two_that_would_mute_each_other_are_not_both_lost() -> None:
    one = router(route(), inhibitions=(inhibit("kind=a", "kind=b"), inhibit("kind=b", "kind=a")))
    one.take([alert(1, kind="a"), alert(2, kind="b")])
    one.look(0.0)
    assert one.memory.muted.keys() == {"f2"}


def test_alertmanager_is_told_at_once_and_again_and_again_in_one_message() -> None:
    one = router(route(to=("am",)), outlets={"am": Outlet(name="am", resend_s=60.0)})
    one.take([alert(1), alert(2, kind="data_stall")])
    (sent,) = one.look(0.0)
    assert len(sent.alerts) == 2
    assert not sent.repeat
    assert one.look(59.0) == []
    (sent,) = one.look(60.0)
    assert sent.repeat
    one.take([over(alert(1))])
    (sent,) = one.look(61.0)
    assert [str(each.status) for each in sent.alerts] == ["firing", "resolved"]


def test_at_the_end_of_a_job_nothing_waits() -> None:
    one = router(route())
    one.take([alert(1)])
    assert told(one.look(0.0, hurry=True)) == [("chat", ["1 firing"])]


def test_a_clock_that_is_turned_back_silences_nobody() -> None:
    one = router(route())
    one.take([alert(1)])
    one.look(1e9)
    one.look(1e9 + 10)
    one.take([alert(2)])
    one.look(100.0)
    assert told(one.look(170.0)) == [("chat", ["1 firing", "2 firing"])]


def test_a_newer_message_takes_in_one_that_was_not_sent() -> None:
    one = router(route())
    one.take([alert(1), alert(2)])
    one.look(0.0)
    (first,) = one.look(10.0)
    one.take([over(alert(1))])
    one.look(20.0)
    (second,) = one.look(70.0)
    both = merged(first, second)
    assert [(each.incident, str(each.status)) for each in both.alerts] == [(2, "firing"), (1, "resolved")]
    assert both.id == second.id


def test_groups_and_intervals_outlive_control() -> None:
    before = router(route())
    before.take([alert(1)])
    before.look(0.0)
    before.look(10.0)
    body = msgspec.json.encode(before.memory)
    after = router(route(), memory=msgspec.json.decode(body, type=Memory))
    after.take([alert(1), alert(2)])
    assert after.look(11.0) == []
    (sent,) = after.look(70.0)
    assert told([sent]) == [("chat", ["1 firing", "2 firing"])]
    assert sent.id != "i-1"


def test_another_configuration_after_a_restart_forgets_what_nobody_is_left_to_hear() -> None:
    before = router(route("old", to=("gone",)))
    before.take([alert(1)])
    before.look(0.0)
    before.look(10.0)
    after = router(route("new", to=("chat",)), memory=before.memory)
    after.look(20.0)
    assert told(after.look(30.0)) == [("chat", ["1 firing"])]
    assert "gone" not in after.memory.told


# --- Whatever happens.

KINDS, NODES = ("slow_rank", "silent_node", "data_stall"), ("a", "b")
PACE = Pace(group_by=("kind",), group_wait_s=10.0, group_interval_s=60.0, repeat_interval_s=300.0)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[float, list[Alert]]]:
    """Alerts that begin, and perhaps end, over an hour."""
    changes: list[tuple[float, Alert]] = []
    for number in range(1, draw(st.integers(1, 8)) + 1):
        one = alert(number, kind=draw(st.sampled_from(KINDS)), severity=draw(st.sampled_from(list(Severity))), node=draw(st.sampled_from(NODES)))
        begin = draw(st.integers(0, 1500))
        changes.append((float(begin), one))
        if draw(st.booleans()):
            changes.append((float(begin + draw(st.integers(0, 1500))), over(one)))
    return [(at, [one]) for at, one in sorted(changes, key=lambda change: (change[0], not change[1].fires))]


@st.composite
def routers(draw: st.DrawFn) -> Router:
    some = draw(st.lists(st.sampled_from(["severity>=warning", "severity=critical", "node=a", "kind=~s.*"]), max_size=2))
    above = [route(f"r{place}", one, to=(draw(st.sampled_from(["pager", "mail"])),), pace=PACE, go_on=draw(st.booleans())) for place, one in enumerate(some)]
    inhibitions = (inhibit("kind=silent_node", "kind!=silent_node", "node"),) if draw(st.booleans()) else ()
    return router(*above, route("rest", to=("chat",), pace=PACE), inhibitions=inhibitions)


def play(one: Router, history: list[tuple[float, list[Alert]]], *, until: float = 4800.0, every: float = 15.0, restart: bool = False) -> list[Notification]:
    sent: list[Notification] = []
    waiting, now = list(history), 0.0
    while now <= until:
        while waiting and waiting[0][0] <= now:
            one.take(waiting.pop(0)[1])
        sent += one.look(now)
        if restart:
            one.memory = msgspec.json.decode(msgspec.json.encode(one.memory), type=Memory)
        now += every
    return sent


@settings(max_examples=30, deadline=None)
@given(routers(), histories())
def test_no_alert_is_lost(one: Router, history: list[tuple[float, list[Alert]]]) -> None:
    """Each reaches every sink its route names, unless it was muted for as long as it fired; and what was told to fire is told to be over."""
    muted: dict[str, int] = {}
    plain = one.look

    def look(now: float, *more: object, **options: object) -> list[Notification]:
        found = plain(now)
        for fingerprint in one.memory.muted:
            muted[fingerprint] = muted.get(fingerprint, 0) + 1
        return found

    one.look = look  # type: ignore[method-assign]
    sent = play(one, history)
    heard: dict[tuple[str, str], list[str]] = {}
    for message in sent:
        for each in message.alerts:
            heard.setdefault((message.sink, each.fingerprint), []).append(each.status)
    last = {each.fingerprint: each for _, alerts in history for each in alerts}
    for fingerprint, final in last.items():
        if muted.get(fingerprint):
            continue
        for sink in {name for taken in one._routes.of(final) for name in taken.to}:
            assert (sink, fingerprint) in heard, f"{final.id} never reached {sink}"
            assert heard[sink, fingerprint][-1] == final.status
    for (sink, fingerprint), statuses in heard.items():
        if last[fingerprint].status == "resolved":
            assert statuses[-1] == "resolved", f"{sink} thinks that {fingerprint} still fires"


@settings(max_examples=30, deadline=None)
@given(routers(), histories(), st.booleans())
def test_nobody_is_told_more_often_than_the_intervals_say(one: Router, history: list[tuple[float, list[Alert]]], restart: bool) -> None:
    sent = play(one, history, restart=restart)
    last: dict[str, Notification] = {}
    versions: dict[tuple[str, str], str] = {}
    for message in sent:
        before = last.get(message.group)
        if before is not None:
            assert message.at - before.at >= (PACE.repeat_interval_s if message.repeat else PACE.group_interval_s)
        news = [each for each in message.alerts if versions.get((message.sink, each.fingerprint)) != each.version]
        assert bool(news) != message.repeat, "a message without news is a repeat, and only that"
        versions |= {(message.sink, each.fingerprint): each.version for each in message.alerts}
        last[message.group] = message
    assert len({message.id for message in sent}) == len(sent), "no id is used twice"


@settings(max_examples=25, deadline=None)
@given(routers(), histories())
def test_a_group_holds_only_what_has_its_labels_and_restarts_change_nothing(one: Router, history: list[tuple[float, list[Alert]]]) -> None:
    twin = Router("train", one._routes, Memory(instance="i"))
    sent = play(one, history)
    assert sent == play(twin, history, restart=True)
    for message in sent:
        assert all(each.labels[name] == value for each in message.alerts for name, value in message.group_labels.items())


@settings(max_examples=25, deadline=None)
@given(histories(), st.integers(0, 3000))
def test_a_silence_ends(history: list[tuple[float, list[Alert]]], until: int) -> None:
    one = Router("train", router(route(pace=PACE), silences=(silence("job=train", until=float(until)),))._routes, Memory(instance="i"))
    sent = play(one, history)
    assert all(message.at >= until for message in sent)
    fires = {each.fingerprint for _, alerts in history for each in alerts} - {each.fingerprint for _, alerts in history for each in alerts if not each.fires}
    assert fires <= {each.fingerprint for message in sent for each in message.alerts}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(*[st.sampled_from(["a", "b", "c", "d"])] * 2), max_size=6), st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=6))
def test_whatever_mutes_whatever_somebody_is_told_of_something(rules: list[tuple[str, str]], kinds: list[str]) -> None:
    one = router(route(), inhibitions=tuple(inhibit(f"kind={when}", f"kind={mute}") for when, mute in rules))
    one.take([alert(number, kind=kind) for number, kind in enumerate(kinds, 1)])
    one.look(0.0)
    assert len(one.memory.muted) < len(kinds)


@pytest.mark.parametrize("wait_s", [0.0, 10.0])
def test_the_default_pace_is_used_where_nothing_is_said(wait_s: float) -> None:
    one = router(route(pace=Pace(group_wait_s=wait_s)))
    one.take([alert(1)])
    assert bool(one.look(0.0)) is (wait_s == 0.0)
    assert QUICK.group_by == Pace().group_by == ("kind",)
