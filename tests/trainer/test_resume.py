"""A run that was killed ends, after it was started again, bit for bit like one that was not."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from trainer.gang import Gang, run_gang
from trainer.loops import SAMPLES, train

from holdfast.checkpoint.found import list_complete, newest_complete, verify
from holdfast.checkpoint.read import note_of


def ended(directory: Path, ranks: int) -> list[dict[str, Any]]:
    return [json.loads((directory / f"result-{rank}.json").read_text()) for rank in range(ranks)]


def run_through(directory: Path, *, ranks: int = 1, deaths: tuple[tuple[int, int], ...] = (), plugged: bool = True, **options: Any) -> list[dict[str, Any]]:
    """Train to the end, with a SIGKILL at each (step, rank) of `deaths` on the way, and a new generation after each."""
    checkpoints = directory / "checkpoints"
    options |= {"ranks": ranks, "plugged": plugged, "checkpoints": str(checkpoints), "result": str(directory / "result")}
    for generation, (step, rank) in enumerate(deaths, start=1):
        env = {"HOLDFAST_GENERATION": f"{generation}", "HOLDFAST_CHECKPOINTS": str(checkpoints)} if plugged else {}
        with Gang(directory / f"{generation}", train, die_at=step, die_rank=rank, env=env, **options) as gang:
            assert -signal.SIGKILL in gang.wait() or ranks > 1, gang.log()
    last = len(deaths) + 1
    env = {"HOLDFAST_GENERATION": f"{last}", "HOLDFAST_CHECKPOINTS": str(checkpoints)} if plugged else {}
    run_gang(directory / f"{last}", train, env=env, **options)
    return ended(directory, ranks)


def test_a_plain_loop_resumes_bit_for_bit_from_any_step(tmp_path: Path) -> None:
    whole = run_through(tmp_path / "whole")
    broken = run_through(tmp_path / "broken", deaths=((2, 0), (5, 0), (6, 0), (13, 0)))
    assert broken == whole
    assert whole[0]["step"] == 15
    assert sorted(whole[0]["indices"]) == sorted(list(range(SAMPLES)) * 3)


@pytest.mark.parametrize("order", ["holdfast", "shuffle"])
def test_a_loop_with_accumulation_and_prefetching_workers_resumes_bit_for_bit(tmp_path: Path, order: str) -> None:
    options = {"order": order, "workers": 2, "accumulate": 2, "batch_size": 8}
    whole = run_through(tmp_path / "whole", **options)
    assert run_through(tmp_path / "broken", deaths=((6, 0),), **options) == whole
    assert whole[0]["step"] == 12  # 8 batches an epoch, 4 steps.


def test_an_unplugged_loop_resumes_from_the_directory_it_was_given(tmp_path: Path) -> None:
    whole = run_through(tmp_path / "whole", plugged=False)
    assert run_through(tmp_path / "broken", deaths=((6, 0),), plugged=False) == whole


@pytest.mark.parametrize("wrap", ["ddp", "process group", "fsdp2"])
@pytest.mark.parametrize("plugged", [True, False])
def test_two_ranks_resume_bit_for_bit(tmp_path: Path, wrap: str, plugged: bool) -> None:
    whole = run_through(tmp_path / "whole", ranks=2, wrap=wrap, plugged=plugged)
    broken = run_through(tmp_path / "broken", ranks=2, wrap=wrap, plugged=plugged, deaths=((9, 1),))
    assert broken == whole
    assert sorted(whole[0]["indices"] + whole[1]["indices"]) == sorted(list(range(SAMPLES)) * 3)
    newest = newest_complete(tmp_path / "broken" / "checkpoints")
    assert newest is not None
    assert [sorted(note_of(newest, rank)) for rank in (0, 1)] == [["own", "shared"] if wrap == "ddp" else ["own"], ["own"]]
    for found in list_complete(newest.path.parent):
        verify(found.path)


def test_a_distributed_sampler_is_told_the_epoch_and_resumes(tmp_path: Path) -> None:
    whole = run_through(tmp_path / "whole", ranks=2, wrap="ddp", order="distributed")
    assert run_through(tmp_path / "broken", ranks=2, wrap="ddp", order="distributed", deaths=((7, 0),)) == whole
    assert whole[0]["indices"][:30] != whole[0]["indices"][30:60]
