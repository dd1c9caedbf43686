"""The log goes to a pipe that is not read for a while, so that the write waits."""

import os
import subprocess
import sys

from _training import PAUSE_AT, SCRATCH, STEPS, end, pause_s, start, train

import holdfast

READER = "import sys, time\nwith open(sys.argv[1], 'rb') as log:\n  log.read(1)\n  time.sleep(float(sys.argv[2]))\n  while log.read(65536): pass"

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
path = os.path.join(SCRATCH, f"log-{rank}")
os.mkfifo(path)
reader = subprocess.Popen([sys.executable, "-c", READER, path, str(pause_s(30))])
with open(path, "w") as out:
    for step in run.steps(STEPS):
        loss = train(model, optimizer, step)
        if step >= PAUSE_AT:
            out.write(f"{step} {loss.item()} {'.' * 2000}\n")
reader.wait()
end(model)
