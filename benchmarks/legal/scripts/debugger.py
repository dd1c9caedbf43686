"""A person stops at `breakpoint()` on a terminal, looks for a while and goes on."""

import os
import pdb  # noqa: T100
import sys
import threading
import time

from _training import PAUSE_AT, STEPS, end, pause_s, start, train

import holdfast


def person(terminal):
    os.read(terminal, 1000)
    time.sleep(pause_s(30))
    os.write(terminal, b"p step\n")
    time.sleep(1.0)
    os.write(terminal, b"c\n")


rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
terminal, inside = os.openpty()
debugger = pdb.Pdb(stdin=os.fdopen(inside), stdout=os.fdopen(os.dup(inside), "w"), nosigint=True, readrc=False)
sys.breakpointhook = debugger.set_trace
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step == PAUSE_AT and rank == 0:
        threading.Thread(target=person, args=(terminal,), daemon=True).start()
        breakpoint()  # noqa: T100
end(model)
