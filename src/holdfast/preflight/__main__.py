"""One check, in this process: `python -m holdfast.preflight NAME PLACE`. Prints what it found as JSON."""

import importlib
import sys

import msgspec

from holdfast.preflight.check import Place

if __name__ == "__main__":
    module = importlib.import_module(f"holdfast.preflight.{sys.argv[1]}")
    sys.stdout.buffer.write(msgspec.json.encode(module.look(msgspec.json.decode(sys.argv[2], type=Place))))
