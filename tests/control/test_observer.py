"""The observer: few events of many readings."""

from __future__ import annotations

from holdfast.control.observer import Observer
from holdfast.domain.event import Event, FindingMade
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
