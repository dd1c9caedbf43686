"""A rank that keeps some memory of every step it takes: `leaking.py DIRECTORY STEPS BYTES`.

What it took goes with it; how far it is, it saves when it is told to leave, and every tenth step.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from holdfast.domain.beat import GUARDED, RESTORED
from holdfast.trainer.beats import open_beats

directory, steps, leaks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
progress, generation = directory / "rank-0", int(os.environ["HOLDFAST_GENERATION"])
beats = open_beats(Path(os.environ["HOLDFAST_BEATS"]), generation=generation)
begin = int(progress.read_text()) if progress.exists() else 0
beats.flags |= GUARDED | RESTORED
beats.step = beats.step_started = beats.restored_step = begin
beats.enter("start")
held, stopping = [], list[int]()
signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
for step in range(begin, steps):
    time.sleep(0.05)
    held.append(b"x" * leaks)
    with (directory / "took").open("a") as took:
        took.write(f"{step}\n")
    beats.step = step + 1
    beats.enter("step")
    if stopping or step % 10 == 9:
        progress.write_text(str(step + 1))
        beats.saved_step = step + 1
    if stopping:
        sys.exit(143)
