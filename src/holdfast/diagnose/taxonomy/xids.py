"""Xids: the driver's numbered errors, and which class each speaks for.

From NVIDIA's catalogue (Ampere and newer), as published in October 2025. Pages elsewhere contradict it; it is the number that counts, and then Xid 154, which
carries the driver's own advice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from holdfast.diagnose.taxonomy.cause_class import Permanence, Role, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    code: int
    meaning: str
    cause: str
    advice: str
    permanence: Permanence = Permanence.TRANSIENT
    scope: Scope = Scope.NODE
    role: Role = Role.ROOT


_APP = "start the program again; look at the program first"
_UNCLEAR = Permanence.UNCLEAR
_RESET = "leave the node out and reset the GPU"


def _all(
    codes: tuple[int, ...], meaning: str, cause: str, advice: str, permanence: Permanence = Permanence.TRANSIENT,
    scope: Scope = Scope.NODE, role: Role = Role.ROOT,
) -> tuple[Xid, ...]:  # fmt: skip
    return tuple(Xid(code=code, meaning=meaning, cause=cause, advice=advice, permanence=permanence, scope=scope, role=role) for code in codes)


XIDS: Mapping[int, Xid] = MappingProxyType({
    one.code: one
    for one in (
        *_all((8, 11, 25, 32, 68, 69), "engine idle timeout, bad push buffer, decoder or class error", "gpu_xid_other", _APP, _UNCLEAR, Scope.JOB_CODE),
        *_all((13,), "graphics engine exception", "gpu_xid_other", _APP, _UNCLEAR, Scope.JOB_CODE),
        *_all((31,), "GPU memory page fault", "gpu_illegal_access", _APP, _UNCLEAR, Scope.JOB_CODE),
        *_all((37, 38, 44), "firmware or context-switch fault", "gpu_xid_other", "nothing by itself", _UNCLEAR, role=Role.NOTE),
        *_all((39, 40, 41), "copy engine exception", "gpu_xid_other", _APP, _UNCLEAR),
        *_all((43,), "the GPU stopped processing, after a fault of the program", "gpu_xid_other", _APP, _UNCLEAR, Scope.JOB_CODE, role=Role.ECHO),
        *_all((45,), "clean-up after another error", "gpu_xid_other", "take the earlier Xid; alone: restart the fabric manager", _UNCLEAR, role=Role.ECHO),
        *_all((46, 62, 109, 110, 119, 120, 136, 143, 158), "timeout, micro-controller halt, GSP or link training error", "gpu_xid_other", _RESET),
        *_all((48,), "double-bit ECC error", "gpu_ecc", _RESET),
        *_all((54,), "auxiliary power not connected", "gpu_thermal_power", "check power cables"),
        *_all((63,), "a row was remapped, and that worked", "gpu_ecc", "nothing by itself", role=Role.NOTE),
        *_all((64,), "a row could not be remapped", "gpu_ecc", _RESET),
        *_all((74,), "NVLink error", "gpu_nvlink", _RESET),
        *_all((79,), "the GPU fell off the bus", "gpu_fell_off_bus", "leave the node out and power-cycle it"),
        *_all((92,), "many corrected errors", "gpu_ecc", "watch the trend", role=Role.NOTE),
        *_all((94,), "contained memory error", "gpu_ecc", "start the program again; other programs on the card are well"),
        *_all((95,), "uncontained memory error", "gpu_ecc", _RESET),
        *_all((121, 137, 157, 160), "C2C, NVLink privilege or retirement", "gpu_xid_other", "nothing by itself", _UNCLEAR, role=Role.NOTE),
        *_all((140, 156), "ECC error that was not recovered", "gpu_ecc", _RESET),
        *_all((144, 145, 146, 147, 148, 149, 150), "NVLink 5 error", "gpu_nvlink", _RESET),
        *_all((154,), "the driver's own advice changed", "gpu_xid_other", "do what the line itself says", role=Role.ECHO),
    )
})  # fmt: skip


def xid_of(code: int) -> Xid:
    """A number the table does not have is an error of the GPU of which no more is known."""
    known = XIDS.get(code)
    return known or Xid(code=code, meaning="not in the table", cause="gpu_xid_other", advice="see NVIDIA's catalogue", permanence=Permanence.UNCLEAR)
