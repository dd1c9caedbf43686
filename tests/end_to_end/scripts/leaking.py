"""A rank that keeps some memory of every step it takes: `leaking.py DIRECTORY STEPS BYTES`. How far it is outlives it; what it took does not."""

from __future__ import annotations

import os
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
held = []
for step in range(begin, steps):
    time.sleep(0.05)
    held.append(b"x" * leaks)
    beats.step = step + 1
    beats.enter("step")
    progress.write_text(str(step + 1))
