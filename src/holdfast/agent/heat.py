"""Heat: a GPU that is throttled for heat for half a minute gets a lower power limit, a step at a time, and its old one back when it stays cool.

A GPU that the driver throttles runs in jerks, and every other rank waits for it; at a lower limit it is steady. Only where the user said how low it may get
(`--power-cap`), and only where that is permitted: else, and at the lowest, it is told that the node is too hot, and control moves the work if a spare is there.

The limit outlives us, so what it was is written down before it is changed: it is put back when the agent leaves, by the next agent after a kill, and by a
process that waits for our end when no agent comes after us.

    python -m holdfast.agent.heat FILE SECONDS      waits until its standard input is closed, and then so long for the agent that comes after

Sees        the driver's own word that it throttles for heat, every five seconds, for each GPU of the node.
Is wrong    when something else on the machine sets power limits too: the last one to write wins, and at the end what was found at first is put back.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, TextIO

from holdfast.observe.nvml import Gpu, Library, Nvml, NvmlError

EVERY_S: Final = 5.0
_HOT_LOOKS: Final = 6  # In a row: half a minute,
_COOL_LOOKS: Final = 60  # and five minutes.
_LOWER: Final = 0.9  # Of what it is.


class Heat:
    """`tell` is called with why, when a GPU stays hot and nothing can be done about it here; and with nothing once it has been cool for a while."""

    def __init__(
        self, least_watts: float, undo: Path, tell: Callable[[int, str], None], *, gpus: Collection[int] = (), nvml: Nvml | None = None,
        after_us_s: float = 20.0,
    ) -> None:  # fmt: skip
        self._least, self._undo, self._tell, self._wanted, self._after_us_s = least_watts, undo, tell, gpus, after_us_s
        self._nvml: Nvml = nvml or Library()
        self._gpus: list[Gpu] = []
        self._found: dict[str, float] = {}  # By UUID, the limit it had.
        self._hot: dict[str, int] = {}
        self._cool: dict[str, int] = {}
        self._told: set[str] = set()
        self._held: TextIO | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._lock, self._closed = threading.Lock(), False  # A look is made in a thread: none may change what was just put back.

    async def run(self) -> None:
        while True:
            with contextlib.suppress(NvmlError):  # No driver now; perhaps at the next look.
                await asyncio.to_thread(self.look)
            await asyncio.sleep(EVERY_S)

    def look(self) -> None:
        with self._lock:
            if self._closed:
                return
            if not self._gpus:
                self._gpus = [gpu for gpu in self._nvml.start().gpus if not self._wanted or gpu.index in self._wanted]
                self._take_over()
            for gpu in self._gpus:
                with contextlib.suppress(NvmlError):
                    self._look_at(gpu)

    def _look_at(self, gpu: Gpu) -> None:
        hot = bool(self._nvml.read(gpu, "throttled").get("gpu_throttled_thermal"))
        self._hot[gpu.uuid] = self._hot.get(gpu.uuid, 0) + 1 if hot else 0
        self._cool[gpu.uuid] = 0 if hot else self._cool.get(gpu.uuid, 0) + 1
        if self._hot[gpu.uuid] >= _HOT_LOOKS:
            self._hot[gpu.uuid] = 0
            self._lower(gpu)
        elif self._cool[gpu.uuid] >= _COOL_LOOKS:
            self._cool[gpu.uuid] = 0
            self._raise(gpu)

    def _raise(self, gpu: Gpu) -> None:
        if gpu.uuid in self._told:
            self._told.discard(gpu.uuid)
            self._tell(gpu.index, "")
        now, _ = self._nvml.power_limits(gpu)
        if now < self._found.get(gpu.uuid, 0.0):
            self._nvml.limit_power(gpu, min(self._found[gpu.uuid], now / _LOWER))

    def _lower(self, gpu: Gpu) -> None:
        try:
            now, possible = self._nvml.power_limits(gpu)
            least = max(self._least, possible)
            if now <= least:
                self._say(gpu, f"GPU {gpu.index} is throttled for heat at {now:.0f} W, which is as low as it may get")
                return
            self._write_down(gpu, now)
            self._nvml.limit_power(gpu, max(least, now * _LOWER))
        except NvmlError as error:
            self._say(gpu, f"GPU {gpu.index} is throttled for heat, and its power cannot be limited: {error}")

    def _say(self, gpu: Gpu, why: str) -> None:
        if gpu.uuid not in self._told:
            self._told.add(gpu.uuid)
            self._tell(gpu.index, why)

    # Putting it back.

    def _take_over(self) -> None:
        """What an agent before us has changed is ours to put back."""
        if self._undo.exists() and self._undo.stat().st_size:
            self._hold()

    def _write_down(self, gpu: Gpu, watts: float) -> None:
        held = self._held or self._hold()
        if gpu.uuid not in self._found:
            self._found[gpu.uuid] = watts
            held.write(json.dumps([gpu.uuid, watts]) + "\n")
            held.flush()
            os.fsync(held.fileno())

    def _hold(self) -> TextIO:
        """As long as we live nobody else puts it back; and when we die somebody does."""
        self._held = self._undo.open("a+")
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self._found = _written(self._held)
        command = [sys.executable, "-m", "holdfast.agent.heat", str(self._undo), str(self._after_us_s)]
        self._watchdog = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._watchdog.stdout is not None
        self._watchdog.stdout.readline()  # It has the file open, and does not need its name any more.
        return self._held

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._held is not None and self._watchdog is not None:
                put_back(self._held, self._nvml)
                self._watchdog.communicate()
                self._held.close()


def put_back(held: TextIO, nvml: Nvml) -> None:
    """Each GPU that is still there gets the limit it had, and what was written down is forgotten."""
    with contextlib.suppress(NvmlError):
        found = _written(held)
        for gpu in nvml.start().gpus if found else ():
            with contextlib.suppress(NvmlError, KeyError):
                nvml.limit_power(gpu, found[gpu.uuid])
        held.truncate(0)


def _written(held: TextIO) -> dict[str, float]:
    held.seek(0)
    return dict(json.loads(line) for line in held if line.endswith("\n"))


def _wait_and_put_back(path: Path, after_us_s: float) -> None:
    with path.open("a+") as held:
        print("ready", flush=True)
        os.read(sys.stdin.fileno(), 1)  # Nothing is ever written: it ends when the agent does.
        deadline = time.monotonic() + after_us_s
        while _written(held) and time.monotonic() < deadline:
            time.sleep(0.1)
        with contextlib.suppress(BlockingIOError):  # An agent came, and has it in its hands.
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            put_back(held, Library())


if __name__ == "__main__":
    _wait_and_put_back(Path(sys.argv[1]), float(sys.argv[2]))
