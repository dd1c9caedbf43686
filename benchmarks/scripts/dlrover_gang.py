"""DLRover's launcher with a master of its own: `dlrover_gang.py PORT NPROC SCRIPT …`."""

import os
import subprocess
import sys
import time

port, nproc, script = sys.argv[1], sys.argv[2], sys.argv[3:]
master = subprocess.Popen(
    [sys.executable, "-m", "dlrover.python.master.main", "--platform", "local", "--port", port, "--node_num", "1", "--job_name", "struck"]
)
time.sleep(3.0)  # It says nowhere that it listens.
os.environ["DLROVER_MASTER_ADDR"] = f"127.0.0.1:{port}"
run = "from dlrover.trainer.torch.main import main; main()"
ended = subprocess.run([sys.executable, "-c", run, "--nnodes", "1", "--nproc_per_node", nproc, "--max_restarts", "10", *script], check=False)
master.terminate()
master.wait()
sys.exit(ended.returncode)
