"""Who sends to the remote store, and what becomes of the last checkpoint when the agent leaves."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from checkpoint.stores import wait_for
from checkpoint.test_remote import save_few

from holdfast.agent.uploads import Sender, Uploads
from holdfast.checkpoint.remote import Remote
from holdfast.checkpoint.remote_address import open_remote
from holdfast.wire.messages import Uploading


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def steps(store: Path) -> list[int]:
    return [one.step for one in open_remote(str(store)).list()]


def test_an_agent_sends_while_rank_0_is_here_and_no_longer_when_it_stays_away(store: Path, checkpoints: Path) -> None:
    here = False

    async def work() -> None:
        nonlocal here
        save_few(checkpoints, 10)
        sender = Sender(checkpoints, str(store), here=lambda: here, linger_s=0.5)
        running = asyncio.create_task(sender.run())
        await asyncio.sleep(0.5)
        assert sender.reading() is None, "rank 0 runs elsewhere"
        assert steps(store) == []
        here = True
        await asyncio.to_thread(wait_for, lambda: steps(store) == [10], within_s=30.0, what="step 10 is there")
        await asyncio.to_thread(wait_for, lambda: sender.reading() == Uploading(step=10), within_s=30.0, what="that is said")
        here = False
        await asyncio.sleep(0.1)
        assert sender.reading() is not None, "a rank that is only started again does not interrupt it"
        await asyncio.sleep(1.0)
        assert sender.reading() is None
        running.cancel()

    asyncio.run(work())


def test_the_last_checkpoint_has_time_to_arrive_when_the_agent_leaves(store: Path, checkpoints: Path) -> None:
    async def work() -> Uploading | None:
        save_few(checkpoints, 10, 20)
        sender = Sender(checkpoints, str(store), here=lambda: False)  # It ran so shortly that nobody has seen it.
        await sender.finish(within_s=30.0)
        return sender.reading()

    assert asyncio.run(work()) == Uploading(step=20)
    assert steps(store) == [20]


def test_a_slow_store_is_given_that_time_and_no_more_and_what_is_missing_is_named(store: Path, checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def upload(self: Remote, checkpoints: Path, name: str, *, stop: object, **_: object) -> None:
        while not stop():  # type: ignore[operator]
            time.sleep(0.01)

    monkeypatch.setattr(Remote, "upload", upload)
    save_few(checkpoints, 10)

    async def work() -> Uploading | None:
        sender = Sender(checkpoints, str(store), here=lambda: True)
        await sender.finish(within_s=0.5)
        return sender.reading()

    began = time.monotonic()
    assert asyncio.run(work()) == Uploading(step=-1, missing=10)
    assert time.monotonic() - began < 5.0


def test_a_store_that_fails_anyway_is_not_waited_for(store: Path, checkpoints: Path) -> None:
    said: list[str] = []
    uploads = Uploads(checkpoints, str(store / "gone"), say=said.append)
    save_few(checkpoints, 10)
    uploads.start()
    wait_for(lambda: uploads.status.error, within_s=30.0, what="the failure")
    began = time.monotonic()
    assert asyncio.run(uploads.finish(within_s=60.0)) == "step-00000010.g1"
    assert time.monotonic() - began < 5.0
    assert len(said) == 1


def test_without_time_nothing_is_begun(store: Path, checkpoints: Path) -> None:
    save_few(checkpoints, 10)
    sender = Sender(checkpoints, str(store), here=lambda: True)
    asyncio.run(sender.finish(within_s=0.0))
    assert sender.reading() is None
    assert steps(store) == []
