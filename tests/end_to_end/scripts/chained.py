"""One rank without torch that saves real checkpoints and restores the one it is told to: chained.py DIRECTORY STEPS STEP_S.

Its state is a chain of digests over all steps, and some bytes that never change. DIRECTORY gets a line per start, how far it is, and the end of the chain.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

from holdfast.checkpoint.chunks import Store, read_chunk
from holdfast.checkpoint.commit import Shard, save_in_line
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.found import look_at
from holdfast.checkpoint.layout import parse_directory_name
from holdfast.checkpoint.remove import Retention
from holdfast.domain.beat import GUARDED, RESTORED
from holdfast.trainer.beats import open_beats

directory, steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
generation, checkpoints, restore = int(os.environ["HOLDFAST_GENERATION"]), Path(os.environ["HOLDFAST_CHECKPOINTS"]), os.environ["HOLDFAST_RESTORE"]
FROZEN = hashlib.shake_128(b"frozen").digest(300_000)
stopping: list[int] = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))


def restored() -> tuple[int, bytes]:
    if not restore:
        return 0, b""
    manifest = look_at(checkpoints / restore).manifest
    chunk = next(chunk for chunk in manifest.chunks if chunk.digest == manifest.states[0])
    state = bytearray(chunk.size_bytes)
    read_chunk(checkpoints, chunk, manifest.algorithm, memoryview(state))
    return manifest.step, bytes(state)


def save(step: int, state: bytes) -> None:
    def fill(store: Store) -> str:
        store.put_all([FROZEN, hashlib.shake_128(state).digest(50_000)])
        return store.put(state).digest

    began_at, its_generation = parse_directory_name(restore) or (0, 0)
    shard = Shard(step=step, generation=generation, world_size=1, rank=0, at=time.time())
    save_in_line(Disk(), checkpoints, shard, fill, Retention(last=2, restored=(its_generation, began_at) if restore else None))


begin, state = restored()
with (directory / "starts").open("a") as starts:
    starts.write(f"{generation} {begin} {os.getpid()}\n")
beats = open_beats(Path(os.environ["HOLDFAST_BEATS"]), generation=generation)
beats.steps_total, beats.step, beats.step_started, beats.restored_step = steps, begin, begin, begin
beats.flags |= GUARDED | RESTORED
beats.enter("start")
for step in range(begin, steps):
    time.sleep(step_s)
    state = hashlib.sha256(state + str(step).encode()).digest()
    (directory / "rank-0").write_text(f"{step + 1:10}")
    beats.step = step + 1
    beats.enter("step")
    if (step + 1) % 10 == 0 or step + 1 == steps or stopping:
        save(step + 1, state)
        beats.saved_step = step + 1
    if stopping:
        sys.exit(143)
(directory / "result").write_text(state.hex())
