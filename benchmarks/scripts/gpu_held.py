"""A process that holds what a training on a GPU holds, until it is killed; and one that wants the same GPU meanwhile.

gpu_held.py holds BYTES   memory of the GPU, and twice as much of the host's, registered; says "ready".
gpu_held.py comes BYTES   says "ready", waits for a line, and says as JSON after how many seconds it could use the GPU, had as much of its memory, and had
                          registered as much.
"""

from __future__ import annotations

import json
import mmap
import sys
import time

import torch


def registered(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size)
    view = torch.frombuffer(memory, dtype=torch.uint8)
    view[:: mmap.PAGESIZE] = 1  # Pages that are not there yet would be counted as the driver's time.
    code = torch.cuda.cudart().cudaHostRegister(view.data_ptr(), size, 0)
    assert int(code) == 0, code
    return memory


def holds(size: int) -> None:
    kept = torch.ones(size, dtype=torch.uint8, device="cuda"), registered(size), registered(size)
    torch.cuda.synchronize()
    print("ready", flush=True)
    time.sleep(600)
    del kept


def comes(size: int) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    began, after = time.monotonic(), {}
    torch.zeros(1, device="cuda")
    after["context"] = time.monotonic() - began
    kept = torch.ones(size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    after["memory"] = time.monotonic() - began
    memory = registered(size)
    after["registered"] = time.monotonic() - began
    print(json.dumps(after), flush=True)
    del kept, memory


if __name__ == "__main__":
    {"holds": holds, "comes": comes}[sys.argv[1]](int(sys.argv[2]))
