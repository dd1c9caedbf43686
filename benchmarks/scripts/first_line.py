"""As little as a training script can be: it imports torch, with `ddp` it finds the others, and it writes one line. With `stay` it waits to be killed."""

import os
import sys
import time

import torch

scratch, *how = sys.argv[1:]
if "ddp" in how:
    torch.distributed.init_process_group("gloo")
    torch.distributed.all_reduce(torch.ones(1))
log = os.open(os.path.join(scratch, f"steps-{os.environ['RANK']}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(log, f"1 {time.monotonic()} {os.getpid()}\n".encode())
while "stay" in how:
    time.sleep(60)
if "ddp" in how:
    torch.distributed.destroy_process_group()
