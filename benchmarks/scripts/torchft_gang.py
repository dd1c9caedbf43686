"""torchft: a lighthouse, and replica groups of one process each, started again when they die. `torchft_gang.py SCRATCH N`."""

import os
import subprocess
import sys
import time
from pathlib import Path

from torchft.coordination import LighthouseServer

scratch, count = sys.argv[1], int(sys.argv[2])
lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=200, heartbeat_timeout_ms=2000)
train = [sys.executable, str(Path(__file__).with_name("torchft_ddp.py")), scratch]
address = f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}"  # It gives the machine's name, which need not lead here.
running: dict[int, subprocess.Popen[bytes]] = {}
while True:
    for number in range(count):
        if number not in running or running[number].poll() is not None:
            environment = {**os.environ, "TORCHFT_LIGHTHOUSE": address, "REPLICA_GROUP_ID": str(number)}
            running[number] = subprocess.Popen([*train, str(number)], env=environment)
    time.sleep(0.1)
