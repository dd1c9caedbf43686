"""A gang without torch: ranks that meet at rank 0 every step, save now and then, beat, and go wrong on demand.

DIRECTORY outlives the ranks. `starts` gets a line per process started, `begins` one per gang with its size and first step, `rank-N` holds how far rank N is,
`result` the end: a chain of digests over all steps and ranks, which is right only when every step was taken by every rank exactly once on top of the one
before. A fault strikes once. Once there is a file `hurry`, steps take no longer than they must.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path

from holdfast.domain.beat import GUARDED, RESTORED
from holdfast.trainer.beats import Beats, open_beats

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GENERATION = int(os.environ["HOLDFAST_GENERATION"])
WORD_BYTES = 33


class Gang:
    """All ranks meet at rank 0: each brings a word and gets what rank 0 makes of them all."""

    def __init__(self) -> None:
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self._peers = self._gather(address) if RANK == 0 else [self._join(address)]

    def meet(self, word: bytes, note: bytes = b"-") -> bytes:
        """The digest of all words, and rank 0's note of one byte."""
        if RANK > 0:
            self._peers[0].sendall(word.ljust(WORD_BYTES))
            return self._read(self._peers[0])
        together = hashlib.sha256(b"".join([word, *(self._read(peer) for peer in self._peers)])).digest() + note
        self.tell(together)
        return together

    def tell(self, word: bytes) -> bytes:
        """What rank 0 says, on every rank."""
        if RANK > 0:
            return self._read(self._peers[0])
        for peer in self._peers:
            peer.sendall(word.ljust(WORD_BYTES))
        return word

    def _gather(self, address: tuple[str, int]) -> list[socket.socket]:
        peers: dict[int, socket.socket] = {}
        with socket.create_server(address) as server:
            while len(peers) < WORLD_SIZE - 1:
                peer, _ = server.accept()
                generation, rank = map(int, self._read(peer).split(b"/"))
                if generation == GENERATION:
                    peers[rank] = peer
        return [peers[rank] for rank in sorted(peers)]

    def _join(self, address: tuple[str, int]) -> socket.socket:
        deadline_s = time.monotonic() + 60.0
        while True:
            try:
                peer = socket.create_connection(address)
                break
            except ConnectionError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.01)
        peer.sendall(f"{GENERATION}/{RANK}".encode().ljust(WORD_BYTES))
        return peer

    def _read(self, peer: socket.socket) -> bytes:
        word = b""
        while len(word) < WORD_BYTES:
            more = peer.recv(WORD_BYTES - len(word))
            if not more:
                raise ConnectionResetError("connection closed by peer")
            word += more
        return word


class Kept:
    """States by step and rank. The newest step that all ranks have counts."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, step: int, state: bytes) -> None:
        part = self._directory / f"part-{GENERATION}-{RANK}"
        part.write_bytes(state)
        part.rename(self._directory / f"save-{step}-{WORLD_SIZE}-{RANK}")

    def newest(self) -> int:
        saved = Counter(tuple(map(int, path.name.split("-")[1:3])) for path in self._directory.glob("save-*"))
        return max((step for (step, world_size), ranks in saved.items() if ranks == world_size), default=0)

    def load(self, step: int) -> bytes:
        """Alike on all ranks, so that a gang of another size finds it too."""
        return next(iter(self._directory.glob(f"save-{step}-*-0"))).read_bytes() if step else b""


def main() -> None:
    options = parse()
    append(options.directory / "starts", f"{GENERATION} {RANK} {os.getpid()}\n")
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.deaf else lambda *_: stopping.append(1))
    beats = open_beats(Path(os.environ["HOLDFAST_BEATS"]), generation=GENERATION)
    beats.flags |= GUARDED
    beats.enter("start")
    strike_if_due(options, "start")
    state = train(options, beats, stopping)
    beats.enter("finish")
    if RANK == 0:
        (options.directory / "result").write_text(state.hex())
    print(f"rank {RANK} took {options.steps} steps", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-s", type=float, default=0.01)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--fault", action="append", default=[], metavar="KIND@STEP@RANK", help="STEP may be `start`")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    return parser.parse_args()


def train(options: argparse.Namespace, beats: Beats, stopping: list[int]) -> bytes:
    gang, kept = Gang(), Kept(options.directory)
    begin = int(gang.tell(str(kept.newest()).encode()))
    state = kept.load(begin)
    if RANK == 0:
        append(options.directory / "begins", f"{GENERATION} {WORLD_SIZE} {begin}\n")
    beats.steps_total, beats.step, beats.step_started, beats.restored_step = options.steps, begin, begin, begin
    beats.flags |= RESTORED
    beats.enter("start")
    progress = os.open(options.directory / f"rank-{RANK}", os.O_WRONLY | os.O_CREAT, 0o644)
    for step in range(begin, options.steps):
        strike_if_due(options, str(step))
        time.sleep(0.0 if (options.directory / "hurry").exists() else options.step_s)
        heard = gang.meet(hashlib.sha256(state + f"{step}/{RANK}".encode()).digest(), b"x" if stopping else b"-")
        state = hashlib.sha256(heard[:-1]).digest()
        os.pwrite(progress, f"{step + 1:10}".encode(), 0)
        beats.step = step + 1
        beats.enter("step")
        leave = heard.endswith(b"x")
        if leave or (step + 1) % options.save_every == 0:
            kept.save(step + 1, state)
            beats.saved_step = step + 1
        if leave:
            print(f"rank {RANK} leaves after step {step + 1}", flush=True)
            sys.exit(143)
    return state


def strike_if_due(options: argparse.Namespace, when: str) -> None:
    for kind, at, rank in (fault.split("@") for fault in options.fault):
        if at == when and int(rank) == RANK and first_time(options.directory / f"struck-{kind}-{at}-{rank}"):
            strike(kind)


def first_time(mark: Path) -> bool:
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def strike(kind: str) -> None:
    match kind:
        case "exception":
            raise RuntimeError("the loss is a banana")
        case "exit":
            sys.exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(3600)
        case "spin":
            while True:
                pass
        case _:
            raise ValueError(f"no such fault: {kind}")


def append(path: Path, line: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(fd, line.encode())
    os.close(fd)


main()
