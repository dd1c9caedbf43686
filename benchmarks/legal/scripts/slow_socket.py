"""The data comes over a socket from another program, which stops sending for a while."""

import socket
import subprocess
import sys

import torch
from _training import PAUSE_AT, STEPS, end, pause_s, start, train

import holdfast

SENDER = """
import socket, sys, time
out = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for number in range(int(sys.argv[2])):
    if number == int(sys.argv[3]): time.sleep(float(sys.argv[4]))
    out.sendall(number.to_bytes(8, "big"))
"""

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
with socket.create_server(("127.0.0.1", 0)) as server:
    arguments = (server.getsockname()[1], STEPS, PAUSE_AT, pause_s(35))
    sender = subprocess.Popen([sys.executable, "-c", SENDER, *map(str, arguments)])
    source = server.accept()[0].makefile("rb")
for step in run.steps(STEPS):
    number = int.from_bytes(source.read(8), "big")
    train(model, optimizer, step, torch.full((8, 32), number / STEPS))
sender.wait()
end(model)
