"""A rank that takes more than it was given: `greedy.py DIRECTORY WHAT`, where WHAT is memory, processes, cores, or places to see where it may write.

Rank 0 only waits. The last rank takes, and goes on taking for as long as it is let.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

RANK, LAST = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1


def main() -> None:
    directory, what = Path(sys.argv[1]), sys.argv[2]
    (directory / f"started-{os.environ['HOLDFAST_GENERATION']}-{RANK}").write_text(Path("/proc/self/cgroup").read_text())
    if RANK == LAST:
        {"memory": take_memory, "processes": take_processes, "cores": take_cores, "places": take_places}[what](directory)
    else:
        time.sleep(3600)


def take_memory(directory: Path) -> None:
    held = []
    while True:
        held.append(bytearray(4 << 20))
        time.sleep(0.001)


def take_processes(directory: Path) -> None:
    done = threading.Event()
    while True:
        threading.Thread(target=done.wait, daemon=True).start()


def take_cores(directory: Path) -> None:
    begun, before_s = time.monotonic(), time.process_time()
    while time.monotonic() - begun < 2.0:
        pass
    (directory / "share").write_text(str((time.process_time() - before_s) / (time.monotonic() - begun)))


def take_places(directory: Path) -> None:
    Path("/dev/shm/greedy-was-here").touch()
    with tempfile.NamedTemporaryFile(delete=False) as file:
        (directory / "places").write_text(f"{file.name}\n{sorted(os.listdir('/dev/shm'))}")


main()
