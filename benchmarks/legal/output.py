"""Output: is all that a script prints there when `holdfast run` leaves, however much, however fast, and whoever reads it?

A million lines at once, and a hundred megabytes, each with a result behind it, with an end of line and without, and once from a process that is killed right
after it: through a pipe, into a file, onto a terminal, and to a reader that begins only when the job is over. Over a pipe and in a file every byte is compared
with what was printed. On a terminal it is enough that the last lines and the result are there, with a line that says where the rest is.

Alone: `cd benchmarks && ../.venv/bin/python -m legal.output --quick`.
"""

from __future__ import annotations

import os
import pty
import re
import resource
import subprocess
import sys
import tempfile
import termios
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.jobs import SCRIPTS, scratch_directory
from harness.measure import Report, arguments, say

from holdfast.cli.job import state_of
from holdfast.errors import HoldfastError
from holdfast.launch.layout import JobDirectory

READERS = ("pipe", "file", "terminal", "late")
WITHIN_S = 300.0
_OURS = re.compile(rb"\x1b7.*?\x1b8|\x1b\[[0-9;?]*[@-~]|\x1bD", re.DOTALL)
REST = b" MB more in `holdfast logs "


@dataclass(frozen=True, slots=True, kw_only=True)
class Loud:
    name: str
    lines: int
    width: int
    ending: str = ""

    @property
    def size_mb(self) -> float:
        return self.lines * self.width / 1e6

    def command(self) -> list[str]:
        return [str(SCRIPTS / "loud.py"), str(self.lines), str(self.width), *filter(None, [self.ending])]

    def expected(self) -> Iterator[bytes]:
        for number in range(self.lines):
            yield f"{number:0{self.width - 1}d}\n".encode()
        yield b"RESULT 0.93" if self.ending == "bare" else b"RESULT 0.93\n"


FULL = (
    Loud(name="1,000,000 lines", lines=1_000_000, width=20), Loud(name="1,000,000 lines, no newline at the end", lines=1_000_000, width=20, ending="bare"),
    Loud(name="100 MB", lines=1_000_000, width=100), Loud(name="100 MB, killed right after", lines=1_000_000, width=100, ending="killed"),
)  # fmt: skip
QUICK = (
    Loud(name="100,000 lines, no newline at the end", lines=100_000, width=20, ending="bare"),
    Loud(name="25 MB, killed right after", lines=250_000, width=100, ending="killed"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    whole: bool
    result: bool
    told: bool  # Where the rest is.
    printing_s: float  # How long the script needed for its printing.
    wall_s: float


def measure(report: Report, chosen: Namespace, scratch: Path) -> None:
    found: list[tuple[Loud, str, Came]] = []
    for number, loud in enumerate(QUICK if chosen.quick else FULL):
        for reader in READERS:
            came = one(loud, reader, scratch / f"output-{number}-{reader}")
            found.append((loud, reader, came))
            rest = "whole" if came.whole else "its last lines, and where the rest is" if came.told else "NOT WHOLE"
            say(f"{loud.name}, {reader}: {rest}; {'the result is there' if came.result else 'NO RESULT'}; {came.wall_s:.1f} s")
    report.series("printing, in the script", "s", [came.printing_s for _, _, came in found])
    report.series("the whole run", "s", [came.wall_s for _, _, came in found])
    lost = [f"{loud.name}, {reader}" for loud, reader, came in found if not (came.result and (came.whole or (reader == "terminal" and came.told)))]
    report.bar("output that is lost at the end", float(len(lost)), f"of {len(found)}", at_most=0)
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # Of the largest process that we waited for: the launchers.
    report.bar("memory of a launcher, at most", peak_mb, "MiB", under=150)
    for text in lost:
        report.note(f"lost: {text}")
    report.raw["output"] = [{"what": loud.name, "reader": reader, **asdict(came)} for loud, reader, came in found]


def one(loud: Loud, reader: str, scratch: Path) -> Came:
    scratch.mkdir(parents=True)
    job = JobDirectory(Path(tempfile.mkdtemp(prefix="holdfast-output-", dir=scratch.parent)) / "jobs" / "loud")
    line = [sys.executable, "-m", "holdfast.cli", "run", "--state", str(job.path.parents[1]), "--name", job.job, "--max-restarts", "0", *loud.command()]
    environment = {**os.environ, "LOUD_TOOK": str(scratch / "took"), "TERM": "xterm"}
    began = time.monotonic()
    with (scratch / "said").open("wb") as said:
        kept = {"file": _into_file, "terminal": _onto_terminal}.get(reader, _through_pipe)(line, environment, said, job, scratch / "shown", reader == "late")
    wall_s = time.monotonic() - began
    text = kept.read_bytes()
    last = f"{loud.lines - 1:0{loud.width - 1}d}".encode() in text
    printing_s = float((scratch / "took").read_text())
    return Came(whole=_is_whole(loud, reader, text), result=b"RESULT 0.93" in text and last, told=REST in text, printing_s=printing_s, wall_s=wall_s)


def _is_whole(loud: Loud, reader: str, text: bytes) -> bool:
    if reader != "terminal":
        return text == b"".join(loud.expected())
    written = _OURS.sub(b"", text)  # The panel may be drawn in the middle of a line.
    return len(set(re.findall(rb"\d{%d}(?=\r)" % (loud.width - 1), written))) == loud.lines


def _into_file(line: list[str], env: dict[str, str], said: object, job: JobDirectory, kept: Path, late: bool) -> Path:
    with kept.open("wb") as out:
        subprocess.run(line, env=env, stdout=out, stderr=said, timeout=WITHIN_S, check=False)  # type: ignore[call-overload]
    return kept


def _through_pipe(line: list[str], env: dict[str, str], said: object, job: JobDirectory, kept: Path, late: bool) -> Path:
    with subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=said) as run, kept.open("wb") as out:  # type: ignore[call-overload]
        if late:
            _wait_for_end(job)
        while data := run.stdout.read(1 << 16):
            out.write(data)
        run.wait(WITHIN_S)
    return kept


def _onto_terminal(line: list[str], env: dict[str, str], said: object, job: JobDirectory, kept: Path, late: bool) -> Path:
    leader, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (40, 160))

    def read() -> None:
        with kept.open("wb") as out:
            try:
                while data := os.read(leader, 1 << 16):
                    out.write(data)
            except OSError:
                return  # Nobody holds the other end any more.

    reader = threading.Thread(target=read)
    with subprocess.Popen(line, env=env, stdin=terminal, stdout=terminal, stderr=terminal) as run:
        os.close(terminal)
        reader.start()
        run.wait(WITHIN_S)
    reader.join(WITHIN_S)
    os.close(leader)
    return kept


def _wait_for_end(job: JobDirectory) -> None:
    until_s = time.monotonic() + WITHIN_S
    while time.monotonic() < until_s:
        try:
            if state_of(job).outcome is not None:
                return
        except HoldfastError:
            pass  # It has no journal yet.
        time.sleep(0.1)


def main() -> None:
    chosen = arguments(__doc__ or "")
    report = Report("Output")
    with scratch_directory(keep=chosen.keep) as scratch:
        measure(report, chosen, scratch)
    report.finish(chosen)


if __name__ == "__main__":
    main()
