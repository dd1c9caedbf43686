"""Incidents over many ranks: one true cause on one rank, its echoes on all others, as directories of log files with the truth beside them.

    python benchmarks/incidents/cascades.py --out DIR [--count 240] [--seed 0]

4 to 512 ranks on nodes whose clocks differ by up to three minutes. The culprit's error is one of messages/; the others say what ranks say when one is gone:
NCCL's watchdog after its timeout, closed connections, Gloo's resets, actors that died; then a launcher ends them, and its table names, on every node, the
first failure *it* saw. Logs are a file for each rank, for each node, or one for all, with and without times; some ranks' logs are missing or cut; warnings and
errors that were tried again stand before. In one case of eight a rank simply never comes, and is behind in its sequence numbers.

A case in which nothing of the cause is left anywhere would be a riddle, and is not made: only messages that tell their cause without a second line are taken,
and the line that names the exception (or the signal, or the kernel's
record) is always in at least one file. Where the culprit's own log lost its last lines, the launcher's table carries the traceback, as torch's `record` makes
it do. Where a rank never came, it says how far it got, or all others say that they waited.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from incidents.blanks import filled, sections
from incidents.surroundings import table
from incidents.written import Message, messages, shown

_SIZES = (4, 8, 8, 16, 16, 32, 32, 64, 64, 128, 256, 512)
_LOCAL = frozenset({
    "checkpoint_corrupt", "code_error", "data_corrupt", "device_assert", "disk_full", "file_not_found", "gpu_ecc", "gpu_illegal_access", "gpu_kernel_error",
    "gpu_nvlink", "gpu_oom", "gpu_unavailable", "host_oom", "import_missing", "index_out_of_range", "numeric_nan", "permission_denied", "process_abort",
    "remote_service_error", "shape_mismatch", "shm_exhausted", "storage_io", "too_many_open_files",
})  # fmt: skip
"""Causes that one rank meets alone and says so itself."""
_EARLY = frozenset({"checkpoint_corrupt", "gpu_unavailable", "import_missing"})
"""Those of them that strike before the first step."""
_KERNEL = -1  # In place of a rank: the kernel of the node says it.
_PIDS = 4000  # A rank's process has this number and its rank.
_BEGAN_S = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cascade:
    name: str
    causes: tuple[str, ...]  # Any of these is right; the first is the one.
    rank: int
    ranks: int
    node: str
    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    at_s: float  # True time; the clock of the node shows another.
    rank: int | None
    node: int
    text: str
    logged: bool = False  # Through the program's own logging, not straight to standard error.


def cascades(seed: int, count: int) -> Iterator[Cascade]:
    known = [one for one in messages() if one.cause in _LOCAL and one.text.startswith("!") and "NCCL" not in one.text and "\n?" not in one.text]
    for number in range(count):
        draw = random.Random(f"{seed}/cascade/{number}")
        yield Story(draw, number, known).told()


class Story:
    """One incident being made up."""

    def __init__(self, draw: random.Random, number: int, known: Sequence[Message]) -> None:
        self.draw, self.number = draw, number
        self.ranks = draw.choice(_SIZES)
        self.per_node = min(self.ranks, draw.choice((4, 8)))
        self.culprit = draw.randrange(self.ranks)
        self.nodes = -(-self.ranks // self.per_node)
        called = draw.choice(("node", "gpu-", "worker", "dgx"))
        self.names = [f"{called}{one:03d}" for one in range(self.nodes)]
        skew_s = draw.choice((0.0, 0.5, 20.0, 180.0))
        self.skew = [draw.uniform(-skew_s, skew_s) for _ in range(self.nodes)]
        self.said: list[Said] = []
        self.step_s = draw.choice((0.3, 1.0, 4.0))
        self.last_step = draw.randint(40, 900)
        self.kind = draw.choice(("raised",) * 6 + ("signal", "behind"))
        self.message = draw.choice(known)
        if self.kind == "raised" and self.message.cause in _EARLY:
            self.last_step = 0
        # The late rank hears of it and says how far it came; else it is the only one that is silent.
        self.dumped = self.kind == "behind" and draw.random() < 0.6
        self.all_heard = self.kind == "behind" and not self.dumped

    def told(self) -> Cascade:
        self._progress()
        failed_s = _BEGAN_S + 60 + self.last_step * self.step_s
        if self.kind == "raised":
            causes: tuple[str, ...] = (self.message.cause,)
            error = shown(self.draw, self.message, rank=str(self.culprit), gpu=str(self.culprit % self.per_node), host=self._host(self.culprit))
            error = [line for line in error if line.strip() != "%progress"]
            self._say(failed_s, self.culprit, error)
            code = self.draw.choice((1, 1, 1, -6))
        elif self.kind == "signal":
            causes, error, code = self._signal(failed_s)
        else:
            causes, error, code = ("nccl_timeout", "hang"), [], -6
        style = "watchdog" if self.kind == "behind" else self.draw.choice(("watchdog", "closed", "gloo", "reset", "ray"))
        ended_s = self._echoes(style, failed_s)
        told = self._clean_up(ended_s, code, failed_s)
        cut = self._losses(bool(error) and self.kind == "raised", code, error, ended_s, told)
        node = self._host(self.culprit)
        return Cascade(name=f"cascade-{self.number:04d}", causes=causes, rank=self.culprit, ranks=self.ranks, node=node, files=self._files(cut))

    def _host(self, rank: int) -> str:
        return self.names[rank // self.per_node]

    def _say(self, at_s: float, rank: int | None, lines: Sequence[str], *, node: int = 0, logged: bool = False) -> None:
        where = rank // self.per_node if rank is not None else node
        self.said += [Said(at_s=at_s + place * 1e-4, rank=rank, node=where, text=line, logged=logged) for place, line in enumerate(lines)]

    def _progress(self) -> None:
        """Every rank's steps, some warnings, and now and then an error that was tried again with success."""
        shape = self.draw.choice(sections("progress")[""])
        every = max(1, self.last_step // self.draw.randint(4, 12))
        for rank in range(self.ranks):
            self._say(_BEGAN_S + self.draw.uniform(0, 30), rank, self._made("banners", "", rank=str(rank)))
            if self.draw.random() < 0.2:
                self._say(_BEGAN_S + 31, rank, self._made("warnings", "", rank=str(rank)))
            if self.draw.random() < 3 / self.ranks / 8:
                self._say(_BEGAN_S + 60 + self.last_step * self.step_s / 2, rank, self._made("cascade_echoes", "retried"))
            for step in range(0, self.last_step, every or 1):
                at_s = _BEGAN_S + 60 + step * self.step_s + self.draw.uniform(0, self.step_s / 4)
                self._say(at_s, rank, [filled(self.draw, shape, step=str(step), rank=str(rank))], logged=True)

    def _signal(self, at_s: float) -> tuple[tuple[str, ...], list[str], int]:
        """The culprit says nothing itself: the kernel does, or the launcher names its signal."""
        if self.draw.random() < 0.5:
            record = self._made("cascade_echoes", "memory", uptime=f"{at_s - _BEGAN_S:.6f}", gone=str(_PIDS + self.culprit))
            self.said += [Said(at_s=at_s, rank=_KERNEL, node=self.culprit // self.per_node, text=line) for line in record]
            return ("host_oom",), record, -9
        if self.draw.random() < 0.5:
            self._say(at_s, self.culprit, self._made("cascade_echoes", "crash"))
        return ("segfault",), ["-11"], -11

    def _echoes(self, style: str, failed_s: float) -> float:
        """What the others say, and when the last of them has said it."""
        wait_s = self.draw.choice((600.0, 1800.0)) if style == "watchdog" else self.draw.uniform(0.05, 3)
        sequence, ms, last_s = self.draw.randint(100, 90_000), int(wait_s * 1000), failed_s
        work = f"WorkNCCL(SeqNum={sequence}, OpType=ALLREDUCE, NumelIn=8388608, NumelOut=8388608, Timeout(ms)={ms})"
        same = {"work": work, "sequence": str(sequence), "before": str(sequence - 1), "gone": str(_PIDS + self.culprit)}
        for rank in range(self.ranks):
            if rank == self.culprit:
                if self.dumped:
                    self._say(failed_s + wait_s + 2, rank, self._made("cascade_echoes", "late", rank=str(rank), **same))
                continue
            if not self.all_heard and self.draw.random() < 0.04:
                continue  # It was ended before it noticed.
            at_s = failed_s + wait_s + self.draw.uniform(0, 2)
            last_s = max(last_s, at_s)
            ran = str(ms + self.draw.randint(3, 99))
            own = {"rank": str(rank), "gpu": str(rank % self.per_node), "pid": str(_PIDS + rank), "own": self._host(rank), "ran": ran}
            there = {"peer": self._host(self.draw.randrange(self.ranks)), "address": f"10.0.{self.culprit // self.per_node}.{self.draw.randint(2, 250)}"}
            self._say(at_s, rank, self._made("cascade_echoes", style, **own, **there, **same))
        return last_s

    def _made(self, file: str, section: str, **given: str) -> list[str]:
        return filled(self.draw, self.draw.choice(sections(file)[section]), **given).split("\n")

    def _clean_up(self, ended_s: float, code: int, failed_s: float) -> bool:
        """The launchers' own lines and tables. Whether the culprit's node had one."""
        if self.kind != "signal" and self.draw.random() < 0.35:
            return False
        for node, name in enumerate(self.names):
            own = node == self.culprit // self.per_node
            ranks = range(node * self.per_node, min(self.ranks, (node + 1) * self.per_node))
            if not own and self.draw.random() < 0.3:
                continue
            rank = self.culprit if own else self.draw.choice(ranks)
            at_s = (failed_s if own else ended_s) + self.draw.uniform(0.1, 2)
            place = f"W0304 05:06:07.{self.draw.randint(0, 999):03d}000 {900 + node} torch/distributed/elastic/multiprocessing/api.py:897]"
            lines = [f"{place} Sending process {_PIDS + one} closing signal SIGTERM" for one in ranks if one != rank]
            shown_at = datetime.fromtimestamp(at_s + self.skew[node], UTC).strftime("%Y-%m-%d_%H:%M:%S")
            lines += table(self.draw, rank, code if own else self.draw.choice((1, -6)), host=name, at=shown_at, pid=_PIDS + rank)
            self._say(at_s, None, lines, node=node)
        return True

    def _losses(self, raised: bool, code: int, error: Sequence[str], ended_s: float, told: bool) -> set[int]:
        """Ranks whose log is not there; others, and rarely the culprit's, lose their last lines."""
        if self.all_heard:
            return set()
        missing = {rank for rank in range(self.ranks) if rank != self.culprit and self.draw.random() < 0.05}
        for rank in self.draw.sample(range(self.ranks), max(1, self.ranks // 12)):
            if rank != self.culprit:
                self._cut(rank, self.draw.randint(1, 4))
        if raised and told and self.draw.random() < 0.25:
            self._cut(self.culprit, len(error))
            recorded = [f"  traceback : {error[0]}", *(f"    {line}" for line in error[1:])]
            node = self.culprit // self.per_node
            place = next((one for one in self.said if one.rank is None and one.node == node and one.text.startswith("  traceback :")), None)
            assert place is not None
            where = self.said.index(place)
            self.said[where : where + 1] = [Said(at_s=place.at_s + number * 1e-6, rank=None, node=node, text=line) for number, line in enumerate(recorded)]
        return missing

    def _cut(self, rank: int, lines: int) -> None:
        own = sorted((one for one in self.said if one.rank == rank), key=lambda one: one.at_s)
        gone = set(map(id, own[-lines:]))
        self.said = [one for one in self.said if id(one) not in gone]

    def _files(self, missing: set[int]) -> tuple[tuple[str, str], ...]:
        layout = self.draw.choice(("ranks", "ranks", "nodes", "one"))
        stamped = self.draw.choice(("", "%Y-%m-%d %H:%M:%S,{ms} INFO ", "[%Y-%m-%d %H:%M:%S.{ms}] ", "%Y-%m-%dT%H:%M:%S.{ms}Z "))
        mark = self.draw.choice(("[rank{rank}]: ", "{rank}: ", "[default{rank}]:", "[1,{rank}]<stderr>:"))
        files: dict[str, list[tuple[float, str]]] = {}
        for one in self.said:
            if one.rank in missing:
                continue
            name = self.names[one.node]
            if one.rank == _KERNEL:
                files.setdefault(f"{name}/kernel.log", []).append((one.at_s, one.text))
                continue
            shown_at = datetime.fromtimestamp(one.at_s + self.skew[one.node], UTC)
            stamp = shown_at.strftime(stamped).replace("{ms}", f"{shown_at.microsecond // 1000:03d}") if one.rank is not None else ""
            if "INFO" in stamp and not one.logged:
                stamp = ""
            if one.rank is None:
                path, line = (f"{name}/launcher.log" if layout == "ranks" else "job.log" if layout == "one" else f"{name}.log"), one.text
            elif layout == "ranks":
                path, line = f"{name}/rank{one.rank}.log", stamp + one.text
            else:
                path, line = ("job.log" if layout == "one" else f"{name}.log"), mark.replace("{rank}", str(one.rank)) + stamp + one.text
            files.setdefault(path, []).append((one.at_s, line))
        return tuple((path, "\n".join(line for _, line in sorted(lines, key=lambda each: each[0])) + "\n") for path, lines in sorted(files.items()))


def put(cascade: Cascade, out: Path) -> None:
    directory = out / cascade.name
    for path, text in cascade.files:
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    truth = {"causes": cascade.causes, "rank": cascade.rank, "ranks": cascade.ranks, "node": cascade.node}
    (directory / "truth.json").write_text(json.dumps(truth) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--count", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    for cascade in cascades(chosen.seed, chosen.count):
        put(cascade, chosen.out)
    print(f"{chosen.count} cascades in {chosen.out}")


if __name__ == "__main__":
    main()
