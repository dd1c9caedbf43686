"""Notices: every form in which somebody says that a node will go, and what is told of it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from holdfast.agent.notices import PASSED_S, UNSAID_S, Notices, parse
from holdfast.domain.event import Event, NodeCordoned, NodeUncordoned
from holdfast.domain.notice import Notice

WRITTEN_AT = 1_800_000_000.0
NOON = 1_794_830_400.0  # 2026-11-16T12:00:00Z


@pytest.mark.parametrize(
    ("text", "because", "goes_at"),
    [
        ("TRUE\n", "it is to go", WRITTEN_AT + UNSAID_S),  # Google: instance/preempted.
        ("TERMINATE_ON_HOST_MAINTENANCE", "it is to go: TERMINATE_ON_HOST_MAINTENANCE", WRITTEN_AT + UNSAID_S),
        ("rack 7 is rewired", "it is to go: rack 7 is rewired", WRITTEN_AT + UNSAID_S),
        ("120 rack 7 is rewired", "it is to go: rack 7 is rewired", WRITTEN_AT + 120.0),
        ("1794830400 rack 7", "it is to go: rack 7", NOON),
        ("2026-11-16T12:00:00Z rack 7", "it is to go: rack 7", NOON),
        ("2026-11-16T13:00:00+01:00", "it is to go", NOON),
        ('{"at": "2026-11-16T12:00:00", "reason": "a new\\nkernel"}', "it is to go: a new kernel", NOON),
        ('{"at": 90}', "it is to go", WRITTEN_AT + 90.0),
        ('{"action": "terminate", "time": "2026-11-16T12:00:00Z"}', "it is to go: terminate", NOON),  # AWS: spot/instance-action.
        ('{"reason": "soon", "at": "when it suits"}', "it is to go: soon", WRITTEN_AT + UNSAID_S),
        (r'{"at": 90, "reason": "rack \ud800"}', "it is to go: rack ?", WRITTEN_AT + 90.0),
        ("inf rack 7", "it is to go: inf rack 7", WRITTEN_AT + UNSAID_S),
        ('{"at": 1e999}', "it is to go", WRITTEN_AT + UNSAID_S),
        (f'{{"at": 1{"0" * 400}}}', "it is to go", WRITTEN_AT + UNSAID_S),
        ('{"at": "Mon, 16 Nov 2026 12:00:00 +99999999999999"}', "it is to go", WRITTEN_AT + UNSAID_S),
        (  # Azure: scheduledevents.
            '{"DocumentIncarnation": 3, "Events": [{"EventType": "Freeze", "NotBefore": "Mon, 16 Nov 2026 11:00:00 GMT"},'
            ' {"EventType": "Reboot", "NotBefore": ""}, {"EventType": "Preempt", "NotBefore": "Mon, 16 Nov 2026 12:00:00 GMT"}]}',
            "it is to go: Preempt", NOON,
        ),
    ],
)  # fmt: skip
def test_a_notice_is_understood_as_people_and_clouds_write_it(text: str, because: str, goes_at: float) -> None:
    assert parse(text, written_at=WRITTEN_AT) == Notice(because=because, goes_at=goes_at)


@pytest.mark.parametrize(
    "text",
    ["", " \n", "FALSE", "NONE", "{}", '{"Events": []}', '{"Events": [{"EventType": "Freeze"}]}', '{"at": 17', "[]", "[1]", "[" * 60000,
     f'{{"at": 1{"0" * 5000}}}'],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_what_says_nothing_is_no_notice(text: str) -> None:
    assert parse(text, written_at=WRITTEN_AT) is None


@pytest.mark.parametrize("how", ["gone", "long past"])
def test_a_file_is_told_once_again_when_it_says_something_else_and_withdrawn_when_it_is_over(tmp_path: Path, how: str) -> None:
    file, told, now = tmp_path / "notice", list[Event](), int(time.time())
    notices = Notices("node-1", file, told.append, kept=tmp_path / "kept")
    notices.look()
    assert not told
    file.write_text("120 maintenance")
    os.utime(file, (now, now))
    notices.look()
    notices.look()
    assert told == [NodeCordoned(at=0.0, node="node-1", because="it is to go: maintenance", drain=True, goes_at=now + 120.0)]
    file.write_text("600 maintenance")
    os.utime(file, (now, now))
    notices.look()
    assert told[1:] == [NodeCordoned(at=0.0, node="node-1", because="it is to go: maintenance", drain=True, goes_at=now + 600.0)]
    if how == "gone":
        file.unlink()
    else:
        os.utime(file, (now - 600.0 - PASSED_S - 1.0, now - 600.0 - PASSED_S - 1.0))
    notices.look()
    notices.look()
    assert told[2:] == [NodeUncordoned(at=0.0, node="node-1", withdrawn=True)]


def notices(directory: Path, told: list[Event], kept: str = "kept") -> Notices:
    return Notices("node-1", directory / "notice", told.append, kept=directory / kept)


def test_the_agent_that_comes_after_takes_back_what_is_over_and_not_what_was_a_signal(tmp_path: Path) -> None:
    told: list[Event] = []
    (tmp_path / "notice").write_text("120 maintenance")
    notices(tmp_path, told).look()
    (tmp_path / "notice").unlink()
    notices(tmp_path, told).look()
    assert [type(event) for event in told] == [NodeCordoned, NodeUncordoned]
    notices(tmp_path, told).signalled(signal.SIGTERM, within_s=30.0)
    notices(tmp_path, told).look()
    assert told[2:] == [told[2], told[2]], "told again, since it may never have arrived"
    assert isinstance(told[2], NodeCordoned)


def test_slurms_signal_is_a_notice_for_the_end_of_the_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []
    ends_at = time.time() + 3600.0
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(ends_at)))
    notices(tmp_path, told).signalled(signal.SIGUSR1, within_s=30.0)
    notices(tmp_path, told, "another").signalled(signal.SIGTERM, within_s=30.0)
    first, second = told
    assert isinstance(first, NodeCordoned)
    assert isinstance(second, NodeCordoned)
    assert (first.goes_at, first.because) == (int(ends_at), "its agent was sent SIGUSR1")
    assert (second.goes_at or ends_at) < ends_at - 3000.0, "who is told to end has less time than the allocation"
