"""The runner: whatever a probe does, the others go on, and it is said once what is wrong with it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from observe.seeing import Hands, eventually, values

from holdfast.domain.finding import Severity
from holdfast.domain.kernel_event import KernelEvent
from holdfast.domain.signal import Signal
from holdfast.observe.fake_nvml import FakeNvml
from holdfast.observe.gpu import Gpus
from holdfast.observe.probe import Seen
from holdfast.observe.runner import CPU_SHARE_MAX, Runner, Taken


class Made:
    """A probe that does what it is given to do."""

    def __init__(self, name: str, look: Callable[[], Iterable[Seen]], every_s: float = 0.01, timeout_s: float = 0.1) -> None:
        self.name, self.every_s, self.timeout_s, self.doing = name, every_s, timeout_s, ""
        self._look = look
        self.looks = 0

    def look(self) -> list[Seen]:
        self.looks += 1
        return list(self._look())


class Log:
    """Everything that was taken so far."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.all = Taken([], [], [], [])

    def take(self) -> Taken:
        now = self.runner.take()
        for kept, new in zip(self.all, now, strict=True):
            kept.extend(new)  # type: ignore[arg-type]
        return now


def alive(value: float = 1.0) -> Callable[[], Iterable[Seen]]:
    return lambda: [Signal("host_load", value)]


def test_a_probe_that_hangs_is_a_finding_once_and_the_others_go_on(tmp_path: Path) -> None:
    """Opening a FIFO waits until somebody opens its other end: a device that does not answer."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def wait() -> Iterable[Seen]:
        if hung.looks == 1:
            open(fifo).close()
        return [Signal("gpus", 8.0)]

    hung, well = Made("hung", wait), Made("well", alive())
    hung.doing = f"opening {fifo}"
    with Runner([hung, well], node="node-3") as runner:
        log = Log(runner)
        eventually(lambda: log.take() and log.all.findings, what="a finding")
        before = well.looks
        eventually(lambda: log.take() and well.looks > before + 5, what="looks of the other probe")
        (finding,) = log.all.findings
        assert (finding.kind, finding.node, finding.of, finding.severity) == ("hung_probe", "node-3", "hung", Severity.WARNING)
        assert "the probe 'hung' has not answered for" in finding.because
        assert f"It waits for opening {fifo}." in finding.because
        assert abs(finding.since - time.time()) < 60
        assert log.all.ended == []
        assert hung.looks == 1, "no second look is begun"
        assert sum(thread.name == "probe hung" for thread in threading.enumerate()) == 1
        assert values(log.take().signals)["probe_timeouts_total"] == 1

        open(fifo, "w").close()  # Somebody answers.
        eventually(lambda: log.take() and log.all.ended, what="the end of the finding")
        assert [ended.key for ended in log.all.ended] == [finding.key]
        assert "answered after" in log.all.ended[0].because
        eventually(lambda: log.take() and "gpus" in values(log.all.signals), what="what it saw at last")


def test_a_driver_that_hangs_at_its_start_takes_nothing_with_it() -> None:
    nvml = FakeNvml(2)
    nvml.hang()
    gpus = Gpus(nvml)
    gpus.timeout_s = 0.05
    with Runner([gpus, Made("well", alive())]) as runner:
        log = Log(runner)
        eventually(lambda: log.take() and log.all.findings, what="a finding")
        assert "the driver's start (nvmlInit)" in log.all.findings[0].because
        eventually(lambda: "host_load" in values(log.take().signals), what="what the others see")
        nvml.go_on()
        eventually(lambda: log.take() and log.all.ended, what="the driver back")
        eventually(lambda: values(log.all.signals).get("gpus") == 2 or not log.take(), what="two GPUs")


def test_a_call_that_hangs_is_named_with_its_gpu() -> None:
    nvml = FakeNvml(2)
    gpus = Gpus(nvml)
    gpus.every_s, gpus.timeout_s = 0.01, 0.05
    with Runner([gpus]) as runner:
        log = Log(runner)
        eventually(lambda: log.take() and "gpus" in values(log.all.signals), what="GPUs")
        nvml.hang()
        eventually(lambda: log.take() and log.all.findings, what="a finding")
        assert "It waits for " in log.all.findings[0].because
        nvml.go_on()


def test_closing_does_not_wait_for_what_hangs() -> None:
    release = threading.Event()
    hung = Made("hung", lambda: release.wait() and [])  # type: ignore[func-returns-value, return-value]
    runner = Runner([hung, Made("well", alive())])
    runner.start()
    eventually(lambda: hung.looks, what="the look that hangs")
    began = time.monotonic()
    runner.close()
    assert time.monotonic() - began < 5
    release.set()


def test_taking_never_waits() -> None:
    release = threading.Event()
    with Runner([Made("hung", lambda: release.wait() and [])]) as runner:  # type: ignore[func-returns-value, return-value]
        began = time.monotonic()
        for _ in range(1000):
            runner.take()
        assert time.monotonic() - began < 5
        release.set()


def test_a_probe_that_fails_is_a_finding_once_is_tried_again_later_and_ends_when_it_works() -> None:
    broken = True

    def look() -> Iterable[Seen]:
        if broken:
            raise ZeroDivisionError("no such thing")
        return [Signal("gpus", 1.0)]

    probe = Made("broken", look)
    with Runner([probe, Made("well", alive())], node="n") as runner:
        log = Log(runner)
        eventually(lambda: log.take() and probe.looks >= 4, what="four tries")
        (finding,) = log.all.findings
        assert (finding.kind, finding.of) == ("failed_probe", "broken")
        assert "ZeroDivisionError: no such thing" in finding.because
        broken = False
        eventually(lambda: log.take() and log.all.ended, what="the end of the finding")
        assert [ended.key for ended in log.all.ended] == [finding.key]
        assert len(log.all.findings) == 1


def test_each_failure_makes_the_next_try_later() -> None:
    probe = Made("broken", lambda: 1 / 0, every_s=1.0)  # type: ignore[arg-type, return-value]
    lane = Runner([probe])._lanes[0]
    pauses = []
    for _ in range(12):
        lane._fail(ZeroDivisionError())
        pauses.append(lane._pause_s(took_s=0.0))
    assert pauses[:4] == [2, 4, 8, 16]
    assert pauses[-1] == 300


def test_a_late_look_that_is_back_before_anybody_asked_is_counted_and_no_finding() -> None:
    clock = Hands()

    def late() -> Iterable[Seen]:
        clock.now += 1.0
        return []

    probe = Made("late", late, every_s=3600.0, timeout_s=0.5)
    with Runner([probe], monotonic=clock) as runner:
        taken = eventually(lambda: (taken := runner.take()).signals and taken, what="the look")
        assert values(taken.signals) == {"probe_seconds": 1.0, "probe_timeouts_total": 1.0}
        assert taken.findings == []


def test_of_readings_nobody_took_the_newest_is_handed_over_and_events_all_are() -> None:
    numbers = iter(range(10**9))

    def look() -> Iterable[Seen]:
        number = next(numbers)
        slow = [Signal("disk_free_bytes", 7.0, "/x")] if number == 0 else []
        return [Signal("host_load", float(number)), *slow, KernelEvent(kind="xid", message=str(number), at=0.0)]

    probe = Made("counting", look)
    with Runner([probe]) as runner:
        eventually(lambda: probe.looks > 5, what="several looks")
        runner.close()
        taken = runner.take()
    loads = [signal.value for signal in taken.signals if signal.metric == "host_load"]
    assert loads == [probe.looks - 1]
    assert [event.message for event in taken.events] == [str(number) for number in range(probe.looks)]
    assert values(taken.signals, "/x") == {"disk_free_bytes": 7.0}, "a slow series is not lost to a quick one of the same probe"
    assert runner.take().events == []


def test_a_flood_of_events_nobody_takes_does_not_fill_the_memory() -> None:
    probe = Made("flood", lambda: [KernelEvent(kind="x", message="", at=0.0)] * 5000)
    with Runner([probe]) as runner:
        eventually(lambda: probe.looks > 2, what="looks")
        assert len(runner.take().events) == 1000


def test_a_probe_that_costs_too_much_is_looked_through_less_often() -> None:
    lane = Runner([Made("dear", alive(), every_s=1.0)])._lanes[0]

    def after(cpu_s: float, looks: int = 50) -> float:
        for _ in range(looks):
            lane._count(took_s=0.0, cpu_s=cpu_s)
        return lane._pause_s(took_s=0.0)

    assert after(5.0, looks=1) == 1.0, "the first look opens everything, and does not count"
    assert after(CPU_SHARE_MAX / 2) == 1.0
    assert after(CPU_SHARE_MAX * 3, looks=1) == 1.0, "nor does one that did more than the others"
    assert after(CPU_SHARE_MAX * 4) == pytest.approx(4.0, rel=0.01)
    assert after(5.0) == 10.0, "never less often than a tenth of what was asked for"
    assert lane._pause_s(took_s=4.0) == 6.0, "counted from the beginning of the look"


def test_two_probes_of_one_name_are_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="two probes have one name"):
        Runner([Made("a", alive()), Made("a", alive())])
