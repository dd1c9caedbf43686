"""Rank 1 fails for a reason of its own, once; rank 0 then only says that its peer is gone."""

import os
import socket
import sys
from pathlib import Path

rank, kept = int(os.environ["RANK"]), Path(sys.argv[1])
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and not (kept / "failed").exists():
    where = kept / "socket"
    if rank == 1:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(kept / "bound"))
            listener.listen()
            os.rename(kept / "bound", where)
            peer, _ = listener.accept()
            where.unlink()
            (kept / "failed").touch()
            raise ValueError("the batch has no rows")  # It closes the connection, as the end of a process does.
    while not where.exists():
        pass
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(where))
        if not peer.recv(1):
            raise RuntimeError("Connection closed by peer")
print("done", flush=True)
