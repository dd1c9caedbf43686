"""From totals in shared memory to signals: for each step, since the last look, under the names of the catalogue."""

from __future__ import annotations

from math import nan

import msgspec
import pytest

from holdfast.agent.signals import WorkerSignals
from holdfast.domain import gauges
from holdfast.domain.gauges import Gauge
from holdfast.domain.metric import METRICS, USER_PREFIX
from holdfast.domain.signal import Signal
from holdfast.wire.messages import Reading


def reading(*, step: int = 10, samples: int = 0, pid: int = 7) -> Reading:
    return Reading(rank=3, generation=1, pid=pid, step=step, samples=samples)


def table(**values: float) -> dict[int, list[Gauge]]:
    return {3: [Gauge(name, "", value) for name, value in values.items()]}


def named(signals: list[Signal]) -> dict[str, float]:
    assert all(signal.of == "3" for signal in signals)
    return {signal.metric: signal.value for signal in signals}


def totals(steps: int, step_s: float, *, communication_s: float = 0.0, loss: float = 0.0) -> dict[int, list[Gauge]]:
    return table(
        **{gauges.STEPS: steps, gauges.STEP: step_s, gauges.COMMUNICATION: communication_s, gauges.LOSS: loss, gauges.LOSSES: steps, gauges.DATA: 0.0}
    )


def test_seconds_are_for_each_step_since_the_last_look() -> None:
    signals = WorkerSignals()
    signals.take([reading()], totals(100, 50.0), 1.0)
    said = named(signals.take([reading(step=20)], totals(110, 53.0, communication_s=1.0, loss=5.0), 2.0))
    assert said["step_seconds"] == pytest.approx(0.3)
    assert said["step_communication_seconds"] == pytest.approx(0.1)
    assert said["step_compute_seconds"] == pytest.approx(0.2)
    assert said["loss"] == pytest.approx(0.5)


def test_a_worker_that_finished_no_step_says_nothing_about_steps() -> None:
    signals = WorkerSignals()
    signals.take([reading()], totals(100, 50.0), 1.0)
    said = named(signals.take([reading()], totals(100, 50.0), 2.0))
    assert not [name for name in said if name.startswith("step_")]
    assert "loss" not in said


def test_another_process_of_the_same_rank_begins_anew() -> None:
    signals = WorkerSignals()
    signals.take([reading()], totals(100, 50.0), 1.0)
    assert "step_seconds" not in named(signals.take([reading(pid=8)], totals(5, 1.0), 2.0))
    assert named(signals.take([reading(pid=8)], totals(10, 2.0), 3.0))["step_seconds"] == pytest.approx(0.2)


def test_what_scripts_call_accuracy_and_learning_rate_is_known() -> None:
    said = named(WorkerSignals().take([reading()], table(acc=0.5, val_loss=1.5, lr=0.1), 1.0))
    assert (said["accuracy_ratio"], said["validation_loss"], said["learning_rate"]) == (0.5, 1.5, 0.1)


@pytest.mark.parametrize(("name", "spelled"), [("Top-5 acc", "top_5_acc"), ("entropy", "entropy"), ("1st", "n_1st"), ("x" * 60, "n_" + "x" * 46)])
def test_a_name_of_the_scripts_own_is_spelled_as_metrics_are(name: str, spelled: str) -> None:
    said = named(WorkerSignals().take([reading()], {3: [Gauge(name, "", 2.0)]}, 1.0))
    assert said[USER_PREFIX + spelled] == 2.0


def test_a_number_that_is_not_finite_is_left_out() -> None:
    assert "accuracy_ratio" not in named(WorkerSignals().take([reading()], table(accuracy=nan), 1.0))


def test_the_checksum_and_its_step_come_out_of_one_number() -> None:
    said = named(WorkerSignals().take([reading()], table(**{gauges.DIGEST: 4096 * gauges.DIGEST_VALUES + 77.0}), 1.0))
    assert (said["parameter_digest"], said["parameter_digest_step"]) == (77, 4096)


def test_every_signal_is_in_the_catalogue() -> None:
    signals = WorkerSignals()
    words = [getattr(gauges, name) for name in dir(gauges) if name.isupper()]
    every = {word: 5.0 for word in words if isinstance(word, str) and word != gauges.RESIZES}  # That is a unit, not a name.
    signals.take([reading()], table(**every), 1.0)
    more = named(signals.take([reading(step=20, samples=64)], table(**{name: value + 5 for name, value in every.items()}), 2.0))
    assert more.keys() <= METRICS.keys()
    assert "samples_per_second" in more


def test_how_often_the_numbers_turned_nan_is_counted_by_the_turn() -> None:
    signals = WorkerSignals()
    seen = [(), ("loss",), ("loss",), (), ("grad_norm",), ()]
    counts = [named(signals.take([msgspec.structs.replace(reading(), not_finite=bad)], table(), float(at)))["not_finite_total"] for at, bad in enumerate(seen)]
    assert counts == [0, 1, 1, 1, 2, 2]


def test_the_epoch_is_the_same_whether_the_trainer_or_the_script_says_it() -> None:
    said = [named(WorkerSignals().take([reading()], {3: [Gauge(name, "", 2.5)]}, 1.0))["epoch"] for name in (gauges.EPOCH, "epoch")]
    assert said == [2.5, 2.5]
