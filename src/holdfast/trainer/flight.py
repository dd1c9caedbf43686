"""Flight: a thread that writes down torch's flight recorder when the agent asks, also while the loop hangs in a collective.

Only where the recorder is on (TORCH_FR_BUFFER_SIZE or TORCH_NCCL_TRACE_BUFFER_SIZE): the agent made a pipe then, and the thread sleeps at it in the kernel.
The dump is JSON, without stacks: to walk Python's stacks would need the GIL at a moment when nobody knows who has it.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

_listening: set[Path] = set()  # A process may call `guard` more than once.


def listen(pipe: Path) -> None:
    if pipe in _listening:
        return
    _listening.add(pipe)
    threading.Thread(target=_listen, args=(pipe, os.getpid()), name="holdfast-flight", daemon=True).start()


def _listen(pipe: Path, owner: int) -> None:
    while os.getpid() == owner:
        try:
            with pipe.open("rb") as asked:
                if not asked.read():
                    continue
            dump = _dump()
            if dump:
                unfinished = pipe.with_suffix(".tmp")
                unfinished.write_bytes(dump)
                os.replace(unfinished, pipe.with_suffix(".json"))
        except Exception:  # Whatever is wrong with it, nobody is helped by a word about it in the middle of a training's output.
            return


def _dump() -> bytes:
    distributed = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(distributed, "_dump_fr_trace_json", None) or getattr(distributed, "_dump_nccl_trace_json", None)
    return bytes(dump()) if dump is not None else b""
