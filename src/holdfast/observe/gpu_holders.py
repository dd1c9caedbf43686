"""Who holds the GPUs of this machine: asked when a worker came to none, or to too little of one.

The driver may never answer. So it is asked in a thread that is left behind if it does not come back in time, and then nobody is named.
"""

from __future__ import annotations

import contextlib
import importlib
import pwd
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.domain.gpu_holder import GpuHolder


def gpu_holders(ours: Callable[[int], bool], *, module: Any = None, within_s: float = 1.0) -> tuple[int, tuple[GpuHolder, ...]]:
    """How many GPUs there are, -1 when the driver does not say, and who has memory on them; `ours` says of a process whether it belongs to the job."""
    answers: list[tuple[int, tuple[GpuHolder, ...]]] = []

    def ask() -> None:
        with contextlib.suppress(Exception):  # Whatever the driver or another pynvml says instead: nothing is known then.
            answers.append(_asked(ours, module))

    thread = threading.Thread(target=ask, name="gpu holders", daemon=True)
    thread.start()
    thread.join(within_s)
    return answers[0] if answers else (-1, ())


def _asked(ours: Callable[[int], bool], module: Any) -> tuple[int, tuple[GpuHolder, ...]]:
    module = module or importlib.import_module("pynvml")
    module.nvmlInit()
    try:
        count, found = int(module.nvmlDeviceGetCount()), []
        for index in range(count):
            for process in module.nvmlDeviceGetComputeRunningProcesses(module.nvmlDeviceGetHandleByIndex(index)):
                pid, held = int(process.pid), int(process.usedGpuMemory or 0)  # None in a container, where the driver does not say.
                found.append(GpuHolder(pid=pid, user=_user(pid), held_bytes=held, gpu=index, ours=ours(pid)))
        return count, tuple(found)
    finally:
        module.nvmlShutdown()


def _user(pid: int) -> str:
    """Empty for a process of another namespace, which is not seen from here."""
    with contextlib.suppress(OSError, KeyError):
        return pwd.getpwuid(Path(f"/proc/{pid}").stat().st_uid).pw_name
    return ""
