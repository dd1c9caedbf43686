"""Who holds the GPUs is told by pid and user, and a driver that does not answer holds nobody up."""

from __future__ import annotations

import getpass
import os
import threading
from types import SimpleNamespace

from holdfast.domain.gpu_holder import GpuHolder
from holdfast.observe.gpu_holders import gpu_holders


def driver(*, hang: threading.Event | None = None) -> SimpleNamespace:
    def processes(handle: int) -> list[SimpleNamespace]:
        if hang is not None:
            hang.wait(60)
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=5), SimpleNamespace(pid=2**22, usedGpuMemory=None)] if handle == 1 else []

    return SimpleNamespace(
        nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetComputeRunningProcesses=processes,
    )  # fmt: skip


def test_holders_are_named() -> None:
    count, holders = gpu_holders(lambda pid: pid == os.getpid(), module=driver(), within_s=30.0)
    assert count == 2
    assert holders == (
        GpuHolder(pid=os.getpid(), user=getpass.getuser(), held_bytes=5, gpu=1, ours=True), GpuHolder(pid=2**22, user="", held_bytes=0, gpu=1),
    )  # fmt: skip


def test_a_driver_that_does_not_answer_or_is_not_there_names_nobody() -> None:
    hang = threading.Event()
    try:
        assert gpu_holders(lambda _: False, module=driver(hang=hang), within_s=0.05) == (-1, ())
    finally:
        hang.set()
    assert gpu_holders(lambda _: False, module=SimpleNamespace(), within_s=30.0) == (-1, ())
