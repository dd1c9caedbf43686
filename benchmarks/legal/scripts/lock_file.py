"""Every rank wants a lock that another program holds for a while, as for a shared cache."""

import fcntl
import os
import subprocess
import sys

from _training import PAUSE_AT, SCRATCH, STEPS, end, pause_s, start, train

import holdfast

HOLDER = "import fcntl, sys, time\nfile = open(sys.argv[1], 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\nprint('held', flush=True)\ntime.sleep(float(sys.argv[2]))"

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
path = os.path.join(SCRATCH, f"cache-{rank}.lock")
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step == PAUSE_AT:
        with subprocess.Popen([sys.executable, "-c", HOLDER, path, str(pause_s(40))], stdout=subprocess.PIPE) as holder, open(path, "a") as file:
            holder.stdout.readline()
            fcntl.flock(file, fcntl.LOCK_EX)
end(model)
