"""A process that holds what a training on a GPU holds, until it is killed; and one that wants the same GPU meanwhile.

gpu_held.py holds BYTES FILE   memory of the GPU, and twice as much of the host's, in two files in memory that begin with this name, registered; says "ready".
gpu_held.py comes BYTES FILE   says "ready", waits for a line, and says as JSON after how many seconds it could use the GPU, had as much of its memory, and had
                               registered as much: the first of these files.
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from pathlib import Path

import torch


def registered(path: Path, size: int) -> mmap.mmap:
    with path.open("a+b") as file:
        file.truncate(size)
        memory = mmap.mmap(file.fileno(), size)
    view = torch.frombuffer(memory, dtype=torch.uint8)
    view[:: mmap.PAGESIZE] = 1  # Pages that are not there yet would be counted as the driver's time.
    code = torch.cuda.cudart().cudaHostRegister(view.data_ptr(), size, 0)
    assert int(code) == 0, code
    return memory


def holds(size: int, path: Path) -> None:
    kept = torch.ones(size, dtype=torch.uint8, device="cuda"), registered(path.with_suffix(".0"), size), registered(path.with_suffix(".1"), size)
    torch.cuda.synchronize()
    print("ready", flush=True)
    time.sleep(600)
    del kept


def comes(size: int, path: Path) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    began, after = time.monotonic(), {}
    torch.zeros(1, device="cuda")
    after["context"] = time.monotonic() - began
    kept = torch.ones(size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    after["memory"] = time.monotonic() - began
    memory = registered(path.with_suffix(".0"), size)
    after["registered"] = time.monotonic() - began
    print(json.dumps(after), flush=True)
    del kept, memory


if __name__ == "__main__":
    {"holds": holds, "comes": comes}[sys.argv[1]](int(sys.argv[2]), Path(sys.argv[3]))
