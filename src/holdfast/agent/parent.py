"""The agent's end of the warm parent's socket: find the one that runs or start one, tell it what to do, hear what it says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.domain.node import NodeSpec
from holdfast.errors import HoldfastError

Row = dict[str, Any]
_SOCKET = "warm.sock"
_LINE_BYTES_MAX = 4 << 20
_OURS = ("holdfast.trainer.beginning", "xxhash", "torch.utils.serialization.config")  # What a script with our lines imports; passed over where it is missing.


class ParentGone(HoldfastError):
    """The warm parent is not there any more, and its workers with it."""


class WarmParent:
    """One connection to one warm parent. `on_told` gets everything that is not an answer somebody waits for."""

    def __init__(self, spec: NodeSpec, on_told: Callable[[Row], None]) -> None:
        self._spec = spec
        self._on_told = on_told
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[tuple[str, str], asyncio.Future[Row]] = {}
        self.pid = 0
        self.ready = asyncio.Event()
        self.gone = asyncio.Event()

    async def find_or_start(self) -> bool:
        """Connect to the warm parent of this node; True when it was running already."""
        if await self._connect():
            return True
        self._start()
        while not await self._connect():
            assert self._process is not None
            if self._process.poll() is not None:
                raise ParentGone(f"the warm parent did not start (exit code {self._process.returncode}); its words are in {self._log}")
            await asyncio.sleep(0.02)
        return False

    @property
    def _log(self) -> Path:
        return Path(self._spec.logs) / f"warm-{self._spec.node}.log"

    def _start(self) -> None:
        job = self._spec.job
        options = [item for name in (*_OURS, *job.preimport) for item in ("--preimport", name)]
        if not job.warm or not job.python:
            options.append("--no-warm")
        command = [
            self._spec.interpreter, "-u", str(Path(__file__).with_name("warm.py")), "--socket", _SOCKET, "--state", ".",
            "--orphan-grace-s", str(self._spec.orphan_grace_s), "--kill-wait-s", str(job.policy.kill_wait_s), *options,
        ]  # fmt: skip
        env = {**os.environ, **job.env, "HOLDFAST_JOB": job.job, "HOLDFAST_NODE": self._spec.mark}
        if job.nodes * job.ranks_per_node > 1:
            env.setdefault("OMP_NUM_THREADS", "1")  # As torchrun does: ranks share the cores.
        if env.get("PYTHONPATH"):
            # It is read where the warm parent starts, which is not where the job does.
            env["PYTHONPATH"] = os.pathsep.join(os.path.join(job.cwd, entry) for entry in env["PYTHONPATH"].split(os.pathsep))
        with self._log.open("ab") as log:
            # The socket is named relative to the state directory: the kernel allows 107 bytes for its path.
            self._process = subprocess.Popen(
                command, env=env, cwd=self._spec.state, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    async def _connect(self) -> bool:
        directory = os.open(self._spec.state, os.O_PATH | os.O_DIRECTORY)
        try:
            reader, self._writer = await asyncio.open_unix_connection(f"/proc/self/fd/{directory}/{_SOCKET}", limit=_LINE_BYTES_MAX)
        except OSError:
            return False
        finally:
            os.close(directory)
        self._listener = asyncio.create_task(self._listen(reader))
        return True

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                self._hear(json.loads(line))
        self.gone.set()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ParentGone("the warm parent is gone"))

    def _hear(self, row: Row) -> None:
        told = row["told"]
        if told == "ready":
            self.pid = row["pid"]
            self.ready.set()
        waiting = self._waiting.pop((told, row.get("id") or ""), None)
        if told == "refused":
            self._refuse(row)
        elif waiting is not None and not waiting.done():
            waiting.set_result(row)
        elif told not in ("ready", "started"):
            self._on_told(row)

    def _refuse(self, row: Row) -> None:
        for key in [key for key in self._waiting if key[1] == row["id"]]:
            waiting = self._waiting.pop(key)
            if not waiting.done():
                waiting.set_exception(HoldfastError(row["why"]))

    def send(self, do: str, **fields: Any) -> None:
        if self._writer is not None and not self.gone.is_set():
            self._writer.write(json.dumps({"do": do, **fields}).encode() + b"\n")

    def ask(self, do: str, *, answer: str, id: str, **fields: Any) -> asyncio.Future[Row]:
        """Send a command; the future is its answer, or an error when it was refused or the warm parent is gone."""
        future: asyncio.Future[Row] = asyncio.get_running_loop().create_future()
        if self.gone.is_set():
            future.set_exception(ParentGone("the warm parent is gone"))
            return future
        self._waiting[(answer, id)] = future
        self.send(do, id=id, **fields)
        return future

    async def close(self, *, within_s: float) -> None:
        """Wait for a warm parent that was told to end, and reap it if it is ours."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.gone.wait(), within_s)
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, 2.0)
