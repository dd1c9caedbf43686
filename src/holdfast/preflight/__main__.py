"""One check, in this process: `python -m holdfast.preflight NAME PLACE`. Prints, as it goes, a line of JSON for what it touches next and for what it found."""

import importlib
import sys

import msgspec

from holdfast.preflight.check import Place, listeners
from holdfast.preflight.examine import Line


def say(line: Line) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    listeners.append(lambda at: say(Line(looking=at)))
    module = importlib.import_module(f"holdfast.preflight.{sys.argv[1]}")
    for check in module.look(msgspec.json.decode(sys.argv[2], type=Place)):
        say(Line(found=check))
    say(Line(done=True))
