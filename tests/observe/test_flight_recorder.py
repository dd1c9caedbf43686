"""torch's flight recorder: a dump that gloo really made, dumps written by hand after the format of NCCL's (version 2), and what is no dump."""

from __future__ import annotations

import contextlib
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.collective import Collective
from holdfast.observe.flight_recorder import collectives, pending, read_json, read_pickle

# As torch 2.13.0 (CPU) wrote it on rank 0 of two, which waited in the third all_reduce; shapes, threads and times left out.
GLOO = (
    '{"comm_lib_version":"","entries":['
    '{"collective_seq_id":2,"is_p2p":false,"p2p_seq_id":0,"pg_id":0,"process_group":["0","default_pg"],"profiling_name":"gloo:all_reduce","record_id":1,'
    '"retired":true,"state":"scheduled"},'
    '{"collective_seq_id":3,"is_p2p":false,"p2p_seq_id":0,"pg_id":0,"process_group":["0","default_pg"],"profiling_name":"gloo:all_reduce","record_id":2,'
    '"retired":false,"state":"scheduled"}],'
    '"nccl_comm_state":{},"pg_config":{"":{"desc":"","name":"","ranks":"[0, 1]"}},'
    '"pg_status":{"0":{"last_completed_collective":"2","last_enqueued_collective":"3","last_started_collective":"-1"}},"version":"2.10"}'
)


def entry(sequence: int, group: tuple[str, str] = ("0", "default_pg"), **more: Any) -> dict[str, Any]:
    return {"collective_seq_id": sequence, "process_group": group, "profiling_name": "nccl:all_gather", "state": "started", "retired": False, **more}


def test_the_newest_collective_of_a_real_dump_is_the_one_the_rank_waits_in() -> None:
    expected = Collective(group="default_pg (0)", sequence=3, operation="gloo:all_reduce", done=False, members=(0, 1))
    assert read_json(GLOO.encode()) == (expected,)


def test_what_a_gpu_has_not_ended_is_the_newest_collective_of_a_group_that_was_seen_to_end_others() -> None:
    group = ("5", "undefined")
    entries = [entry(1, state="completed"), entry(2), entry(1, group), entry(1, ("6", "dp"), retired=True), entry(2, ("6", "dp"), retired=True)]
    assert pending({"entries": entries}) == {("default_pg (0)", 2)}, "5 was never seen to end one, and all of 6 have ended"
    assert pending(json.loads(GLOO)) == frozenset(), "gloo's are the processor's"
    with pytest.raises(ValueError, match="no list of entries"):
        pending({"entries": 3})


def test_groups_are_told_apart_and_point_to_point_is_left_out() -> None:
    config = {"0": {"ranks": "[0, 1, 2, 3]"}, "5": {"ranks": [0, 2]}}
    entries = [entry(4), entry(9, ("5", "undefined"), state="completed"), entry(50, is_p2p=True), entry(3)]
    found = collectives({"version": "2.4", "entries": entries, "pg_config": config})
    assert found == (
        Collective(group="5", sequence=9, operation="nccl:all_gather", done=True, members=(0, 2)),
        Collective(group="default_pg (0)", sequence=4, operation="nccl:all_gather", done=False, members=(0, 1, 2, 3)),
    )


def test_the_pickle_of_torchs_watchdog_says_the_same() -> None:
    assert read_pickle(pickle.dumps({"version": "2.4", "entries": [entry(4)], "pg_config": {}}, protocol=2))[0].sequence == 4


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this must never be printed",))


@pytest.mark.parametrize("data", [pickle.dumps(Runs()), pickle.dumps({"entries": [Runs()]}), b"", b"\x80\x04", b"not a pickle", pickle.dumps([1])])
def test_a_pickle_that_would_run_something_or_is_none_is_refused(data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no dump of a flight recorder"):
        read_pickle(data)
    assert capsys.readouterr().out == ""


keys = st.sampled_from(["entries", "pg_config", "collective_seq_id", "process_group", "ranks", "a"])


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(keys, inner)))
def test_any_json_is_a_dump_or_a_value_error(value: Any) -> None:
    with contextlib.suppress(ValueError):
        read_json(json.dumps(value).encode())
