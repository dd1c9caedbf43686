"""GPUs, with a driver that does what it is told: every reading, every way to fail, and each error counted once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from observe.seeing import Hands, events, values

from holdfast.domain.metric import METRICS, Scope
from holdfast.observe.fake_nvml import FakeNvml
from holdfast.observe.gpu import ABSENT_RETRY_S, FAILED_RETRY_S, GONE_RETRY_S, LOST_RETRY_S, Gpus
from holdfast.observe.nvml import GROUPS, Code, Gpu, Library, NvmlError, Xid
from holdfast.observe.xid import SAME_S, Xids

ALL = {name for name, metric in METRICS.items() if metric.scope is Scope.GPU}


class Bench:
    """A probe, its driver, and the clock in hand."""

    def __init__(self, gpus: int = 2) -> None:
        self.nvml, self.clock, self.wall = FakeNvml(gpus), Hands(), Hands(1_700_000_000.0)
        self.xids = Xids(self.wall)
        self.probe = Gpus(self.nvml, self.xids, self.clock, self.wall)

    def look(self, after_s: float = 1.0) -> list[Any]:
        self.clock.now += after_s
        self.wall.now += after_s
        return [*self.probe.look(), *self.xids.look()]


def test_a_gpu_says_everything_the_catalogue_has() -> None:
    bench = Bench()
    seen = bench.look()
    assert values(seen)["gpus"] == 2
    assert values(seen, "0").keys() == values(seen, "1").keys() == ALL
    assert values(seen, "0")["gpu_power_watts"] == 480
    assert events(seen) == []


def test_slow_readings_are_asked_for_less_often() -> None:
    bench = Bench(gpus=1)
    bench.look()
    before = bench.nvml.calls
    seen = values(bench.look(), "0")
    assert {"gpu_temperature_celsius", "gpu_power_watts", "gpu_throttled_thermal"} <= seen.keys()
    assert "gpu_ecc_uncorrected_total" not in seen
    assert bench.nvml.calls - before == sum(every_s <= 1 for every_s in GROUPS.values()) + 1
    for _ in range(9):
        seen |= values(bench.look(), "0")
    assert "gpu_ecc_uncorrected_total" in seen


def test_a_reading_that_is_not_supported_is_absent_for_good_and_asked_for_no_more() -> None:
    bench = Bench(gpus=1)
    bench.nvml.fail(0, "nvlink", Code.NOT_SUPPORTED)
    assert values(bench.look(), "0").keys() == ALL - {"gpu_nvlink_errors_total"}
    bench.nvml.mend(0, "nvlink")
    assert "gpu_nvlink_errors_total" not in values(bench.look(after_s=3600), "0")


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.TIMEOUT, 17])
def test_a_reading_that_failed_for_an_unknown_reason_is_asked_for_again_later(code: int) -> None:
    bench = Bench(gpus=1)
    bench.nvml.fail(0, "power", code)
    assert "gpu_power_watts" not in values(bench.look(), "0")
    bench.nvml.mend(0, "power")
    assert "gpu_power_watts" not in values(bench.look(), "0"), "not at once"
    assert "gpu_power_watts" in values(bench.look(after_s=FAILED_RETRY_S), "0")


def test_a_gpu_that_fell_off_the_bus_is_named_and_the_count_falls() -> None:
    bench = Bench(gpus=3)
    bench.look()
    bench.nvml.drop(1)
    seen = bench.look()
    assert values(seen)["gpus"] == 2
    (event,) = events(seen)
    assert (event.kind, event.of, event.uuid, event.pci) == ("gpu_lost", "1", "GPU-00000001", "0000:11:00")
    assert "gpu_temperature_celsius" not in values(seen, "1"), "a lost GPU has no last value that stays"
    assert {"0", "2"} <= {one.of for one in seen if hasattr(one, "metric")}
    assert events(bench.look()) == [], "told once"


def test_a_lost_gpu_that_comes_back_is_seen_after_a_new_start() -> None:
    bench = Bench(gpus=2)
    bench.look()
    bench.nvml.drop(1)
    bench.look()
    bench.nvml.bring_back(1)
    assert values(bench.look())["gpus"] == 1
    seen = bench.look(after_s=LOST_RETRY_S)
    assert values(seen)["gpus"] == 2
    assert [event.kind for event in events(seen)] == ["gpu_back"]
    starts = bench.nvml.starts
    bench.look(after_s=10 * LOST_RETRY_S)
    assert bench.nvml.starts == starts, "nothing is lost, so nothing is started anew"


@pytest.mark.parametrize("code", [Code.LIBRARY_NOT_FOUND, Code.DRIVER_NOT_LOADED])
def test_a_machine_without_driver_has_no_gpus_and_says_so_once(code: int) -> None:
    bench = Bench()
    bench.nvml.unload(code)
    seen = bench.look()
    assert values(seen) == {"gpus": 0}
    assert [event.kind for event in events(seen)] == ["no_gpus"]
    for _ in range(5):
        assert events(bench.look(after_s=ABSENT_RETRY_S)) == []
    bench.nvml.load()
    assert values(bench.look(after_s=ABSENT_RETRY_S))["gpus"] == 2, "a driver that is loaded later is found"


def test_a_driver_that_is_restarted_is_gone_and_then_back() -> None:
    bench = Bench()
    bench.look()
    bench.nvml.unload(Code.UNINITIALIZED)
    seen = bench.look()
    assert values(seen)["gpus"] == 0
    assert [event.kind for event in events(seen)] == ["gpu_driver_gone"]
    assert "GPU-00000000" in events(seen)[0].message
    assert events(bench.look(after_s=GONE_RETRY_S)) == []
    bench.nvml.load()
    seen = bench.look(after_s=GONE_RETRY_S)
    assert values(seen)["gpus"] == 2
    assert sorted(event.kind for event in events(seen)) == ["gpu_back", "gpu_back", "gpu_driver_back"]
    assert values(seen, "0").keys() >= ALL


def test_a_gpu_that_does_not_come_back_with_its_driver_is_lost() -> None:
    bench = Bench(gpus=2)
    bench.look()
    bench.nvml.unload()
    bench.look()
    bench.nvml.drop(0)
    bench.nvml.load()
    seen = bench.look(after_s=GONE_RETRY_S)
    assert values(seen)["gpus"] == 1
    assert [(event.kind, event.of) for event in events(seen)] == [("gpu_driver_back", ""), ("gpu_lost", "0"), ("gpu_back", "1")]
    assert events(bench.look(after_s=LOST_RETRY_S)) == [], "told once"


def test_a_gpu_that_cannot_be_opened_is_not_counted_and_told_once() -> None:
    bench = Bench(gpus=2)
    bench.nvml.refuse(1, Code.GPU_IS_LOST)
    seen = bench.look()
    assert values(seen)["gpus"] == 1
    assert [(event.kind, event.of) for event in events(seen)] == [("gpu_unusable", "1")]
    assert events(bench.look(after_s=LOST_RETRY_S)) == []


def test_a_gpu_that_is_another_containers_is_none_of_ours() -> None:
    bench = Bench(gpus=2)
    bench.nvml.refuse(1, Code.NO_PERMISSION)
    seen = bench.look()
    assert values(seen)["gpus"] == 1
    assert events(seen) == []
    bench.look(after_s=10 * LOST_RETRY_S)
    assert bench.nvml.starts == 1, "nor a reason to start anew"


def test_a_divided_gpu_says_what_the_driver_tells_of_the_whole() -> None:
    bench = Bench(gpus=1)
    for group in ("utilisation", "memory_temperature", "processes"):
        bench.nvml.fail(0, group, Code.NOT_SUPPORTED)
    seen = values(bench.look(), "0")
    assert "gpu_utilisation_ratio" not in seen
    assert seen["gpu_memory_used_bytes"] == 90e9


def test_a_gpu_that_needs_a_reset_is_told_once() -> None:
    bench = Bench(gpus=1)
    bench.nvml.fail(0, "power", Code.RESET_REQUIRED)
    assert [event.kind for event in events(bench.look())] == ["gpu_reset_required"]
    assert events(bench.look(after_s=FAILED_RETRY_S)) == []


def test_a_slowdown_by_hardware_is_an_edge() -> None:
    bench = Bench(gpus=1)
    kinds = []
    for slowed in (0, 1, 1, 0, 1):
        bench.nvml.values[0]["gpu_throttled_hardware"] = slowed
        kinds.append([event.kind for event in events(bench.look())])
    assert kinds == [[], ["gpu_hardware_slowdown"], [], [], ["gpu_hardware_slowdown"]]


# XIDs, from two sources.


def test_without_the_log_an_xid_is_counted_and_told_at_once() -> None:
    bench = Bench()
    assert values(bench.look(), "1")["gpu_xid_total"] == 0
    bench.nvml.raise_xid(1, 79)
    seen = bench.look()
    assert values(seen, "1")["gpu_xid_total"] == 1
    assert values(seen, "0")["gpu_xid_total"] == 0
    assert [(event.code, event.of, event.uuid, event.pci) for event in events(seen, "xid")] == [(79, "1", "GPU-00000001", "0000:11:00")]
    seen = bench.look(after_s=60)
    assert values(seen, "1")["gpu_xid_total"] == 1, "a counter, so that recovery is not hidden by a value that sticks"
    assert events(seen) == []


@pytest.mark.parametrize("log_first", [True, False])
def test_an_xid_that_both_tell_of_is_one(log_first: bool) -> None:
    bench = Bench()
    bench.xids.kernel_speaks = True
    bench.look()
    if log_first:
        assert bench.xids.heard_from_kernel("0000:10:00", 79, bench.wall.now)
    bench.nvml.raise_xid(0, 79)
    bench.look()
    if not log_first:
        assert bench.xids.heard_from_kernel("0000:10:00", 79, bench.wall.now - 0.5)
    for _ in range(10):
        seen = bench.look()
        assert events(seen) == [], "the log has told of it, in the kernel's words"
    assert values(seen, "0")["gpu_xid_total"] == 1


def test_an_event_that_a_hanging_driver_hands_over_late_is_not_a_second_one() -> None:
    bench = Bench()
    bench.xids.kernel_speaks = True
    bench.look()
    bench.xids.heard_from_kernel("0000:10:00", 119, bench.wall.now)
    bench.nvml.raise_xid(0, 119)
    assert values(bench.look(after_s=90), "0")["gpu_xid_total"] == 1
    assert values(bench.look(after_s=SAME_S), "0")["gpu_xid_total"] == 1


def test_an_xid_that_only_the_driver_tells_of_is_told_after_the_log_had_its_time() -> None:
    bench = Bench()
    bench.xids.kernel_speaks = True
    bench.look()
    bench.nvml.raise_xid(0, 94)
    assert events(bench.look()) == []
    seen = bench.look(after_s=SAME_S)
    assert [event.code for event in events(seen, "xid")] == [94]
    assert not bench.xids.heard_from_kernel("0000:10:00", 94, bench.wall.now - SAME_S), "and the log's line, if it comes at last, is the same one"


def test_two_errors_of_one_gpu_are_two_and_so_are_those_of_two_gpus() -> None:
    xids = Xids(lambda: 50.0)
    assert [xids.heard_from_kernel(*one, at=10.0) for one in (("a", 31), ("a", 43), ("b", 31))] == [True, True, True]
    assert values(xids.look(), "a") == {"gpu_xid_total": 2}, "a GPU that NVML never showed is named by where it sits"


# The library itself, with other drivers in its place.


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class NVMLLibraryMismatchError(Exception):
    """No NVMLError, in pynvml too."""


def refusing(code: int) -> Any:
    def function(*_: object) -> Any:
        raise NVMLError(code)

    return function


def fields(**known: tuple[int, int, float]) -> Any:
    """nvmlDeviceGetFieldValues: id to (return code, type, value)."""

    def function(_: object, ids: list[int]) -> list[Any]:
        found = [known.get(f"id{id}", (Code.NOT_SUPPORTED, 3, 0)) for id in ids]
        return [SimpleNamespace(nvmlReturn=code, valueType=kind, value=SimpleNamespace(uiVal=value, ullVal=value, dVal=value)) for code, kind, value in found]

    return function


def module(**functions: Any) -> Any:
    """An old driver's library, unless told otherwise."""
    constants = {
        "NVMLError": NVMLError, "NVMLLibraryMismatchError": NVMLLibraryMismatchError,
        "NVML_TEMPERATURE_GPU": 0, "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_VOLATILE_ECC": 0,
        "NVML_MEMORY_ERROR_TYPE_CORRECTED": 0,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1, "nvmlEventTypeXidCriticalError": 8, "NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS": 0,
        "NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR": 1, "NVML_FI_DEV_MEMORY_TEMP": 82, "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 52,
        "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 59, "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY": 161, "nvmlMemory_v2": 2,
    }  # fmt: skip
    return SimpleNamespace(**constants | functions)


ONE = Gpu(index=0, uuid="u", pci="0000:3b:00", handle=7)


def test_an_old_drivers_names_are_tried_when_the_new_ones_are_missing() -> None:
    library = Library(module(
        nvmlDeviceGetCurrentClocksEventReasons=refusing(Code.FUNCTION_NOT_FOUND), nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x84,
        nvmlDeviceGetTemperature=lambda *_: 61,
        nvmlDeviceGetMemoryInfo=lambda _, version=None: refusing(Code.FUNCTION_NOT_FOUND)() if version else SimpleNamespace(used=1, total=2),
    ))  # fmt: skip
    assert library.read(ONE, "throttled") == {"gpu_throttled_thermal": 0, "gpu_throttled_power": 1, "gpu_throttled_hardware": 1}
    assert library.read(ONE, "temperature") == {"gpu_temperature_celsius": 61}
    assert library.read(ONE, "memory") == {"gpu_memory_used_bytes": 1, "gpu_memory_size_bytes": 2}


def test_a_lost_gpu_is_not_mistaken_for_an_old_driver() -> None:
    library = Library(module(nvmlDeviceGetCurrentClocksEventReasons=refusing(Code.GPU_IS_LOST), nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0))
    with pytest.raises(NvmlError) as raised:
        library.read(ONE, "throttled")
    assert raised.value.code == Code.GPU_IS_LOST


def test_a_binding_that_does_not_fit_loses_that_reading_and_no_other() -> None:
    def mismatch(*_: object) -> Any:
        raise NVMLLibraryMismatchError

    library = Library(module(nvmlDeviceGetPcieReplayCounter=mismatch, nvmlDeviceGetPowerUsage=lambda: 1))
    for group in ("pcie_replays", "power"):
        with pytest.raises(NvmlError, match="FUNCTION_NOT_FOUND"):
            library.read(ONE, group)


def test_a_number_that_stands_for_none_is_absent() -> None:
    assert Library(module(nvmlDeviceGetPcieReplayCounter=lambda _: 0xFFFFFFFF)).read(ONE, "pcie_replays") == {}


def test_nvlink_errors_are_summed_and_counted_under_one_generations_names_only() -> None:
    old = Library(module(nvmlDeviceGetFieldValues=fields(id52=(0, 3, 5), id59=(0, 3, 2))))
    both = Library(module(nvmlDeviceGetFieldValues=fields(id52=(0, 3, 5), id161=(0, 3, 9))))
    assert old.read(ONE, "nvlink") == {"gpu_nvlink_errors_total": 7}
    assert both.read(ONE, "nvlink") == {"gpu_nvlink_errors_total": 9}
    with pytest.raises(NvmlError, match="NOT_SUPPORTED"):
        Library(module(nvmlDeviceGetFieldValues=fields())).read(ONE, "nvlink")


def test_the_temperature_of_memory_is_absent_where_there_is_no_sensor() -> None:
    assert Library(module(nvmlDeviceGetFieldValues=fields(id82=(0, 1, 70)))).read(ONE, "memory_temperature") == {"gpu_memory_temperature_celsius": 70}
    with pytest.raises(NvmlError, match="NOT_SUPPORTED"):
        Library(module(nvmlDeviceGetFieldValues=fields(id82=(0, 1, 0)))).read(ONE, "memory_temperature")


def test_every_group_is_readable_with_the_real_bindings_names() -> None:
    """Against the module that is installed: a name that is not there would be found only on a GPU."""
    import pynvml

    asked: list[str] = []

    class Recorder(SimpleNamespace):
        def __getattr__(self, name: str) -> Any:
            real = getattr(pynvml, name)
            if not callable(real) or isinstance(real, type):
                return real
            asked.append(name)
            return refusing_real

    def refusing_real(*_: object) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    library = Library(Recorder())
    for group in GROUPS:
        with pytest.raises(NvmlError, match="NOT_SUPPORTED"):
            library.read(ONE, group)
    assert len(set(asked)) >= 18
    assert {code.value: code.name for code in Code}.items() <= {getattr(pynvml, f"NVML_ERROR_{code.name}"): code.name for code in Code}.items()


def test_starting_opens_what_can_be_opened_and_listens_for_xids() -> None:
    waiting = [SimpleNamespace(device=7, eventType=8, eventData=79), SimpleNamespace(device=7, eventType=1, eventData=0)]

    def wait(_: object, milliseconds: int) -> Any:
        assert milliseconds <= 1
        return waiting.pop(0) if waiting else refusing(Code.TIMEOUT)()

    library = Library(module(
        nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: 2, nvmlEventSetCreate=lambda: "set",
        nvmlDeviceGetHandleByIndex=lambda index: 7 if index == 0 else refusing(Code.NO_PERMISSION)(),
        nvmlDeviceGetPciInfo=lambda _: SimpleNamespace(busId=b"00000000:3B:00.0"), nvmlDeviceGetUUID=lambda _: "GPU-x", nvmlDeviceGetName=lambda _: b"H200",
        nvmlDeviceRegisterEvents=lambda *_: None, nvmlEventSetWait=wait, nvmlEventSetFree=lambda _: None, nvmlSystemGetDriverVersion=lambda: "580.1",
    ))  # fmt: skip
    found = library.start()
    assert [(gpu.index, gpu.uuid, gpu.pci, gpu.model) for gpu in found.gpus] == [(0, "GPU-x", "0000:3b:00", "H200")]
    assert [(index, error.code) for index, error in found.refused] == [(1, Code.NO_PERMISSION)]
    assert found.driver == "580.1"
    assert library.xids() == [Xid("0000:3b:00", 79)]
    assert library.xids() == []
    library.stop()


def test_this_machine_is_asked_for_real_and_answers_or_says_why_not() -> None:
    seen = Gpus().look()
    assert values(seen)["gpus"] > 0 or [event.kind for event in events(seen)] == ["no_gpus"]
