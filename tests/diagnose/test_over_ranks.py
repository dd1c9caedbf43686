"""Over ranks: what came first, and who is to blame, whatever the clocks say."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnose.causes import diagnose
from holdfast.diagnose.over_ranks import clock_offsets_s, in_their_own_files
from holdfast.diagnose.reading import read
from holdfast.domain.log_event import LogDigest, LogEvent, LogForm, LogProgress

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    step()\n'
GONE = "remote process exited or there was a network error, NCCL version 2.21.5"
CLOSED = f"{TRACEBACK}torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2113, {GONE}\n"
AT = 1_790_000_000.0


def stamped(at_s: float, text: str) -> str:
    when = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    return "".join(f"{when} {line}\n" for line in text.splitlines())


def steps(skew_s: float) -> str:
    return "".join(stamped(AT + 10 * number + skew_s, f"step {number} loss: 2.{number}") for number in range(20))


def progress(rank: int, step: int, at_s: float) -> LogProgress:
    return LogProgress(path=f"rank{rank}.log", line=step + 1, rank=rank, at_s=at_s, step=step)


@given(st.lists(st.floats(-300, 300), min_size=2, max_size=9))
def test_clocks_are_compared_by_what_all_ranks_log_at_the_same_time(skews_s: list[float]) -> None:
    told = tuple(progress(rank, step, AT + 10 * step + skew) for rank, skew in enumerate(skews_s) for step in range(5))
    offsets = clock_offsets_s(LogDigest(paths=(), lines=0, size_bytes=0, events=(), tail=(), progress=told))
    for rank, skew in enumerate(skews_s):
        assert abs((offsets[rank] - offsets[0]) - (skew - skews_s[0])) < 1e-3


def test_of_two_causes_the_first_counts_although_a_clock_is_ahead() -> None:
    early = stamped(AT + 200, f"{TRACEBACK}KeyError: 'labels'")
    late = stamped(AT + 201.5 - 120, f"{TRACEBACK}KeyError: 'labels'")  # Two minutes behind, and so it looks the earlier.
    others = [steps(0) + stamped(AT + 203, CLOSED) for _ in range(4)]
    logs = [steps(0) + early, steps(-120) + late, *others]
    one = diagnose(read([(f"rank{rank}.log", [text.encode()]) for rank, text in enumerate(logs)]))
    assert (one.cause, one.ranks) == ("code_error", (0,))


def test_what_a_rank_says_after_it_lost_its_peers_is_a_consequence() -> None:
    logs = [steps(0) + CLOSED + f"{TRACEBACK}FileNotFoundError: [Errno 2] No such file or directory: '/tmp/lock'\n" for _ in range(3)]
    logs.append(steps(0) + f"{TRACEBACK}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    one = diagnose(read([(f"rank{rank}.log", [text.encode()]) for rank, text in enumerate(logs)]))
    assert (one.cause, one.ranks) == ("gpu_oom", (3,))


def test_the_same_on_all_ranks_is_nobody_in_particular() -> None:
    logs = [steps(0) + f"{TRACEBACK}KeyError: 'labels'\n" for _ in range(4)]
    one = diagnose(read([(f"rank{rank}.log", [text.encode()]) for rank, text in enumerate(logs)]))
    assert (one.cause, one.ranks) == ("code_error", (0, 1, 2, 3))


def test_the_rank_that_is_behind_in_the_sequence_is_named() -> None:
    said = (
        "[E ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
    )
    logs = [steps(0) + said.format(rank=rank, number=87 if rank == 2 else 88) for rank in range(6)]
    one = diagnose(read([(f"rank{rank}.log", [text.encode()]) for rank, text in enumerate(logs)]))
    assert (one.cause, one.ranks) == ("nccl_timeout", (2,))


def test_progress_in_another_file_is_not_progress_after_an_error() -> None:
    event = LogEvent(
        form=LogForm.PYTHON, error="KeyError", message="'x'", text=("KeyError: 'x'",), path="a.log", first_line=5, last_line=5, rank=0, progress_after=3,
    )  # fmt: skip
    told = (progress(0, 8, AT),)
    digest = LogDigest(paths=("a.log", "rank0.log"), lines=9, size_bytes=9, events=(event,), tail=(), progress=told)
    assert in_their_own_files(digest).events[0].progress_after == 0
