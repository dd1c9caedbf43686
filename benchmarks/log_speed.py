"""Reading logs: how fast a log of 200 MB becomes a digest, in how much memory, on one core; and how soon one of 200 kB.

The logs are made up, of nine kinds: a calm training, Megatron's lines among NCCL's, a bar that is drawn over and over, Kubernetes records of eight ranks,
words, very long lines, the same error over and over, tracebacks one after another, and random words of trouble: no log is like that, but it is the worst
there can be. Each is read in a process of its own, from the file, as `holdfast diagnose` does; by CPU time, for what else the machine does is not ours.
Also: lines a second of the template miner; and the whole command on a log of one line, which is its start, once Python has kept what it compiled.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.jobs import scratch_directory
from harness.measure import Report, arguments, median, say

from holdfast.diagnose.reading.templates import Templates

LARGE_S, LARGE_MB, SMALL_MS, START_S = 10.0, 300.0, 150.0, 0.7
STARTS = 7
SMALL_BYTES = 200_000

TRACEBACK = """Traceback (most recent call last):
  File "/opt/job/train.py", line {}, in <module>
    main()
  File "/opt/job/model.py", line {}, in forward
    return self.head(x)
RuntimeError: mat1 and mat2 shapes cannot be multiplied ({}x{} and 512x10)
"""
CHILD = """
import sys, time
from holdfast.diagnose.reading import read
from holdfast.observe.log_files import LogFiles
read([("warm", [b"one error\\n"])])
before = time.process_time()
digest = read(LogFiles([sys.argv[1]]).sources())
seconds = time.process_time() - before
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]  # What a child is told by getrusage includes its parent.
print(seconds, int(peak) / 1000, digest.lines, len(digest.events))
"""


def main() -> None:
    chosen = arguments(__doc__ or "", megabytes=(200, 40, "size of each large log"), rounds=(3, 1, "times each is read"))
    report = Report("Reading logs")
    with scratch_directory(keep=chosen.keep) as directory:
        for name, lines in KINDS.items():
            large, small = directory / f"{name}.log", directory / f"{name}-small.log"
            write(large, lines, chosen.megabytes * 1_000_000, chosen.seed)
            small.write_bytes(large.open("rb").read(SMALL_BYTES))
            measure(report, name, large, small, chosen.rounds)
            large.unlink()
        start(report, directory)
    templates(report, chosen.seed)
    report.note(f"Large logs have {chosen.megabytes} MB; what is held against the bar of 200 MB is scaled from there.")
    for what, unit, bar in (("seconds for 200 MB", "s", LARGE_S), ("memory", "MB", LARGE_MB), ("milliseconds for 200 kB", "ms", SMALL_MS)):
        values = {name: median(report.raw[name][what]) for name in KINDS}
        for name in BARRED:
            report.bar(f"{what}: {name.replace('_', ' ')}", values[name], unit, under=bar)
    report.finish(chosen)


def measure(report: Report, name: str, large: Path, small: Path, rounds: int) -> None:
    scale = 200_000_000 / large.stat().st_size
    read_large, read_small = [read_in_a_process(large) for _ in range(rounds)], [read_in_a_process(small) for _ in range(rounds)]
    found = {
        "seconds for 200 MB": [scale * seconds for seconds, *_ in read_large], "memory": [memory for _, memory, *_ in read_large],
        "milliseconds for 200 kB": [1000 * seconds for seconds, *_ in read_small], "lines": [lines for *_, lines, _ in read_large],
        "events": [events for *_, events in read_large],
    }  # fmt: skip
    report.raw[name] = found
    said = name.replace("_", " ")
    report.series(said, "s for 200 MB", found["seconds for 200 MB"], f"{median(found['memory']):.0f} MB of memory")
    report.series(f"  the first 200 kB of {said}", "ms", found["milliseconds for 200 kB"])
    say(f"{said}: {median(found['seconds for 200 MB']):.1f} s, {median(found['memory']):.0f} MB, {median(found['milliseconds for 200 kB']):.0f} ms")


def read_in_a_process(path: Path) -> tuple[float, float, float, float]:
    done = subprocess.run([sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=True, timeout=600)
    seconds, memory, lines, events = map(float, done.stdout.split())
    return seconds, memory, lines, events


def start(report: Report, directory: Path) -> None:
    log = directory / "one-line.log"
    log.write_text("one line\n")
    kept = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(directory / "compiled")}
    used, took = [], []
    for _ in range(STARTS + 1):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-m", "holdfast.cli", "diagnose", str(log)], env=kept, stdout=subprocess.DEVNULL, check=False, timeout=600)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        took.append(time.perf_counter() - began)
    report.series("start of holdfast diagnose, by the clock", "s", took[1:], f"the first, which compiles, {took[0]:.1f} s")
    report.series("start of holdfast diagnose, CPU time", "s", used[1:])
    report.bar("start of holdfast diagnose", median(used[1:]), "s", under=START_S)


def write(path: Path, lines: Callable[[random.Random], Iterator[str]], size_bytes: int, seed: int) -> None:
    made = lines(random.Random(seed))
    with path.open("wb") as file:
        while file.tell() < size_bytes:
            file.write("".join(next(made) for _ in range(2000)).encode())


def templates(report: Report, seed: int) -> None:
    draw = random.Random(seed)
    made = [next(one) for one in (calm(draw), troubled_words(draw), same_error(draw)) for _ in range(4000)]
    miner = Templates()
    began = time.process_time()
    for line in made:
        miner.learn(line)
    report.series("lines the template miner learns", "a second of one core", [len(made) / (time.process_time() - began)], f"{len(miner)} templates")


def calm(draw: random.Random) -> Iterator[str]:
    step = 0
    while True:
        step += 1
        when = f"2026-11-16 {step // 3600 % 24:02d}:{step // 60 % 60:02d}:{step % 60:02d},{step % 1000:03d}"
        yield f"{when} INFO trainer step {step} | loss: {draw.random():.4f} | lr 1e-4 | tokens/s {draw.randint(1000, 9999)} | grad norm {draw.random():.3f}\n"


def megatron(draw: random.Random) -> Iterator[str]:
    step = 0
    while True:
        step += 1
        yield (
            f"[rank{step % 512}]:  iteration {step}/  500000 | consumed samples: {8 * step} | elapsed time per iteration (ms): {1000 * draw.random():.1f} | "
            f"lm loss: {draw.random():.6E} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        )
        for channel in range(2):
            who = f"node{step % 64}:{1000 + step % 512}:{2000 + step % 999} [{step % 8}]"
            yield f"{who} NCCL INFO Channel {channel:02d}/0 : {step % 512}[0] -> {(step + 1) % 512}[1] via P2P/CUMEM\n"


def bar(draw: random.Random) -> Iterator[str]:
    step = 0
    while True:
        step += 1
        end = "\n" if step % 1000 == 0 else ""
        yield f"\rTraining: {step % 100:3d}%|████▌     | {step % 1000}/1000 [00:10<00:12, 44.1it/s, loss={draw.random():.3f}]{end}"


def kubernetes(draw: random.Random) -> Iterator[str]:
    step = 0
    while True:
        step += 1
        when = f"2026-11-16T{step // 3600 % 24:02d}:{step // 60 % 60:02d}:{step % 60:02d}.{step:09d}Z"
        yield f'{when} stderr F {{"ts": {1794801906 + step / 10}, "level": "info", "msg": "step {step} loss {draw.random():.4f}", "rank": {step % 8}}}\n'


def long_lines(draw: random.Random) -> Iterator[str]:
    while True:
        yield "x" * draw.choice((10, 100, 1000, 20_000)) + "\n"


def same_error(draw: random.Random) -> Iterator[str]:
    while True:
        what = f"request {draw.getrandbits(32):x} to 10.0.{draw.randrange(256)}.{draw.randrange(256)}"
        yield f"2026-11-16 04:05:06 ERROR worker {draw.randrange(99)}: {what} failed: timed out after {draw.random():.3f} s\n"


def tracebacks(draw: random.Random) -> Iterator[str]:
    step = 0
    while True:
        step += 1
        yield TRACEBACK.format(*(draw.randrange(1, 99) for _ in range(4)))
        for _ in range(draw.randrange(6)):
            yield f"step {step} loss {draw.random()}\n"


def words(draw: random.Random) -> Iterator[str]:
    yield from sentences(draw, "the model reads every sample of its shard in order and writes what was learned to a file beside it when all nodes agree")


def troubled_words(draw: random.Random) -> Iterator[str]:
    yield from sentences(draw, "the error rate memory of exception test value node list batch loss step found in a file with no such failed timeout")


def sentences(draw: random.Random, known: str) -> Iterator[str]:
    while True:
        yield f"{' '.join(draw.choices(known.split(), k=15))} {draw.randrange(10**6)}\n"


KINDS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "calm": calm, "megatron": megatron, "bar": bar, "kubernetes": kubernetes, "words": words, "long_lines": long_lines, "same_error": same_error,
    "tracebacks": tracebacks, "troubled_words": troubled_words,
}  # fmt: skip
BARRED = ("calm", "megatron", "bar", "kubernetes", "words", "long_lines", "same_error", "tracebacks")

if __name__ == "__main__":
    main()
