"""NVML without a GPU: a driver that does what it is told, and fails as told.

    nvml = FakeNvml(gpus=8)
    nvml.values[3]["gpu_temperature_celsius"] = 91
    nvml.fail(3, "power", Code.NOT_SUPPORTED)        this reading of this GPU
    nvml.drop(3)                                     it fell off the bus
    nvml.raise_xid(3, 79)
    nvml.fail(3, "limit_power", Code.NO_PERMISSION)  its power limit cannot be changed
    nvml.unload(); nvml.load()                       the driver is restarted
    nvml.hang(); nvml.go_on()                        no call returns in between
"""

from __future__ import annotations

import threading
from typing import Final

from holdfast.observe.nvml import GROUPS, Code, Found, Gpu, NvmlError, Xid

# As an H200 that works says it.
_READINGS: Final[dict[str, dict[str, float]]] = {
    "temperature": {"gpu_temperature_celsius": 55.0},
    "power": {"gpu_power_watts": 480.0},
    "sm_clock": {"gpu_sm_clock_hertz": 1.755e9},
    "utilisation": {"gpu_utilisation_ratio": 0.97},
    "memory": {"gpu_memory_used_bytes": 90e9, "gpu_memory_size_bytes": 150.7e9},
    "throttled": {"gpu_throttled_thermal": 0.0, "gpu_throttled_power": 0.0, "gpu_throttled_hardware": 0.0},
    "memory_clock": {"gpu_memory_clock_hertz": 3.201e9},
    "memory_temperature": {"gpu_memory_temperature_celsius": 62.0},
    "processes": {"gpu_processes": 1.0},
    "ecc_corrected": {"gpu_ecc_corrected_total": 0.0},
    "ecc_uncorrected": {"gpu_ecc_uncorrected_total": 0.0},
    "remapped": {"gpu_rows_remapped_total": 0.0, "gpu_remap_pending": 0.0, "gpu_remap_failed": 0.0},
    "pcie_replays": {"gpu_pcie_replays_total": 0.0},
    "pcie_width": {"gpu_pcie_width": 16.0},
    "nvlink": {"gpu_nvlink_errors_total": 0.0},
    "power_limit": {"gpu_power_limit_watts": 700.0},
    "sm_clock_max": {"gpu_sm_clock_max_hertz": 1.98e9},
    "pcie_width_max": {"gpu_pcie_width_max": 16.0},
    "pages_retired": {"gpu_pages_retired_total": 0.0},
}
assert _READINGS.keys() == GROUPS.keys()


class FakeNvml:
    def __init__(self, gpus: int = 1) -> None:
        self.all = [Gpu(index=index, uuid=f"GPU-{index:08x}", pci=f"0000:{16 + index:02x}:00", model="Fake H200") for index in range(gpus)]
        self.values: list[dict[str, float]] = [{name: value for group in _READINGS.values() for name, value in group.items()} for _ in self.all]
        self.calls = 0
        self.starts = 0
        self._failing: dict[tuple[int, str], int] = {}
        self._dropped: set[int] = set()
        self._refused: dict[int, int] = {}
        self._unloaded: int | None = None
        self._xids: list[Xid] = []
        self._may_go_on = threading.Event()
        self._may_go_on.set()

    # What a test does to it.

    def fail(self, index: int, group: str, code: int) -> None:
        self._failing[index, group] = code

    def mend(self, index: int, group: str) -> None:
        self._failing.pop((index, group), None)

    def drop(self, index: int) -> None:
        self._dropped.add(index)

    def bring_back(self, index: int) -> None:
        self._dropped.discard(index)

    def refuse(self, index: int, code: int) -> None:
        """It is counted, and cannot be opened."""
        self._refused[index] = code

    def raise_xid(self, index: int, code: int) -> None:
        self._xids.append(Xid(self.all[index].pci, code))

    def unload(self, code: int = Code.DRIVER_NOT_LOADED) -> None:
        self._unloaded = code

    def load(self) -> None:
        self._unloaded = None

    def hang(self) -> None:
        self._may_go_on.clear()

    def go_on(self) -> None:
        self._may_go_on.set()

    # What the probe calls.

    def start(self) -> Found:
        self._enter()
        self.starts += 1
        there = tuple(gpu for gpu in self.all if gpu.index not in self._dropped and gpu.index not in self._refused)
        return Found(gpus=there, refused=tuple((index, NvmlError(code)) for index, code in self._refused.items()), driver="999.0")

    def stop(self) -> None:
        self._enter()

    def read(self, gpu: Gpu, group: str) -> dict[str, float]:
        self._enter()
        if gpu.index in self._dropped:
            raise NvmlError(Code.GPU_IS_LOST)
        if (gpu.index, group) in self._failing:
            raise NvmlError(self._failing[gpu.index, group])
        return {name: self.values[gpu.index][name] for name in _READINGS[group]}

    def xids(self) -> list[Xid]:
        self._enter()
        heard, self._xids = self._xids, []
        return heard

    def power_limits(self, gpu: Gpu) -> tuple[float, float]:
        return self.read(gpu, "power_limit")["gpu_power_limit_watts"], 200.0

    def limit_power(self, gpu: Gpu, watts: float) -> None:
        self.read(gpu, "power_limit")
        if (gpu.index, "limit_power") in self._failing:
            raise NvmlError(self._failing[gpu.index, "limit_power"])
        self.values[gpu.index]["gpu_power_limit_watts"] = watts

    def _enter(self) -> None:
        self._may_go_on.wait()
        self.calls += 1
        if self._unloaded is not None:
            raise NvmlError(self._unloaded)
