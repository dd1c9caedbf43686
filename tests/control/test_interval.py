"""How often to save, while a job runs: decided from readings, changed only ahead of every rank, and not for nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from holdfast.control.interval import AHEAD_S, THINK_EVERY_S, FailuresSeen, Intervals, failures_of
from holdfast.core import Core
from holdfast.domain.event import (
    EffectDone,
    GangRestored,
    IntervalChosen,
    JobResumed,
    JobSubmitted,
    NodeCordoned,
    NodeHeard,
    NodeUncordoned,
    ProgressSeen,
    StopAsked,
    WorkerExited,
)
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.goodput import Bucket
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.job import JobSpec, SaveEvery
from holdfast.domain.state import State
from holdfast.wire.messages import Reading

NODES = ("n1", "n2")


@dataclass
class Fleet:
    """Two ranks that step together, the real core, and what control would choose for them."""

    save_every: SaveEvery | None = None  # As `--checkpoint-every` said.
    every: int = 100
    odd: int | None = None  # What rank 1 uses instead.
    follows: bool = True
    step_s: float = 0.1
    stall_s: float | None = 0.04
    at: float = 1000.0
    step: int = 0
    connected: set[str] = field(default_factory=lambda: set(NODES))
    core: Core = field(default_factory=Core)
    intervals: Intervals = field(default_factory=Intervals)
    chosen: list[IntervalChosen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core.step(JobSubmitted(at=self.at, spec=JobSpec(job="job", argv=("train.py",), nodes=2, save_every=self.save_every)))
        self.start()

    @property
    def state(self) -> State:
        return self.core.state

    def start(self) -> None:
        for node in NODES:
            self.core.step(NodeHeard(at=self.at, node=node, host="127.0.0.1"))
        while self.state.pending:
            for id, pending in list(self.state.pending.items()):
                self.core.step(EffectDone(at=self.at, effect=id, generation=pending.generation, node=pending.node, port=1))
        self.core.step(GangRestored(at=self.at, generation=self.state.generation, step=self.step))
        self.core.step(ProgressSeen(at=self.at, generation=self.state.generation, step=self.step + 1, save_s=0.0))

    def fail(self) -> None:
        exit = Exit(rank=1, pid=1, kind=ExitKind.SIGNAL, signal=9, because="rank 1 was killed", step=self.step)
        self.core.step(WorkerExited(at=self.at, node="n2", generation=self.state.generation, exit=exit))
        self.start()

    def readings(self) -> dict[int, Reading]:
        """Rank 1 is always a little ahead."""
        generation = self.state.generation
        used = (self.every, self.odd or self.every)
        return {
            rank: Reading(
                rank=rank, generation=generation, pid=1, step=self.step + 2 * rank, step_started=0, save_every=every, stall_s=self.stall_s, follows=self.follows
            )
            for rank, every in enumerate(used)
        }  # fmt: skip

    def run(self, seconds: float) -> IntervalChosen | None:
        """The newest choice, if there was one."""
        before, until = len(self.chosen), self.at + seconds
        while self.at < until:
            self.at += 0.2
            self.step = int((self.at - 1000.0) / self.step_s)
            chosen = self.intervals.look(self.state, self.readings(), self.connected, self.at)
            if chosen is not None:
                self.chosen.append(chosen)
                self.core.step(chosen)
                self.core.check()
            self.adopt()
        return self.chosen[-1] if len(self.chosen) > before else None

    def adopt(self) -> None:
        told = self.state.interval
        if told is not None and told.automatic and told.generation == self.state.generation and self.step >= told.from_step:
            self.every = told.every


def test_a_gang_that_has_nowhere_to_go_saves_often_from_the_moment_it_is_known_that_its_node_will_go() -> None:
    fleet = Fleet()
    first = fleet.run(4.0)
    assert first is not None
    assert first.every > 1000
    fleet.run(8.0)
    fleet.core.step(NodeCordoned(at=fleet.at, node="n2", because="it is to go", drain=True, goes_at=fleet.at + 250.0))
    chosen = fleet.run(1.0)
    assert chosen is not None
    assert (chosen.every, chosen.because) == (150, "n2 will go, and may go early")
    fleet.run(20.0)
    fleet.core.step(NodeUncordoned(at=fleet.at, node="n2", withdrawn=True))
    back = fleet.run(1.0)
    assert back is not None
    assert back.every > 1000


def test_nothing_is_chosen_before_a_step_is_measured() -> None:
    assert Fleet(step_s=1.0).run(2.0) is None


def test_what_is_measured_decides_and_the_reason_says_it() -> None:
    fleet = Fleet()
    chosen = fleet.run(4.0)
    assert chosen is not None
    assert (chosen.generation, chosen.automatic, chosen.failures, chosen.stall_s) == (1, True, 0, 0.04)
    assert 0.09 < chosen.step_s < 0.11
    assert chosen.every == chosen.cheapest > 1000
    assert "a save costs 0.04 s" in chosen.because
    assert fleet.state.interval == chosen


def test_a_change_counts_from_a_step_that_the_furthest_rank_reaches_only_in_some_seconds() -> None:
    fleet = Fleet()
    chosen = fleet.run(4.0)
    assert chosen is not None
    furthest = max(one.step for one in fleet.readings().values())
    when = int((chosen.at - 1000.0) / fleet.step_s) + 2
    assert when + AHEAD_S / fleet.step_s <= chosen.from_step <= when + 2 * AHEAD_S / fleet.step_s
    assert chosen.from_step > furthest


def test_nothing_is_changed_again_before_all_have_got_there_nor_for_little() -> None:
    fleet = Fleet(stall_s=None)
    first = fleet.run(3.0)
    assert first is not None
    assert "not measured yet" in first.because
    fleet.stall_s = 0.04
    for _ in range(200):  # They stand still before they get there.
        fleet.at += 0.2
        assert fleet.intervals.look(fleet.state, fleet.readings(), fleet.connected, fleet.at) is None
    second = fleet.run(2 * THINK_EVERY_S + AHEAD_S)
    assert second is not None
    assert second.every > first.every
    fleet.stall_s = 0.045
    assert fleet.run(100.0) is None, "it is hardly dearer"


def test_a_failure_makes_saves_more_frequent_and_the_next_generation_starts_with_what_was_chosen() -> None:
    fleet = Fleet()
    first = fleet.run(30.0)
    assert first is not None
    fleet.fail()
    assert fleet.state.generation == 2
    second = fleet.run(30.0)
    assert second is not None
    assert (second.generation, second.failures) == (2, 1)
    assert second.every < first.every
    assert "1 seen in" in second.because


def test_a_stop_that_was_asked_for_is_no_failure_and_a_resumed_job_knows_what_was_chosen() -> None:
    fleet = Fleet()
    chosen = fleet.run(10.0)
    assert chosen is not None
    fleet.core.step(StopAsked(at=fleet.at, because="Ctrl-C", code=130))
    for id, pending in list(fleet.state.pending.items()):
        fleet.core.step(EffectDone(at=fleet.at, effect=id, generation=pending.generation, node=pending.node))
    assert fleet.state.spec is not None
    fleet.core.step(JobResumed(at=fleet.at + 3600.0, spec=fleet.state.spec))
    assert fleet.state.interval == chosen
    fleet.at += 3600.0
    fleet.start()
    fleet.every = chosen.every
    assert fleet.run(20.0) is None, "nothing failed, and nobody watched for an hour"


def test_while_a_node_is_out_of_reach_nothing_is_changed() -> None:
    fleet = Fleet()
    fleet.connected = {"n1"}
    assert fleet.run(30.0) is None
    fleet.connected = set(NODES)
    assert fleet.run(1.0) is not None


def test_a_slow_disk_is_not_asked_for_more_than_it_can_take() -> None:
    fleet = Fleet(stall_s=1e-7)
    fleet.intervals.durable_s = {"n1": 3.0, "n2": 90.0}
    chosen = fleet.run(5.0)
    assert chosen is not None
    assert 85.0 < chosen.interval_s < 95.0
    assert "a save takes 90 s to be durable" in chosen.because


def test_a_number_that_was_given_stays_and_it_is_said_what_it_costs() -> None:
    for fleet in (Fleet(every=7, follows=False), Fleet(every=7, save_every=SaveEvery(steps=7))):
        chosen = fleet.run(30.0)
        assert chosen is not None
        assert (chosen.every, chosen.automatic) == (7, False)
        assert "7 steps were given, and cost" in chosen.because
        assert fleet.every == 7
    assert Fleet(every=0, follows=False).run(30.0) is None
    assert Fleet(every=-1, follows=False).run(30.0) is None


def test_a_time_that_was_asked_for_becomes_steps_and_follows_them() -> None:
    fleet = Fleet(save_every=SaveEvery(seconds=3.0))
    fleet.run(30.0)
    assert abs(fleet.every - 30) <= 2
    near = fleet.every
    assert fleet.chosen[-1].because.endswith("; 3 s were asked for")
    fleet.at = 1000.0 + fleet.step * (step_s := 0.3)
    fleet.step_s = step_s
    fleet.run(200.0)
    assert abs(fleet.every - 10) <= 1
    assert near != fleet.every


def test_ranks_that_do_not_save_alike_are_left_alone() -> None:
    fleet = Fleet(odd=50)
    assert fleet.run(40.0) is None
    fleet.odd = None
    assert fleet.run(THINK_EVERY_S) is not None


def test_a_control_that_was_restarted_waits_for_what_is_on_its_way() -> None:
    fleet = Fleet()
    chosen = fleet.run(4.0)
    assert chosen is not None
    fleet.intervals = Intervals()
    assert fleet.run(3.0) is None
    fleet.core.state.interval = replace(chosen, from_step=1 << 40)
    assert fleet.run(60.0) is None


def test_a_failure_after_which_survivors_went_on_lost_no_work() -> None:
    """So it does not make saves more frequent; what it took to go on counts all the same."""
    state = State()
    state.ledger.enter(Bucket.PRODUCTIVE, 0.0)
    state.ledger.run_to(1000.0)
    costs = {Bucket.RENDEZVOUS: 4.0, Bucket.RECOMPUTE: 9.0, Bucket.SMALLER: 70.0}
    one = Incident(id=1, generation=1, opened_at=0.0, began_at=0.0, closed_at=10.0, phase=IncidentPhase.RESOLVED, step_before=50, costs=dict(costs))
    state.incidents = [replace(one, id=number, step_after=after) for number, after in enumerate((50, 51, 40), start=1)]
    assert failures_of(state, 1000.0) == FailuresSeen(count=1, watched_s=1000.0, restart_s=4.0)
