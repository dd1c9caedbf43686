"""A wall clock that jumps by an hour, either way: exactly one finding, which names the node, and nothing else is made of it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from holdfast.control.__main__ import Control
from holdfast.control.heard import by_our_clock
from holdfast.control.journal import Journal
from holdfast.control.observer import Observer
from holdfast.control.rulebook import rules_in_force
from holdfast.control.watching import Watching
from holdfast.core import Core
from holdfast.domain.event import FindingEnded, FindingMade, JobSubmitted
from holdfast.domain.finding import Finding
from holdfast.domain.job import JobPhase, JobSpec
from holdfast.domain.signal import Signal
from holdfast.domain.state import Gang, State
from holdfast.launch.layout import JobDirectory
from holdfast.observe.clock import Clock
from holdfast.wire.messages import Reading, Readings, Signals

BEGAN = 1_800_000_000.0
JUMP_AT = 90


def running() -> State:
    state = State(at=BEGAN, phase=JobPhase.RUNNING, spec=JobSpec(job="j", argv=("t.py",), nodes=2, ranks_per_node=2))
    state.gang = Gang(generation=1, nodes=("a", "b"))
    state.gang.ready = True
    return state


class Node:
    """What an agent says, with a real clock probe whose wall clock can be set."""

    def __init__(self, name: str, ranks: tuple[int, ...]) -> None:
        self.name, self._ranks = name, ranks
        self.second, self.set_by_s = 0.0, 0.0
        self._clock = Clock(wall=lambda: BEGAN + self.second + self.set_by_s, monotonic=lambda: self.second)

    def says(self, second: float) -> Signals:
        self.second = second
        moved = [one for one in self._clock.look() if isinstance(one, Signal)]
        said = {(signal.metric, signal.of): signal.value for signal in moved}
        for rank in map(str, self._ranks):
            said |= {("step", rank): 10 * second, ("step_seconds", rank): 0.1, ("step_communication_seconds", rank): 0.01, ("loss", rank): 1 / (1 + second)}
            said |= {("silent_seconds", rank): 0.1, ("phase_seconds", rank): 0.1, ("not_finite", rank): 0.0, ("step_data_seconds", rank): 0.001}
        said |= {("agent_cpu_ratio", ""): 0.01, ("host_memory_available_bytes", ""): 8e9, ("host_memory_bytes", ""): 16e9, ("probe_seconds", ""): 0.01}
        return Signals(node=self.name, columns=tuple(said), values=tuple(said.values()), wall_s=BEGAN + second + self.set_by_s)


def told(jump_s: float, seconds: int) -> tuple[Watching, list[tuple[int, FindingMade | FindingEnded]]]:
    """Two nodes are watched; after a while the clock of one is set. Once a second around that, and every 5 s later on."""
    watching, state, nodes = Watching(rules_in_force().rules, job="j"), running(), (Node("a", (0, 1)), Node("b", (2, 3)))
    found = []
    for second in (*range(1, JUMP_AT + 30), *range(JUMP_AT + 30, seconds, 5)):
        now = BEGAN + second
        if second == JUMP_AT:
            nodes[1].set_by_s += jump_s
        for node in nodes:
            watching.take(node.says(float(second)), now, wall=now)
        of_job = [Signal("job_generation", 1.0), Signal("control_cycle_seconds", 0.01)]
        found += [(second, event) for event in watching.look(state, of_job, now + 0.5) if isinstance(event, (FindingMade, FindingEnded))]
    return watching, found


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_clock_that_jumps_is_told_with_its_node_and_so_is_its_end_and_nothing_else_is(jump_s: float) -> None:
    _, found = told(jump_s, JUMP_AT + 330)
    (second, made), (ended_at, ended) = found
    assert isinstance(made, FindingMade)
    assert isinstance(ended, FindingEnded)
    assert (made.finding.kind, made.finding.node, made.finding.ranks) == ("clock_jump", "b", ())
    assert second - JUMP_AT <= 1
    assert ended.key == made.finding.key
    assert ended_at > second


def test_a_clock_that_stays_wrong_is_shown_and_wakes_nobody() -> None:
    watching, found = told(3600.0, JUMP_AT + 1100)
    assert [finding.kind for finding in watching.standing] == ["clock_drift"]
    assert [event.finding.kind for _, event in found if isinstance(event, FindingMade)] == ["clock_jump"]


def test_clocks_that_agree_are_not_spoken_of() -> None:
    watching, found = told(0.0, 200)
    assert (found, watching.standing) == ([], ())


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_since_when_a_rank_hangs_is_told_by_our_clock(jump_s: float) -> None:
    """An agent says it by its own wall clock. Taken as it is, an hour of good work would be billed to the hang, or none of it."""
    watching, node = Watching(()), Node("b", (2, 3))
    node.set_by_s = jump_s
    watching.take(node.says(100.0), BEGAN + 100.0, wall=BEGAN + 100.0)
    hang = Finding(kind="silent_rank", ranks=(2,), because="rank 2 is silent", since=BEGAN + 90.0 + jump_s)
    event = by_our_clock(FindingMade(at=0.0, generation=1, finding=hang), watching.ahead_s("b"), BEGAN + 100.0)
    assert isinstance(event, FindingMade)
    assert event.finding.since == pytest.approx(BEGAN + 90.0)


def test_what_is_said_to_begin_in_the_future_began_now() -> None:
    hang = Finding(kind="silent_rank", ranks=(2,), because="rank 2 is silent", since=BEGAN + 3600.0)
    event = by_our_clock(FindingMade(at=0.0, generation=1, finding=hang), 0.0, BEGAN)
    assert isinstance(event, FindingMade)
    assert event.finding.since == BEGAN


def test_no_wall_clock_makes_a_node_silent() -> None:
    """Control hears agents by its own monotonic clock: what a message says of time is not asked."""
    observer, core = Observer(), Core()
    for tenth in range(300):
        now = BEGAN + tenth / 10
        for node, rank in (("a", 0), ("b", 1)):
            observer.read(Readings(node=node, ranks=(Reading(rank=rank, generation=1, pid=1, step=tenth),)), core.state, now)
        assert observer.look(State(), now) == []


def test_time_goes_on_from_the_last_event_when_the_clock_was_set_back_while_control_was_away(tmp_path: Path) -> None:
    """Else nothing would be due, and nobody silent, until the clock has come so far again."""
    directory, spec = JobDirectory(tmp_path), JobSpec(job="j", argv=("t.py",))
    directory.spec.write_bytes(msgspec.json.encode(spec))
    journal, core, ahead = Journal(directory.journal), Core(), time.time() + 7200.0
    journal.append(event := JobSubmitted(at=ahead, spec=spec), core.step(event), core.state)
    journal.close()

    async def looked() -> tuple[float, float]:
        control = Control(directory)
        first, began = control.now(), time.monotonic()
        while time.monotonic() < began + 0.01:
            pass
        second = control.now()
        control._journal.close()
        return first, second

    first, second = asyncio.run(looked())
    assert first >= ahead
    assert second - first >= 0.009
