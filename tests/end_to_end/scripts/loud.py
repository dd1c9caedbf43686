"""Prints much and fast, and then a result: loud.py LINES [--no-newline] [--killed] [--long BYTES]."""

import argparse
import os
import signal
import sys

parser = argparse.ArgumentParser()
parser.add_argument("lines", type=int)
parser.add_argument("--no-newline", action="store_true", help="the result is the last thing in the output, without an end of line")
parser.add_argument("--killed", action="store_true", help="the process is killed right after the result")
parser.add_argument("--long", type=int, default=0, metavar="BYTES", help="one line of so many bytes too, to the standard error")
chosen = parser.parse_args()

for first in range(0, chosen.lines, 1000):
    sys.stdout.write("".join(f"line {number} {'x' * 100}\n" for number in range(first, min(first + 1000, chosen.lines))))
sys.stdout.flush()
if chosen.long:
    sys.stderr.write("y" * chosen.long + "\n")
    sys.stderr.flush()
sys.stdout.write("RESULT 0.93" + ("" if chosen.no_newline else "\n"))
sys.stdout.flush()
if chosen.killed:
    os.kill(os.getpid(), signal.SIGKILL)
