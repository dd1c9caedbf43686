"""Silent node: one that is gone is found in time, one that control could not hear is excused."""

from __future__ import annotations

from holdfast.detect.silent_node import Heard, SilentNode
from holdfast.domain.finding import Finding


def _looks(detector: SilentNode, heard: dict[str, Heard], since: float, until: float, every: float = 0.2) -> list[tuple[float, Finding]]:
    found, now = [], since
    while now <= until:
        found += [(now, finding) for finding in detector.look(heard, now)]
        now += every
    return found


def test_a_node_whose_connection_is_gone_is_lost_within_four_seconds() -> None:
    found = _looks(SilentNode(), {"n1": Heard(at=100.0, connected=False)}, 100.0, 110.0)
    assert [finding.node for _, finding in found] == ["n1"]
    assert 103.5 < found[0][0] <= 104.0


def test_a_node_that_says_nothing_over_a_connection_that_stands_has_longer() -> None:
    found = _looks(SilentNode(), {"n1": Heard(at=100.0, connected=True)}, 100.0, 120.0)
    assert len(found) == 1
    assert 110.0 < found[0][0] <= 110.5


def test_nobody_is_judged_by_a_look_that_comes_late() -> None:
    detector = SilentNode()
    heard = {"n1": Heard(at=100.0, connected=True), "n2": Heard(at=100.0, connected=False)}
    assert not detector.look(heard, 100.1)
    assert not detector.look(heard, 500.0)
    assert not _looks(detector, heard, 500.2, 503.4)
    assert [finding.node for finding in detector.look(heard, 503.6)] == ["n2"]


def test_a_node_that_is_heard_again_can_be_lost_again() -> None:
    detector = SilentNode()
    assert len(_looks(detector, {"n1": Heard(at=100.0, connected=False)}, 100.0, 110.0)) == 1
    assert not _looks(detector, {"n1": Heard(at=110.0, connected=True)}, 110.0, 112.0)
    assert len(_looks(detector, {"n1": Heard(at=112.0, connected=False)}, 112.0, 120.0)) == 1


def test_the_finding_says_since_when() -> None:
    (_, finding), = _looks(SilentNode(), {"n1": Heard(at=100.0, connected=False)}, 100.0, 110.0)
    assert finding.since == 100.0
    assert "n1" in finding.because


def test_a_quiet_node_without_which_the_gang_could_not_step_on_is_not_lost() -> None:
    detector, found = SilentNode(), []
    for tick in range(500):
        now = 100.0 + 0.2 * tick
        found += detector.look({"n1": Heard(at=100.0, connected=True, alive_at=now - 1.0)}, now)
    assert not found


def test_a_quiet_node_is_lost_once_the_gang_stands_still_too() -> None:
    found = _looks(SilentNode(), {"n1": Heard(at=100.0, connected=True, alive_at=115.0)}, 100.0, 130.0)
    assert [finding.node for _, finding in found] == ["n1"]
    assert 125.0 < found[0][0] <= 125.5


def test_nobody_speaks_for_a_quiet_node_for_ever() -> None:
    detector, found = SilentNode(), []
    for tick in range(1000):
        now = 100.0 + 0.2 * tick
        found += detector.look({"n1": Heard(at=100.0, connected=True, alive_at=now)}, now)
    assert len(found) == 1


def test_a_node_whose_connection_is_gone_is_not_spoken_for() -> None:
    found = _looks(SilentNode(), {"n1": Heard(at=100.0, connected=False, alive_at=110.0)}, 100.0, 110.0)
    assert len(found) == 1


def test_nodes_that_pause_and_come_back_teach_how_long_a_pause_may_be() -> None:
    detector, at, found = SilentNode(), 100.0, []
    for tick in range(2000):
        now = 100.0 + 0.2 * tick
        at = now if not 200.0 < now < 208.0 else at
        found += detector.look({"n1": Heard(at=at, connected=True)}, now)
    assert not found
    assert 23.0 < detector.limit_s(connected=True) < 25.0
    assert detector.limit_s(connected=False) == detector.closed_s


def test_a_pause_of_our_own_teaches_nothing() -> None:
    detector = SilentNode()
    for now in (100.0, 100.2, 140.0, 140.2, 140.4):
        detector.look({"n1": Heard(at=now, connected=True)}, now)
    assert detector.limit_s(connected=True) == detector.open_s
