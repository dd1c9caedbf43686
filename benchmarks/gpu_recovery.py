"""Recovery on a GPU: a training of 629 million parameters (7.55 GB with its optimizer) is killed; when has it done its next step, from memory?

One rank on one GPU under `holdfast run`. It saves, waits until that can be restored from memory, kills itself with SIGKILL, and comes back from the warm
parent. All times are from the kill, by the machine's own clock, which the processes share. `--blocks 1` tries the script itself where there is no GPU.

Beside it, without Holdfast: how long the kernel takes to take down a killed process that holds as much, and when another one that came at that moment could
use the same GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time

from harness.jobs import SCRIPTS, Job, scratch_directory
from harness.measure import Report, arguments, median
from harness.processes import wait_until

BAR_S = 2.5
BLOCK_BYTES = 629_000_000  # Parameters and optimizer.
# What a process says it has reached, and what lies between that and what it reached before.
REACHED = {
    "script": "noticed, stopped, forked: the script runs again",
    "context": "the GPU can be used",
    "built": "model and optimizer are built",
    "restored": "the state is back",
    "stepped": "a step is done",
}
PARTS = {"verified": "until the agent found it sound", "registered": "memory registered with the GPU", "copied": "copied"}


def main() -> None:
    chosen = arguments(__doc__ or "", kills=(7, 3, "times it is killed"), blocks=(12, 12, "of the model, 52 million parameters each"))
    report = Report("Recovery on a GPU, from memory")
    with scratch_directory(keep=chosen.keep) as scratch, Job(scratch, "dies", "gpu_dies.py", str(chosen.kills), str(chosen.blocks)) as job:
        wait_until(lambda: job.process.poll() is not None, within_s=560, what=f"the end of a job that dies {chosen.kills} times", every_s=0.2)
        told = job.scratch / "times.jsonl"
        if job.process.returncode or not told.exists():
            raise RuntimeError(f"the job left with code {job.process.returncode}; it said:\n{job.last_words()}")
        times = [json.loads(line) for line in told.read_text().splitlines()]
    report.raw["times"] = times
    before = [0.0] * len(times)
    for reached, words in REACHED.items():
        at = [one[reached] for one in times]
        report.series(words, "s", [now - then for now, then in zip(at, before, strict=True)], f"{median(at):.2f} s after the kill")
        before = at
        if reached == "restored":
            for part, said in PARTS.items():
                report.series(f"  of it {said}", "s", [one["parts"].get(part, 0.0) for one in times])
    take_down(report, chosen.kills, chosen.blocks * BLOCK_BYTES)
    report.bar("killed, until the next step is done", median([one["stepped"] for one in times]), "s", at_most=BAR_S)
    report.bar("steps lost that were saved", max(one["saved"] - one["step"] for one in times), "steps", at_most=0)
    report.finish(chosen)


def take_down(report: Report, kills: int, size: int) -> None:
    """The part that is not ours, and whether it has to be waited for."""
    if subprocess.run([sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]).returncode:
        report.note("no GPU: how long the kernel takes to take a process down was left out")
        return
    gone, meanwhile = [], []
    with tempfile.TemporaryDirectory(prefix="holdfast-benchmark-", dir="/dev/shm") as memory:
        for _ in range(kills):
            held, comes = (started(what, size, memory) for what in ("holds", "comes"))
            held.kill()
            meanwhile.append(json.loads(comes.communicate("now\n", timeout=120)[0]))
            held.wait()
            again = started("holds", size, memory)
            began = time.monotonic()
            again.kill()
            again.wait()
            gone.append(time.monotonic() - began)
    report.series("without Holdfast: the kernel takes a killed process down", "s", gone)
    for what, words in {"context": "can use the GPU", "memory": "has as much of its memory", "registered": "has registered as much of the host's"}.items():
        report.series(f"without Holdfast: one that comes at the kill {words}", "s", [one[what] for one in meanwhile])


def started(what: str, size: int, memory: str) -> subprocess.Popen[str]:
    command = [sys.executable, SCRIPTS / "gpu_held.py", what, str(size), f"{memory}/held"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", f"gpu_held.py {what} did not start"
    return process


if __name__ == "__main__":
    main()
