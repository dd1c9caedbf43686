"""SIGTERM: the run leaves after a step, with everything saved, all ranks after the same one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from trainer.gang import Gang, run_gang

from holdfast.checkpoint.found import list_complete
from holdfast.domain.beat import GUARDED, RESTORED, STOPPING, WAS_FINITE


def endless(*, total: int = 100_000, meet: bool = False, child: bool = False, late: bool = False) -> None:
    import torch
    import torch.distributed as dist

    import holdfast

    if meet:
        dist.init_process_group("gloo")
    state = {"step": 0}
    if not child and not late:
        signal.signal(signal.SIGTERM, lambda number, frame: print("the script's own handler", flush=True))
    run = holdfast.guard(state=state, save_every=0)
    if late:
        signal.signal(signal.SIGTERM, lambda number, frame: print("the script's own handler", flush=True))
    if child and os.fork() == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        Path(f"{os.environ['HOLDFAST_BEATS']}.child").write_text(f"{os.getpid()}")
        while True:
            time.sleep(0.01)
    for step in run.steps(total):
        time.sleep(0.002)
        if meet:
            dist.all_reduce(torch.ones(3))
        state["step"] = step + 1
        run.report(loss=1.0 / (step + 1), grad_norm=torch.tensor(2.0))
    print(f"after the loop at {state}")


def options(tmp_path: Path, generation: int = 1) -> dict[str, str]:
    return {"HOLDFAST_CHECKPOINTS": str(tmp_path / "checkpoints"), "HOLDFAST_GENERATION": f"{generation}", "HOLDFAST_RESTORE": ""}


def test_a_handler_that_the_script_sets_after_guard_is_called_and_does_not_keep_the_run_from_leaving(tmp_path: Path) -> None:
    with Gang(tmp_path, endless, env=options(tmp_path), late=True) as gang:
        gang.wait_for_step(5)
        gang.signal(0, signal.SIGTERM)
        assert gang.wait() == [143], gang.log()
        assert "the script's own handler" in gang.log()
        assert "asked to stop: leaving after step" in gang.log()
    assert list_complete(tmp_path / "checkpoints")


def test_a_run_that_is_asked_to_stop_saves_and_leaves_with_143_and_skips_what_follows_the_loop(tmp_path: Path) -> None:
    with Gang(tmp_path / "1", endless, env=options(tmp_path)) as gang:
        gang.wait_for_step(5)
        gang.signal(0, signal.SIGTERM)
        assert gang.wait() == [143], gang.log()
        beat = gang.beat(0)
        assert "after the loop" not in gang.log()
        assert "the script's own handler" in gang.log()
        assert "asked to stop: leaving after step" in gang.log()
    (found,) = list_complete(tmp_path / "checkpoints")
    assert beat is not None
    assert (beat.step, beat.saved_step) == (found.step, found.step)
    assert beat.flags == GUARDED | RESTORED | STOPPING | WAS_FINITE
    assert beat.loss == pytest.approx(1.0 / found.step)
    assert beat.grad_norm == 2.0
    with_name = options(tmp_path, 2) | {"HOLDFAST_RESTORE": found.name}
    gang = run_gang(tmp_path / "2", endless, env=with_name, total=found.step + 3)
    assert f"after the loop at {{'step': {found.step + 3}}}" in gang.log()
    last = gang.beat(0)
    assert last is not None
    assert (last.restored_step, last.step_started, last.step, last.phase) == (found.step, found.step, found.step + 3, "finish")


@pytest.mark.parametrize("asked", [(0, 1, 2), (1,)])
def test_all_ranks_leave_after_the_same_step_also_when_only_one_was_asked(tmp_path: Path, asked: tuple[int, ...]) -> None:
    with Gang(tmp_path / "1", endless, ranks=3, meet=True, env=options(tmp_path)) as gang:
        gang.wait_for_step(5)
        for rank in asked:
            gang.signal(rank, signal.SIGTERM)
        assert gang.wait() == [143] * 3, [gang.log(rank) for rank in range(3)]
        steps = {beat.step for beat in map(gang.beat, range(3)) if beat is not None}
    (found,) = list_complete(tmp_path / "checkpoints")
    assert steps == {found.step}
    assert found.world_size == 3


def test_a_process_forked_by_the_script_still_ends_on_sigterm(tmp_path: Path) -> None:
    with Gang(tmp_path / "1", endless, env=options(tmp_path), child=True) as gang:
        gang.wait_for_step(2)
        pid_file = tmp_path / "1" / "rank-0.beats.child"
        deadline_s = time.monotonic() + 30
        while not pid_file.exists() or not pid_file.read_text():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        child = int(pid_file.read_text())
        os.kill(child, signal.SIGTERM)
        while Path(f"/proc/{child}/stat").exists() and ") Z " not in Path(f"/proc/{child}/stat").read_text():
            assert time.monotonic() < deadline_s, "the child ignores SIGTERM"
            time.sleep(0.01)
        gang.signal(0, signal.SIGTERM)
        assert gang.wait() == [143]
