"""The warm parent: one process per job and node that starts every worker, reaps it, and has a template of it with torch imported already.

    python warm.py --socket PATH --state DIR [--preimport MODULE …] [--no-warm]

It is the workers' parent and reaper. The agent that started it tells it what to do, one JSON object a line, over a Unix socket; it outlives that
agent, goes on serving the next one, and ends the whole tree when nobody renews its lease. It is one file of the standard library alone, because it
runs in the job's own interpreter, where Holdfast need not be installed.

    the agent says   fork, stop, renew, lease, list, end                           each with "do" and "id"
    and is told      ready, started, store, exited, stopped, renewed, list, refused   each with "told"

    main ─► listen ─► Parent.serve ─┬─► Parent._fork ────┬─ parent: goes on serving
                                    │                    └─ child: a Plan is RETURNED, up to the last lines of this file, and runs there
                                    └─► be_template: imports, and forks twice for each worker: a Plan is returned there too, in the second child

The parent itself imports nothing, so that the first ranks start at once and import for themselves, as under torchrun, while the template imports. From when
the template is ready, workers are forks of it, and are the parent's children all the same: the process between them ends, and the kernel hands the worker
to the nearest subreaper above. So there is one that reaps, whatever a worker is a fork of, and a template that dies takes no worker along.

A worker must not be able to tell that it was forked: its stack is as shallow as under `python script.py`, no clean-up of the parent's runs in it,
and it gets none of the parent's descriptors, signal handlers or random state.

Is wrong    when a module imported here keeps a thread of its own that does not survive a fork: name fewer modules, or start with --no-warm.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # The directory of this file stands first in sys.path now; its neighbours must not pass for the job's modules, nor for the ones imported next.
    del sys.path[0]

import argparse
import contextlib
import ctypes
import errno
import faulthandler
import functools
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import shutil
import signal
import socket
import stat
import struct
import threading
import time
import traceback
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pkgutil import get_importer
from typing import Any, NoReturn

LINE_BYTES_MAX = 1 << 20  # One command or one message.
READ_BYTES = 1 << 18  # One read of a worker's output.
DRAIN_BYTES_MAX = 4 << 20  # What is copied of a dead worker's output before its exit is told; the rest follows after.
OUTBOX_BYTES_MAX = 16 << 20  # An agent that reads nothing is disconnected; it asks for a list when it is back.
TAIL_BYTES = 8 << 10
ERROR_BYTES_MAX = 64 << 10
EXITS_KEPT = 256
_TURN_S = 2.0  # The loop comes round at least this often, so that a longer gap says that this process was stopped.
LEFTOVER_GRACE_S = 2.0  # What descendants get between SIGTERM and SIGKILL once their worker is gone.
_GIVE_WAY_TIMES, _GIVE_WAY_S_MAX = 10.0, 5.0  # The template pauses so many times as long as it had to wait for a processor, and in all no longer than this.
STOP_POLL_S = 0.005  # Grandchildren die without telling us; a running stop looks this often.
STACK_SIGNAL = signal.SIGRTMIN + 11  # Makes a forked worker write the stacks of all its threads.

GENERATION_MARK = "HOLDFAST_GENERATION"
_TITLE_ROOM = 1024  # See _write_title.
_PLACEHOLDER = "_" * 20  # Room for the longest 64-bit number; see _mark_generation.
_LEASE_LOST_CODE = 75
_CANNOT_RUN_CODE, _NOT_FOUND_CODE = 126, 127  # A shell's codes for a program that cannot be run, and for one that is not there.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

# What libraries read once, when they are loaded. A fork whose values differ from this process's own would be ignored silently.
_LOAD_TIME = (
    "PYTHON", "LD_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "GLIBC_TUNABLES", "MALLOC_", "LC_", "LANG",
    "PYTORCH_", "TORCH_LOGS", "TORCH_CPP_LOG_LEVEL", "TORCHDYNAMO_", "TORCHINDUCTOR_",
)  # fmt: skip
_LOAD_TIME_EXCEPT = ("PYTHONUNBUFFERED",)  # Output is passed on as it comes anyway.

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_PTRACER = 1, 36, 0x59616D61
_PTRACER_ANY = ctypes.c_ulong(-1).value
_libc = ctypes.CDLL(None, use_errno=True)


class Refusal(Exception):
    """A command that cannot be carried out. The text goes back to the agent; nothing was started or stopped."""


@dataclass(frozen=True)
class Order:
    """What the agent wants forked."""

    id: str
    generation: int
    rank: int
    role: str  # "worker" or "store"
    how: str  # "fork" or "exec"
    argv: tuple[str, ...]
    module: bool
    python: bool
    env: dict[str, str | None]  # Added to this process's own environment; None takes a name away.
    cwd: str | None
    log: str | None
    stacks: str | None
    error: str | None
    host: str
    ptracer: int | None  # Who may read the worker's stacks from outside; None: any process of the same user.
    groups: tuple[str, ...]  # The files of the control groups it goes into before anything else.
    data_bytes: int | None  # Where there are none: what it may have of memory of its own,
    nice: int  # and how far it stands back behind others.


@dataclass(frozen=True)
class Plan:
    """What a child has to become. It is made in the parent and carried out in the child."""

    order: Order
    parent_pid: int
    output_fd: int
    listen_fd: int  # -1 for a worker. A store serves here.
    keep_fds: frozenset[int]  # What imported modules hold open; theirs, not ours.
    oom_score_adj: str | None
    mark_address: int
    go_fd: int = -1  # Of the template's forks: where the parent says that it knows of this one. Without that word it must not run.


# ---------------------------------------------------------------------------------------------------------------- output


class Output:
    """One worker's output: from its pipe to its log, byte for byte, with the end kept at hand. Memory is bounded, and a full disk stops nobody."""

    def __init__(self, fd: int, path: str | None, *, log_bytes: int, log_files: int) -> None:
        self.fd = fd
        self.tail = b""
        self._path = path
        self._log_bytes, self._log_files = log_bytes, log_files
        self._log_fd, self._size = -1, 0
        self._dropped, self._dropped_why = 0, ""
        if path is not None:
            self._open()

    def pump(self, limit: int) -> bool:
        """Copy up to `limit` bytes. True at the end of the output: nobody holds the other end any more."""
        while limit > 0:
            try:
                chunk = os.read(self.fd, READ_BYTES)
            except BlockingIOError:
                return False
            if not chunk:
                return True
            limit -= len(chunk)
            self.tail = (self.tail + chunk)[-TAIL_BYTES:] if len(chunk) < TAIL_BYTES else chunk[-TAIL_BYTES:]
            self._write(chunk)
        return False

    def go_on_in(self, path: str | None) -> None:
        """From here on it goes into another log. One that cannot be opened now is tried again with every write."""
        if path == self._path:
            return
        if self._log_fd >= 0:
            os.close(self._log_fd)
        self._path, self._log_fd, self._size = path, -1, 0

    def close(self) -> None:
        for fd in (self.fd, self._log_fd):
            if fd >= 0:
                os.close(fd)
        self.fd = self._log_fd = -1

    def _open(self) -> None:
        assert self._path is not None
        try:
            self._log_fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            return  # The disk may have room again later: every write tries anew.
        self._size = os.fstat(self._log_fd).st_size

    def _write(self, chunk: bytes) -> None:
        if self._path is None:
            return
        try:
            if self._log_fd < 0:
                self._open()
            elif self._size and self._size + len(chunk) > self._log_bytes:
                self._rotate()
            if self._dropped:
                self._write_all(f"\n[holdfast: {self._dropped} bytes of output were not logged here: {self._dropped_why}]\n".encode())
                self._dropped = 0
            chunk = chunk[self._write_all(chunk) :]
        except OSError as error:
            self._dropped_why = error.strerror or str(error)
            self._dropped += len(chunk)

    def _write_all(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            written = os.write(self._log_fd, view)
            self._size += written
            view = view[written:]
        return len(data)

    def _rotate(self) -> None:
        """train.log becomes train.log.1, and so on; the oldest goes."""
        assert self._path is not None
        for number in range(self._log_files - 1, 0, -1):
            older = f"{self._path}.{number}"
            newer = f"{self._path}.{number - 1}" if number > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                os.replace(newer, older)
        os.close(self._log_fd)
        self._log_fd = -1
        if self._log_files == 1:
            os.truncate(self._path, 0)
        self._open()


# ----------------------------------------------------------------------------------------------------------------- books


@dataclass
class Child:
    """One process forked here and not reaped yet."""

    order: Order
    pid: int
    how: str
    started_ns: int
    output: Output
    born: int  # The generation it was forked in; `order.generation` is the one it is of now,
    born_rank: int  # and the rank it had then.
    port: int | None = None
    died_ns: int = 0
    end: Any = None  # The waitid result, from the moment the death was seen.

    def row(self) -> dict[str, Any]:
        order = self.order
        return {
            "id": order.id, "generation": order.generation, "rank": order.rank, "role": order.role, "pid": self.pid, "how": self.how,
            "started_ns": self.started_ns, "port": self.port, "born": self.born, "born_rank": self.born_rank,
        }  # fmt: skip


@dataclass
class Stop:
    """One generation, or all of them, on its way out:  ask ─► leave ─► kill.

    ask      workers have SIGTERM and until the deadline to leave; their descendants are theirs to end.
    leave    no worker is left; what remains has SIGTERM, and LEFTOVER_GRACE_S.
    kill     SIGKILL, again and again for newcomers, until nothing is left or kill_wait_s is over.
    """

    ids: list[str]
    generation: int | None
    phase: str
    began_s: float
    deadline_s: float
    keep: frozenset[int] = frozenset()  # Workers that stay, with all that is theirs: they go over to the next generation.
    quiet_looks: int = 0  # A look at /proc can miss a process that just changes its parent; two in a row cannot.


@dataclass
class Agent:
    """The one connection served."""

    fd: int
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True)
class Process:
    """One line of /proc."""

    pid: int
    parent: int
    session: int
    start_ticks: int
    alive: bool


class Template:
    """The template, as the parent knows it: a process that has imported what workers import, and forks them for the parent."""

    def __init__(self, pid: int, connection: socket.socket, *, wait_s: float) -> None:
        self.pid, self.socket, self.is_ready = pid, connection, False
        connection.settimeout(wait_s)

    def hear(self) -> dict[str, Any] | None:
        """What it says of itself when it has imported all; None once it has ended. It says nothing else unasked."""
        try:
            return json.loads(_receive(self.socket)) if not self.is_ready else None
        except (OSError, EOFError):
            return None

    def fork(self, plan: Plan) -> int | None:
        """Have it fork a worker, which is our child. -1: there is no further process; None: the template does not answer, and is ended."""
        go_fd, say_go_fd = os.pipe2(os.O_CLOEXEC)
        try:
            _send(self.socket, json.dumps(plan.order.__dict__).encode(), [plan.output_fd, go_fd, *([plan.listen_fd] if plan.listen_fd >= 0 else [])])
            pid = int(_receive(self.socket))
            os.write(say_go_fd, b"g")
            return pid
        except (OSError, EOFError):
            self.kill()  # Its end is heard where everything is.
            return None
        finally:
            os.close(go_fd)
            os.close(say_go_fd)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """It is reaped like any orphan."""
        self.kill()
        self.socket.close()


class Parent:
    """Everything this process knows and does."""

    def __init__(self, options: argparse.Namespace, listener: socket.socket, oom_score_adj: str | None) -> None:
        self._options = options
        self._listener = listener
        self._oom_score_adj = oom_score_adj
        self._pid = os.getpid()
        self._mark_address = _mark_address()
        self._template: Template | None = None
        self._templates: set[int] = set()  # Process ids, also of one that was told to go and is not reaped yet.
        self._facts: dict[str, Any] = {"imports": {}, "torch": None, "threads": 1, "unsafe": ""}  # What the last template said of itself.
        self._agent: Agent | None = None
        self._children: dict[int, Child] = {}
        self._pids: dict[str, int] = {}  # By order id: an order that comes twice is carried out once.
        self._sessions: dict[int, tuple[int, int]] = {}  # A worker's session to its generation and start, also after the worker is gone.
        self._gone: deque[dict[str, Any]] = deque(maxlen=EXITS_KEPT)
        self._stops: list[Stop] = []
        self._renewed: dict[int, int] = {}  # A generation to the one its survivors went over to.
        self._fence: int | None = None  # No generation up to this one is started again.
        self._end_code: int | None = None
        self._term_seen = False
        self._lease_until_s = time.monotonic() + options.orphan_grace_s
        self._turned_at_s = time.monotonic()  # When the loop last came round.
        self._exits_fd = os.open(os.path.join(options.state, "exits.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._wake_fd, self._wake_write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # poll() and not epoll: it has no descriptor of its own that a child could share with us.
        self._poll = select.poll()
        self._readers: dict[int, Callable[[], Plan | socket.socket | None]] = {}

    # ------------------------------------------------------------------------------------------------------ the loop

    def serve(self) -> Plan | socket.socket | None:
        """Serve until the end, and return None; in a child just forked, return what it has to become."""
        if not self._options.no_warm and (connection := self._start_template()) is not None:
            return connection
        self._read_from(self._wake_fd, self._woken)
        self._read_from(self._listener.fileno(), self._accept)
        signal.set_wakeup_fd(self._wake_write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: self._note_deaths())
        signal.signal(signal.SIGTERM, lambda *_: self._note_term())
        while self._end_code is None or self._stops:
            ready = dict(self._poll.poll(self._wait_ms()))
            self._collect_exits()  # First of all: a death must be told in milliseconds, however much the others print.
            for fd in ready:
                reader = self._readers.get(fd)
                child = reader() if reader is not None else None
                if child is not None:
                    return child
            # Only now: an agent that renewed while we could not look has renewed in time.
            self._end_if_due()
            self._advance_stops()
            self._flush()
        with contextlib.suppress(OSError):
            os.unlink(self._options.socket)
        return None

    @property
    def end_code(self) -> int:
        return self._end_code or 0

    def _wait_ms(self) -> int:
        now = time.monotonic()
        waits = [min(_TURN_S, max(0.0, self._lease_until_s - now))] if self._end_code is None else []
        waits += [max(0.0, stop.deadline_s - now) if stop.phase == "ask" else STOP_POLL_S for stop in self._stops]
        return min(int(min(waits) * 1000) + 1, 60_000)

    def _read_from(self, fd: int, reader: Callable[[], Plan | socket.socket | None]) -> None:
        self._readers[fd] = reader
        self._poll.register(fd, select.POLLIN)

    def _forget(self, fd: int) -> None:
        del self._readers[fd]
        self._poll.unregister(fd)

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_fd, 4096)

    def _note_term(self) -> None:
        self._term_seen = True

    def _end_if_due(self) -> None:
        now, before = time.monotonic(), self._turned_at_s
        self._turned_at_s = now
        if now - before > 2 * _TURN_S:
            # We were stopped ourselves, by a terminal or a laptop that sleeps, and so may the agent have been: that time counts against nobody.
            self._lease_until_s += now - before
        if self._end_code is not None:
            return
        if self._term_seen:
            self._end(how="term", grace_s=self._options.stop_grace_s, code=0)
        elif time.monotonic() >= self._lease_until_s:
            print(f"holdfast: no agent renewed the lease for {self._options.orphan_grace_s} s; ending all workers", file=sys.stderr, flush=True)
            self._end(how="term", grace_s=self._options.stop_grace_s, code=_LEASE_LOST_CODE)

    # ----------------------------------------------------------------------------------------------------- the agent

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # Whoever called has hung up already.
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (os.getuid(), 0):
            connection.close()
            return
        connection.setblocking(False)
        self._disconnect()
        self._agent = Agent(fd=connection.detach())
        self._read_from(self._agent.fd, self._listen)
        if self._template is None or self._template.is_ready:
            self._tell_ready()

    def _tell_ready(self) -> None:
        self._tell("ready", pid=self._pid, python=sys.version.split()[0], executable=sys.executable, **self._facts)

    def _disconnect(self) -> None:
        if self._agent is not None:
            self._forget(self._agent.fd)
            os.close(self._agent.fd)
            self._agent = None

    def _listen(self) -> Plan | None:
        agent = self._agent
        assert agent is not None
        self._flush()
        try:
            data = os.read(agent.fd, READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self._disconnect()
            return None
        agent.inbox += data
        while b"\n" in agent.inbox:
            line, _, rest = bytes(agent.inbox).partition(b"\n")
            agent.inbox[:] = rest
            plan = self._obey(line)
            if plan is not None:
                return plan
        if len(agent.inbox) > LINE_BYTES_MAX:
            self._tell("refused", id=None, why=f"a command of more than {LINE_BYTES_MAX} bytes; send smaller ones, each ended by a newline")
            self._disconnect()
        return None

    def _tell(self, told: str, **message: Any) -> None:
        """Say something to the agent, if there is one. One that missed it finds it in the list."""
        if self._agent is not None:
            self._agent.outbox += json.dumps({"told": told, **message}).encode() + b"\n"
            self._flush()

    def _flush(self) -> None:
        agent = self._agent
        if agent is None or not agent.outbox:
            return
        try:
            while agent.outbox:
                del agent.outbox[: os.write(agent.fd, agent.outbox)]
        except BlockingIOError:
            pass
        except OSError:
            self._disconnect()
            return
        if len(agent.outbox) > OUTBOX_BYTES_MAX:
            self._disconnect()
            return
        self._poll.modify(agent.fd, select.POLLIN | (select.POLLOUT if agent.outbox else 0))

    def _obey(self, line: bytes) -> Plan | None:
        """Carry out one command; a bad one is refused and harms nobody."""
        command_id: Any = None
        try:
            if len(line) > LINE_BYTES_MAX:
                raise Refusal(f"a command of {len(line)} bytes; at most {LINE_BYTES_MAX} are read")
            command = _command(line)
            command_id = command.get("id")
            self._lease_until_s = time.monotonic() + self._options.orphan_grace_s
            do = command.get("do")
            if do == "fork":
                return self._fork(_order(command))
            if do == "stop":
                self._stop(_text(command, "id"), _number(command, "generation"), *_how_to_stop(command), keep=_pids(command, "keep"))
            elif do == "renew":
                self._renew(_text(command, "id"), _number(command, "generation"), _places(command))
            elif do == "list":
                self._tell("list", id=command_id, running=[child.row() for child in self._children.values()], exits=self._recent_exits())
            elif do == "end":
                how, grace_s = _how_to_stop(command)
                self._end(how=how, grace_s=grace_s, code=0)
            elif do != "lease":
                raise Refusal(f"unknown command {do!r}; known are fork, stop, renew, lease, list and end")
        except Refusal as refusal:
            self._tell("refused", id=command_id, why=str(refusal))
        return None

    def _recent_exits(self) -> list[dict[str, Any]]:
        """The newest exits that fit into one message, oldest first. All of them are in exits.jsonl."""
        rows: list[dict[str, Any]] = []
        room = LINE_BYTES_MAX // 2
        for row in reversed(self._gone):
            room -= len(json.dumps(row))
            if room < 0 and rows:
                break
            rows.append(row)
        return rows[::-1]

    # ------------------------------------------------------------------------------------------------------- forking

    def _fork(self, order: Order) -> Plan | None:
        if order.id in self._pids:
            self._tell("started", id=order.id, generation=order.generation, rank=order.rank, pid=self._pids[order.id], again=True)
            return None
        self._refuse_if_fenced(order.generation)
        if order.role == "store" and not self._has_torch():
            self._tell("store", id=order.id, generation=order.generation, port=None)
            return None
        how, because = self._how(order)
        read_fd, output_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_fd, False)
        try:
            output = Output(read_fd, order.log, log_bytes=self._options.log_bytes, log_files=self._options.log_files)
        except OSError as error:
            os.close(read_fd)
            os.close(output_fd)
            raise Refusal(f"the log {order.log} cannot be opened: {error.strerror}; make its directory, or give it to the job's user") from error
        if order.error is not None:
            with contextlib.suppress(OSError):
                os.unlink(order.error)  # Left over from another life of the same name, it would be taken for this one's.
        try:
            listener = _listen_for_ranks(order.host) if order.role == "store" else None
        except OSError as error:
            os.close(output_fd)
            output.close()
            raise Refusal(f"no store can listen at {order.host}: {error.strerror}; --host is an address of this machine") from error
        plan = Plan(
            order=order if how == order.how else _with_how(order, how), parent_pid=self._pid, output_fd=output_fd,
            listen_fd=listener.fileno() if listener is not None else -1, keep_fds=frozenset(), oom_score_adj=self._oom_score_adj,
            mark_address=self._mark_address,
        )  # fmt: skip
        pid = self._template.fork(plan) if how == "fork" and self._template is not None and self._template.is_ready else None
        if pid is None:
            pid = _fork_quietly()
        if pid == 0:
            self._let_go()
            if listener is not None:
                listener.detach()
            return plan
        port = listener.getsockname()[1] if listener is not None else None
        os.close(output_fd)
        if listener is not None:
            listener.close()
        if pid < 0:
            output.close()
            raise Refusal("the system gives no further process; look at `ulimit -u`, the cgroup's pids.max and free memory")
        self._book(
            Child(
                order=order, pid=pid, how=how, started_ns=time.monotonic_ns(), output=output, born=order.generation, born_rank=order.rank, port=port
            ), because,
        )  # fmt: skip
        return None

    def _book(self, child: Child, because: str) -> None:
        order = child.order
        self._children[child.pid] = child
        self._pids[order.id] = child.pid
        if order.role == "worker":
            self._sessions[child.pid] = order.generation, _start_ticks(child.pid)
        self._read_from(child.output.fd, lambda: self._copy(child.output))
        self._tell("started", id=order.id, generation=order.generation, rank=order.rank, role=order.role, pid=child.pid, how=child.how, because=because)
        if child.port is not None:
            # It listens already: a rank that calls is served once the store has imported torch, and imports its own meanwhile.
            self._tell("store", id=order.id, generation=order.generation, port=child.port, pid=child.pid)

    def _has_torch(self) -> bool:
        """Whether a store can be made: asked before its port is told, because without one the ranks have to find each other on their own."""
        return self._facts["imports"].get("torch", 0.0) is not None and importlib.util.find_spec("torch") is not None

    def _refuse_if_fenced(self, generation: int) -> None:
        if self._end_code is not None:
            raise Refusal("the warm parent is ending; start another one")
        if self._fence is not None and generation <= self._fence:
            raise Refusal(f"generation {generation} is over: generation {self._fence} was told to stop; use a higher one")

    def _how(self, order: Order) -> tuple[str, str]:
        """Fork or exec, and why it is not as asked."""
        if order.role == "store" or order.how == "exec":
            return order.how, ""
        if not order.python:
            return "exec", "it is not a Python script"
        for name, value in order.env.items():
            if name.startswith(_LOAD_TIME) and name not in _LOAD_TIME_EXCEPT and value != os.environ.get(name):
                return "exec", f"{name} is read when libraries are loaded, and is {os.environ.get(name)!r} here and not {value!r}"
        importing = "what it needs is still being imported" if self._template is not None and not self._template.is_ready else ""
        return "fork", self._facts["unsafe"] or importing

    def _let_go(self) -> None:
        """In the child: no object may close, when it is collected, a number that by then is one of the worker's own descriptors."""
        self._listener.detach()

    def _copy(self, output: Output) -> None:
        if output.pump(READ_BYTES):
            self._forget(output.fd)
            output.close()

    # ---------------------------------------------------------------------------------------------------- the template

    def _start_template(self) -> socket.socket | None:
        """Returns the connection to us in the template itself, and None here."""
        ours, theirs = socket.socketpair()
        pid = _fork_quietly()
        if pid == 0:
            self._let_go()
            ours.detach()
            return theirs
        theirs.close()
        if pid < 0:
            ours.close()
            self._go_without_template("the system gives no further process")
            return None
        self._template = Template(pid, ours, wait_s=self._options.template_wait_s)
        self._templates.add(pid)
        self._read_from(ours.fileno(), self._hear_template)
        return None

    def _hear_template(self) -> socket.socket | None:
        """It has imported all, or it has ended. One that had been ready is replaced; one that never was would end in the same way again."""
        template = self._template
        assert template is not None
        was_ready, facts = template.is_ready, template.hear()
        if facts is not None:
            self._facts = facts
            template.is_ready = not facts["unsafe"]
            if template.is_ready:
                self._tell_ready()
                return None
        self._forget(template.socket.fileno())
        template.end()
        self._template = None
        if was_ready and self._end_code is None:
            return self._start_template()
        self._go_without_template(facts["unsafe"] if facts is not None else "the process that imported torch in advance has ended")
        return None

    def _go_without_template(self, why: str) -> None:
        self._facts["unsafe"] = why
        if self._end_code is None:
            print(f"holdfast: every worker imports for itself: {why}", file=sys.stderr, flush=True)
            self._tell_ready()

    def be_template(self, connection: socket.socket) -> Plan:
        """Imports, and forks whenever the parent says so. Runs in the template, returns in a worker."""
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._pid:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _close_all_but(frozenset({connection.fileno()}))
        _show_as("holdfast template", f"[{os.environ.get('HOLDFAST_JOB', '')} on {os.environ.get('HOLDFAST_NODE', '')}]", "holdfast-template")
        give_way = _GiveWay()
        sys.meta_path.insert(0, give_way)
        imports = _import_all(["torch", "torch._dynamo", *self._options.preimport])
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(give_way)
        gc.collect()
        gc.freeze()
        facts = {
            "imports": imports, "torch": getattr(sys.modules.get("torch"), "__version__", None), "threads": len(os.listdir("/proc/self/task")),
            "unsafe": _unsafe_to_fork(),
        }  # fmt: skip
        keep_fds = frozenset(_open_fds()) - {0, 1, 2, connection.fileno()}  # What imported modules hold open; theirs, not ours.
        _send(connection, json.dumps(facts).encode())
        while True:
            try:
                text, fds = _receive_with_fds(connection)
            except (OSError, EOFError):
                os._exit(0)
            pid = _fork_twice()
            if pid == 0:
                connection.detach()
                return Plan(
                    order=Order(**json.loads(text)), parent_pid=self._pid, output_fd=fds[0], go_fd=fds[1], listen_fd=fds[2] if len(fds) > 2 else -1,
                    keep_fds=keep_fds, oom_score_adj=self._oom_score_adj, mark_address=self._mark_address,
                )  # fmt: skip
            for fd in fds:
                os.close(fd)
            _send(connection, str(pid).encode())

    # --------------------------------------------------------------------------------------------------------- exits

    def _note_deaths(self) -> None:
        """Runs in the signal handler too, so that the order of deaths is right even while a big chunk of output is being copied."""
        for child in list(self._children.values()):
            if child.end is None:
                child.end = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                child.died_ns = time.monotonic_ns() if child.end is not None else 0

    def _collect_exits(self) -> None:
        self._note_deaths()
        for child in sorted((child for child in self._children.values() if child.end is not None), key=lambda child: child.died_ns):
            self._exited(child)
        self._reap_orphans()

    def _exited(self, child: Child) -> None:
        """Write it down, tell it, and only then reap: whoever looks finds either the zombie or the line."""
        order, end = child.order, child.end
        if child.output.fd >= 0 and child.output.pump(DRAIN_BYTES_MAX):
            self._forget(child.output.fd)
            child.output.close()
        by_signal = end.si_code != os.CLD_EXITED
        row = {
            "id": order.id, "generation": order.generation, "rank": order.rank, "role": order.role, "pid": child.pid, "how": child.how,
            "code": None if by_signal else end.si_status, "signal": end.si_status if by_signal else None, "core": end.si_code == os.CLD_DUMPED,
            "started_ns": child.started_ns, "at_ns": child.died_ns, "stopping": any(stop.generation in (None, order.generation) for stop in self._stops),
            "tail": child.output.tail.decode(errors="replace"), "error": _read_error(order.error), "born": child.born, "born_rank": child.born_rank,
        }  # fmt: skip
        # Not synced: it has to survive this process, not the machine, and a sync would stand behind every checkpoint being written.
        with contextlib.suppress(OSError):
            os.write(self._exits_fd, json.dumps(row).encode() + b"\n")
        self._tell("exited", **row)
        self._gone.append(row)
        del self._children[child.pid]
        os.waitpid(child.pid, 0)

    def _reap_orphans(self) -> None:
        """Grandchildren whose parent died come to us, the subreaper."""
        while True:
            try:
                end = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if end is None or end.si_pid in self._children:
                return  # A worker that died this very moment: the wake-up it sent brings us back.
            os.waitpid(end.si_pid, 0)
            self._templates.discard(end.si_pid)

    # ------------------------------------------------------------------------------------------------------ stopping

    def _stop(self, stop_id: str, generation: int, how: str, grace_s: float, keep: frozenset[int]) -> None:
        self._fence = generation if self._fence is None else max(self._fence, generation)
        self._begin_stop(stop_id, generation, how, grace_s, keep)

    def _renew(self, renew_id: str, generation: int, places: dict[int, tuple[int, str | None]]) -> None:
        """These workers are of another generation from now on, they and all that is theirs; each has this rank in it, and this log."""
        self._refuse_if_fenced(generation)
        gone = sorted(pid for pid in places if pid not in self._children or self._children[pid].end is not None)
        if gone:
            raise Refusal(f"processes {gone} have ended, and cannot go on in generation {generation}")
        for pid, (rank, log) in places.items():
            child = self._children[pid]
            if child.order.generation != generation:
                self._renewed[child.order.generation] = generation
            child.output.go_on_in(log)
            child.order = Order(**{**child.order.__dict__, "generation": generation, "id": f"{renew_id}/{rank}", "rank": rank, "log": log})
            self._sessions[pid] = generation, self._sessions[pid][1]
            self._pids[child.order.id] = pid
            if child.how == "fork":
                _write_title(pid, *_title(child.order))
        self._tell("renewed", id=renew_id, generation=generation, pids=sorted(places))

    def _end(self, *, how: str, grace_s: float, code: int) -> None:
        self._end_code = code if self._end_code is None else self._end_code
        self._begin_stop("", None, how, grace_s)

    def _begin_stop(self, stop_id: str, generation: int | None, how: str, grace_s: float, keep: frozenset[int] = frozenset()) -> None:
        """A second stop of the same generation joins the first, and can only shorten it."""
        now = time.monotonic()
        deadline_s = now if how == "kill" else now + grace_s
        for stop in self._stops:
            if stop.generation == generation:
                stop.ids.append(stop_id)
                stop.keep &= keep
                stop.deadline_s = min(stop.deadline_s, deadline_s) if stop.phase != "kill" else stop.deadline_s
                return
        self._stops.append(Stop(ids=[stop_id], generation=generation, phase="ask", began_s=now, deadline_s=deadline_s, keep=keep))
        if how == "kill":
            self._advance_stops()
            return
        # SIGCONT first: a stopped process would keep its SIGTERM until somebody else lets it go on.
        _signal_all(self._members(generation, keep), signal.SIGCONT)
        workers = [child for child in self._workers(generation) if child.pid not in keep]
        # Ctrl-C in a terminal reaches what a shell script runs as well, and the script waits for it.
        groups = [child.pid for child in workers if how == "int" and not child.order.python]
        _signal_all([-pid for pid in groups], signal.SIGINT)
        _signal_all([child.pid for child in workers if child.pid not in groups], signal.SIGINT if how == "int" else signal.SIGTERM)

    def _advance_stops(self) -> None:
        for stop in list(self._stops):
            left = self._advance(stop, time.monotonic())
            if left is None:
                continue
            self._stops.remove(stop)
            if not left:
                self._sessions = {pid: known for pid, known in self._sessions.items() if stop.generation not in (None, known[0]) or pid in stop.keep}
            for stop_id in filter(None, stop.ids):
                seconds = round(time.monotonic() - stop.began_s, 4)
                self._tell("stopped", id=stop_id, generation=stop.generation, left=left, seconds=seconds)

    def _advance(self, stop: Stop, now: float) -> list[int] | None:
        """One look at a stop. None: not over yet; otherwise the processes that could not be ended."""
        if stop.phase == "ask":
            if now < stop.deadline_s and any(child.pid not in stop.keep for child in self._workers(stop.generation)):
                return None
            late = now >= stop.deadline_s
            stop.phase, stop.deadline_s = ("kill", now + self._options.kill_wait_s) if late else ("leave", min(stop.deadline_s, now + LEFTOVER_GRACE_S))
            if not late:
                _signal_all(self._members(stop.generation, stop.keep), signal.SIGTERM)
        if stop.phase == "leave" and now >= stop.deadline_s:
            stop.phase, stop.deadline_s = "kill", now + self._options.kill_wait_s
        members = self._members(stop.generation, stop.keep)
        if stop.phase == "kill":
            _signal_all(members, signal.SIGKILL)
        if members:
            stop.quiet_looks = 0
            return members if stop.phase == "kill" and now >= stop.deadline_s else None
        stop.quiet_looks += 1
        return [] if stop.quiet_looks >= 2 or self._has_no_children() else None

    def _has_no_children(self) -> bool:
        """But for the template. A child leaves the kernel's list when we reap it, and never before."""
        try:
            with open(f"/proc/self/task/{self._pid}/children", "rb") as file:
                return self._templates.issuperset(map(int, file.read().split()))
        except OSError:
            return False  # A kernel without that list: the second look says it.

    def _workers(self, generation: int | None) -> list[Child]:
        return [child for child in self._children.values() if child.order.role == "worker" and generation in (None, child.order.generation)]

    def _members(self, generation: int | None, keep: frozenset[int]) -> list[int]:
        """Every living process of a generation: what was forked here, all descendants, and orphans, with a session of their own or not.

        But for those who are kept, and theirs; of orphans nobody knows whose they are, so as long as somebody is kept only those in a dead worker's session go.
        """
        below: dict[int, list[Process]] = {}
        for process in _processes():
            below.setdefault(process.parent, []).append(process)
        members: list[int] = []
        ours = [process for process in below.get(self._pid, []) if generation is None or process.pid not in self._templates]
        waiting = [process for process in ours if self._belongs(process, generation) and not self._is_kept(process, keep)]
        while waiting:
            process = waiting.pop()
            waiting += below.get(process.pid, [])
            if process.alive:
                members.append(process.pid)
        return sorted(members)

    def _is_kept(self, process: Process, keep: frozenset[int]) -> bool:
        return bool(keep) and (process.session in keep or process.session not in self._sessions) and (process.pid in keep or process.pid not in self._children)

    def _belongs(self, process: Process, generation: int | None) -> bool:
        """Whether a direct child of ours, forked here or orphaned, is of this generation."""
        if generation is None:
            return True
        if process.pid in self._children:
            return self._children[process.pid].order.generation == generation
        known = self._now(_marked_generation(process.pid))
        if known is None and process.session in self._sessions:
            known = self._sessions[process.session][0]
        if known is None:
            # It has wiped its environment and left its session. It is younger than its generation, and older than the next one.
            older = [(start_ticks, known) for known, start_ticks in self._sessions.values() if start_ticks <= process.start_ticks]
            known = max(older)[1] if older else generation
        return known == generation

    def _now(self, generation: int | None) -> int | None:
        """What became of a generation: it carries the number it was started with for as long as it lives."""
        while generation in self._renewed:
            generation = self._renewed[generation]
        return generation


# -------------------------------------------------------------------------------------------------------- reading orders


def _command(line: bytes) -> dict[str, Any]:
    try:
        command = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"not a line of JSON: {line[:80]!r} ({error})") from error
    if not isinstance(command, dict):
        raise Refusal(f'a command is an object with a field "do", not {line[:80]!r}')
    return command


def _order(command: dict[str, Any]) -> Order:
    role = command.get("role", "worker")
    if role not in ("worker", "store"):
        raise Refusal(f"role is 'worker' or 'store', not {role!r}")
    how = command.get("how", "fork")
    if how not in ("fork", "exec"):
        raise Refusal(f"how is 'fork' or 'exec', not {how!r}")
    argv, env = command.get("argv", []), command.get("env", {})
    if not isinstance(argv, list) or not all(isinstance(text, str) and "\0" not in text for text in argv) or not (argv or role == "store"):
        raise Refusal(f"argv is a list of at least one text, not {argv!r}")
    if not isinstance(env, dict) or not all(isinstance(value, (str, type(None))) for value in env.values()):
        raise Refusal("env is an object of texts; null takes a name away")
    if any(not name or "=" in name or "\0" in name or "\0" in (value or "") for name, value in env.items()):
        raise Refusal("a name in env is empty or contains '=', or a text in it contains a zero byte")
    return Order(
        id=_text(command, "id"), generation=_number(command, "generation"), rank=_number(command, "rank", default=-1), role=role,
        how="fork" if role == "store" else how, argv=tuple(argv), module=bool(command.get("module")), python=bool(command.get("python", True)),
        env=env, cwd=_path(command, "cwd"), log=_path(command, "log"), stacks=_path(command, "stacks"), error=_path(command, "error"),
        host=_path(command, "host") or "127.0.0.1", ptracer=_number(command, "ptracer") if "ptracer" in command else None, groups=_groups(command),
        data_bytes=_number(command, "data_bytes") if command.get("data_bytes") is not None else None, nice=_number(command, "nice", default=0),
    )  # fmt: skip


def _text(command: dict[str, Any], name: str) -> str:
    value = command.get(name)
    if not isinstance(value, str) or not value:
        raise Refusal(f"{name} is missing or not a text: {value!r}")
    return value


def _path(command: dict[str, Any], name: str) -> str | None:
    value = command.get(name)
    if value is not None and (not isinstance(value, str) or "\0" in value):
        raise Refusal(f"{name} is not a text: {value!r}")
    return value or None


def _groups(command: dict[str, Any]) -> tuple[str, ...]:
    groups = command.get("groups", [])
    if not isinstance(groups, list) or not all(isinstance(path, str) and path and "\0" not in path for path in groups):
        raise Refusal(f"groups is a list of files, not {groups!r}")
    return tuple(groups)


def _number(command: dict[str, Any], name: str, default: int | None = None) -> int:
    value = command.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 63:
        raise Refusal(f"{name} is missing or not a whole number: {value!r}")
    return value


def _pids(command: dict[str, Any], name: str) -> frozenset[int]:
    pids = command.get(name, [])
    if not isinstance(pids, list) or not all(isinstance(pid, int) and not isinstance(pid, bool) for pid in pids):
        raise Refusal(f"{name} is a list of process ids, not {pids!r}")
    return frozenset(pids)


def _places(command: dict[str, Any]) -> dict[int, tuple[int, str | None]]:
    """Process id to rank and log."""
    places = command.get("places")
    if not isinstance(places, list) or not all(isinstance(place, dict) for place in places):
        raise Refusal(f"places is a list of objects with pid, rank and log, not {places!r}")
    return {_number(place, "pid"): (_number(place, "rank"), _path(place, "log")) for place in places}


def _how_to_stop(command: dict[str, Any]) -> tuple[str, float]:
    how, grace_s = command.get("how", "term"), command.get("grace_s", 0)
    if how not in ("int", "term", "kill"):
        raise Refusal(f"how is 'int', 'term' or 'kill', not {how!r}")
    if not isinstance(grace_s, (int, float)) or not 0 <= grace_s <= 86_400:
        raise Refusal(f"grace_s is a number of seconds up to a day, not {grace_s!r}")
    return how, float(grace_s)


def _with_how(order: Order, how: str) -> Order:
    return Order(**{**order.__dict__, "how": how})


def _read_error(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read(4 * ERROR_BYTES_MAX).decode(errors="replace") or None
    except OSError:
        return None


# --------------------------------------------------------------------------------------------------- the system around us


def _prctl(option: int, argument: int) -> bool:
    return bool(_libc.prctl(option, ctypes.c_ulong(argument), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) == 0)


def _processes() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # It ended while we looked.
            # A zombie whose other threads still run holds its memory: it counts as alive.
            alive = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
            yield Process(pid=int(name), parent=int(fields[1]), session=int(fields[3]), start_ticks=int(fields[19]), alive=alive)


def _start_ticks(pid: int) -> int:
    """Of a child not reaped yet, which therefore is always there."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def _signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _open_fds() -> list[int]:
    """Without the one that lists them."""
    return [fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{fd}")]


def _close_all_but(keep: frozenset[int]) -> None:
    first = 3
    for fd in sorted(fd for fd in keep if fd >= 3):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, max([first, *_open_fds()]) + 1)


def _fork_quietly() -> int:
    """Fork with all signals held back, so that none meets the parent's handlers in the child. -1: there is no further process."""
    sys.stdout.flush()
    sys.stderr.flush()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with warnings.catch_warnings():
        # Newer Pythons warn of threads. OpenBLAS has some, and winds them up before a fork and after it; Python's own were looked for at the start.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            pid = os.fork()
        except OSError:
            pid = -1
    if pid != 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return pid


def _fork_twice() -> int:
    """Fork a child of the process between, whose end makes it a child of the nearest subreaper. Returns its pid once it is that, and 0 in the child. -1: there
    is no further process."""
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    between = _fork_quietly()
    if between == 0:
        pid = _fork_quietly()
        if pid == 0:
            return 0
        os.write(write_fd, str(pid).encode())
        os._exit(0)
    os.close(write_fd)
    said = os.read(read_fd, 32) if between > 0 else b""
    os.close(read_fd)
    if between > 0:
        os.waitpid(between, 0)
    return int(said or -1)


def _send(connection: socket.socket, data: bytes, fds: list[int] | None = None) -> None:
    socket.send_fds(connection, [struct.pack("I", len(data))], fds or [])
    connection.sendall(data)


def _receive(connection: socket.socket) -> bytes:
    return _receive_with_fds(connection)[0]


def _receive_with_fds(connection: socket.socket) -> tuple[bytes, list[int]]:
    head, fds, _, _ = socket.recv_fds(connection, 4, 3)
    data, size = b"", struct.unpack("I", head)[0] if len(head) == 4 else 1
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return data, fds


def _listen_for_ranks(host: str) -> socket.socket:
    """We bind ourselves, because torch's store would listen on every address of the machine."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.bind((host, 0))
        listener.listen(4096)
    except OSError:
        listener.close()
        raise
    return listener


def _unsafe_to_fork() -> str:
    """Why a fork of this process would be broken; empty when it is fine."""
    if threading.active_count() > 1:
        names = ", ".join(sorted(thread.name for thread in threading.enumerate() if thread is not threading.main_thread()))
        return f"an imported module started threads ({names}), which do not survive a fork"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "an imported module initialised CUDA, which does not survive a fork"
    return ""


def _mark_generation(address: int, generation: int) -> None:
    """Write the generation into the environment as /proc shows it.

    /proc/PID/environ shows the memory in which a program got its environment, not what it changed later. A fork has that memory too. So this
    process starts with room for the number, and each worker fills it in; whatever it forks, however detached, can be told by it.
    """
    if address:
        ctypes.memmove(address, str(generation).encode().ljust(len(_PLACEHOLDER), b"\0"), len(_PLACEHOLDER))


def _mark_address() -> int:
    """Where the placeholder lies in memory; 0 when that cannot be found out."""
    try:
        with open("/proc/self/environ", "rb") as file:
            before = file.read().partition(f"{GENERATION_MARK}={_PLACEHOLDER}".encode())
        with open("/proc/self/stat", "rb") as file:
            environment_start = int(file.read().rpartition(b")")[2].split()[47])
    except OSError:
        return 0
    if not before[1] or not environment_start:
        return 0
    return environment_start + len(before[0]) + len(GENERATION_MARK) + 1


def _show_as(title: str, mark: str, name: str) -> None:
    """What `ps`, `pgrep -f` and `nvidia-smi` show of this process, and the name in `top`."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "wb") as file:
        file.write(os.fsencode(name))  # The kernel keeps 15 bytes.
    _write_title(os.getpid(), title, mark)


def _write_title(pid: int, title: str, mark: str) -> None:
    """Show this process, or a fork of it, as `title mark`; a title that is too long is cut.

    /proc/PID/cmdline shows the memory in which a program got its arguments. The parent starts with room in it, and every fork has that memory at the same
    place. Its last byte stays zero: else the kernel would take the environment, which comes next, for more of it.
    """
    start, end = _arguments_of(os.getpid())
    if _arguments_of(pid) != (start, end):
        return  # It has become another program since.
    with contextlib.suppress(OSError):
        behind = os.fsencode(f" {mark}")
        shown = os.fsencode(title)[: max(0, end - start - 1 - len(behind))] + behind
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(shown[: end - start - 1].ljust(end - start, b"\0"))


def _arguments_of(pid: int) -> tuple[int, int]:
    """Where the arguments lie in a process's memory."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[45]), int(fields[46])


def _title(order: Order) -> tuple[str, str]:
    """Returns the title of a worker: as it would have been started by hand, with its place behind it."""
    said = [os.path.basename(sys.executable), *(["-m"] if order.module else []), *order.argv]
    return " ".join(said), _place(order)


def _place(order: Order) -> str:
    return f"[holdfast {os.environ.get('HOLDFAST_JOB', '')} rank {order.rank}]"


def _show_child(order: Order) -> None:
    if order.role == "store":
        _show_as("holdfast store", f"[{os.environ.get('HOLDFAST_JOB', '')}]", "holdfast-store")
    else:
        _show_as(*_title(order), order.argv[0].rpartition(".")[2] if order.module else os.path.basename(order.argv[0]))


def _marked_generation(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return None
    prefix = f"{GENERATION_MARK}=".encode()
    values = [variable[len(prefix) :] for variable in variables if variable.startswith(prefix)]
    return int(values[0]) if values and values[0].lstrip(b"-").isdigit() else None


# ------------------------------------------------------------------------------------------------------------- the child


def become(plan: Plan) -> None:
    """Turn this fork into a process like any other that was just started."""
    order = plan.order
    if plan.go_fd >= 0 and not os.read(plan.go_fd, 1):
        os._exit(1)  # The parent waited too long, and has started another one in its place.
    if not _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) or os.getppid() != plan.parent_pid:
        os._exit(1)  # The parent died before it could be watched.
    outside = _enter_groups(order)  # First: whatever it uses from here on is its own.
    os.setsid()
    _default_signals(for_exec=order.how == "exec")
    _take_output(plan)
    if outside:
        os.write(2, f"holdfast: this worker runs outside of its control group: {outside}\n".encode())
    _prctl(_PR_SET_PTRACER, _PTRACER_ANY if order.ptracer is None else order.ptracer)
    if plan.oom_score_adj is not None:
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(plan.oom_score_adj)
    _set_environment(order, plan.mark_address)
    _show_child(order)
    try:
        os.chdir(order.cwd or ".")
    except OSError as error:
        _give_up(f"the working directory {order.cwd!r} cannot be entered: {error.strerror}", _CANNOT_RUN_CODE)
    _limit_itself(order)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _enter_groups(order: Order) -> str:
    """What went wrong; a worker runs all the same."""
    try:
        for path in order.groups:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, b"0")  # Whoever writes it.
            finally:
                os.close(fd)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def _limit_itself(order: Order) -> None:
    if order.nice > 0:
        os.nice(order.nice)
    if order.data_bytes is not None:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = order.data_bytes if most == resource.RLIM_INFINITY else min(order.data_bytes, most)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))


def _default_signals(*, for_exec: bool) -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    if for_exec:
        signal.signal(STACK_SIGNAL, signal.SIG_IGN)  # It has no handler for it, and the default would end it.
        return
    # As Python itself sets them when it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _take_output(plan: Plan) -> None:
    nothing_fd = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing_fd, 0), (plan.output_fd, 1), (plan.output_fd, 2)):
        os.dup2(source, target, inheritable=True)
    _close_all_but(plan.keep_fds | {plan.listen_fd})


def _set_environment(order: Order, mark_address: int) -> None:
    wanted = {name: value for name, value in {**os.environ, **order.env}.items() if value is not None}
    os.environ.clear()
    os.environ.update(wanted)
    os.environ.setdefault(GENERATION_MARK, str(order.generation))
    if os.environ[GENERATION_MARK] == _PLACEHOLDER:
        os.environ[GENERATION_MARK] = str(order.generation)
    _mark_generation(mark_address, order.generation)


def _give_up(why: str, code: int) -> NoReturn:
    os.write(2, f"holdfast: {why}\n".encode())
    os._exit(code)


def run_program(order: Order) -> NoReturn:
    """Become another program; a Python script is run by this interpreter, afresh."""
    argv = list(order.argv)
    if order.python:
        # The interpreter passes over options behind -X that it does not know: this one is for those who look at the command line.
        argv = [sys.executable, "-u", "-X", f"holdfast={_place(order)}", *(["-m"] if order.module else []), *argv]
    # Looked for here, because execvp takes a directory on the PATH that may not be read for a program that may not be run.
    program = argv[0] if "/" in argv[0] else shutil.which(argv[0])
    if program is None:
        _give_up(f"{argv[0]!r} cannot be started: no such program on the PATH", _NOT_FOUND_CODE)
    try:
        os.execv(program, argv)
    except OSError as error:
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        _give_up(f"{argv[0]!r} cannot be started: {error.strerror}", _NOT_FOUND_CODE if missing else _CANNOT_RUN_CODE)


def run_store(order: Order, listen_fd: int) -> NoReturn:
    """Be the generation's store. It is a process of its own because its threads, in the process that forks, would deadlock the children."""
    distributed: Any = importlib.import_module("torch.distributed")
    with socket.socket(fileno=listen_fd) as listener:
        port = listener.getsockname()[1]
        _store = distributed.TCPStore(order.host, port, None, True, wait_for_workers=False, master_listen_fd=listener.detach())
    while True:
        signal.pause()


def prepare(order: Order) -> Callable[[], object]:
    """All that `python script.py` does before the first line of the script. Returns what runs it, without a frame in between."""
    _like_a_fresh_interpreter(order)
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    script = order.argv[0]
    sys.argv[:] = ["-m" if order.module else script, *order.argv[1:]]
    if sys.version_info >= (3, 10):
        sys.orig_argv[:] = [sys.executable, *(["-m"] if order.module else []), *order.argv]
    if order.module:
        _put_first_on_path(os.getcwd())
        return functools.partial(runpy._run_module_as_main, script)  # type: ignore[attr-defined]
    if get_importer(script) is not None:  # A directory or an archive with a __main__.py in it.
        sys.path.insert(0, os.path.abspath(script))
        return functools.partial(runpy._run_module_as_main, "__main__", False)  # type: ignore[attr-defined]
    _put_first_on_path(os.path.dirname(os.path.realpath(script)))
    path = os.path.abspath(script)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    return functools.partial(exec, _compile(script), main.__dict__)


def _like_a_fresh_interpreter(order: Order) -> None:
    """Undo what importing early has fixed too early. Generators have drawn their seed; only Python's own draws another at a fork by itself."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # Progress appears as it is printed, as on a terminal.
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
        process.current_process().authkey = os.urandom(32)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # type: ignore[attr-defined]
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    if order.stacks is not None:
        _write_stacks_on_signal(order.stacks)


def _write_stacks_on_signal(path: str) -> None:
    """By faulthandler, which works in C: also when the GIL is held for ever."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Out of the way: the first file a script opens is number 3, as ever. The limit may be lower than we like.
        import fcntl

        with contextlib.suppress(OSError):
            low_fd, fd = fd, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 250)
            os.close(low_fd)
        faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True, chain=False)


def _put_first_on_path(directory: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, directory)


def _compile(script: str) -> types.CodeType:
    try:
        with open(script, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {os.path.abspath(script)!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    return compile(source, script, "exec", dont_inherit=True)


def failed(error: BaseException) -> None:
    """Do with an exception nobody caught what the interpreter does, and leave a note for the agent. Our own frames are no part of it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    error.__traceback__ = trace
    _write_error(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, trace)
    except Exception as second:
        sys.stderr.write("Error in sys.excepthook:\n")
        second.__traceback__ = second.__traceback__ and second.__traceback__.tb_next
        sys.__excepthook__(type(second), second, second.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, trace)


def _write_error(error: BaseException) -> None:
    """The first note stays: torch's own @record may have written one to the same place."""
    path = _plan.order.error if _plan is not None else None
    if path is None:
        return
    with contextlib.suppress(Exception):
        lines = "".join(traceback.TracebackException.from_exception(error, compact=True).format())
        if len(lines) > ERROR_BYTES_MAX:
            lines = f"{lines[: ERROR_BYTES_MAX // 2]}\n  [… {len(lines) - ERROR_BYTES_MAX} characters left out …]\n{lines[-ERROR_BYTES_MAX // 2 :]}"
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
        note = {"type": name, "message": str(error)[:ERROR_BYTES_MAX], "traceback": lines.splitlines(), "at": time.time()}
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(json.dumps(note).encode())


# ------------------------------------------------------------------------------------------------------------- starting


def main(argv: list[str]) -> Plan | None:
    """Start, and serve to the end. In a child this returns, in the middle of serving, with the plan the child has to carry out."""
    options = _options(argv)
    _start_with_a_mark()
    _leave_the_starter()
    os.makedirs(options.state, exist_ok=True)
    _show_as("holdfast parent", f"[{os.environ.get('HOLDFAST_JOB', '')} on {os.environ.get('HOLDFAST_NODE', '')}]", "holdfast-parent")
    parent = Parent(options, listen(options.socket), _be_spared_by_the_kernel())
    gc.freeze()  # What is there already is never collected, so a collection in a worker does not copy these pages.
    child = parent.serve()
    if child is None:
        sys.stdout.flush()
        os._exit(parent.end_code)
    return child if isinstance(child, Plan) else parent.be_template(child)


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="warm.py", description="Parent of the workers of one job on one node; started by the agent.")
    parser.add_argument("--socket", required=True, help="where the agent connects; its directory is made for this user alone")
    parser.add_argument("--state", required=True, help="directory of exits.jsonl, the record of how every worker ended")
    parser.add_argument("--preimport", action="append", default=[], metavar="MODULE", help="import this too, in the template")
    parser.add_argument("--room", help=argparse.SUPPRESS)
    parser.add_argument("--no-warm", action="store_true", help="import nothing")
    parser.add_argument("--orphan-grace-s", type=float, default=30.0, help="end everything when no agent spoke for this long")
    parser.add_argument("--stop-grace-s", type=float, default=5.0, help="what workers get to leave when the warm parent ends by itself")
    parser.add_argument("--kill-wait-s", type=float, default=5.0, help="a process that SIGKILL did not end by then is reported as unkillable")
    parser.add_argument("--template-wait-s", type=float, default=10.0, help="a template that forked no worker in this time is ended; it takes milliseconds")
    parser.add_argument("--log-bytes", type=int, default=64 << 20, help="a worker's log is rotated at this size")
    parser.add_argument("--log-files", type=int, default=3, help="how many files of that size are kept")
    return parser.parse_args(argv)


def _start_with_a_mark() -> None:
    """Start once more with room for the generation in the environment (see _mark_generation) and for a title among the arguments (see _write_title), and with
    ordinary buffering for the workers."""
    if os.environ.get(GENERATION_MARK) != _PLACEHOLDER:
        os.environ[GENERATION_MARK] = _PLACEHOLDER
        command = getattr(sys, "orig_argv", [sys.executable, *sys.argv])
        os.execv(sys.executable, [sys.executable, *(text for text in command[1:] if text != "-u"), "--room", " " * _TITLE_ROOM])


def _leave_the_starter() -> None:
    """Own session, none of the starter's descriptors, deaf to the terminal; orphans of the workers come here."""
    _close_all_but(frozenset())
    for fd in (0, 1, 2):
        if not os.path.exists(f"/proc/self/fd/{fd}"):
            os.open(os.devnull, os.O_RDWR)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    with contextlib.suppress(PermissionError):
        os.setsid()  # Refused to the leader of a process group, which has its own already.
    if not _prctl(_PR_SET_CHILD_SUBREAPER, 1):
        raise SystemExit("this kernel has no PR_SET_CHILD_SUBREAPER, so processes that workers leave behind could not be found; Linux 3.4 or newer is needed")


def _be_spared_by_the_kernel() -> str | None:
    """When memory runs out a worker should go, not the parent of all of them. Returns what to give back to the workers; None without the right."""
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            before = file.read().strip()
            file.seek(0)
            file.write(str(min(int(before), -500)))
    except OSError:
        return None
    return before


def listen(path: str) -> socket.socket:
    """A socket only this user can reach."""
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, mode=0o700, exist_ok=True)
    facts = os.stat(directory)
    if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise SystemExit(f"{directory} is open to others (mode {stat.S_IMODE(facts.st_mode):o}, owner {facts.st_uid}); it must be this user's, mode 700")
    listener = socket.socket(socket.AF_UNIX)
    # A path in a socket's address has 108 bytes at most; through the directory's descriptor any will do.
    directory_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    address = f"/proc/self/fd/{directory_fd}/{os.path.basename(path)}"
    try:
        listener.connect(address)
    except OSError:
        pass
    else:
        raise SystemExit(f"another warm parent already serves {path}; end it first")
    listener.close()
    listener = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    umask = os.umask(0o177)
    listener.bind(address)
    os.umask(umask)
    os.close(directory_fd)
    listener.listen(8)
    listener.setblocking(False)
    return listener


class _GiveWay:
    """Pauses between modules while processors are short: the first ranks import at the same time, and nobody waits for the template yet.

    Not by a lower priority: workers, which are its forks, would keep that, and nobody but root may raise it again.
    """

    def __init__(self) -> None:
        self._left_s = _GIVE_WAY_S_MAX
        self._waited_s = _waited_s()

    def find_spec(self, _name: str, _path: object = None, _target: object = None) -> None:
        late_s = _waited_s() - self._waited_s
        pause_s = min(_GIVE_WAY_TIMES * late_s, self._left_s)
        if pause_s > 0.001:
            self._left_s -= pause_s
            time.sleep(pause_s)
            self._waited_s = _waited_s()


def _waited_s() -> float:
    """How long this process was ready to run and had no processor."""
    try:
        with open("/proc/self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _import_all(names: list[str]) -> dict[str, float | None]:
    """Seconds each took; None for what is not there or does not import."""
    seconds: dict[str, float | None] = {}
    for name in dict.fromkeys(names):
        began = time.monotonic()
        try:
            importlib.import_module(name)
            seconds[name] = round(time.monotonic() - began, 4)
        except (Exception, SystemExit) as error:
            seconds[name] = None
            print(f"holdfast: {name} was not imported in advance: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    return seconds


_plan: Plan | None = None

if __name__ == "__main__":
    _plan = main(sys.argv[1:])
    assert _plan is not None
    become(_plan)
    if _plan.order.how == "exec":
        run_program(_plan.order)
    _error: BaseException | None = None
    try:
        if _plan.order.role == "store":
            run_store(_plan.order, _plan.listen_fd)
        prepare(_plan.order)()
    except SystemExit:
        raise
    except BaseException as _caught:
        _error = _caught
    if _error is not None:  # Out here, so that what a hook of the script's raises does not name it as the error being handled.
        failed(_error)
        if isinstance(_error, KeyboardInterrupt):
            # The interpreter cleans up and then ends by the signal itself; the trace is printed already.
            sys.excepthook = lambda *_: None
            raise KeyboardInterrupt
        sys.exit(1)
