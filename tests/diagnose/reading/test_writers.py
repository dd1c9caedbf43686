"""Who wrote a line, and when: prefixes of launchers and containers, times, names of files."""

from __future__ import annotations

import gzip
import json

import pytest
from diagnose.reading.reading_logs import digest, only

from holdfast.diagnose.reading import read
from holdfast.diagnose.reading.prefixes import of_name

TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    main()", "KeyError: 'x'"]


@pytest.mark.parametrize(
    ("prefix", "rank", "node"),
    [
        ("[rank3]: ", 3, ""),
        ("[default3]:", 3, ""),
        ("[trainer0|3]:", 3, ""),
        ("[1,3]<stderr>:", 3, ""),
        ("3: ", 3, ""),
        ("node7: ", None, "node7"),
        ("(RayTrainWorker pid=4711, ip=10.0.0.7) ", None, "10.0.0.7"),
        ("(worker1, rank=3, pid=4711, ip=10.0.0.7) ", 3, "10.0.0.7"),
        ("2026-11-16T04:05:06.123456789Z stderr F ", None, ""),
        ("2026-11-16T04:05:06.123456789Z stderr F [rank3]: ", 3, ""),
        ("[pod/job-worker-3/pytorch] ", 3, ""),
        ("\x1b[36m(RayTrainWorker pid=4711)\x1b[0m ", None, ""),
    ],
)
def test_a_traceback_is_read_behind_any_prefix(prefix: str, rank: int | None, node: str) -> None:
    event = only("".join(f"{prefix}{line}\n" for line in TRACEBACK))
    assert (event.error, event.message, event.rank, event.node) == ("KeyError", "'x'", rank, node)
    assert event.frames[0].path == "train.py"
    assert event.text[1].startswith("  File")


def test_docker_s_records_are_unpacked() -> None:
    lines = [json.dumps({"log": f"[rank3]: {line}\n", "stream": "stderr", "time": "2026-11-16T04:05:06.5Z"}) + "\n" for line in TRACEBACK]
    event = only("".join(lines))
    assert (event.error, event.rank, event.at_s) == ("KeyError", 3, 1794801906.5)


def test_parts_of_a_long_line_in_a_kubernetes_export_are_joined() -> None:
    event = only("2026-11-16T04:05:06Z stderr P ValueError: the first half\n2026-11-16T04:05:06Z stderr F  and the second\n")
    assert event.message == "the first half and the second"


def test_a_label_is_believed_only_where_most_lines_have_one() -> None:
    event = only("starting\n12: this is a list\nloading data\nmore\nValueError: x\n")
    assert event.rank is None


@pytest.mark.parametrize(
    ("path", "rank", "node"),
    [
        ("logs/rank3.log", 3, ""), ("logs/rank-12.log", 12, ""), ("worker-3/out.txt", 3, ""), ("node1/0/stderr.log", 0, "node1"),
        ("run/attempt_0/5/stderr.log", 5, ""),
        ("train.log", None, ""), ("node07.log", None, "node07"), ("2026-11-16/train.log", None, ""), ("slurm-4711.out", None, ""),
    ],
)  # fmt: skip
def test_names_of_files_tell_rank_and_node(path: str, rank: int | None, node: str) -> None:
    assert of_name(path) == (rank, node)


@pytest.mark.parametrize(
    ("line", "at_s"),
    [
        ("2026-11-16T04:05:06Z ERROR x", 1794801906.0),
        ("2026-11-16 04:05:06,250 ERROR x", 1794801906.25),
        ("2026-11-16T05:05:06.5+01:00 ERROR x", 1794801906.5),
        ("[2026-11-16 04:05:06,250] [ERROR] x", 1794801906.25),
        ("Mon Nov 16 04:05:06 2026 ERROR x", 1794801906.0),
        ("16/Nov/2026:04:05:06 +0000 ERROR x", 1794801906.0),
        ("11/16/2026 04:05:06 ERROR x", 1794801906.0),
        ("[  123.456789] Out of memory: Killed process 1 (python)", 123.456789),
        ("ERROR x", None),
        ("2026-13-45 99:99:99 ERROR x", None),
    ],
)
def test_times_are_read_in_the_common_forms(line: str, at_s: float | None) -> None:
    assert only(line + "\n").at_s == at_s


def test_times_without_a_year_belong_to_the_year_the_file_named_last() -> None:
    events = digest("2026-11-16 04:05:05 ERROR a\nE1116 04:05:06.500000 4711 x.cc:1] b failed\nNov 16 04:05:07 node1 prog[1]: error c\n").events
    assert [event.at_s for event in events] == [1794801905.0, 1794801906.5, 1794801907.0]


def test_a_structured_record_tells_level_time_rank_and_stack() -> None:
    record = {"ts": 1794801906500, "severity": "ERROR", "rank": 3, "hostname": "gpu-12", "msg": "boom", "stack": "\n".join(TRACEBACK)}
    event = only(json.dumps(record) + "\n", error="KeyError")
    assert (event.rank, event.node, event.at_s) == (3, "gpu-12", 1794801906.5)


def test_a_warning_s_level_in_a_record_is_heeded() -> None:
    assert only('{"level": "warning", "message": "connection failed"}\n').warning


def test_escape_codes_bars_and_broken_bytes_do_not_hide_an_error() -> None:
    log = (
        b"\x1b[1;31mERROR\x1b[0m \xff\xfe broken \x00 bytes\r\n  3%|#  | 3/100 [00:01<00:30,  3it/s]\r  4%|#  | 4/100 [00:01<00:30,  "
        b"3it/s]\x1b[A\r\nValueError: x\r\n"
    )
    found = digest(log)
    assert [event.first_line for event in found.events] == [1, 3]
    assert [line.text for line in found.tail][1].startswith("  4%|")
    assert found.lines == 3


def test_utf_16_is_read() -> None:
    log = "ok\r\nValueError: größer\r\n".encode("utf-16")
    assert only(log).message == "größer"


def test_a_binary_and_an_empty_file_say_why_there_is_nothing() -> None:
    assert "binary" in digest(bytes(range(256)) * 40).no_text_because
    assert "empty" in digest(b"").no_text_because
    assert "gzip" in digest(gzip.compress(b"ValueError: x")).no_text_because
    assert "no log" in read([]).no_text_because


def test_a_hole_of_zeros_does_not_hide_what_follows_it() -> None:
    assert only(b"\x00" * 5000 + b"\nValueError: x\n").message == "x"


def test_a_very_long_line_is_cut_and_what_follows_has_its_right_number() -> None:
    event = only(b"x" * 3_000_000 + b"\nValueError: x\n" + b"y" * 700_000)
    assert event.first_line == 2
    assert all(len(line.text) < 3000 for line in digest(b"x" * 3_000_000).tail)


def test_the_year_may_be_missing_everywhere() -> None:
    assert only("E1116 04:05:06.500000 4711 x.cc:1] broke with an error\n").at_s is not None


def test_what_is_printed_right_behind_a_bar_is_a_line_of_its_own() -> None:
    bar = "Epoch 0:   6%|██        | 32040/500150 [6:28:43<94:39:17,  1.37it/s, loss=2.6]"
    head = "[rank3]:[E131 16:15:16.707598872 ProcessGroupNCCL.cpp:616] [Rank 3]"
    found = digest(f"{bar}{head} Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\n")
    assert [(event.error, event.rank) for event in found.events] == [("NCCL timeout", 3)]
    assert [sign.step for sign in found.progress] == [32040]


@pytest.mark.parametrize(
    "head",
    ["[E ProcessGroupNCCL.cpp:458] ", "2026-11-16 04:05:06.123456: E tensorflow/core/x.cc:88] ", "[rank3]:[E602 11:18:52.489301002 Group.cpp:2111] ", "> "],
)
def test_level_file_and_line_are_taken_off_in_the_ways_of_cpp_libraries(head: str) -> None:
    (event,) = digest(f"{head}the link was lost\n" * 3).events
    assert event.message == "the link was lost"
    assert not event.warning
