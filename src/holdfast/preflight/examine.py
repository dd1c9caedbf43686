"""Examine a place: every check in a process of its own, one after the other, so that none spoils the figures of another.

A check that does not answer in time, or dies, is bad: a disk that hangs is found by the check that hangs on it, and named, since a check says what it touches
next. A process in the kernel's hands may not even die; it is left behind, and nobody waits for it. All together have `TOTAL_S`, whatever hangs: each has a
limit of its own, and leaves a little of the rest to each that comes after it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from holdfast.preflight import mounts
from holdfast.preflight.check import Check, Place, Verdict, bad, warn

# Each is a module of this name with `look(place)`. In this order: what explains the others comes first, what takes long last.
CHECKS: Final = (
    "versions", "limits", "groups", "ports", "clock", "shared_memory", "storage", "memory", "links", "remote", "compute", "graphics", "graphics_links",
)  # fmt: skip
QUICK_WITHIN_S, FULL_WITHIN_S = 15.0, 30.0  # For one check. A GPU's context alone takes seconds on a machine with eight.
TOTAL_S: Final = 55.0
_LEAST_S: Final = 2.0  # What a check leaves to each that comes after it: most take a second, and half of that is Python's.
_DIES_S: Final = 0.3  # Of SIGKILL, unless the kernel holds it.
_stuck: list[subprocess.Popen[bytes]] = []  # Killed, and not dead yet.


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a check in its own process says."""

    looking: str = ""
    found: Check | None = None
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A process that was given so much time."""

    code: int | None  # None: it did not end in time.
    out: bytes
    complaint: bytes


def examine(place: Place, only: Sequence[str] = (), *, prefix: Sequence[str] = (), until: float | None = None) -> Iterator[Check]:
    """The checks, as they come. `prefix` is a command that goes before: into the namespace of a node. `until` is monotonic."""
    until = time.monotonic() + TOTAL_S if until is None else until
    waiting = [(name, part) for name in only or CHECKS for part in (_disks(place) if name == "storage" else [place])]
    own_s, hung = FULL_WITHIN_S if place.full else QUICK_WITHIN_S, list[str]()
    while waiting:
        name, part = waiting.pop(0)
        left_s = until - time.monotonic()
        if left_s <= 0:
            yield _not_looked_at(name, place, hung)
            continue
        checks, stuck = _apart(name, part, prefix, min(own_s, left_s, max(_LEAST_S, left_s - _LEAST_S * len(waiting))))
        hung += [stuck] if stuck else []
        yield from checks


def _disks(place: Place) -> list[Place]:
    """What is mounted by itself is looked at by itself, so that one that hangs does not hide another. From what the kernel lists: nothing is touched here."""
    by_mount = dict[str, list[str]]()
    for path in (place.state, place.checkpoints):
        by_mount.setdefault(mounts.mount_of(path), []).append(path)
    return [replace(place, state=paths[0], checkpoints=paths[-1]) for paths in by_mount.values()]


def worst(checks: Sequence[Check]) -> Verdict:
    verdicts = {check.verdict for check in checks}
    return next((verdict for verdict in (Verdict.BAD, Verdict.WARN) if verdict in verdicts), Verdict.OK)


def answers(path: str, within_s: float) -> bool:
    """Whether a directory can be listed, or is known not to be there: of one on a dead mount neither is ever heard."""
    return call([sys.executable, "-S", "-c", "import os, sys; os.listdir(sys.argv[1])", path], within_s).code is not None


def call(command: Sequence[str], within_s: float) -> Ended:
    """Run it, and come back in time, whatever becomes of it. It writes into memory: a pipe would be waited for."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # Each core is examined by itself.
    _stuck[:] = [one for one in _stuck if one.poll() is None]
    with open(os.memfd_create("out"), "w+b", buffering=0) as out, open(os.memfd_create("complaint"), "w+b", buffering=0) as complaint:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=complaint, env=environment, start_new_session=True)
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            code = None
        else:
            code = process.returncode
        finally:
            _kill(process)
        return Ended(code=code, out=_all(out.fileno()), complaint=_all(complaint.fileno()))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """And all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_DIES_S)
    except subprocess.TimeoutExpired:
        _stuck.append(process)


def _all(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _apart(name: str, place: Place, prefix: Sequence[str], within_s: float) -> tuple[list[Check], str]:
    """What it found, and what it hung on, if it did."""
    began = time.monotonic()
    ended = call([*prefix, sys.executable, "-m", "holdfast.preflight", name, msgspec.json.encode(place).decode()], within_s)
    found, looking, done = _heard(ended.out)
    if ended.code is None:
        touched = f", while it looked at {looking}" if looking else ""
        do = "look at what it touches: what hangs here will hang a training too"
        found.append(bad(name, f"no answer within {within_s:.0f} s{touched}", do, culprit=looking or place.node))
    elif not done:
        found.append(_died(name, ended))
    seconds = time.monotonic() - began
    return [replace(check, node=place.node, seconds=seconds / len(found)) for check in found], (looking or name) if ended.code is None else ""


def _heard(said: bytes) -> tuple[list[Check], str, bool]:
    """What was found, what is looked at, and whether that was all."""
    found, looking, done = list[Check](), "", False
    for text in said.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            line = msgspec.json.decode(text, type=Line)
            looking, done = line.looking or looking, line.done
            found += [line.found] if line.found is not None else []
    return found, looking, done


def _died(name: str, ended: Ended) -> Check:
    assert ended.code is not None
    how = f"died of {signal.Signals(-ended.code).name}" if ended.code < 0 else f"ended with code {ended.code}"
    last = ended.complaint.decode(errors="replace").strip().splitlines()
    return bad(name, f"the check {how}: {last[-1] if last else 'it said nothing'}", "a training would meet the same; look at what the check touches")


def _not_looked_at(name: str, place: Place, hung: Sequence[str]) -> Check:
    said = f"not looked at: the {TOTAL_S:.0f} s for all checks were over{', since ' + ' and '.join(hung) + ' did not answer' if hung else ''}"
    return replace(warn(name, said, f"put that right, then `holdfast doctor --only {name}`"), node=place.node)
