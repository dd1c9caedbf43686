"""Reading logs: the last lines, whatever the file ends with; and all lines of a log that is rotated meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.agent.warm import Output
from holdfast.cli.logs import Tail, log_records, offset_of_last


@pytest.mark.parametrize(
    ("printed", "lines", "shown"),
    [
        (b"a\nb\nc\n", 2, ["b", "c"]), (b"a\nb\nc", 2, ["b", "c"]), (b"a", 5, ["a"]), (b"", 3, []), (b"a\n\n\n", 2, ["", ""]), (b"a\nb\n", 0, []),
        (b"x" * 200_000 + b"\nlast\n", 1, ["last"]), (b"first\n\xff\xfe\n", 1, ["\ufffd\ufffd"]), (b"a\nb\n", None, ["a", "b"]),
    ],
)  # fmt: skip
def test_the_last_lines_are_shown(tmp_path: Path, printed: bytes, lines: int | None, shown: list[str]) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(printed)
    assert log_records(path, lines) == shown


def printer(path: Path) -> Callable[[bytes], None]:
    """What an agent does with a worker's output, with small logs: three files of 1,000 bytes."""
    output = Output(-1, str(path), log_bytes=1000, log_files=3)
    return output._write


def test_a_log_that_is_read_while_it_is_rotated_loses_no_byte_and_repeats_none(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    tail, write = Tail(path), printer(path)
    printed = read = b""
    for number in range(1000):
        line = f"line {number}\n".encode()
        write(line)
        printed += line
        if number % 60 == 0:  # Less often than once a file, and never in step with its end.
            while data := tail.read(100):
                read += data
    while data := tail.read(100):
        read += data
    tail.close()
    assert len(list(tmp_path.iterdir())) == 3, "it was rotated, and what is older than three files is gone"
    assert read == printed


def test_what_was_rotated_away_before_it_was_read_is_told_where_it_stood(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    tail, write = Tail(path), printer(path)
    write(b"first\n")
    assert tail.read() == b"first\n"
    for number in range(1000):
        write(f"line {number}\n".encode())
    read = b""
    while data := tail.read():
        read += data
    tail.close()
    before, said, after = read.partition(b"\n[holdfast: more was printed than a log keeps, and what stood here is gone]\n")
    assert said
    assert before.startswith(b"line 0\n"), "the rest of the file it had open"
    assert after.startswith(b"line ")
    assert after.endswith(b"line 998\nline 999\n")


def test_what_is_left_is_counted_over_rotations_and_can_be_skipped_to_its_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    tail, write = Tail(path), printer(path)
    for number in range(200):
        write(f"line {number}\n".encode())
    whole = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert tail.left_bytes() == whole
    left_out = tail.skip_to_last(50)
    shown = tail.read()
    tail.close()
    assert shown.endswith(b"line 198\nline 199\n")
    assert shown.startswith(b"line ")
    assert left_out == whole - len(shown)


def test_a_log_that_does_not_exist_yet_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    tail = Tail(path, offset_of_last(path, 0))
    assert tail.read() == b""
    path.write_bytes(b"here\n")
    assert tail.read() == b"here\n"
    tail.close()
