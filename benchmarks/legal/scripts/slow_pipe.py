"""The data comes through a pipe from a program, as from `zcat` or `aws s3 cp - `, which is held up for a while; the loop is over what it gives."""

import subprocess
import sys

import torch
from _training import PAUSE_AT, STEPS, end, pause_s, start, train

import holdfast

SOURCE = "import sys, time\nfor n in range(int(sys.argv[1])):\n  n == int(sys.argv[2]) and time.sleep(float(sys.argv[3]))\n  print(n, flush=True)"


def batches():
    with subprocess.Popen([sys.executable, "-c", SOURCE, str(STEPS), str(PAUSE_AT), str(pause_s(35))], stdout=subprocess.PIPE, text=True) as source:
        for line in source.stdout:
            yield torch.full((8, 32), int(line) / STEPS)


rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step, batch in enumerate(run.steps(batches())):
    train(model, optimizer, step, batch)
end(model)
