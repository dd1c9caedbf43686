"""Flapping: what comes and goes is one thing that stands."""

from __future__ import annotations

from detect.streaming import TIMES, size
from hypothesis import given
from hypothesis import strategies as st

from holdfast.detect.flapping import Flapping
from holdfast.domain.finding import Finding, Severity

SLOW = Finding(kind="slow_disk", node="b", of="/data", because="a write took 3 s", severity=Severity.WARNING)


def played(detector: Flapping, there: str, *, every_s: float = 60.0, at: float = 0.0, finding: Finding = SLOW) -> Flapping:
    """One letter for each look: x is there, a dot is not."""
    for number, letter in enumerate(there):
        detector.look({finding.key: finding} if letter == "x" else {}, at + number * every_s)
    return detector


def test_what_came_four_times_and_is_there_again_flaps_and_names_the_place() -> None:
    (finding,) = played(Flapping(), "xx..x..xx.x..x").standing
    assert (finding.kind, finding.node, finding.of, finding.severity) == ("flapping", "b", "slow_disk /data", Severity.WARNING)
    assert finding.because.startswith("slow disk comes and goes, 4 times in ")


def test_what_came_three_times_does_not_flap_yet() -> None:
    assert played(Flapping(), "xx..x..xx.").standing == []


def test_what_comes_once_in_an_hour_does_not_flap() -> None:
    assert played(Flapping(), "x." * 10, every_s=2000.0).standing == []


def test_what_stays_does_not_flap() -> None:
    assert played(Flapping(), "x" * 500).standing == []


def test_while_it_flaps_it_is_not_told_by_itself() -> None:
    detector = played(Flapping(), "x." * 4 + "x")
    assert detector.is_told(SLOW.key)
    assert not detector.is_told("slow_disk/a//")


def test_it_stands_until_a_quarter_of_an_hour_was_quiet() -> None:
    detector = played(Flapping(), "x." * 4 + "x")
    assert played(detector, "." * 14, at=600.0).standing
    assert played(detector, "." * 4, at=600.0 + 14 * 60.0).standing == []
    assert played(detector, "xx.x.x", at=3000.0).standing == [], "and then it is counted anew"


def test_a_gang_that_is_started_again_ends_nothing_by_itself() -> None:
    detector = Flapping()
    for generation in range(10):
        played(detector, "xx", at=generation * 300.0)
        detector.gang_is_new()
        played(detector, ".", at=generation * 300.0 + 120.0)
    assert detector.standing == []


def test_an_agent_that_loses_its_connection_again_and_again_flaps() -> None:
    detector = Flapping()
    for minute in range(3):
        detector.came_back("b", 60.0 * minute)
        detector.look({}, 60.0 * minute)
    assert detector.standing == []
    detector.came_back("b", 180.0)
    (finding,) = detector.standing
    assert (finding.node, finding.of) == ("b", "disconnected")
    assert finding.because.endswith("the agent of b lost its connection")


def test_two_nodes_that_come_back_twice_each_do_not_flap() -> None:
    detector = Flapping()
    for node in "abab":
        detector.came_back(node, 10.0)
    assert detector.standing == []


def test_a_month_of_coming_and_going_in_many_places_takes_bounded_memory() -> None:
    detector = Flapping()
    most = 0
    for hour in range(24 * 30):
        finding = Finding(kind="slow_rank", ranks=(hour,), because="slow", severity=Severity.WARNING)
        played(detector, "x.", at=3600.0 * hour, finding=finding)
        most = max(most, size(detector))
    assert most < 4 * size(played(Flapping(), "x."))


@given(st.lists(st.tuples(st.booleans(), TIMES), max_size=60))
def test_whatever_the_times_nothing_breaks(looks: list[tuple[bool, float]]) -> None:
    detector = Flapping()
    for there, now in looks:
        detector.look({SLOW.key: SLOW} if there else {}, now)
    assert len(detector.standing) <= 1
