"""What a bisection tries: `DIRECTORY`. Outside of one it ends at once. In one it says how it was started, and writes down losses as `holdfast.guard` does,
until it does as its tune says: `kill=1`, `sleep=1`, `raise=1`, `exit=3`, `quiet=1`, `nan=1`."""

import json
import os
import signal
import sys
import time
from pathlib import Path

kept = Path(sys.argv[1])
curve, tune = os.environ.get("HOLDFAST_CURVE"), os.environ.get("HOLDFAST_TUNE", "")
if curve is None:
    sys.exit(0)
names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "HOLDFAST_STAGED", "HOLDFAST_MICRO_BATCH")
with (kept / "tries").open("a") as file:
    print(json.dumps({"pid": os.getpid(), "tune": tune, "cwd": os.getcwd(), **{name: os.environ.get(name) for name in names}}), file=file)
if tune == "exit=3":
    sys.exit(3)
if tune == "quiet=1":  # As a script does that has nothing left to train.
    sys.exit(0)
until = int(os.environ["HOLDFAST_UNTIL"])
if os.environ["RANK"] == "0":
    with open(curve, "w") as file:
        for step in range(until - 7, until + 1):
            loss = float("nan") if tune == "nan=1" and step >= until - 4 else 1.0 / step if tune != "lr=*2" else 2.0
            print(step, loss, file=file, flush=True)
            if step == until - 3:
                match tune:
                    case "kill=1":
                        print("out of luck", flush=True)
                        os.kill(os.getpid(), signal.SIGKILL)
                    case "sleep=1":
                        time.sleep(600)
                    case "raise=1" | "nan=1":
                        raise RuntimeError("the loss is a banana")
