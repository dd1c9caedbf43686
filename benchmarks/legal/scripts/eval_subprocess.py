"""Rank 0 evaluates with a program of its own, and waits for it."""

import subprocess
import sys

from _training import PAUSE_AT, STEPS, end, pause_s, start, train

import holdfast

PROGRAM = "import sys, time\nuntil = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < until: sum(range(10000))"

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step == PAUSE_AT and rank == 0:
        subprocess.run([sys.executable, "-c", PROGRAM, str(pause_s(45))], check=True)
end(model)
