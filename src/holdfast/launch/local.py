"""Several nodes on one machine: each an agent with a process tree, a disk and a piece of memory of its own.

`LocalCluster` writes down what control and agents must know, starts them, and starts again those that die. A node whose directory is gone is a node that
is gone: its agent is not started again before the directory is there again. At the end nothing is left but the job's own directory: journal, logs, checkpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.domain.job import JobSpec
from holdfast.domain.node import NO_FD, NodeSpec
from holdfast.errors import HoldfastError
from holdfast.launch import groups
from holdfast.launch.layout import JobDirectory
from holdfast.launch.lifeline import adopt_orphans, reap_orphans
from holdfast.launch.namespaces import INTERFACE, Network, address

LOOPBACK = "127.0.0.1"
_RESTARTS_IN_A_ROW = 5  # Of control or one agent, each within a few seconds of its start: then it is not chance.
_SOON_S = 3.0
_STANDS_EVERY_S = 0.2  # How often is looked whether a node that is gone is there again.
_FREE_BYTES_MIN = 1 << 20  # Below this neither a journal nor a log can be relied on.
_ROOM_WAIT_S = 60.0  # For room on a full disk: the ranks train on without control meanwhile.


class CannotStayUp(HoldfastError):
    """Control or an agent dies again and again right after its start."""


class LocalCluster:
    """`async with` it; `wait` returns when control has ended the job."""

    def __init__(self, directory: JobDirectory, spec: JobSpec, *, interpreter: str, say: Callable[[str], None] = lambda text: None) -> None:
        self._directory = directory
        self._spec = spec
        self._interpreter = interpreter
        self._say = say
        self._keepers: list[asyncio.Task[None]] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._network: Network | None = None
        self._leaving = False

    async def __aenter__(self) -> LocalCluster:
        adopt_orphans()
        if self._spec.own_network:
            self._network = Network(self.node_names())
        self._lay_out()
        self._control = asyncio.create_task(self._keep("control", ["holdfast.control", str(self._directory.path)]))
        for node in self.node_names():
            self._keepers.append(asyncio.create_task(self._keep(node, ["holdfast.agent", str(self._directory.node_spec(node))])))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leaving = True
        for name, process in self._processes.items():
            if process.poll() is None:
                await self._end(name, process)
        for task in (*self._keepers, self._control):
            task.cancel()
        await asyncio.gather(*self._keepers, self._control, return_exceptions=True)
        self._clean_up()

    async def wait(self) -> None:
        """Until control has left because the job has ended; raises when control or an agent cannot stay up.

        Agents are not waited for: a control that was killed at the very end leaves without having told them.
        """
        waiting: set[asyncio.Task[None]] = {self._control, *self._keepers}
        while not self._control.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    def node_names(self) -> tuple[str, ...]:
        return tuple(f"node-{number}" for number in range(self._spec.nodes + self._spec.spares))

    def process_id(self, name: str) -> int:
        """Of control or a node's agent, as it runs now."""
        return self._processes[name].pid

    def _lay_out(self) -> None:
        directory = self._directory
        directory.logs.mkdir(exist_ok=True)
        directory.checkpoints.mkdir(exist_ok=True)
        sweep(directory)
        directory.spec.write_bytes(msgspec.json.encode(self._spec))
        for number, node in enumerate(self.node_names()):
            temporary = [directory.node_temporary(node)] if self._spec.private else []
            for path in (directory.node_state(node), directory.node_scratch(node), directory.node_shared_memory(node), *temporary):
                path.mkdir(parents=True, mode=0o700)
            directory.node_spec(node).write_bytes(msgspec.json.encode(self._node_spec(number, node)))

    def _node_spec(self, number: int, node: str) -> NodeSpec:
        directory, network = self._directory, self._network
        others = [other for other in self.node_names() if other != node]
        each = len(self._spec.gpus) // len(self.node_names())
        return NodeSpec(
            node=node, host=address(number) if network else LOOPBACK, peer=str(directory.peer_socket(node)),
            domain=f"domain-{number % self._spec.domains}" if self._spec.domains else node,
            control=str(directory.control_socket), state=str(directory.node_state(node)),
            scratch=str(directory.node_scratch(node)), shared_memory=str(directory.node_shared_memory(node)), logs=str(directory.logs),
            notice=self._spec.notice_file.replace("{node}", node) or str(directory.node_notice(node)),
            temporary=str(directory.node_temporary(node)) if self._spec.private else "", gpus=self._spec.gpus[number * each : (number + 1) * each],
            checkpoints=str(directory.checkpoints), profiles=str(directory.profiles), interpreter=self._interpreter, job=self._spec,
            hidden=tuple(str(path) for other in others for path in (directory.nodes / other, directory.node_shared_memory(other))),
            interface=INTERFACE if network else "", network_fd=network.fd(node) if network else NO_FD,
            metrics_port=self._spec.metrics.agents_port + number if self._spec.metrics and self._spec.metrics.agents_port else 0,
        )  # fmt: skip

    async def _keep(self, name: str, command: list[str]) -> None:
        """Run a process until it leaves by itself with code 0; start it again whenever it dies otherwise."""
        quick_deaths = 0
        while not self._leaving:
            started = time.monotonic()
            with (self._directory.logs / f"{name}.log").open("ab") as log:
                process = self._processes[name] = subprocess.Popen(
                    [sys.executable, "-m", *command, str(os.getpid())], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                    pass_fds=self._network.held_by(name) if self._network and name != "control" else [],
                )  # fmt: skip
            code = await _exit_code(process)
            while code and not self._leaving and not self._stands(name):
                await asyncio.sleep(_STANDS_EVERY_S)
            if code == 0 or self._leaving:
                return
            if name == "control" and self._is_full():
                await self._wait_for_room()
            quick_deaths = quick_deaths + 1 if time.monotonic() - started < _SOON_S and code != -signal.SIGKILL else 0
            if quick_deaths >= _RESTARTS_IN_A_ROW:
                raise CannotStayUp(f"{name} died {quick_deaths} times right after its start (exit code {code}): {self._last_words(name)}")

    def _stands(self, name: str) -> bool:
        return name == "control" or os.access(self._directory.node_spec(name), os.R_OK)

    def _is_full(self) -> bool:
        return shutil.disk_usage(self._directory.path).free < _FREE_BYTES_MIN

    async def _wait_for_room(self) -> None:
        """What control decides it must write down first, and it cannot."""
        self._say(f"the disk that holds {self._directory.path} is full: training goes on, and nothing else is done until there is room; make some")
        deadline = time.monotonic() + _ROOM_WAIT_S
        while self._is_full() and not self._leaving:
            if time.monotonic() > deadline:
                raise CannotStayUp(f"control cannot go on after {_ROOM_WAIT_S:.0f} s: {self._last_words('control')}")
            await asyncio.sleep(_STANDS_EVERY_S)

    def _last_words(self, name: str) -> str:
        if self._is_full():
            return f"the disk that holds {self._directory.path} is full; make room, and go on with `holdfast resume {self._spec.job}`"
        lines = (self._directory.logs / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    async def _end(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """SIGTERM ends an agent's whole tree with grace; what does not leave in time is killed."""
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(_exit_code(process), self._spec.policy.stop_grace_s + 2 * self._spec.policy.kill_wait_s)
        except TimeoutError:
            process.kill()
            await _exit_code(process)

    def _clean_up(self) -> None:
        for socket in (self._directory.control_socket, *map(self._directory.peer_socket, self.node_names())):
            socket.unlink(missing_ok=True)
        sweep(self._directory)
        if self._network is not None:
            self._network.close()
        reap_orphans()


def sweep(directory: JobDirectory) -> None:
    """What nodes have left that are no more: in the job's directory, in memory, among temporary files and control groups."""
    prefix = directory.shared_memory_prefix
    for path in (directory.nodes, *Path("/dev/shm").glob(f"{prefix}*"), *Path(tempfile.gettempdir()).glob(f"{prefix}*")):
        shutil.rmtree(path, ignore_errors=True)
    groups.sweep(prefix)


async def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """Wait for a child without a thread: a process descriptor becomes readable when it ends."""
    if process.poll() is None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        fd = os.pidfd_open(process.pid)
        loop.add_reader(fd, ended.set_result, None)
        try:
            await ended
        finally:
            loop.remove_reader(fd)
            os.close(fd)
    return process.wait()
