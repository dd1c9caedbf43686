"""What the agent learns of a rank that hangs in a collective: the flight recorder of real ranks over gloo, asked from outside while one of them waits."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path

import pytest
from trainer.gang import PATIENCE_S, Gang

import holdfast
from holdfast.agent.collectives import flight_path, gather
from holdfast.diagnose.collectives import behind
from holdfast.domain.event import EffectDone

ON = {"TORCH_FR_BUFFER_SIZE": "100"}


def meet_but_for_one(told: Path) -> None:
    """Both meet three times; then rank 0 waits for rank 1, which is elsewhere."""
    import os

    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    os.environ["HOLDFAST_FLIGHT"] = str(told / f"flight-1-{rank}")
    dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE_S))
    holdfast.guard(counter=torch.nn.Linear(1, 1))
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    (told / f"pid-{rank}").write_text(str(os.getpid()))
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    time.sleep(PATIENCE_S)


def test_the_rank_that_did_not_enter_is_named_while_the_other_hangs(tmp_path: Path) -> None:
    for rank in (0, 1):
        assert flight_path(tmp_path, 1, rank, ON) is not None
    with Gang(tmp_path, meet_but_for_one, ranks=2, env=ON, told=tmp_path) as gang:
        deadline = time.monotonic() + PATIENCE_S
        says: tuple[str, ...] = ()
        while not says:
            assert time.monotonic() < deadline, gang.log(0) + gang.log(1)
            pids = {rank: int(path.read_text()) for rank in (0, 1) if (path := tmp_path / f"pid-{rank}").exists() and path.read_text()}
            if len(pids) < 2:  # While they still meet, one of them is behind the other every now and then.
                time.sleep(0.05)
                continue
            known = asyncio.run(gather(pids, tmp_path, 1, ON, hung=True))
            done = EffectDone(at=0.0, effect="e1", generation=1, node="n", **known)
            ranks, says = behind(_decoded(done))
    assert ranks == (1,)
    assert says == ("flight recorder: rank 0 waits in gloo:all_reduce 4 of default_pg (0), rank 1 has not entered it (last: 3)",)
    assert known["communication"] == []


def _decoded(done: EffectDone) -> dict[str, tuple[object, ...]]:
    import msgspec

    return msgspec.convert(msgspec.to_builtins(done), type=EffectDone).collectives  # type: ignore[return-value]


def test_where_the_recorder_is_off_there_is_no_pipe_and_nothing_is_known(tmp_path: Path) -> None:
    assert flight_path(tmp_path, 1, 0, {"TORCH_FR_BUFFER_SIZE": "0"}) is None
    assert not list(tmp_path.iterdir())
    assert asyncio.run(gather({0: 1}, tmp_path, 1, {}, hung=True)) == {"collectives": {}, "communication": []}


@pytest.mark.parametrize("dump", [b"", b"garbage"])
def test_a_dump_of_the_watchdog_that_cannot_be_read_is_passed_over(tmp_path: Path, dump: bytes) -> None:
    import os

    (tmp_path / "trace-0").write_bytes(dump)
    environment = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "trace-")}
    assert asyncio.run(gather({0: os.getpid()}, tmp_path, 1, environment, hung=True))["collectives"] == {}


def test_a_dump_that_torchs_watchdog_left_is_read_when_it_is_of_this_process(tmp_path: Path) -> None:
    import os
    import pickle

    entry = {"collective_seq_id": 4, "process_group": ("0", "default_pg"), "profiling_name": "nccl:all_gather", "state": "started", "retired": False}
    path = tmp_path / "trace-0"
    path.write_bytes(pickle.dumps({"version": "2.4", "entries": [entry], "pg_config": {}}, protocol=2))
    environment = {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace-")}
    assert asyncio.run(gather({0: os.getpid()}, tmp_path, 1, environment, hung=True))["collectives"]["0"][0]["sequence"] == 4
    os.utime(path, (1.0, 1.0))
    assert asyncio.run(gather({0: os.getpid()}, tmp_path, 1, environment, hung=True))["collectives"] == {}, "an earlier process left it"
