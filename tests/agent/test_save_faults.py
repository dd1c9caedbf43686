"""What an agent says of saves: its own failures, those of workers and of uploads, and the room for the next save."""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path

import pytest
from agent.test_copies import seal

from holdfast.agent.persist import Persist
from holdfast.agent.save_faults import SaveFaults
from holdfast.domain.gauges import FAILED_STEPS, SAVE_FAILED, Gauge

pytestmark = pytest.mark.unprivileged


@pytest.fixture
def persist(tmp_path: Path) -> Persist:
    for name in ("memory", "checkpoints"):
        (tmp_path / name).mkdir()
    return Persist(tmp_path / "memory", tmp_path / "checkpoints")


def faults(tmp_path: Path, persist: Persist, **more: object) -> SaveFaults:
    return SaveFaults("node-0", tmp_path / "checkpoints", persist, **more)  # type: ignore[arg-type]


def signals(found: SaveFaults) -> dict[str, float]:
    return {signal.metric: float(signal.value) for signal in found.signals()}


async def looked_once(found: SaveFaults) -> None:
    task = asyncio.create_task(found.run())
    try:
        async with asyncio.timeout(10.0):
            while "disk_save_needs_bytes" not in signals(found):
                await asyncio.sleep(0.02)
    finally:
        task.cancel()


def test_a_save_that_a_worker_wrote_by_itself_and_could_not_is_said_with_its_errno(tmp_path: Path, persist: Persist) -> None:
    found = faults(tmp_path, persist)
    assert found.take({0: [Gauge(SAVE_FAILED, "", 0.0)]}) == []
    table = {0: [Gauge(SAVE_FAILED, "", 60.0 * FAILED_STEPS + errno.EROFS)]}
    (finding,) = found.take(table)
    assert finding.because.startswith("Read-only file system; step 60 could not be saved in ")
    assert found.take(table) == [finding]
    assert signals(found) == {"saves_failing": 1.0, "saves_failed_total": 1.0}


def test_a_snapshot_that_the_disk_did_not_take_is_said_and_ends_with_a_newer_checkpoint(tmp_path: Path, persist: Persist) -> None:
    found = faults(tmp_path, persist)
    (tmp_path / "checkpoints").rmdir()
    (tmp_path / "checkpoints").touch()
    seal(tmp_path / "memory", tmp_path / "checkpoints", rank=0, step=10, world_size=1)
    asyncio.run(persist.settle(within_s=30.0))
    (finding,) = found.take({})
    assert finding.kind == "save_failed"
    (tmp_path / "checkpoints").unlink()
    persist.try_again()
    asyncio.run(persist.settle(within_s=30.0))
    asyncio.run(looked_once(found))
    assert found.take({}) == []
    assert found.ended == {finding.key: "saving works again: step 10 is saved, and nothing since 10 is lost"}


def test_before_the_first_save_the_memory_that_was_prepared_tells_what_one_takes(tmp_path: Path, persist: Persist) -> None:
    seal(tmp_path / "memory", tmp_path / "checkpoints", rank=0, step=10, world_size=1)
    with (tmp_path / "memory" / "snapshot-0-0").open("r+b") as file:
        file.truncate(1 << 20)
    assert persist.prepared_bytes() == 0, "there is nothing in it but what is spared"
    with (tmp_path / "memory" / "snapshot-0-0").open("r+b") as file:
        file.truncate(9 << 20)
    assert 7 << 20 < persist.prepared_bytes() < 8 << 20
    asyncio.run(looked_once(found := faults(tmp_path, persist)))
    assert 7 << 20 < signals(found)["disk_save_needs_bytes"] <= 8 << 20


def test_uploads_that_go_on_failing_are_said_without_what_is_secret_in_the_address(tmp_path: Path, persist: Persist) -> None:
    error = ["the store said 403 Forbidden."]
    found = faults(tmp_path, persist, url="s3://key:hidden@store/bucket?secret=x", upload_error=lambda: error[0])
    (finding,) = found.take({})
    assert (finding.kind, "hidden" in finding.because, "403 Forbidden" in finding.because) == ("upload_failed", False, True)
    error[0] = ""
    assert found.take({}) == []
    assert finding.key in found.ended
    assert time.time() - finding.since < 60.0
