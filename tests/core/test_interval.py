"""How often to save, as the core keeps it: shown, and handed to every rank of the next generation alike."""

from __future__ import annotations

import msgspec
from core.teller import Teller

from holdfast.domain.effect import StartGang
from holdfast.domain.event import EffectDone, IntervalChosen, JobResumed, JobSubmitted
from holdfast.domain.job import JobSpec, SaveEvery
from holdfast.domain.state import State


def chosen(every: int, *, generation: int = 1, automatic: bool = True) -> IntervalChosen:
    return IntervalChosen(
        at=1000.0, generation=generation, every=every, from_step=500, automatic=automatic, because="a save costs 0.04 s", interval_s=every * 0.1,
        overhead=0.001, goodput=0.99, cheapest=every, step_s=0.1, failures=0, stall_s=0.04,
    )  # fmt: skip


def told(teller: Teller) -> list[tuple[int | None, bool]]:
    """Bring a gang up; what each of its nodes is told."""
    found: list[tuple[int | None, bool]] = []
    teller.play("hear n1 n2")
    while pending := [id for id, one in teller.core.state.pending.items() if one.kind in ("StartStore", "FindCheckpoint")]:
        one = teller.core.state.pending[pending[0]]
        effects = teller.core.step(EffectDone(at=teller.at, effect=pending[0], generation=one.generation, node=one.node, port=1))
        found += [(effect.save_every, effect.save_asked) for effect in effects if isinstance(effect, StartGang)]
    teller.play("up")
    return found


def submitted(save_every: SaveEvery | None = None) -> Teller:
    teller = Teller()
    teller.take(JobSubmitted(at=teller.at, spec=JobSpec(job="job", argv=("train.py",), nodes=2, save_every=save_every)))
    return teller


def fails(teller: Teller) -> None:
    for command in ("progress 600", "exit 0 signal signal=9", "stopped"):
        teller.play(command)


def test_the_next_generation_starts_with_what_was_chosen_on_every_node() -> None:
    teller = submitted()
    assert told(teller) == [(None, False), (None, False)]
    teller.take(chosen(458))
    fails(teller)
    assert told(teller) == [(458, False), (458, False)]


def test_what_was_chosen_survives_a_restart_of_control_and_a_resumed_job() -> None:
    teller = submitted()
    told(teller)
    teller.take(chosen(458))
    teller.play("restart")
    assert teller.core.state.interval == chosen(458)
    assert msgspec.json.decode(msgspec.json.encode(teller.core.state), type=State).interval == chosen(458)
    teller.play("stop now")
    teller.play("stopped")
    spec = teller.core.state.spec
    assert spec is not None
    teller.take(JobResumed(at=teller.at, spec=spec))
    assert told(teller) == [(458, False), (458, False)]


def test_what_the_command_line_says_comes_first() -> None:
    for asked, every in ((SaveEvery(steps=7), 7), (SaveEvery(steps=0), 0), (SaveEvery(), 458), (SaveEvery(seconds=30.0), 458)):
        teller = submitted(asked)
        told(teller)
        teller.take(chosen(458))
        fails(teller)
        assert told(teller) == [(every, True), (every, True)]


def test_a_number_the_script_gave_is_the_script_s_to_give_again() -> None:
    teller = submitted()
    told(teller)
    teller.take(chosen(50, automatic=False))
    fails(teller)
    assert told(teller) == [(None, False), (None, False)]


def test_a_choice_for_a_gang_that_is_over_is_dropped() -> None:
    teller = submitted()
    told(teller)
    teller.take(chosen(9, generation=7))
    assert teller.core.state.interval is None
    teller.play("exit 0 signal signal=9")
    teller.take(chosen(9))
    assert teller.core.state.interval is None
