"""Handlers of the script's own: an alarm each second, a signal to itself, and an interrupt that it catches; it also waits for a signal."""

import os
import signal
import threading

from _training import PAUSE_AT, STEPS, end, pause_s, start, train

import holdfast

heard = []
signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
signal.signal(signal.SIGALRM, lambda number, frame: heard.append(number))
signal.signal(signal.SIGINT, signal.default_int_handler)
rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
for step in run.steps(STEPS):
    train(model, optimizer, step)
    try:
        if step % 80 == 50:
            os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        os.kill(os.getpid(), signal.SIGUSR1)
    if step == PAUSE_AT and rank == 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
        threading.Timer(pause_s(30), os.kill, (os.getpid(), signal.SIGUSR1)).start()
        known = len(heard)
        while len(heard) == known:  # Any signal that is handled ends a pause.
            signal.pause()
assert heard.count(signal.SIGUSR1) >= STEPS // 80
signal.setitimer(signal.ITIMER_REAL, 0)
end(model)
