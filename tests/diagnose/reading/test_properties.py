"""What must never happen, whatever the bytes are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.diagnose.reading import blocks, collector, read
from holdfast.domain.log_event import LogDigest

LINES = (
    b"[rank0]: Traceback (most recent call last):", b'[rank1]:   File "a.py", line 1, in f', b"    x()", b"ValueError: x is 3", b"[rank0]: KeyError: 'y'",
        b"", b"step 3 loss 0.5",
    b"\r 45%|###  | 450/1000 [00:10<00:12, 44it/s]", b"terminate called after throwing an instance of 'c10::Error'", b"  what():  CUDA error: out of memory",
        b"train.py FAILED",
    b"  rank      : 3 (local_rank: 3)", b"[1]:", b"Root Cause (first observed failure):", b"  exitcode  : -9 (pid: 4711)", b'{"log": "ValueError: z\\n", '
        b'"stream": "stderr"}',
    b"2026-11-16T04:05:06Z stderr P half", b"2026-11-16T04:05:06Z stderr F of it", b"During handling of the above exception, another exception occurred:",
        b"\x00\x00\xff",
    b"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", b"slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-11-16T04:05:06 DUE TO TIME LIMIT "
        b"***", b"thread 'main' panicked at a.rs:1:2:",
    b"Exception in thread \"main\" java.lang.Exception: q", b"\tat a.b.C.d(E.java:1)", b"Caused by: java.io.IOException: r", b"\x1b[31mERROR\x1b[0m failed",
        b"***** Running training *****",
)  # fmt: skip
ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
logs = st.lists(st.tuples(st.one_of(st.sampled_from(LINES), st.binary(max_size=40)), ends), max_size=60).map(lambda parts: b"".join(line + end for line,
    end in parts))


def chunks(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    begin = 0
    for size in sizes:
        yield data[begin : begin + size]
        begin += size
    yield data[begin:]


def is_sound(digest: LogDigest, data: bytes) -> None:
    assert digest.size_bytes == len(data) or (digest.size_bytes == 0 and digest.no_text_because)
    for event in digest.events:
        assert 1 <= event.first_line <= event.last_line <= max(1, digest.lines)
        assert event.text
        assert len(event.text) <= 41
        assert event.times >= 1
        assert event.progress_after >= 0
        assert "\n" not in event.message
        assert event.fingerprint
    for line in digest.tail:
        assert 1 <= line.line <= digest.lines
    assert list(digest.events) == sorted(digest.events, key=lambda event: (event.path, event.first_line))
    assert bool(digest.no_text_because) == (not digest.tail)


@given(data=st.binary(max_size=3000))
def test_no_bytes_are_too_odd_to_be_read(data: bytes) -> None:
    is_sound(read([("x", [data])]), data)


@given(data=logs)
def test_no_order_of_lines_is_too_odd_to_be_read(data: bytes) -> None:
    is_sound(read([("x", [data])]), data)


@given(data=logs, cut=st.integers(0, 3000))
def test_a_log_cut_anywhere_has_a_digest(data: bytes, cut: int) -> None:
    is_sound(read([("x", [data[:cut]])]), data[:cut])
    is_sound(read([("x", [data[cut:]])]), data[cut:])


@given(data=logs, sizes=st.lists(st.integers(0, 50), max_size=80))
def test_how_the_bytes_are_handed_over_changes_nothing(data: bytes, sizes: list[int]) -> None:
    assert read([("x", chunks(data, sizes))]) == read([("x", [data])])


@given(data=logs, sizes=st.lists(st.integers(1, 400), max_size=20))
@settings(max_examples=40)
def test_nor_do_they_where_a_log_takes_many_blocks(data: bytes, sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 128)
        assert read([("x", chunks(data, sizes))]) == read([("x", [data])])


@given(data=logs)
def test_lines_have_the_numbers_an_editor_shows(data: bytes) -> None:
    marked = data.replace(b"\r", b"").rstrip(b"\n") + b"\nZeroDivisionError: only here\n"
    digest = read([("x", [marked])])
    numbers = [event.first_line for event in digest.events if event.error == "ZeroDivisionError"]
    told = [number for number, line in enumerate(marked.split(b"\n"), 1) if b"only here" in line]
    assert not digest.tail or numbers == told or any("only here" in " ".join((*event.text, *event.under)) for event in digest.events)


def test_memory_is_bounded_by_construction() -> None:
    def endless() -> Iterator[bytes]:
        for number in range(300):
            yield b"".join(b"[rank%d]: ERROR thing %d of kind %s failed\n" % (row % 997, row, b"k" * (row % 89)) for row in range(number * 100,
                number * 100 + 100))

    digest = read([("x", endless())])
    assert digest.lines == 30_000
    assert len(digest.events) <= 8000
    assert len(digest.tail) <= 3000


def test_very_many_sources_leave_a_bounded_digest() -> None:
    digest = read((f"rank-{number}.log", [b"step 1 loss 2\nValueError: x\n"]) for number in range(1000))
    assert len(digest.events) <= 8000
    assert len(digest.tail) <= 3000
    assert len(digest.ranks) == 1000


def test_what_one_rank_says_is_kept_however_many_others_say_the_same() -> None:
    def ranks() -> Iterator[tuple[str, list[bytes]]]:
        for rank in range(1000):
            said = b"OSError: the disk of this one is gone" if rank == 321 else b"RuntimeError: connection closed by peer"
            yield f"rank-{rank}.log", [said + b"\n"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collector, "_KINDS_MAX", 100)
        digest = read(ranks())
    assert [event.rank for event in digest.events if event.error == "OSError"] == [321]
    assert len(digest.events) <= 100
