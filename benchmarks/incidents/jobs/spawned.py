"""The ranks of several.py under torch.multiprocessing."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import torch.multiprocessing


def one(rank, world, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.path.insert(0, str(Path(__file__).parent))
    import several

    several.main()


if __name__ == "__main__":
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        free = server.getsockname()[1]
    torch.multiprocessing.spawn(one, args=(2, free), nprocs=2)
