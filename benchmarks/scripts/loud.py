"""Prints much and fast, and then a result: loud.py LINES WIDTH [bare|killed]. `bare`: no end of line behind the result. `killed`: the process is killed
right after it. How long the printing took is written to the file LOUD_TOOK."""

import os
import signal
import sys
import time
from pathlib import Path

BLOCK = 10_000  # Lines that are made at once: what is measured is printing, not formatting.

lines, width, ending = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""
blocks = ["".join(f"{number:0{width - 1}d}\n" for number in range(first, min(first + BLOCK, lines))) for first in range(0, lines, BLOCK)]
began = time.monotonic()
for block in blocks:
    sys.stdout.write(block)
sys.stdout.flush()
took = time.monotonic() - began
sys.stdout.write("RESULT 0.93" if ending == "bare" else "RESULT 0.93\n")
sys.stdout.flush()
if "LOUD_TOOK" in os.environ:
    Path(os.environ["LOUD_TOOK"]).write_text(str(took))
if ending == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
