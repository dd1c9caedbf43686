"""Several ranks: one fails and the others say so, a peer vanishes or stops, the rendezvous is never complete; and the same under launchers."""

from __future__ import annotations

import signal
from collections.abc import Callable

from incidents.running import Running
from incidents.way import Way
from incidents.ways.files import cut
from incidents.ways.machine import children

_LONG = ("train.py", "--steps", "5000", "--seconds-per-step", "0.01", "--timeout-s", "4")


def hit(rank: int, number: int) -> Callable[[Running], None]:
    def during(running: Running) -> None:
        running.until_said("step 10")
        running.kill(number, rank)

    return during


def stop_then_end(rank: int) -> Callable[[Running], None]:
    """A rank stands still until the others have given up; then it is let go, as an operator would end it."""

    def during(running: Running) -> None:
        import time

        running.until_said("step 10")
        running.kill(signal.SIGSTOP, rank)
        limit = min(running.deadline, time.monotonic() + 12)
        while time.monotonic() < limit and len(running.exits) < len(running.pids) - 1:
            running.ended()
            time.sleep(0.05)
        running.kill(signal.SIGKILL, rank)

    return during


def first_worker(number: int, *, text: str = "step 10") -> Callable[[Running], None]:
    """One of a launcher's workers: its last child that is not a helper of Python's."""

    def during(running: Running) -> None:
        import os

        running.until_said(text)
        for pid in children(running.pids[0])[-1:]:
            os.kill(pid, number)

    return during


def launcher(number: int) -> Callable[[Running], None]:
    def during(running: Running) -> None:
        running.until_said("step 10")
        running.kill(number)

    return during


def _gone(variant: str, number: int, ranks: int, rank: int, *, one_log: bool, quick: bool = False) -> Way:
    return Way(
        name="peer_gone", variant=variant, cause="gloo_connect", permanence="unclear", scope="network", command=_LONG, ranks=ranks, rank=rank,
        during=hit(rank, number), one_log=one_log, quick=quick,
    )  # fmt: skip


def _stopped(variant: str, ranks: int, rank: int, *, one_log: bool, quick: bool = False) -> Way:
    return Way(
        name="peer_stopped", variant=variant, cause="nccl_timeout", permanence="unclear", scope="network", command=_LONG, ranks=ranks, rank=rank,
        during=stop_then_end(rank), one_log=one_log, within_s=30.0, quick=quick,
    )  # fmt: skip


def _one_fails(
    variant: str, cause: str, scope: str, mistake: str, ranks: int, rank: int, *, one_log: bool, permanence: str = "permanent", quick: bool = False
) -> Way:
    return Way(
        name=f"one_of_several_{cause}", variant=variant, cause=cause, permanence=permanence, scope=scope, command=("several.py", mistake, str(rank)),
        ranks=ranks, rank=rank, one_log=one_log, quick=quick,
    )  # fmt: skip


def _alone(variant: str, rank: int, quick: bool = False) -> Way:
    return Way(
        name="never_complete", variant=variant, cause="rendezvous_timeout", permanence="unclear", scope="network", command=("train.py", "--timeout-s", "3"),
        env=(("WORLD_SIZE", "4"), ("RANK", str(rank))), quick=quick, within_s=30.0,
    )  # fmt: skip


def _under(launch: str, variant: str, cause: str, permanence: str, scope: str, *command: str, rank: int | None = None, **more: object) -> Way:
    return Way(
        name=f"under_{launch}_{cause}", variant=variant, cause=cause, permanence=permanence, scope=scope, command=command, launch=launch, ranks=2, rank=rank,
        within_s=60.0, **more,  # type: ignore[arg-type]
    )  # fmt: skip


WAYS: tuple[Way, ...] = (
    _gone("two", signal.SIGKILL, 2, 1, one_log=False, quick=True),
    _gone("four", signal.SIGKILL, 4, 2, one_log=False),
    _gone("four_one_log", signal.SIGKILL, 4, 3, one_log=True),
    _gone("first_rank", signal.SIGKILL, 3, 0, one_log=False),
    _stopped("two", 2, 1, one_log=False, quick=True),
    _stopped("three", 3, 2, one_log=True),
    _one_fails("key", "code_error", "job_code", "key", 3, 1, one_log=False, quick=True),
    _one_fails("key_one_log", "code_error", "job_code", "key", 4, 2, one_log=True),
    _one_fails("none", "code_error", "job_code", "none", 2, 0, one_log=True),
    _one_fails("matmul", "shape_mismatch", "job_code", "shape", 4, 3, one_log=False),
    _one_fails("index", "index_out_of_range", "job_code", "index", 3, 2, one_log=False),
    _one_fails("missing", "file_not_found", "config", "missing", 3, 1, one_log=False),
    _one_fails("missing_one_log", "file_not_found", "config", "missing", 4, 0, one_log=True),
    _one_fails("import", "import_missing", "config", "import", 2, 1, one_log=False),
    _one_fails("crash", "segfault", "worker", "crash", 3, 2, one_log=False, permanence="unclear"),
    _one_fails("abort", "process_abort", "worker", "abort", 3, 1, one_log=True, permanence="unclear"),
    _one_fails("json", "data_corrupt", "data", "json", 3, 1, one_log=False),
    _one_fails("memory", "host_oom", "config", "memory", 2, 1, one_log=False),
    _alone("first", 0, quick=True),
    _alone("third", 2),
    _under("torchrun", "mistake", "code_error", "permanent", "job_code", "several.py", "key", "1", rank=1),
    _under("torchrun", "argument", "config_error", "permanent", "config", "train.py", "--no-such-option"),
    _under("torchrun", "crash", "segfault", "unclear", "worker", "several.py", "crash", "0", rank=0),
    _under("torchrun", "checkpoint", "checkpoint_corrupt", "permanent", "storage", "train.py", "--resume", "{dir}/step_20.pt", prepare=cut(0.4)),
    _under("torchrun", "script", "file_not_found", "permanent", "config", "trian.py"),
    _under("torchrun", "ended", "user_cancelled", "unclear", "scheduler", *_LONG, during=launcher(signal.SIGINT)),
    _under("spawn", "mistake", "code_error", "permanent", "job_code", "spawned.py", "key", "1", rank=1),
    _under("spawn", "crash", "segfault", "unclear", "worker", "spawned.py", "crash", "1", rank=1),
    _under("holdfast", "mistake", "code_error", "permanent", "job_code", "several.py", "key", "1", rank=1),
    _under("holdfast", "missing", "file_not_found", "permanent", "config", "several.py", "missing", "0", rank=0),
)
