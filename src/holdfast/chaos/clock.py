"""Clocks: the time of day of one node is set forward. The job must have been started with a clock that can be: a library loaded before all others, and a
file that says which node is how far off. The machine's own clock is not touched."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

from holdfast.chaos.ground import Ground
from holdfast.chaos.undo import Write

CLOCK = "CLOCK_SHIFT"  # The variable in the environment of the job's processes; clock_shift.c knows it too.


def shift(ground: Ground, rank: int, seconds: float) -> None:
    assert ground.clock is not None
    network = os.stat(f"/proc/{ground.agent(rank)}/ns/net").st_ino
    ground.undoing.add(Write(path=str(ground.clock), data=struct.pack("Qd", network, 0.0)))
    with ground.clock.open("r+b") as file:
        file.write(struct.pack("Qd", network, seconds))


def settable(directory: Path) -> dict[str, str]:
    """What a job's processes need in their environment for it; nothing where there is no compiler."""
    if shutil.which("gcc") is None:
        return {}
    library, file = directory / "clock_shift.so", directory / "clock"
    source = Path(__file__).with_name("clock_shift.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True, timeout=60)
    file.write_bytes(bytes(16))
    return {"LD_PRELOAD": str(library), CLOCK: str(file)}


def clock_of(pid: int) -> Path | None:
    """The file behind the clock of a process, if it can be set."""
    prefix = f"{CLOCK}=".encode()
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((Path(os.fsdecode(one.removeprefix(prefix))) for one in environment if one.startswith(prefix)), None)
