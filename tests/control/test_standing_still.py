"""Standing still: what control makes of readings in which ranks do not move."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.control.standing_still import AGAIN_S, StandingStill
from holdfast.detect.silent_node import Heard
from holdfast.domain.event import Event, FindingEnded, FindingMade
from holdfast.domain.job import JobPhase, JobSpec, Policy
from holdfast.domain.signs import COLLECTIVE, ELSEWHERE, Signs
from holdfast.domain.state import Gang, State
from holdfast.wire.messages import Reading

EVALUATE = "train.py:<module>:31 > train.py:evaluate"


@dataclass
class Gangway:
    """A gang of two ranks on two nodes, looked at once a second."""

    state: State = field(
        default_factory=lambda: State(
            phase=JobPhase.RUNNING, generation=2, gang=Gang(generation=2, nodes=("n1", "n2"), started_at=900.0),
            spec=JobSpec(job="job", argv=("train.py",), nodes=2),
        )
    )  # fmt: skip
    still: StandingStill = field(default_factory=StandingStill)
    now: float = 1000.0
    deaf: tuple[str, ...] = ()

    def look(self, *signs: Signs | None) -> list[Event]:
        self.now += 1.0
        ranks = {rank: Reading(rank=rank, generation=2, pid=1, step=50, phase="step", signs=one) for rank, one in enumerate(signs)}
        heard = {node: Heard(at=self.now - (10.0 if node in self.deaf else 0.1), connected=True) for node in ("n1", "n2")}
        return self.still.look(self.state, ranks, heard, self.now)


def waits(quiet_s: float) -> Signs:
    idle: dict[str, Any] = {"main_idle_s": quiet_s - 1.5, "own_idle_s": quiet_s, "children_idle_s": quiet_s, "io_idle_s": quiet_s}
    idle |= {"stack_s": quiet_s - 2.0, "sampled_s": 0.5}
    return Signs(quiet_s=quiet_s, usual_s=20.0, quick=True, process_state="S", inside=COLLECTIVE, place="train.py:<module>:20", where="train.py:20", **idle)


def evaluates(quiet_s: float) -> Signs:
    return replace(waits(quiet_s), inside=ELSEWHERE, main_idle_s=0.0, own_idle_s=0.0, place=EVALUATE, where="`evaluate`, train.py:12")


def test_a_hang_is_told_with_the_time_it_began_and_again_while_nobody_has_acted() -> None:
    gang = Gangway()
    assert gang.look(None, None) == []
    (made,) = gang.look(waits(9.0), waits(9.0))
    assert isinstance(made, FindingMade)
    assert (made.generation, made.finding.kind, made.finding.since) == (2, "silent_rank", gang.now - 9.0)
    told = [event for second in range(1, 2 * int(AGAIN_S)) for event in gang.look(waits(9.0 + second), waits(9.0 + second))]
    assert len(told) == 1


def test_a_pause_is_told_once_and_when_it_ends_by_itself_its_place_and_time_are_known() -> None:
    gang = Gangway()
    events = [event for second in range(15, 60) for event in gang.look(evaluates(second), waits(second))]
    (made,) = events
    assert isinstance(made, FindingMade)
    assert (made.finding.kind, made.finding.ranks) == ("pause", (0,))
    (ended,) = gang.look(None, None)
    assert isinstance(ended, FindingEnded)
    assert (ended.key, ended.place, ended.lasted_s) == (made.finding.key, EVALUATE, 59.0)
    assert ended.because == "rank 0 went on after 59 s"


def test_a_pause_that_becomes_a_hang_has_not_ended_by_itself() -> None:
    gang = Gangway()
    gang.state.spec = JobSpec(job="job", argv=("train.py",), nodes=2, policy=Policy(hang_limits=(("", 30.0),)))
    events = [event for second in range(15, 32) for event in gang.look(evaluates(second), waits(second))]
    assert [event.finding.kind for event in events if isinstance(event, FindingMade)] == ["pause", "silent_rank"]
    assert len(events) == 2


def test_nothing_is_said_of_a_gang_that_is_gone_or_of_which_a_node_is_not_heard() -> None:
    gang = Gangway(deaf=("n2",))
    assert gang.look(waits(30.0), waits(30.0)) == []
    gang.deaf = ()
    gang.state.phase = JobPhase.STOPPING
    assert gang.look(waits(30.0), waits(30.0)) == []


def test_ranks_that_are_left_waiting_for_one_that_ran_to_its_end_are_found() -> None:
    gang = Gangway()
    assert gang.state.gang is not None
    gang.state.gang.exited.add(1)
    (made,) = gang.look(waits(9.0), None)
    assert isinstance(made, FindingMade)
    assert (made.finding.kind, made.finding.ranks) == ("silent_rank", (0,))


def test_what_was_told_of_the_gang_before_says_nothing_of_the_next() -> None:
    gang = Gangway()
    gang.look(evaluates(30.0), waits(30.0))
    assert gang.state.gang is not None
    gang.state.gang = Gang(generation=3, nodes=("n1", "n2"))
    assert gang.look(None, None) == []
