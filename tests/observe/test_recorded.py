"""Recordings: what was seen once is seen again, wherever it is played, and a file that is none says so."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest
from observe.seeing import Hands, events, eventually, values

from holdfast.domain.kernel_event import KernelEvent
from holdfast.domain.metric import METRICS
from holdfast.domain.signal import Signal
from holdfast.observe.fake_nvml import FakeNvml
from holdfast.observe.gpu import Gpus
from holdfast.observe.recorded import Recorded, RecordingUnusable, Writer, read, record
from holdfast.observe.runner import Runner

H200 = Path(__file__).parent / "h200.jsonl.gz"


def test_what_is_written_is_read_again_also_series_that_come_later_and_what_is_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    event = KernelEvent(kind="xid", message="79", at=5.0, code=79, pci="0000:3b:00", of="0")
    with Writer(path, {"name": "here"}) as writer:
        writer.write(0.0, [Signal("gpus", 1.0)])
        writer.write(1.0, [Signal("gpus", 1.0), Signal("gpu_power_watts", math.nan, "0"), Signal("gpu_power_watts", math.inf, "1")], [event])
        writer.write(2.0, [Signal("gpu_power_watts", 5.5, "1")])
    recording = read(path)
    assert recording.machine == {"name": "here"}
    assert recording.date
    assert recording.whole
    assert recording.seconds == 2.0
    first, second, told, third = recording.rows
    assert first.signals == (Signal("gpus", 1.0),)
    assert math.isnan(values(second.signals, "0")["gpu_power_watts"])
    assert values(second.signals, "1") == {"gpu_power_watts": math.inf}
    assert told.events == (event,)
    assert third.signals == (Signal("gpu_power_watts", 5.5, "1"),), "what was not read is absent, and not the last value"


def test_every_line_is_json_that_any_tool_reads(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.gz", {}) as writer:
        writer.write(0.0, [Signal("loss", math.nan, "0")])
    for line in gzip.decompress((tmp_path / "a.gz").read_bytes()).splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_it_is_played_at_its_own_pace_and_nothing_comes_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    with Writer(path, {}) as writer:
        for second in range(5):
            old = [KernelEvent(kind="gpu_lost", message="", at=1.0)] if second == 3 else []
            writer.write(10.0 + second, [Signal("gpus", float(second))], old)
    clock = Hands()
    probe = Recorded(path, monotonic=clock, wall=lambda: 99.0)
    assert values(probe.look()) == {"gpus": 0}, "the first look sees the first row"
    assert probe.look() == [], "no time has passed"
    clock.now += 1
    assert values(probe.look()) == {"gpus": 1}
    clock.now += 2.5
    seen = probe.look()
    assert values(seen) == {"gpus": 3}, "the newest, and every event on the way"
    assert [event.at for event in events(seen)] == [99.0], "moved to the time of playing"
    clock.now += 100
    assert values(probe.look()) == {"gpus": 4}
    assert probe.ended
    assert probe.look() == []


def test_it_can_be_played_faster(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.gz", {}) as writer:
        for second in range(100):
            writer.write(float(second), [Signal("gpus", float(second))])
    clock = Hands()
    probe = Recorded(tmp_path / "a.gz", speed=60.0, monotonic=clock)
    probe.look()
    clock.now += 1
    assert values(probe.look()) == {"gpus": 60}


def test_probes_are_recorded_and_played_in_their_place(tmp_path: Path) -> None:
    path = tmp_path / "fake.jsonl.gz"
    nvml = FakeNvml(2)
    gpus = Gpus(nvml)
    gpus.every_s = 0.02
    assert record([gpus], seconds=0.5, file=path, every_s=0.1, machine={"gpu": "fake"}) >= 4
    recording = read(path)
    with Runner([Recorded(recording, name="gpu", speed=100.0)]) as runner:
        seen: dict[str, float] = {}
        eventually(lambda: seen.update(values(runner.take().signals, "1")) or "gpu_power_watts" in seen, what="the recorded readings")
    assert seen["gpu_power_watts"] == 480
    assert "gpu_ecc_uncorrected_total" in seen


def test_a_recording_that_was_cut_off_is_played_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    with Writer(path, {}) as writer:
        for second in range(5000):
            writer.write(float(second), [Signal("gpus", second * 1.234567)])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    recording = read(path)
    assert not recording.whole
    assert 100 < len(recording.rows) < 5000


def test_a_file_that_is_not_packed_is_no_recording(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"hello")
    with pytest.raises(RecordingUnusable, match="Not a gzipped file"):
        read(tmp_path / "a.gz")


@pytest.mark.parametrize(("lines", "wanted"), [
    (b"", "is no recording"),
    (b'{"some": "json"}\n', "is no recording"),
    (b"not json\n", "after line 1"),
    (b'{"holdfast_recording": 99}\n', "version 99"),
    (b'{"holdfast_recording": 1, "columns": [["gpus", ""]]}\n["x", 1]\n', "line 2"),
    (b'{"holdfast_recording": 1, "columns": []}\n{"at": 1, "event": {"colour": 1}}\n', "line 2"),
    (b'{"holdfast_recording": 1, "columns": [["gpus", ""]]}\n[1, "many"]\n', "line 2"),
])  # fmt: skip
def test_a_file_that_is_no_recording_is_refused_with_the_reason(lines: bytes, wanted: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(lines))  # Here, and not above: it holds the time, and runners that go on at once must call a test alike.
    with pytest.raises(RecordingUnusable, match=wanted):
        read(path)


def test_a_recording_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(RecordingUnusable, match="there is no recording"):
        read(tmp_path / "missing")


def test_a_recording_of_nothing_is_a_recording(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.gz", {}):
        pass
    assert read(tmp_path / "a.gz").rows == ()
    assert Recorded(tmp_path / "a.gz").look() == []


@pytest.mark.skipif(not H200.exists(), reason="no recording of a real H200 is here yet; benchmarks/probes.py --record makes one")
def test_the_recording_of_a_real_h200_holds_what_the_catalogue_promises() -> None:
    recording = read(H200)
    names = {signal.metric for row in recording.rows for signal in row.signals}
    assert names <= METRICS.keys()
    wanted = ("temperature_celsius", "power_watts", "sm_clock_hertz", "utilisation_ratio", "memory_used_bytes", "throttled_thermal", "ecc_uncorrected_total")
    assert {f"gpu_{name}" for name in wanted} <= names
    busy = [signal.value for row in recording.rows for signal in row.signals if signal.metric == "gpu_utilisation_ratio"]
    assert min(busy) < 0.2, "for a part of the time nothing ran,"
    assert max(busy) > 0.8, "and for a part of it a load did"
