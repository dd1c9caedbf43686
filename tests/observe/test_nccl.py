"""NCCL's RAS and inspector. No NCCL runs here: the answers are written by hand after NCCL's documentation and source, and asked of a real socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.observe import nccl_inspector, nccl_ras


def rank(number: int, pid: int, **counts: int) -> dict[str, Any]:
    return {"rank": number, "host": "10.0.0.1", "pid": pid, "status": {"init_state": 0, "async_error": 0}, "collective_counts": {"AllReduce": 0, **counts}}


def status(*ranks: dict[str, Any], missing: tuple[dict[str, Any], ...] = (), hash: str = "0xab") -> str:
    communicator = {"hash": hash, "size": len(ranks) + len(missing), "ranks": list(ranks), "missing_ranks": list(missing)}
    body = {"nccl_version": "2.28.3", "communicators_count": 1, "communicators": [communicator], "ras": {"collection_time_sec": 0.1, "timeouts_count": 0}}
    return "SERVER PROTOCOL 2\nOK\nOK\n" + json.dumps(body, indent=2) + "\n"


TEXT = """SERVER PROTOCOL 1
OK
ERROR: Unknown command SET FORMAT json
NCCL version 2.24.3 compiled with CUDA 12.8

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
      4          8            1         32       32

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
"""


def test_ranks_that_launched_less_than_the_others_are_named_with_the_collective() -> None:
    said = nccl_ras.words(status(rank(0, 11, AllReduce=7), rank(1, 12, AllReduce=6)), processes=[11], ours=False, hung=True)
    assert said == ("NCCL RAS: in communicator 0xab, 1 ranks have launched AllReduce 7, rank 1 only up to 6",)


def test_ranks_that_do_not_answer_are_named_with_their_process() -> None:
    gone = {"rank": 1, "host": "10.0.0.2", "pid": 12, "status": {"unresponsive": True, "considered_dead": True}}
    said = nccl_ras.words(status(rank(0, 11, AllReduce=7), missing=(gone,)), processes=[11], ours=False, hung=True)
    assert said == ("NCCL RAS: of the 2 ranks of communicator 0xab, 1 (process 12 on 10.0.0.2) do not answer, 1 of them taken for dead",)


def test_ranks_that_run_differ_in_how_far_they_are_and_nothing_is_made_of_it() -> None:
    assert nccl_ras.words(status(rank(0, 11, AllReduce=7), rank(1, 12, AllReduce=6)), processes=[11], ours=True, hung=False) == ()
    assert nccl_ras.words(TEXT, processes=[11], ours=True, hung=False) == ()


def test_the_communicators_of_another_job_on_the_same_machine_are_left_alone() -> None:
    assert nccl_ras.words(status(rank(0, 11, AllReduce=7), rank(1, 12, AllReduce=6)), processes=[99], ours=True, hung=True) == ()


def test_a_nccl_without_json_is_believed_where_the_address_was_set_for_this_job() -> None:
    (said,) = nccl_ras.words(TEXT, processes=[11], ours=True, hung=True)
    assert "INCOMPLETE; Missing communicator data from 1 job process; Process 3487984" in said
    assert "MISMATCH; Communicator ranks have different" in said
    assert "Job summary" not in said
    assert nccl_ras.words(TEXT, processes=[11], ours=False, hung=True) == ()


@given(st.text(), st.booleans())
def test_whatever_answers_at_the_port_words_come_of_it_or_none(answer: str, ours: bool) -> None:
    nccl_ras.words(answer, processes=[1], ours=ours, hung=True)
    nccl_ras.words("{" + answer, processes=[1], ours=ours, hung=True)


def test_it_is_asked_over_a_socket_and_nobody_there_is_no_answer() -> None:
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend([await reader.readline() for _ in range(4)])
        writer.write(status(rank(0, 11)).encode())
        await writer.drain()
        writer.close()

    async def talk() -> tuple[str, str]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            said = await nccl_ras.ask(f"127.0.0.1:{port}", within_s=30.0)
        return said, await nccl_ras.ask(f"127.0.0.1:{port}", within_s=30.0)

    said, nothing = asyncio.run(talk())
    assert said == status(rank(0, 11))
    assert [line.split()[0] for line in heard] == [b"CLIENT", b"TIMEOUT", b"SET", b"VERBOSE"]
    assert nothing == ""


def test_an_address_that_is_none_is_no_answer() -> None:
    assert asyncio.run(nccl_ras.ask("nonsense", within_s=1.0)) == ""


def performed(rank: int, sequence: int, *, pid: int = 5, us: float = 1000.0) -> dict[str, Any]:
    perf = {"coll": "AllReduce", "coll_sn": sequence, "coll_msg_size_bytes": 1 << 20, "coll_exec_time_us": us, "coll_algobw_gbs": 2.0, "coll_busbw_gbs": 3.5}
    return {"header": {"id": "0x7f", "rank": rank, "n_ranks": 8, "nnodes": 1}, "metadata": {"pid": pid, "hostname": "a"}, "coll_perf": perf}


def test_the_inspectors_files_say_what_a_collective_costs_each_rank(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(performed(0, number, us=2000.0)) for number in range(3))
    (tmp_path / "a-pid5.log").write_text(lines)
    (tmp_path / "b-pid6.log").write_text(json.dumps(performed(1, 9, pid=6), indent=2))
    (tmp_path / "c-pid7.log").write_text(json.dumps(performed(2, 9, pid=7)))
    said = nccl_inspector.words(nccl_inspector.read(tmp_path, {5, 6}))
    assert said == (
        "NCCL inspector: rank 0 takes 2 ms for AllReduce of 1 MiB, 3.5 GB/s on the bus (3 of them, up to 2)",
        "NCCL inspector: rank 1 takes 1 ms for AllReduce of 1 MiB, 3.5 GB/s on the bus (1 of them, up to 9)",
    )
    assert nccl_inspector.read(tmp_path / "nowhere", {5}) == []


def test_a_file_that_is_read_from_its_middle_loses_the_object_that_was_cut_and_no_other() -> None:
    text = "\n".join(json.dumps(performed(0, number)) for number in range(4))
    assert [one.sequence for one in nccl_inspector.parse(text[10:])] == [1, 2, 3]
    assert [one.sequence for one in nccl_inspector.parse(text[:-5])] == [0, 1, 2]


@given(st.text())
def test_whatever_lies_in_the_inspectors_directory_is_passed_over(text: str) -> None:
    assert nccl_inspector.words(nccl_inspector.parse(text)) == ()
