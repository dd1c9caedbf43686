"""One story: what explains a slow rank is told with it, what flaps is told once, and limits are told with what takes the time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from control.test_watching import kinds, look, rows, running

from holdfast.control.watching import Watching
from holdfast.core import standing
from holdfast.diagnose.together import in_words
from holdfast.domain.event import Event, FindingMade
from holdfast.domain.finding import Severity
from holdfast.domain.goodput import Bucket
from holdfast.domain.job import Limits, Target
from holdfast.domain.signal import Signal
from holdfast.domain.state import State
from holdfast.wire.messages import Signals

GPU = {"gpu_sm_clock_max_hertz": 1.98e9, "gpu_utilisation_ratio": 0.98, "gpu_throttled_hardware": 0.0, "gpu_throttled_power": 0.0}


def with_gpus(messages: list[Signals], hot: tuple[str, int] | None) -> list[Signals]:
    """The same, and two GPUs on each node, of which one may be hot."""
    said = []
    for message in messages:
        more: list[tuple[tuple[str, str], float]] = []
        for gpu in range(2):
            is_hot = (message.node, gpu) == hot
            numbers = {**GPU, "gpu_sm_clock_hertz": 1.2e9 if is_hot else 1.98e9, "gpu_throttled_thermal": float(is_hot)}
            more += [((metric, str(gpu)), value) for metric, value in numbers.items()]
        columns, values = (*(message.columns or ()), *(name for name, _ in more)), (*message.values, *(value for _, value in more))
        said.append(Signals(node=message.node, columns=columns, values=values))
    return said


def slow_rank_3(second: int, *, slow: bool = True) -> list[Signals]:
    waits = {rank: 0.01 if rank == 3 and slow else 0.1 for rank in range(4)}
    return rows(second, step_seconds=dict.fromkeys(range(4), 0.2), step_communication_seconds=waits)


def incidents(state: State, events: list[Event]) -> None:
    for event in events:
        if isinstance(event, FindingMade):
            state.at = event.at
            standing.found(state, event.finding)


def test_a_slow_rank_on_a_throttled_gpu_is_one_incident_that_says_so_with_the_numbers() -> None:
    watching, state = Watching(()), running()
    told: list[Event] = []
    for second in range(1, 60):
        told += look(watching, state, second, with_gpus(slow_rank_3(second), ("b", 1)))
    assert sorted(kinds(told)) == ["slow_rank", "throttled"]
    incidents(state, told)
    (incident,) = state.incidents
    assert in_words(incident.findings) == "rank 3 is slow because GPU 1 of b is slowed by heat: 1,200 MHz instead of 1,980"


def test_a_hot_gpu_of_another_rank_explains_nothing() -> None:
    watching, state = Watching(()), running()
    told = [event for second in range(1, 60) for event in look(watching, state, second, with_gpus(slow_rank_3(second), ("b", 0)))]
    assert kinds(told) == ["slow_rank"]


def test_what_explains_ends_with_what_it_explained() -> None:
    watching, state = Watching(()), running()
    told: list[Event] = []
    for second in range(1, 120):
        told += look(watching, state, second, with_gpus(slow_rank_3(second, slow=second < 60), ("b", 1)))
    assert sorted(kinds(told)) == ["no slow_rank", "no throttled", "slow_rank", "throttled"]


def test_while_nothing_is_slow_a_hot_gpu_is_told_to_nobody() -> None:
    watching, state = Watching(()), running()
    told = [event for second in range(1, 60) for event in look(watching, state, second, with_gpus(slow_rank_3(second, slow=False), ("b", 1)))]
    assert (told, watching.standing) == ([], ())


def test_a_number_that_does_something_new_is_part_of_the_incident_it_is_a_sign_of() -> None:
    watching, state, dice = Watching(()), running(), np.random.default_rng(1)
    told: list[Event] = []
    for second in range(1, 800):
        norm = float(np.exp(0.1 * dice.standard_normal())) * (200.0 if second > 700 else 1.0)
        told += look(watching, state, second, rows(second, gradient_norm=dict.fromkeys(range(4), norm)))
    made = [event.finding for event in told if isinstance(event, FindingMade)]
    assert [finding.kind for finding in made] == ["gradient_explosion", "unusual_value"]
    incidents(state, told)
    (incident,) = state.incidents
    assert in_words(incident.findings).startswith("the norm of the gradient is")


def test_a_slow_rank_that_comes_and_goes_is_told_as_flapping_and_then_no_more() -> None:
    watching, state = Watching(()), running()
    told: list[Event] = []
    for second in range(1, 900):
        told += look(watching, state, second, slow_rank_3(second, slow=second // 60 % 2 == 0))
    said = kinds(told)
    assert said.count("flapping") == 1
    assert said.count("slow_rank") == 4
    assert said[-1] == "flapping", "what flaps is not told by itself any more"
    incidents(state, [event for event in told if isinstance(event, FindingMade)][-2:])
    assert len(state.incidents) == 1, "it belongs to the story of what flaps"


def test_an_agent_that_comes_back_again_and_again_flaps() -> None:
    watching, state = Watching(()), running()
    told: list[Event] = []
    for second in range(1, 200):
        if second % 40 == 0:
            watching.gone("b")
        told += look(watching, state, second, rows(second))
    (made,) = [event for event in told if isinstance(event, FindingMade)]
    assert (made.finding.kind, made.finding.node) == ("flapping", "b")


def limited(limits: Limits) -> State:
    state = running()
    assert state.spec is not None
    state.spec = replace(state.spec, limits=limits)
    state.ledger.enter(Bucket.PRODUCTIVE, 0.0)
    return state


def paced(watching: Watching, state: State, second: int, *, needs_s: float, **of_rank: dict[int, float]) -> list[Event]:
    every = dict.fromkeys(range(4), 1.0)
    parts = {"step_seconds": 0.2, "step_data_seconds": 0.14, "step_compute_seconds": 0.05, "step_communication_seconds": 0.01}
    for message in rows(second, **{name: {rank: value * seconds for rank, value in every.items()} for name, seconds in parts.items()}, **of_rank):
        watching.take(message, float(second))
    return watching.look(state, [Signal("job_progress_ratio", second / needs_s)], second + 0.5)


def test_a_job_that_will_be_over_its_time_says_what_takes_it() -> None:
    watching, state = Watching(()), limited(Limits(job_s=7200.0))
    told = [event for second in range(1, 300) for event in paced(watching, state, second, needs_s=5.0 * 3600)]
    (made,) = [event for event in told if isinstance(event, FindingMade)]
    assert (made.finding.kind, made.finding.severity) == ("over_time_soon", Severity.WARNING)
    assert made.finding.because == "at this pace it needs 5 h, 2 h are allowed; 70% of a step is waiting for data"


def test_a_target_that_was_not_reached_in_time_is_told() -> None:
    watching, state = Watching(()), limited(Limits(target=Target(metric="validation_loss", value=0.5), target_s=100.0))
    told = [event for second in range(1, 200) for event in paced(watching, state, second, needs_s=1e6, validation_loss={0: 0.8})]
    assert kinds(told) == ["over_time"]


def test_time_in_which_nobody_ran_the_job_does_not_count() -> None:
    watching, state = Watching(()), limited(Limits(job_s=3600.0))
    state.ledger.enter(Bucket.DOWN, 0.0)
    state.ledger.enter(Bucket.PRODUCTIVE, 10_000.0)
    told = [event for second in range(10_000, 10_100) for event in paced(watching, state, second, needs_s=10_500.0)]
    assert told == []
