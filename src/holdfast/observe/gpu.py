"""GPUs, as their driver shows them through NVML.

Sees        every GPU's readings, the fast ones each second and the slow ones every 5, 10 or 30 s (`nvml.GROUPS`); the driver's XID events.
Says        gpus, and all metrics whose names begin with gpu_ except gpu_xid_total (`xid.py`). Events: `gpu_lost` and `gpu_back` with uuid, PCI address and
            index, `gpu_unusable` for one that cannot be opened, `gpu_reset_required`, `gpu_hardware_slowdown`, `gpu_driver_gone`, `gpu_driver_back`, and
            `no_gpus`, once, on a machine without driver.
Is wrong    when the driver lies; a reading it does not support on a GPU is absent until the driver is started anew. `gpus` counts those that answer, so it
            falls with a GPU that fell off the bus although the driver still lists it. In MIG mode readings are the whole GPU's, and some are absent.
            A call that never returns stops all readings of all GPUs: the runner then says which call it is. While it runs, the driver is in use: a GPU
            cannot be reset, nor the driver unloaded, before the agent is stopped.
Costs       6 driver calls for each GPU a second, and as many again in the course of 10 s. Measure it: `benchmarks/probes.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from holdfast.domain.kernel_event import KernelEvent
from holdfast.domain.signal import Signal
from holdfast.observe.nvml import GROUPS, Code, Gpu, Library, Nvml, NvmlError
from holdfast.observe.probe import Seen
from holdfast.observe.xid import Xids

ABSENT_RETRY_S: Final = 60.0  # No driver: it may be loaded later.
GONE_RETRY_S: Final = 10.0  # There was one: it is probably being restarted.
LOST_RETRY_S: Final = 300.0  # A lost GPU shows again only to a new start, which is dear, and after somebody has reset it.
FAILED_RETRY_S: Final = 30.0  # A reading that failed for an unknown reason.

_FOR_GOOD: Final = {
    Code.NOT_SUPPORTED, Code.NO_PERMISSION, Code.FUNCTION_NOT_FOUND, Code.INVALID_ARGUMENT, Code.VGPU_ECC_NOT_SUPPORTED, Code.ARGUMENT_VERSION_MISMATCH,
    Code.DEPRECATED,
}  # fmt: skip
_LOST: Final = {Code.GPU_IS_LOST, Code.GPU_NOT_FOUND}
_NO_DRIVER: Final = {Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIBRARY_NOT_FOUND, Code.LIB_RM_VERSION_MISMATCH}


class Gpus:
    name = "gpu"
    every_s = 1.0
    timeout_s = 10.0

    def __init__(
        self, nvml: Nvml | None = None, xids: Xids | None = None, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.doing = ""
        self._nvml = nvml if nvml is not None else Library()
        self._xids = xids
        self._monotonic = monotonic
        self._wall = wall
        self._running = False
        self._start_at = float("-inf")  # When to start, or to start anew.
        self._ever = False
        self._said_absent = False
        self._gpus: dict[str, Gpu] = {}  # By uuid, those that answer.
        self._lost: dict[str, Gpu] = {}
        self._due: dict[tuple[str, str], float] = {}  # By uuid and group; never again: infinity.
        self._told: set[tuple[str, str]] = set()  # Standing conditions that were told of: uuid and kind.

    def look(self) -> list[Seen]:
        now = self._monotonic()
        found: list[Seen] = []
        if now >= self._start_at:
            found += self._start(now)
        if self._running:
            try:
                for gpu in list(self._gpus.values()):
                    found += self._read(gpu, now)
                self._listen()
            except NvmlError as error:
                found += self._driver_failed(error, now)
        self.doing = ""
        return [Signal("gpus", float(len(self._gpus))), *found]

    # ------------------------------------------------------------------------------------------------------ the driver

    def _start(self, now: float) -> list[Seen]:
        self.doing = "the driver's start (nvmlInit)"
        try:
            found = self._nvml.start()
        except NvmlError as error:
            return self._driver_failed(error, now)
        events: list[Seen] = []
        if self._ever and not self._running:
            events.append(self._event("gpu_driver_back", f"the NVIDIA driver {found.driver} is back with {len(found.gpus)} GPUs"))
        self._running = self._ever = True
        events += self._compare({gpu.uuid: gpu for gpu in found.gpus})
        refused = [(index, reason) for index, reason in found.refused if reason.code != Code.NO_PERMISSION]  # Those are another container's.
        for index, reason in refused:
            events += self._once(("", f"gpu_unusable {index}"), self._event("gpu_unusable", f"GPU {index} cannot be opened: {reason}", of=str(index)))
        self._due.clear()
        self._start_at = now + LOST_RETRY_S if self._lost or refused else float("inf")
        return events

    def _compare(self, there: dict[str, Gpu]) -> list[Seen]:
        """With those that were there before the start."""
        events: list[Seen] = []
        known = self._gpus | self._lost
        for uuid in sorted(known.keys() - there.keys(), key=lambda uuid: known[uuid].index):
            events += self._lose(known[uuid], "the driver does not list it any more")
        for uuid in sorted(self._lost.keys() & there.keys(), key=lambda uuid: there[uuid].index):
            gpu = there[uuid]
            del self._lost[uuid]
            self._told.discard((uuid, "gpu_lost"))
            events.append(self._event("gpu_back", f"GPU {gpu.index} ({gpu.uuid}, {gpu.pci}) is back", gpu))
        self._gpus = there
        for gpu in there.values():
            if self._xids is not None:
                self._xids.know(gpu.pci, str(gpu.index), gpu.uuid)
        return events

    def _driver_failed(self, error: NvmlError, now: float) -> list[Seen]:
        """No driver, or none any more. All else that it can say is tried again later too."""
        gone, self._running = self._ever and bool(self._gpus), False
        self._start_at = now + (GONE_RETRY_S if self._ever else ABSENT_RETRY_S)
        self._lost |= self._gpus
        self._gpus = {}
        if gone:
            names = ", ".join(f"{gpu.index} ({gpu.uuid}, {gpu.pci})" for gpu in sorted(self._lost.values(), key=lambda gpu: gpu.index))
            changed = error.code == Code.LIB_RM_VERSION_MISMATCH
            restart = "; it was changed under the agent, which sees the new one only after a restart of its own" if changed else ""
            return [self._event("gpu_driver_gone", f"the NVIDIA driver is gone ({error}), and with it GPU {names}{restart}")]
        if self._ever or self._said_absent:
            return []
        self._said_absent = True
        return [self._event("no_gpus", f"no GPU can be seen here: {error}")]

    # ---------------------------------------------------------------------------------------------------------- a GPU

    def _read(self, gpu: Gpu, now: float) -> list[Seen]:
        found: list[Seen] = []
        for number, (group, every_s) in enumerate(GROUPS.items()):
            due = self._due.get((gpu.uuid, group))
            if due is not None and now < due:
                continue
            self.doing = f"GPU {gpu.index} ({gpu.pci}): {group}"
            # A look that comes a little early must not skip a turn. The first turns differ, so that slow readings do not come all in one look.
            spread = 1.0 if due is not None else 1.0 - (number + gpu.index) % 5 / 10
            self._due[gpu.uuid, group] = now + every_s * spread - 0.5 * self.every_s
            try:
                values = self._nvml.read(gpu, group)
            except NvmlError as error:
                if error.code in _NO_DRIVER:
                    raise
                if error.code in _LOST:
                    del self._gpus[gpu.uuid]
                    self._start_at = min(self._start_at, now + LOST_RETRY_S)
                    return [*found, *self._lose(gpu, str(error))]
                found += self._failed(gpu, group, error, now)
                continue
            found += [Signal(name, value, str(gpu.index)) for name, value in values.items()]
            found += self._slowed(gpu, values.get("gpu_throttled_hardware"))
        return found

    def _failed(self, gpu: Gpu, group: str, error: NvmlError, now: float) -> list[Seen]:
        self._due[gpu.uuid, group] = float("inf") if error.code in _FOR_GOOD else now + FAILED_RETRY_S
        if error.code != Code.RESET_REQUIRED:
            return []
        event = self._event("gpu_reset_required", f"GPU {gpu.index} ({gpu.uuid}, {gpu.pci}) cannot be used until it is reset: {error}", gpu)
        return self._once((gpu.uuid, event.kind), event)

    def _slowed(self, gpu: Gpu, slowed: float | None) -> list[Seen]:
        """An edge: told when it begins, and again only after it ended."""
        key = (gpu.uuid, "gpu_hardware_slowdown")
        if slowed == 0:
            self._told.discard(key)
        if not slowed:
            return []
        return self._once(key, self._event(key[1], f"hardware slows the clocks of GPU {gpu.index} ({gpu.pci}): power brake or heat", gpu))

    def _lose(self, gpu: Gpu, why: str) -> list[Seen]:
        self._lost[gpu.uuid] = gpu
        return self._once((gpu.uuid, "gpu_lost"), self._event("gpu_lost", f"GPU {gpu.index} ({gpu.uuid}, {gpu.pci}) is lost: {why}", gpu))

    def _listen(self) -> None:
        self.doing = "the driver's events (nvmlEventSetWait)"
        try:
            heard = self._nvml.xids()
        except NvmlError as error:
            if error.code in _NO_DRIVER:
                raise
            return  # With a lost GPU in the set, waiting fails. The kernel log tells the same.
        for xid in heard:
            if self._xids is not None:
                self._xids.heard_from_driver(xid.pci, xid.code)

    def _once(self, key: tuple[str, str], event: KernelEvent) -> list[Seen]:
        if key in self._told:
            return []
        self._told.add(key)
        return [event]

    def _event(self, kind: str, message: str, gpu: Gpu | None = None, of: str = "") -> KernelEvent:
        if gpu is None:
            return KernelEvent(kind=kind, message=message, at=self._wall(), of=of)
        return KernelEvent(kind=kind, message=message, at=self._wall(), of=str(gpu.index), pci=gpu.pci, uuid=gpu.uuid)
