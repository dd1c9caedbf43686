"""Real ranks for tests: `Gang` starts processes that have already imported torch, gives each its place, and ends them whatever happens.

The processes are forks of Python's fork server, which imports torch once per test session; importing it anew for every rank takes ten seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast.domain.beat import BEAT_FILE_BYTES, Beat, read_beat

PATIENCE_S = 90.0
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor"])


class Gang:
    """Ranks of one generation that run `body(**arguments)`; their output and beats lie in `directory`."""

    def __init__(
        self, directory: Path, body: Callable[..., None], *, ranks: int = 1, plugged: bool = True, env: dict[str, str] | None = None, **arguments: Any
    ) -> None:
        import torch.distributed as dist

        self.directory, self.ranks = directory, ranks
        directory.mkdir(parents=True, exist_ok=True)
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._processes = [
            _CONTEXT.Process(target=_be_rank, args=(self._environment(rank, plugged) | (env or {}), directory / f"rank-{rank}.log", body, arguments))
            for rank in range(ranks)
        ]

    def __enter__(self) -> Gang:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for process in self._processes:
            process.kill()
            process.join(PATIENCE_S)
            process.close()

    def wait(self) -> list[int]:
        """The exit codes of all ranks."""
        deadline_s = time.monotonic() + PATIENCE_S
        for process in self._processes:
            process.join(max(0.0, deadline_s - time.monotonic()))
        return [99 if process.exitcode is None else process.exitcode for process in self._processes]

    def wait_for_exit(self, rank: int) -> int:
        """The exit code of one rank, whatever the others do."""
        process = self._processes[rank]
        process.join(PATIENCE_S)
        assert process.exitcode is not None, self.log(rank)
        return process.exitcode

    def signal(self, rank: int, number: signal.Signals) -> None:
        pid = self._processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def beat(self, rank: int) -> Beat | None:
        return read_beat((self.directory / f"rank-{rank}.beats").read_bytes())

    def log(self, rank: int = 0) -> str:
        path = self.directory / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    def wait_for_step(self, step: int, rank: int = 0) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            beat = self.beat(rank)
            if beat is not None and beat.step >= step:
                return
            assert self._processes[rank].is_alive(), self.log(rank)
            time.sleep(0.005)
        raise AssertionError(f"rank {rank} did not reach step {step} in {PATIENCE_S} s: {self.log(rank)}")

    def _environment(self, rank: int, plugged: bool) -> dict[str, str]:
        environment = {
            "RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{self.ranks}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{self._store.port}",
            "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        if not plugged:
            return environment
        beats = self.directory / f"rank-{rank}.beats"
        beats.write_bytes(bytes(BEAT_FILE_BYTES))
        return environment | {"HOLDFAST_BEATS": str(beats)}


def run_gang(directory: Path, body: Callable[..., None], **options: Any) -> Gang:
    """Run a gang to its end and expect every rank to finish well."""
    with Gang(directory, body, **options) as gang:
        codes = gang.wait()
        assert codes == [0] * gang.ranks, "\n".join(gang.log(rank) for rank in range(gang.ranks))
        return gang


def _be_rank(environment: dict[str, str], log: Path, body: Callable[..., None], arguments: dict[str, Any]) -> None:
    for name in [name for name in os.environ if name.startswith(("HOLDFAST_", "TORCHELASTIC_"))]:
        if name != "HOLDFAST_TEST_MARK":
            del os.environ[name]
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    import torch

    multiprocessing.set_start_method("fork", force=True)  # As in a process that no fork server made; it matters for data loaders.
    torch.set_num_threads(1)
    body(**arguments)
