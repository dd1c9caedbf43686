"""Disks for tests: one on which the process dies before the n-th operation, one that remembers everything, and what a power cut makes of that.

    WatchedDisk      a real disk that calls somebody ahead of every operation
    Recorder         a WatchedDisk that keeps what was done, by ranks that take turns as a seed says
    FileLayer        the recorded operations on a model of names and contents, with every state that a power cut may leave of them
    sync_sites       every place in the source that asks for something to be durable
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from holdfast import checkpoint
from holdfast.checkpoint.chunks import Store
from holdfast.checkpoint.commit import Shard, commit
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.exchange import Imported
from holdfast.checkpoint.found import list_complete
from holdfast.checkpoint.layout import MANIFEST, RETIRED, Manifest, decode_manifest
from holdfast.checkpoint.remove import Retention, line_of, prune, sweep_failed

RANKS = 2


def save_step(
    disk: Disk,
    checkpoints: Path,
    step: int,
    rank: int,
    *,
    generation: int = 1,
    retention: Retention | None = None,
    numbers: Mapping[str, float] | None = None,
    completed: Callable[[Manifest], None] = lambda manifest: None,
) -> Manifest | None:
    """One rank's save of a step, as `write.save` does it, of a few small chunks and without torch. `completed` hears of it before anything is removed."""

    def fill(store: Store) -> str:
        store.put_all(contents(step, rank))
        return store.put(f"the state of rank {rank} at step {step}".encode()).digest

    retention = retention or Retention(last=1, restored=(generation, 0))
    shard = Shard(step=step, generation=generation, world_size=RANKS, rank=rank, at=float(step), numbers=numbers or {})
    sweep_failed(disk, checkpoints, generation=generation, before_step=step, world_size=RANKS)
    line = line_of(checkpoints, retention, generation=generation)
    manifest = commit(disk, checkpoints, shard, fill, base=line[0].manifest if line else None)
    if manifest is not None:
        completed(manifest)
        prune(disk, checkpoints, retention, generation=generation, now=shard.at)
    return manifest


def contents(step: int, rank: int) -> list[bytes]:
    """What changes with every step and what never does, what a rank has for itself and what all have; and some that changes now and then."""
    return [
        f"step {step} rank {rank}\n".encode() * 20,
        f"step {step} everywhere\n".encode() * 20,
        f"frozen rank {rank}\n".encode() * 20,
        f"since step {step // 30 * 30} everywhere\n".encode() * 20,
        b"" if rank else f"one of two: {step // 10 % 2}\n".encode() * 20,
    ]


def garbage(checkpoints: Path) -> list[str]:
    """What lies there and belongs to no checkpoint."""
    complete = {one.name: one.manifest for one in list_complete(checkpoints)}
    needed = {chunk.path for manifest in complete.values() for chunk in manifest.chunks}
    homes = {path.split("/")[0] for path in needed}
    left = []
    for path in checkpoints.rglob("*"):
        home, *below = path.relative_to(checkpoints).parts
        name = "/".join((home, *below))
        belongs = home in complete and (not below or below[0] != "chunks" or len(below) == 1)
        if not belongs and name not in needed and not (home in homes and below in ([], ["chunks"], ["retired"])):
            left.append(name)
    return sorted(left)


# Disks.


class QuickDisk(Disk):
    """For what is never meant to survive anything: without syncs, which take most of a save's time."""

    writers = 1

    def sync_file(self, file: io.FileIO) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        if not path.is_dir():
            raise FileNotFoundError(2, "No such file or directory", str(path))


class WatchedDisk(QuickDisk):
    """Calls `before` ahead of every operation, with what is about to happen. A sync is only told: no test can see whether it was done."""

    def __init__(self, before: Callable[..., None]) -> None:
        self._before = before

    def make_directory(self, path: Path) -> None:
        self._before("make_directory", path)
        super().make_directory(path)

    def create(self, path: Path) -> io.FileIO:
        self._before("create", path)
        return _WatchedFile(path, self._before)

    def sync_file(self, file: io.FileIO) -> None:
        assert isinstance(file, _WatchedFile)
        self._before("sync_file", file.path)

    def rename(self, old: Path, new: Path) -> None:
        self._before("rename", old, new)
        super().rename(old, new)

    def sync_directory(self, path: Path) -> None:
        self._before("sync_directory", path)
        super().sync_directory(path)

    def remove(self, path: Path) -> None:
        self._before("remove", path)
        super().remove(path)

    def remove_directory(self, path: Path) -> None:
        self._before("remove_directory", path)
        super().remove_directory(path)


class _WatchedFile(io.FileIO):
    def __init__(self, path: Path, before: Callable[..., None]) -> None:
        super().__init__(path, "wb")
        self.path, self._before = path, before

    def write(self, data: Any, /) -> int:
        self._before("write", self.path, bytes(data))
        return super().write(data)


def dying_disk(operations: int) -> Disk:
    """The process ends, without a word and without clean-up, ahead of operation number `operations`."""
    return counting_disk(operations, lambda: os._exit(137))


def counting_disk(operations: int, then: Callable[[], None]) -> Disk:
    """`then` is called ahead of operation number `operations`, and of no other."""
    left = operations

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            then()

    return WatchedDisk(count)


# What was done.


OUTSIDE = ".."  # What lies there is not part of the record, and has always been durable.


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    path: str  # Below the root of the record, as are all.
    new: str = ""
    data: bytes = b""
    site: str = ""  # Who asked for this sync.


class Killed(BaseException):
    """What a rank that is no more sees of its disk: nobody catches it, and no clean-up of the dead reaches the disk."""


@dataclass
class Recorder:
    """What ranks did to the disk under `root`, in the order in which it happened."""

    root: Path
    seed: int
    operations: list[Operation] = field(default_factory=list)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    returned: dict[str, int] = field(default_factory=dict)  # How many operations were done when a rank knew that this checkpoint is complete.

    def __post_init__(self) -> None:
        self._turns = _Turns(self.seed)
        self._sites = sync_sites(*PROTOCOL, *EXCHANGE)

    def run(self, *works: Callable[[Disk], object], fails: int = 0, dies: int = 0, breaks: int = 0) -> None:
        """All of `works` at once, one rank each. The last rank's write number `fails` finds no space, or its operation number `breaks` is not done; or it is
        killed ahead of its operation number `dies`."""
        limits = [(0, 0, 0)] * (len(works) - 1) + [(fails, dies, breaks)]
        self._turns.run([partial(work, self.disk(*limit)) for work, limit in zip(works, limits, strict=True)])

    def hand_over(self) -> None:
        """Let another rank go on, perhaps: for one that waits."""
        self._turns.hand_over()

    def disk(self, fails: int = 0, dies: int = 0, breaks: int = 0) -> Disk:
        done = written = 0

        def before(name: str, path: Path, *rest: Any) -> None:
            nonlocal done, written
            self._turns.hand_over()
            done, written = done + 1, written + (name == "write")
            if dies and done >= dies:
                raise Killed
            if name == "write" and written == fails:
                raise OSError(28, "No space left on device")
            if done == breaks:
                raise OSError(5, "Input/output error")
            new = self._below(rest[0]) if name == "rename" else ""
            if new.endswith(f"/{MANIFEST}"):
                self.manifests[rest[0].parent.name] = decode_manifest(path.read_bytes())
            site = _site(self._sites, sys._getframe(2)) if name.startswith("sync") else ""
            self.operations.append(Operation(name, self._below(path), new, rest[0] if name == "write" else b"", site))

        return WatchedDisk(before)

    def _below(self, path: Path) -> str:
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else OUTSIDE

    def completed(self, one: Manifest | Imported) -> None:
        self.returned.setdefault(one.name, len(self.operations))

    def required(self, done: int) -> frozenset[str]:
        """The checkpoints that must be there after so many operations: somebody knew that they are complete, and nobody began to remove them."""
        removed = {one.path.split("/")[-2] for one in self.operations[:done] if one.name == "rename" and one.new.endswith(f"/{RETIRED}")}
        return frozenset(name for name, at in self.returned.items() if at <= done) - removed

    def allowed(self, done: int) -> frozenset[str]:
        """The checkpoints that may be there: whose manifest was about to be."""
        return frozenset(one.new.split("/")[-2] for one in self.operations[:done] if one.name == "rename" and one.new.endswith(f"/{MANIFEST}"))


class _Turns:
    """Lets one thread run at a time, and chooses ahead of each operation who is next; so the seed says how the ranks met."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._go: dict[int, threading.Semaphore] = {}
        self._mine = threading.local()
        self._errors: list[BaseException] = []

    def run(self, works: Sequence[Callable[[], object]]) -> None:
        self._go = {number: threading.Semaphore(0) for number in range(len(works))}
        threads = [threading.Thread(target=self._work, args=(number, work)) for number, work in enumerate(works)]
        for thread in threads:
            thread.start()
        self._go[self._random.choice(sorted(self._go))].release()
        for thread in threads:
            thread.join()
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def hand_over(self) -> None:
        """Called by whoever runs; returns when it may go on."""
        number = getattr(self._mine, "number", None)
        if number is None or self._random.random() < 0.6:  # Not always: a rank that gets several things done meets the other elsewhere.
            return
        mine, chosen = self._go[number], self._random.choice(sorted(self._go))
        self._go[chosen].release()
        mine.acquire()

    def _work(self, number: int, work: Callable[[], object]) -> None:
        self._mine.number = number
        self._go[number].acquire()
        try:
            work()
        except Killed:
            pass
        except BaseException as error:
            self._errors.append(error)
        del self._go[number]
        if self._go:
            self._go[self._random.choice(sorted(self._go))].release()


# What a power cut leaves.

Tree = dict[str, bytes | None]  # Files with their content, directories with None.


@dataclass(eq=False, slots=True)
class _File:
    now: bytes = b""
    durable: bytes = b""


@dataclass(eq=False, slots=True)
class _Directory:
    now: dict[str, _File | _Directory] = field(default_factory=dict)
    durable: dict[str, _File | _Directory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of the names in one directory that is not durable yet: a name given to a file or directory, or (None) taken away; a rename does both."""

    where: _Directory
    name: str
    gets: _File | _Directory | None
    old: str = ""

    def apply(self, names: dict[str, _File | _Directory]) -> None:
        if self.old and names.get(self.old) is self.gets:
            del names[self.old]
        if self.gets is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.gets


class FileLayer:
    """Names and contents, and which of them are durable.

    A file's content is durable once the file is synced, and its name once the directory it is in is synced, and that one's name in turn. Of what is not
    synced a power cut may leave anything, in any order: each change of a directory alone or not at all, contents whole, in part, as zeros or not at all.
    """

    def __init__(self, *durable: str) -> None:
        """On a disk on which these directories have always been."""
        self._root = _Directory()
        for name in durable:
            self._root.now[name] = self._root.durable[name] = _Directory()
        self._pending: list[_Change] = []

    def do(self, operation: Operation) -> None:
        if operation.path != OUTSIDE:
            getattr(self, f"_{operation.name}")(operation)

    def cuts(self, seed: str, *, thorough: bool = False) -> Iterator[tuple[str, Tree]]:
        """What the power cut may leave, each with a word for how it came about; `thorough` also tells old changes apart, each alone and each missing."""
        pending = self._pending
        recent = slice(None) if thorough else slice(-1, None)
        every, none = [True] * len(pending), [False] * len(pending)
        yield "all that is unsynced is lost", self._left(none, _durable)
        yield "all is kept", self._left(every, _now)
        yield "names are kept and contents lost", self._left(every, _durable)
        yield "contents are kept and names lost", self._left(none, _now)
        yield "contents are torn", self._left(every, _torn)
        yield "contents are zeros from the middle on", self._left(every, _zeros)
        for where in list(dict.fromkeys(change.where for change in pending))[recent]:
            yield "one directory is kept", self._left([change.where is where for change in pending], _now)
            yield "one directory is lost", self._left([change.where is not where for change in pending], _durable)
        for number in range(len(pending))[recent]:
            yield f"of the changes only number {number} is kept", self._left([other == number for other in range(len(pending))], _now)
            yield f"of the changes only number {number} is lost", self._left([other != number for other in range(len(pending))], _now)
        for number in range(16 if thorough else 2):
            dice = random.Random(f"{seed} {number}")
            share = dice.choice((0.2, 0.5, 0.8))
            keeps = [dice.random() < share for _ in pending]
            yield f"a mixture, number {number}", self._left(keeps, partial(_any, dice))

    def _left(self, keeps: Sequence[bool], content: Callable[[_File], bytes]) -> Tree:
        names: dict[_Directory, dict[str, _File | _Directory]] = {}
        for change, kept in zip(self._pending, keeps, strict=True):
            if kept:
                change.apply(names.setdefault(change.where, dict(change.where.durable)))
        tree: Tree = {}

        def walk(directory: _Directory, above: str) -> None:
            for name, node in sorted(names.get(directory, directory.durable).items()):
                if isinstance(node, _Directory):
                    tree[above + name] = None
                    walk(node, f"{above}{name}/")
                else:
                    tree[above + name] = content(node)

        walk(self._root, "")
        return tree

    def _find(self, path: str) -> tuple[_Directory, str]:
        """The directory that has or would have this name; an empty one for what another rank has just removed."""
        *above, name = path.split("/")
        directory = self._root
        for one in above:
            found = directory.now.get(one)
            directory = found if isinstance(found, _Directory) else _Directory()
        return directory, name

    def _change(self, change: _Change) -> None:
        change.apply(change.where.now)
        self._pending.append(change)

    def _make_directory(self, operation: Operation) -> None:
        parts = operation.path.split("/")
        for depth in range(1, len(parts) + 1):
            where, name = self._find("/".join(parts[:depth]))
            if name not in where.now:
                self._change(_Change(where, name, _Directory()))

    def _create(self, operation: Operation) -> None:
        where, name = self._find(operation.path)
        file = where.now.get(name)
        if isinstance(file, _File):
            file.now = b""
        else:
            self._change(_Change(where, name, _File()))

    def _write(self, operation: Operation) -> None:
        self._file(operation.path).now += operation.data

    def _sync_file(self, operation: Operation) -> None:
        file = self._file(operation.path)
        file.durable = file.now

    def _file(self, path: str) -> _File:
        where, name = self._find(path)
        file = where.now[name]
        assert isinstance(file, _File)
        return file

    def _rename(self, operation: Operation) -> None:
        (where, old), (_, new) = self._find(operation.path), self._find(operation.new)
        assert operation.path.rpartition("/")[0] == operation.new.rpartition("/")[0], "a rename across directories is not atomic in this model"
        if old in where.now:  # Else another rank was faster, and this one was told so.
            self._change(_Change(where, new, where.now[old], old))

    def _remove(self, operation: Operation) -> None:
        where, name = self._find(operation.path)
        if name in where.now:
            self._change(_Change(where, name, None))

    def _remove_directory(self, operation: Operation) -> None:
        where, name = self._find(operation.path)
        found = where.now.get(name)
        if isinstance(found, _Directory) and not found.now:
            self._change(_Change(where, name, None))

    def _sync_directory(self, operation: Operation) -> None:
        where, name = self._find(operation.path)
        synced = self._root if operation.path == "." else where.now.get(name)
        for change in self._pending:
            if change.where is synced:
                change.apply(change.where.durable)
        self._pending = [change for change in self._pending if change.where is not synced]


def _durable(file: _File) -> bytes:
    return file.durable


def _now(file: _File) -> bytes:
    return file.now


def _torn(file: _File) -> bytes:
    return file.durable if file.durable == file.now else file.now[: (len(file.durable) + len(file.now)) // 2]


def _zeros(file: _File) -> bytes:
    return file.durable if file.durable == file.now else _torn(file).ljust(len(file.now), b"\0")


def _any(dice: random.Random, file: _File) -> bytes:
    return dice.choice((_durable, _now, _torn, _zeros))(file)


def key_of(tree: Tree) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, content in tree.items():
        digest.update(f"{name}\0{-1 if content is None else len(content)}\0".encode() + (content or b""))
    return digest.digest()


def put_on_disk(tree: Tree, root: Path, *, there: Tree) -> None:
    """Make what is under `root` this tree. `there` is what it was before: most cuts leave nearly the same as the one before them."""
    for name, content in sorted(there.items(), reverse=True):
        if name not in tree or (tree[name] is None) != (content is None):
            (os.rmdir if content is None else os.unlink)(f"{root}/{name}")
    for name, content in tree.items():
        if content is None and there.get(name, b"") is not None:
            os.mkdir(f"{root}/{name}")
        elif content is not None and there.get(name) != content:
            with open(f"{root}/{name}", "wb", buffering=0) as file:
                file.write(content)


# Who asks for syncs.

Frame = tuple[str, str, int]  # Module, function, line.
PROTOCOL = ("chunks", "commit", "disk", "remove")  # Who makes and removes checkpoints.
EXCHANGE = ("exchange", "told")  # Who brings them in and takes them out.


@cache
def sync_sites(*modules: str) -> dict[tuple[Frame, ...], str]:
    """Every sync that these ask for, by the frames that lead to it. `put_file` asks for one on behalf of many, so its callers are told apart."""
    direct, by_way = _calls(modules, {"sync_file", "sync_directory"}), _calls(modules, {"put_file"})
    named: dict[tuple[Frame, ...], str] = {(frame,): f"{frame[0]}.{frame[1]}: {what}" for frame, what in direct.items() if frame[1] != "put_file"}
    for frame in (frame for frame in direct if frame[1] == "put_file"):
        named |= {(frame, caller): f"{caller[0]}.{caller[1]}: sync_file in {what}" for caller, what in by_way.items()}
    seen: Counter[str] = Counter()
    for path, name in sorted(named.items()):
        seen[name] += 1
        named[path] = name if seen[name] == 1 else f"{name} again"
    return named


def _calls(modules: Sequence[str], names: set[str]) -> dict[Frame, str]:
    """Where any of these is called, and how, in the order of the source."""
    found = {}
    for module in modules:
        source = (Path(*checkpoint.__path__) / f"{module}.py").read_text()
        for function in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                called = getattr(call.func, "attr", getattr(call.func, "id", ""))
                durable = not any(one.arg == "durable" and ast.unparse(one.value) == "False" for one in call.keywords)
                if called in names and durable:
                    found[(module, function.name, call.lineno)] = f"{called}({', '.join(map(ast.unparse, call.args))})"
    return dict(sorted(found.items()))


def _site(sites: Mapping[tuple[Frame, ...], str], frame: Any) -> str:
    """The site at which this frame asks for a sync."""
    frames = [(Path(one.f_code.co_filename).stem, one.f_code.co_name, one.f_lineno) for one in (frame, frame.f_back)]
    return sites.get((frames[0],)) or sites[(frames[0], frames[1])]
