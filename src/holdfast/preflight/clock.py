"""Clock: whether the kernel says that somebody keeps it right, and whether wall time and monotonic time go equally fast."""

from __future__ import annotations

import ctypes
import time

from holdfast.preflight.check import Check, Place, bad, ok, warn

_LOOK_S = 0.25
_DRIFT_MAX = 1e-3  # A clock that is being slewed goes at most 500 ppm wrong; more is a jump.
_NOT_KEPT = 5  # TIME_ERROR.
_EPOCH = 1_600_000_000.0  # Before this nothing here was written: certificates and leases would be refused.


def look(place: Place) -> list[Check]:
    wall, steady = time.time(), time.monotonic()
    time.sleep(_LOOK_S)
    walked, passed = time.time() - wall, time.monotonic() - steady
    return [judge(wall, walked / passed - 1.0, adjtimex())]


def judge(now: float, drift: float, synchronised: tuple[bool, float] | None) -> Check:
    do = "start a time service: chronyd, ntpd or systemd-timesyncd; then `chronyc tracking` or `timedatectl`"
    if now < _EPOCH:
        return bad("clock", f"the clock says {time.strftime('%Y-%m-%d', time.gmtime(now))}", do, culprit="clock")
    if abs(drift) > _DRIFT_MAX:
        return bad("clock", f"the wall clock moved {1e3 * drift:+.1f} ms a second against the monotonic one", f"somebody sets it; {do}", culprit="clock")
    if synchronised is None:
        return ok("clock", "it goes evenly; the kernel does not say whether it is kept right")
    kept, error_s = synchronised
    if not kept:
        return warn("clock", "it goes evenly, but nobody keeps it right", f"logs of several nodes will not fit together; {do}")
    return ok("clock", f"kept right to {1e3 * error_s:.1f} ms, by its own estimate", error_s=error_s)


def adjtimex() -> tuple[bool, float] | None:
    """Whether the kernel holds the clock to be kept right, and how wrong it may be; None where it does not say. The structure is that of adjtimex(2)."""
    words = (ctypes.c_long * 64)()  # Longer than struct timex; nothing is set while its first word, the modes, is 0.
    state = ctypes.CDLL(None, use_errno=True).adjtimex(words)
    return (state != _NOT_KEPT, words[4] / 1e6) if state >= 0 else None
