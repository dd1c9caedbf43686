"""The observer: few events of many readings."""

from __future__ import annotations

from holdfast.control.observer import Observer
from holdfast.domain.event import Event, FindingMade, NodeSilent, ProgressSeen
from holdfast.domain.job import JobPhase, JobSpec
from holdfast.domain.state import Gang, State
from holdfast.wire.messages import Reading, Readings


def running(restore: str) -> State:
    gang = Gang(generation=2, nodes=("n1",), restore=restore, restore_step=20 if restore else -1)
    return State(phase=JobPhase.RUNNING, spec=JobSpec(job="job", argv=("train.py",), ranks_per_node=2), gang=gang, generation=2)


def read(observer: Observer, state: State, step: int, now: float, *not_finite: str) -> list[Event]:
    """Both ranks are at `step`; what is not finite is so on rank 1."""
    ranks = tuple(
        Reading(rank=rank, generation=2, pid=1, step=step, step_started=20, restored=True, loss=None if bad else 1.0 if step > 20 else None, not_finite=bad)
        for rank, bad in ((0, ()), (1, not_finite))
    )
    return observer.read(Readings(node="n1", ranks=ranks), state, now)


def found(restore: str, *not_finite: str) -> list[FindingMade]:
    observer, state = Observer(), running(restore)
    events = read(observer, state, 20, 100.0)
    for number in range(1, 8):
        events += read(observer, state, 20 + number, 100.0 + number, *not_finite)
    return [event for event in events if isinstance(event, FindingMade)]


def test_a_loss_that_is_not_finite_right_after_a_restore_is_told_once() -> None:
    (made,) = found("step-20", "loss", "grad_norm")
    assert (made.generation, made.at, made.finding.since) == (2, 102.0, 101.0)
    assert (made.finding.kind, made.finding.checkpoint, made.finding.step, made.finding.ranks) == ("poisoned_checkpoint", "step-20", 20, (1,))


def test_gradients_that_overflow_and_a_gang_that_started_fresh_are_not() -> None:
    assert not found("step-20", "grad_norm")
    assert not found("step-20")
    assert not found("", "loss")


def test_ranks_that_step_on_speak_for_a_node_that_is_quiet_and_one_that_is_cut_off_is_still_lost() -> None:
    observer = Observer()
    state = State(phase=JobPhase.RUNNING, spec=JobSpec(job="job", argv=("t.py",), nodes=2), gang=Gang(generation=2, nodes=("n1", "n2")), generation=2)

    def said(node: str, rank: int, step: int, now: float) -> list[str]:
        observer.read(Readings(node=node, ranks=(Reading(rank=rank, generation=2, pid=1, step=step, restored=True),)), state, now)
        return [event.node for event in observer.look(state, now) if isinstance(event, NodeSilent)]

    said("n2", 1, 5, 100.0)
    assert not [node for tick in range(1, 300) for node in said("n1", 0, 5 + tick // 5, 100.0 + 0.2 * tick)], "n1 could not be at step 64 without n2"
    lost = [(tick, node) for tick in range(300, 400) for node in said("n1", 0, 64, 100.0 + 0.2 * tick)]
    assert [node for _, node in lost] == ["n2"]
    assert 100.0 + 0.2 * lost[0][0] < 172.0


def test_that_all_ranks_have_left_their_loops_is_told_once_with_the_time() -> None:
    observer, state = Observer(), running("step-20")
    read(observer, state, 25, 100.0)

    def left(now: float, *phases: str) -> list[float | None]:
        ranks = tuple(
            Reading(rank=rank, generation=2, pid=1, step=30, step_started=20, restored=True, phase=phase, phase_s=2.0 + rank)
            for rank, phase in enumerate(phases)
        )
        return [event.left_s for event in observer.read(Readings(node="n1", ranks=ranks), state, now) if isinstance(event, ProgressSeen)]

    assert left(101.0, "finish", "step") == []
    assert left(102.0, "finish", "finish") == [2.0]
    assert left(103.0, "finish", "finish") == []
    assert left(104.0, "step", "finish") == [None], "the script has a second loop"


def test_a_second_loop_that_gives_nothing_is_left_as_the_first_one_was() -> None:
    observer, state = Observer(), running("step-20")
    read(observer, state, 25, 100.0)

    def left(now: float, phase: str, step_started: int) -> list[float | None]:
        ranks = tuple(
            Reading(rank=rank, generation=2, pid=1, step=30, step_started=step_started, restored=True, phase=phase, phase_s=2.0) for rank in range(2)
        )
        return [event.left_s for event in observer.read(Readings(node="n1", ranks=ranks), state, now) if isinstance(event, ProgressSeen)]

    assert left(101.0, "finish", 20) == [2.0]
    assert left(102.0, "start", 30) == [None]
    assert left(103.0, "finish", 30) == [2.0], "what comes after it is the end again, and not productive"
