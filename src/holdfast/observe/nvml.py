"""NVML, as much of it as is used: a few calls behind a Protocol, the library itself, and the numbers of its errors.

    nvml.start()                 begin, or begin anew after a loss: the GPUs that can be used, and those that cannot
    nvml.read(gpu, "power")      one group of metrics that stand or fall together
    nvml.xids()                  the errors reported since the last call, without waiting
    nvml.limit_power(gpu, 500)   only root may; and nvml.power_limits(gpu): what it is, and the least that it can be
    nvml.stop()

Every call may raise `NvmlError`, and may never come back. `FakeNvml` in `fake_nvml.py` does both on request. Names of functions differ between generations
of drivers; that is dealt with here, and nobody else has to know.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol

from holdfast.errors import Retryable
from holdfast.observe.xid import short_pci


class Code(IntEnum):
    """nvmlReturn_t, as far as it matters here."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    VGPU_ECC_NOT_SUPPORTED = 22
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


class NvmlError(Retryable):
    """The driver refused or failed."""

    def __init__(self, code: int, words: str = "") -> None:
        name = Code(code).name if code in set(Code) else "error"
        super().__init__(f"NVML {name} ({code}){f': {words}' if words else ''}")
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    index: int
    uuid: str
    pci: str  # As "0000:3b:00".
    model: str = ""
    handle: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    gpus: tuple[Gpu, ...]
    refused: tuple[tuple[int, NvmlError], ...] = ()  # By index, GPUs that are counted and cannot be opened.
    driver: str = ""


@dataclass(frozen=True, slots=True)
class Xid:
    pci: str
    code: int


class Nvml(Protocol):
    def start(self) -> Found: ...

    def stop(self) -> None: ...

    def read(self, gpu: Gpu, group: str) -> dict[str, float]: ...

    def xids(self) -> list[Xid]: ...

    def power_limits(self, gpu: Gpu) -> tuple[float, float]: ...

    def limit_power(self, gpu: Gpu, watts: float) -> None: ...


# What is read together, and how often in seconds: what changes by itself at every look, what only errors change now and then.
GROUPS: Final[dict[str, float]] = {
    "temperature": 1.0,
    "power": 1.0,
    "sm_clock": 1.0,
    "utilisation": 1.0,
    "memory": 1.0,
    "throttled": 1.0,
    "memory_clock": 5.0,
    "memory_temperature": 5.0,
    "processes": 10.0,
    "ecc_corrected": 10.0,
    "ecc_uncorrected": 10.0,
    "remapped": 10.0,
    "pcie_replays": 10.0,
    "pcie_width": 10.0,
    "nvlink": 10.0,
    "power_limit": 30.0,
    "sm_clock_max": 30.0,
    "pcie_width_max": 30.0,
    "pages_retired": 30.0,
}

# Bits of nvmlDeviceGetCurrentClocksEventReasons, which earlier drivers call throttle reasons.
SOFTWARE_POWER, HARDWARE, SOFTWARE_HEAT, HARDWARE_HEAT, POWER_BRAKE = 0x04, 0x08, 0x20, 0x40, 0x80

_NOTHING: Final = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)  # How some drivers say that a number is not to be had.
_XIDS_MAX: Final = 64
_WAIT_MS: Final = 1  # 0 is not documented to mean "do not wait".


class Library:
    """The real one. `module` is pynvml, of the package nvidia-ml-py; it is imported, and the library loaded, when first needed."""

    def __init__(self, module: Any = None) -> None:
        self._module = module
        self._events: Any = None
        self._addresses: dict[int, Gpu] = {}
        self._started = False

    def start(self) -> Found:
        self.stop()
        if self._module is None:
            import pynvml

            self._module = pynvml
        self._call("nvmlInit")
        self._started = True
        found, refused = [], []
        for index in range(self._call("nvmlDeviceGetCount")):
            try:
                found.append(self._open(index))
            except NvmlError as error:  # Lost already, or another container's.
                refused.append((index, error))
        self._addresses = {address: gpu for gpu in found if (address := _address(gpu.handle)) is not None}
        self._listen(found)
        return Found(gpus=tuple(found), refused=tuple(refused), driver=self._words("nvmlSystemGetDriverVersion"))

    def stop(self) -> None:
        """Whatever is left of an earlier start. A driver that is gone cannot be told goodbye."""
        events, self._events = self._events, None
        for name, arguments in (("nvmlEventSetFree", (events,)), ("nvmlShutdown", ())):
            if self._started and (arguments != (None,)):
                try:
                    self._call(name, *arguments)
                except NvmlError:
                    continue
        self._started = False

    def read(self, gpu: Gpu, group: str) -> dict[str, float]:
        try:
            values = _READ[group](self, gpu.handle)
        except (AttributeError, TypeError) as error:  # Another pynvml, with other names or arguments: this reading is not to be had, the others are.
            raise NvmlError(Code.FUNCTION_NOT_FOUND, f"{group}: {error}") from error
        return {name: float(value) for name, value in values.items() if value not in _NOTHING}

    def xids(self) -> list[Xid]:
        found: list[Xid] = []
        while self._events is not None and len(found) < _XIDS_MAX:
            try:
                event = self._call("nvmlEventSetWait", self._events, _WAIT_MS)
            except NvmlError as error:
                if error.code == Code.TIMEOUT:
                    break
                raise
            if event.eventType == self._module.nvmlEventTypeXidCriticalError:
                found.append(Xid(self._pci_of(event.device), int(event.eventData)))
        return found

    def power_limits(self, gpu: Gpu) -> tuple[float, float]:
        now_mw = self._call("nvmlDeviceGetPowerManagementLimit", gpu.handle)
        least_mw, _ = self._call("nvmlDeviceGetPowerManagementLimitConstraints", gpu.handle)
        return now_mw / 1000, least_mw / 1000

    def limit_power(self, gpu: Gpu, watts: float) -> None:
        self._call("nvmlDeviceSetPowerManagementLimit", gpu.handle, round(watts * 1000))

    # ---------------------------------------------------------------------------------------------------------- details

    def _call(self, name: str, *arguments: Any) -> Any:
        """pynvml raises FUNCTION_NOT_FOUND for what the driver lacks; what pynvml itself lacks is the same to us."""
        function = getattr(self._module, name, None)
        if function is None:
            raise NvmlError(Code.FUNCTION_NOT_FOUND, name)
        try:
            return function(*arguments)
        except self._module.NVMLError as error:
            raise NvmlError(int(error.value), name) from None
        except self._module.NVMLLibraryMismatchError:  # How pynvml says that the driver is older than it is; no NVMLError of its own.
            raise NvmlError(Code.FUNCTION_NOT_FOUND, name) from None

    def _first(self, *calls: tuple[Any, ...]) -> Any:
        """The answer of the first function that this driver has."""
        for call in calls[:-1]:
            try:
                return self._call(*call)
            except NvmlError as error:
                if error.code not in (Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH, Code.DEPRECATED, Code.NOT_SUPPORTED):
                    raise
        return self._call(*calls[-1])

    def _words(self, name: str, *arguments: Any) -> str:
        try:
            said = self._call(name, *arguments)
        except NvmlError:
            return ""
        return said.decode(errors="replace") if isinstance(said, bytes) else str(said)

    def _open(self, index: int) -> Gpu:
        handle = self._call("nvmlDeviceGetHandleByIndex", index)
        bus = self._call("nvmlDeviceGetPciInfo", handle).busId
        uuid = self._call("nvmlDeviceGetUUID", handle)
        texts = [text.decode(errors="replace") if isinstance(text, bytes) else str(text) for text in (bus, uuid)]
        return Gpu(index=index, uuid=texts[1], pci=short_pci(texts[0]), model=self._words("nvmlDeviceGetName", handle), handle=handle)

    def _listen(self, gpus: list[Gpu]) -> None:
        """Be told of XIDs. Where that is not supported (older cards, some containers), the kernel log is the only source."""
        try:
            self._events = self._call("nvmlEventSetCreate")
        except NvmlError:
            return
        for gpu in gpus:
            try:
                self._call("nvmlDeviceRegisterEvents", gpu.handle, self._module.nvmlEventTypeXidCriticalError, self._events)
            except NvmlError:
                continue

    def _pci_of(self, handle: Any) -> str:
        gpu = self._addresses.get(_address(handle) or 0)
        if gpu is not None:
            return gpu.pci
        try:  # A device of a MIG slice has a handle of its own.
            bus = self._call("nvmlDeviceGetPciInfo", handle).busId
        except NvmlError:
            return ""
        return short_pci(bus.decode(errors="replace") if isinstance(bus, bytes) else str(bus))

    def field(self, handle: Any, *names: str) -> list[float | None]:
        """Values by field id, all in one call; None for each that this GPU does not have."""
        known = [(name, getattr(self._module, name)) for name in names if hasattr(self._module, name)]
        answered = dict(zip([name for name, _ in known], self._call("nvmlDeviceGetFieldValues", handle, [id for _, id in known]), strict=False))
        return [_number(answered[name]) if name in answered else None for name in names]


def _address(handle: Any) -> int | None:
    """Handles are pointers, and each call makes a new object of the same one."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except (ctypes.ArgumentError, TypeError):
        return None


_VALUES: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # By nvmlValueType_t.


def _number(value: Any) -> float | None:
    return float(getattr(value.value, _VALUES[value.valueType])) if value.nvmlReturn == 0 and value.valueType < len(_VALUES) else None


# ------------------------------------------------------------------------------------------------------------ groups

_Group = Callable[[Library, Any], dict[str, float]]


def _temperature(nvml: Library, handle: Any) -> dict[str, float]:
    sensor = nvml._module.NVML_TEMPERATURE_GPU
    return {"gpu_temperature_celsius": nvml._first(("nvmlDeviceGetTemperatureV", handle, sensor), ("nvmlDeviceGetTemperature", handle, sensor))}


def _memory_temperature(nvml: Library, handle: Any) -> dict[str, float]:
    (celsius,) = nvml.field(handle, "NVML_FI_DEV_MEMORY_TEMP")
    return _some({"gpu_memory_temperature_celsius": celsius or None})  # 0 is what cards without the sensor say.


def _power(nvml: Library, handle: Any) -> dict[str, float]:
    return {"gpu_power_watts": nvml._call("nvmlDeviceGetPowerUsage", handle) / 1000}


def _power_limit(nvml: Library, handle: Any) -> dict[str, float]:
    return {"gpu_power_limit_watts": nvml._first(("nvmlDeviceGetEnforcedPowerLimit", handle), ("nvmlDeviceGetPowerManagementLimit", handle)) / 1000}


def _sm_clock(nvml: Library, handle: Any) -> dict[str, float]:
    return {"gpu_sm_clock_hertz": nvml._call("nvmlDeviceGetClockInfo", handle, nvml._module.NVML_CLOCK_SM) * 1e6}


def _sm_clock_max(nvml: Library, handle: Any) -> dict[str, float]:
    return {"gpu_sm_clock_max_hertz": nvml._call("nvmlDeviceGetMaxClockInfo", handle, nvml._module.NVML_CLOCK_SM) * 1e6}


def _memory_clock(nvml: Library, handle: Any) -> dict[str, float]:
    return {"gpu_memory_clock_hertz": nvml._call("nvmlDeviceGetClockInfo", handle, nvml._module.NVML_CLOCK_MEM) * 1e6}


def _utilisation(nvml: Library, handle: Any) -> dict[str, float]:
    return {"gpu_utilisation_ratio": nvml._call("nvmlDeviceGetUtilizationRates", handle).gpu / 100}


def _memory(nvml: Library, handle: Any) -> dict[str, float]:
    """The second version leaves what the driver keeps for itself out of what is used."""
    version = getattr(nvml._module, "nvmlMemory_v2", None)
    plain = ("nvmlDeviceGetMemoryInfo", handle)
    seen = nvml._first((*plain, version), plain) if version is not None else nvml._call(*plain)
    return {"gpu_memory_used_bytes": seen.used, "gpu_memory_size_bytes": seen.total}


def _throttled(nvml: Library, handle: Any) -> dict[str, float]:
    reasons = nvml._first(("nvmlDeviceGetCurrentClocksEventReasons", handle), ("nvmlDeviceGetCurrentClocksThrottleReasons", handle))
    return {
        "gpu_throttled_thermal": bool(reasons & (SOFTWARE_HEAT | HARDWARE_HEAT)),
        "gpu_throttled_power": bool(reasons & SOFTWARE_POWER),
        "gpu_throttled_hardware": bool(reasons & (HARDWARE | HARDWARE_HEAT | POWER_BRAKE)),
    }


def _processes(nvml: Library, handle: Any) -> dict[str, float]:
    return {"gpu_processes": len(nvml._first(("nvmlDeviceGetComputeRunningProcesses_v3", handle), ("nvmlDeviceGetComputeRunningProcesses_v2", handle)))}


def _ecc_corrected(nvml: Library, handle: Any) -> dict[str, float]:
    return {"gpu_ecc_corrected_total": _ecc(nvml, handle, "NVML_MEMORY_ERROR_TYPE_CORRECTED")}


def _ecc_uncorrected(nvml: Library, handle: Any) -> dict[str, float]:
    return {"gpu_ecc_uncorrected_total": _ecc(nvml, handle, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED")}


def _ecc(nvml: Library, handle: Any, kind: str) -> float:
    return float(nvml._call("nvmlDeviceGetTotalEccErrors", handle, getattr(nvml._module, kind), nvml._module.NVML_VOLATILE_ECC))


def _remapped(nvml: Library, handle: Any) -> dict[str, float]:
    corrected, uncorrected, pending, failed = nvml._call("nvmlDeviceGetRemappedRows", handle)
    return {"gpu_rows_remapped_total": corrected + uncorrected, "gpu_remap_pending": bool(pending), "gpu_remap_failed": bool(failed)}


def _pages_retired(nvml: Library, handle: Any) -> dict[str, float]:
    """Of cards before those that remap rows."""
    causes = (nvml._module.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS, nvml._module.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
    return {"gpu_pages_retired_total": sum(len(nvml._call("nvmlDeviceGetRetiredPages", handle, cause)) for cause in causes)}


def _pcie_replays(nvml: Library, handle: Any) -> dict[str, float]:
    return {"gpu_pcie_replays_total": nvml._call("nvmlDeviceGetPcieReplayCounter", handle)}


def _pcie_width(nvml: Library, handle: Any) -> dict[str, float]:
    return {"gpu_pcie_width": nvml._call("nvmlDeviceGetCurrPcieLinkWidth", handle)}


def _pcie_width_max(nvml: Library, handle: Any) -> dict[str, float]:
    return {"gpu_pcie_width_max": nvml._call("nvmlDeviceGetMaxPcieLinkWidth", handle)}


def _nvlink(nvml: Library, handle: Any) -> dict[str, float]:
    """Up to Ampere the totals of all links; from Hopper on they count under other names."""
    older = [f"NVML_FI_DEV_NVLINK_{what}_ERROR_COUNT_TOTAL" for what in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")]
    newer = [f"NVML_FI_DEV_NVLINK_ERROR_DL_{what}" for what in ("REPLAY", "RECOVERY", "CRC")]
    values = nvml.field(handle, *older, *newer)
    for part in (values[len(older) :], values[: len(older)]):
        counts = [count for count in part if count is not None]
        if counts:
            return {"gpu_nvlink_errors_total": sum(counts)}
    raise NvmlError(Code.NOT_SUPPORTED, "NVLink error counters")


def _some(values: dict[str, float | None]) -> dict[str, float]:
    found = {name: value for name, value in values.items() if value is not None}
    if not found:
        raise NvmlError(Code.NOT_SUPPORTED, ", ".join(values))
    return found


_READ: Final[dict[str, _Group]] = {
    "temperature": _temperature, "power": _power, "sm_clock": _sm_clock, "utilisation": _utilisation, "memory": _memory, "throttled": _throttled,
    "memory_clock": _memory_clock, "memory_temperature": _memory_temperature, "processes": _processes, "ecc_corrected": _ecc_corrected,
    "ecc_uncorrected": _ecc_uncorrected, "remapped": _remapped, "pcie_replays": _pcie_replays, "pcie_width": _pcie_width, "nvlink": _nvlink,
    "power_limit": _power_limit, "sm_clock_max": _sm_clock_max, "pcie_width_max": _pcie_width_max, "pages_retired": _pages_retired,
}  # fmt: skip
