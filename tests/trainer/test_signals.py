"""What a worker says of itself besides its beat: where a step's time goes, what was reported, whether the replicas still agree."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
import torch
from trainer.gang import Gang, run_gang
from trainer.loops import measured

import holdfast
from holdfast.domain.beat import BEAT_FILE_BYTES, TABLE_AT
from holdfast.domain.gauges import (
    BAD_SINCE,
    COMMUNICATED,
    COMMUNICATION,
    DIGEST,
    DIGEST_VALUES,
    LEARNING_RATE,
    LOSS,
    LOSSES,
    NORM,
    NORMS,
    OPTIMIZER,
    PARAMETER_NORM,
    SLOTS,
    STEP,
    STEPS,
    TABLE_BYTES,
    UPDATE_NORM,
    GaugeTable,
    read_gauges,
)
from holdfast.errors import UserError
from holdfast.trainer.split import Split


def said(gang: Gang, rank: int) -> dict[str, float]:
    return {gauge.name: gauge.value for gauge in read_gauges((gang.directory / f"rank-{rank}.beats").read_bytes()[TABLE_AT:])}


def test_the_rank_that_does_not_wait_is_the_slow_one(tmp_path: Path) -> None:
    gang = run_gang(tmp_path, measured, ranks=2, slow_rank=1, slow_s=0.02)
    waits, works = said(gang, 0), said(gang, 1)
    assert waits[STEPS] == works[STEPS] == 39, "the first step of a process is not counted"
    slept_s = 39 * 0.02
    assert waits[COMMUNICATION] > works[COMMUNICATION] + 0.5 * slept_s
    for one in (waits, works):
        assert slept_s < one[STEP], "the step is as long as its slowest rank makes it"
        assert 0 < one[OPTIMIZER] < one[STEP]
        assert one[COMMUNICATION] < one[STEP]


@pytest.mark.parametrize("slow", [0, 1])
def test_a_rank_that_waits_for_the_buffers_of_another_waits_too(tmp_path: Path, slow: int) -> None:
    """DDP gives rank 0's to all before each forward pass."""
    gang = run_gang(tmp_path, measured, ranks=2, slow_rank=slow, slow_s=0.02, buffers=True)
    assert said(gang, 1 - slow)[COMMUNICATION] > said(gang, slow)[COMMUNICATION] + 0.5 * 39 * 0.02


def test_collectives_that_are_called_by_name_are_timed_and_counted(tmp_path: Path) -> None:
    gang = run_gang(tmp_path, measured, ranks=2, slow_rank=1, slow_s=0.02, by_name=True)
    assert said(gang, 0)[COMMUNICATION] > said(gang, 1)[COMMUNICATION] + 0.3 * 39 * 0.02
    assert said(gang, 0)[COMMUNICATED] >= 40 * 4 * (32 * 32 + 32)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_on_a_gpu_the_steps_that_are_measured_stand_for_those_that_are_not() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(4))).cuda()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    split = Split(GaugeTable(memoryview(bytearray(TABLE_BYTES))))
    split.install({"model": model, "optimizer": optimizer})
    x, ours_s = torch.randn(512, 2048, device="cuda"), 0.0
    for step in range(1, 241):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        torch.cuda.synchronize()
        began = time.perf_counter()
        optimizer.step()
        torch.cuda.synchronize()
        if step > 40:  # The first ones make what is used again.
            ours_s += time.perf_counter() - began
        if split.hooked:
            split.unhook()
        if step == 40:
            split.write(step, data_s=0.0, save_s=0.0)
            before_s = split.totals()["optimizer"]
        if step % 5 == 0:
            split.write(step, data_s=0.0, save_s=0.0)
            split.hook()
            assert len(optimizer._optimizer_step_pre_hooks) == 1
        else:
            assert not optimizer._optimizer_step_pre_hooks, "a step that is not measured has no hook at all"
    split.write(240, data_s=0.0, save_s=0.0)
    assert 0.5 < (split.totals()["optimizer"] - before_s) / ours_s < 1.5


def test_evaluation_is_no_part_of_a_step(tmp_path: Path) -> None:
    one = said(run_gang(tmp_path, measured, ranks=1, steps=60), 0)
    assert one[STEP] < 59 * 0.005 * 4, "59 evaluations of 5 ms, which would be there on top of the steps"


def test_what_is_reported_arrives_with_its_mean_and_its_unit(tmp_path: Path) -> None:
    gang = run_gang(tmp_path, measured, ranks=2)
    one = said(gang, 1)
    assert (one["accuracy"], one["tokens_per_s"], one[LEARNING_RATE]) == (0.75, 1001.0, 0.125)
    assert (one[NORM] / one[NORMS], one[LOSSES]) == (2.0, 40)
    assert math.isfinite(one[LOSS])
    units = {gauge.name: gauge.unit for gauge in read_gauges((gang.directory / "rank-1.beats").read_bytes()[TABLE_AT:])}
    assert units["tokens_per_s"] == "1/s"


def test_a_loss_that_is_not_finite_is_dated_to_the_step_on_the_rank_that_had_it_first(tmp_path: Path) -> None:
    gang = run_gang(tmp_path, measured, ranks=2, nan_rank=1, nan_at=20)
    assert (said(gang, 1)[BAD_SINCE], said(gang, 0)[BAD_SINCE]) == (21, 22), "the others get it with the gradients, one step later"


def test_replicas_that_agree_have_one_checksum_and_one_that_differs_in_a_bit_has_another(tmp_path: Path) -> None:
    agree = run_gang(tmp_path / "agree", measured, ranks=2, steps=70)
    differ = run_gang(tmp_path / "differ", measured, ranks=2, steps=70, drift_rank=1)
    for gang in (agree, differ):
        assert [int(said(gang, rank)[DIGEST]) // DIGEST_VALUES for rank in (0, 1)] == [64, 64]
    assert said(agree, 0)[DIGEST] == said(agree, 1)[DIGEST]
    assert said(differ, 0)[DIGEST] != said(differ, 1)[DIGEST]
    assert said(agree, 0)[PARAMETER_NORM] > 0
    assert said(agree, 0)[UPDATE_NORM] > 0


def test_a_worker_without_an_agent_measures_nothing_and_runs(tmp_path: Path) -> None:
    run_gang(tmp_path, measured, ranks=2, plugged=False)


def test_a_table_that_is_full_says_so_and_keeps_what_it_has() -> None:
    memory = bytearray(BEAT_FILE_BYTES)
    table = GaugeTable(memoryview(memory)[TABLE_AT:])
    assert all(table.set(f"n{number}", number) for number in range(SLOTS))
    assert not table.set("one_more", 1.0)
    assert table.set("n3", 33.0)
    assert [gauge.value for gauge in read_gauges(bytes(memory[TABLE_AT:]))][:5] == [0.0, 1.0, 2.0, 33.0, 4.0]


@pytest.mark.parametrize("name", ["Tokens", "1st", "a b", "", "x" * 49, "_hidden"])
def test_a_gauge_with_a_name_that_cannot_be_exported_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="expected a name of lower-case letters"):
        holdfast.gauge(name)


def test_a_gauge_takes_anything_and_never_raises() -> None:
    gauge = holdfast.gauge("odd_one")
    for value in (1, 2.5, "three", None, object()):
        gauge.set(value)
