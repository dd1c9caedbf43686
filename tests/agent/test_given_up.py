"""What is left over in memory and on the disk (a save that one rank skipped, a snapshot of an earlier stay, an answer cut short) and must not be in the way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from agent.test_copies import SIZE, content, seal

from holdfast.agent.copies import Copies
from holdfast.agent.persist import Persist
from holdfast.checkpoint.commit import Shard, mark_failed
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.layout import directory_name
from holdfast.checkpoint.persist import read_index
from holdfast.checkpoint.remove import sweep_failed
from holdfast.checkpoint.snapshot import Buffer, Word, peek
from holdfast.domain.held import Held
from holdfast.wire.messages import AnyMessage, Fetch, Part, Refused, Sending

pytestmark = pytest.mark.unprivileged


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    (tmp_path / "memory").mkdir()
    return tmp_path / "memory"


def test_a_save_that_one_rank_skipped_is_answered_for_by_the_others_and_swept(tmp_path: Path, memory: Path) -> None:
    checkpoints, persist = tmp_path / "checkpoints", Persist(memory, tmp_path / "checkpoints")
    mark_failed(Disk(), checkpoints, Shard(step=10, generation=1, world_size=2, rank=1))
    seal(memory, checkpoints, rank=0, step=10, world_size=2)
    asyncio.run(persist.settle(within_s=30.0))
    head = peek(memory / "snapshot-0-0")
    assert head is not None
    assert head.said(Word.FREE)
    sweep_failed(Disk(), checkpoints, generation=1, before_step=20, world_size=2)
    assert not list(checkpoints.iterdir())


def test_a_save_that_failed_here_is_tried_again_and_not_given_up(tmp_path: Path, memory: Path) -> None:
    """The mark on the disk is this rank's own: of an agent that died before it could say so in memory, too."""
    checkpoints, persist = tmp_path / "checkpoints", Persist(memory, tmp_path / "checkpoints")
    mark_failed(Disk(), checkpoints, Shard(step=10, generation=1, world_size=2, rank=0))
    seal(memory, checkpoints, rank=0, step=10, world_size=2)
    asyncio.run(persist.settle(within_s=30.0))
    head = peek(memory / "snapshot-0-0")
    assert head is not None
    assert (head.said(Word.DURABLE), head.said(Word.FREE)) == (True, False)


@pytest.mark.parametrize("left", [(), (10,), (10, 20)])
@pytest.mark.parametrize("durable", [True, False])
def test_a_rank_that_comes_back_finds_the_copy_in_its_own_memory_whatever_it_left_there(
    tmp_path: Path, memory: Path, left: tuple[int, ...], durable: bool
) -> None:  # fmt: skip
    """It ran here, another node took its place, this one held the copy; and now it runs here again."""
    checkpoints, persist = tmp_path / "checkpoints", Persist(memory, tmp_path / "checkpoints")
    for which, step in enumerate(left):
        seal(memory, checkpoints, rank=1, step=step, world_size=2, which=which)
    if durable:
        asyncio.run(persist.settle(within_s=30.0))
    (tmp_path / "elsewhere").mkdir()
    seal(tmp_path / "elsewhere", checkpoints, rank=1, step=30, world_size=2, generation=2)
    asyncio.run(Persist(tmp_path / "elsewhere", checkpoints).settle(within_s=30.0))
    for name in ("", ".index"):
        (tmp_path / "elsewhere" / f"snapshot-1-0{name}").rename(memory / f"copy-1{name}")
    persist.hand_over(3, (1,), directory_name(30, 2))
    there = persist.where(Held(generation=2, step=30, rank=1, world_size=2))
    assert there is not None
    assert there.name.startswith("snapshot-1-")
    assert not list(memory.glob("copy-*"))
    buffer = Buffer.open(there)
    assert buffer is not None
    assert bytes(buffer.data[:SIZE]) == content(1, 30)


def test_a_copy_of_what_a_rank_has_itself_is_not_kept_for_it(tmp_path: Path, memory: Path) -> None:
    checkpoints, persist = tmp_path / "checkpoints", Persist(memory, tmp_path / "checkpoints")
    seal(memory, checkpoints, rank=1, step=30, world_size=2)
    asyncio.run(persist.settle(within_s=30.0))
    for name in ("", ".index"):
        (memory / f"copy-1{name}").write_bytes((memory / f"snapshot-1-0{name}").read_bytes())
    persist.hand_over(2, (1,), directory_name(30, 1))
    assert sorted(path.name for path in memory.iterdir()) == ["snapshot-1-0", "snapshot-1-0.index"]


@dataclass
class Line:
    """A channel to a holder. The worker writes over the snapshot when part number `torn_after` is on its way."""

    buffer: Buffer
    torn_after: int
    sent: list[AnyMessage] = field(default_factory=list)

    def send(self, message: AnyMessage) -> None:
        self.sent.append(message)

    async def flush(self) -> None:
        if sum(isinstance(message, Part) for message in self.sent) == self.torn_after:
            self.buffer.break_seal()


@pytest.mark.parametrize(("torn_after", "last"), [(1, Refused), (3, Refused), (4, Part)])
def test_an_answer_ends_with_the_last_part_or_a_refusal_and_never_with_both(tmp_path: Path, memory: Path, torn_after: int, last: type[AnyMessage]) -> None:
    """A refusal behind the last part would be taken for the answer to the next question, and every answer after it for the one before."""
    persist = Persist(memory, tmp_path / "checkpoints")
    copies = Copies(memory, persist)
    seal(memory, tmp_path / "checkpoints", rank=0, step=10, world_size=2)
    asyncio.run(persist.settle(within_s=30.0))
    assert read_index(memory / "snapshot-0-0") is not None
    buffer = Buffer.open(memory / "snapshot-0-0")
    assert buffer is not None
    line = Line(buffer, torn_after)
    asyncio.run(copies._answer(line, Fetch(rank=0, generation=-1, step=-1, newer=True)))  # type: ignore[arg-type]
    assert isinstance(line.sent[0], Sending)
    assert isinstance(line.sent[-1], last)
    assert sum(isinstance(message, Part) for message in line.sent) == torn_after  # Three of the data, and one of what is behind it.
