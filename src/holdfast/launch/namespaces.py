"""Namespaces: what a local node sees of the machine. `hide` puts paths out of its reach; `own_shared_memory` gives it shared memory that goes with it, and
`Network` a network of its own.

    switch, a network namespace nobody runs in
    ┌──────────────── bridge ────────────────┐
    │    node-0        node-1        node-2  │
    └──────┼─────────────┼─────────────┼─────┘
          own0          own0          own0        each in its node's namespace, at 10.0.0.1, 10.0.0.2, …

Namespaces are held by open descriptors and by the processes in them, by no name and no file: when those are gone, the kernel takes down the rest.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.errors import UserError

INTERFACE = "own0"
_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWNET = 0x00020000, 0x08000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_SLAVE = 1, 2, 4, 4096, 16384, 1 << 19
_SHARED_MEMORY = Path("/dev/shm")
_NODES_MAX = 250


def hide(paths: Sequence[str]) -> bool:
    """Leave the machine's mount namespace for one in which `paths` are empty; False where that is not permitted, and then nothing has changed.

    Mounts the machine makes later still appear here; ours never appear there.
    """
    if not paths:
        return True
    if not _leave_mounts():
        return False
    for path in paths:
        if Path(path).is_dir():
            _call("mount", b"holdfast", os.fsencode(path), b"tmpfs", ctypes.c_ulong(_MS_RDONLY), b"size=4k,mode=000")
    return True


def own_shared_memory(kept: str = "") -> bool:
    """Leave the machine's shared memory for an empty one, /dev/shm and that of System V alike; only the directory `kept`, if any, is the same in both.

    False where that is not permitted, and then nothing has changed. What is left there goes with the last process that sees it.
    """
    machine = os.statvfs(_SHARED_MEMORY)
    if not _leave_mounts(_CLONE_NEWIPC):
        return False
    fd = os.open(kept or "/", os.O_PATH | os.O_DIRECTORY)
    try:
        options = f"size={machine.f_blocks * machine.f_frsize},mode=1777".encode()
        _call("mount", b"holdfast", os.fsencode(_SHARED_MEMORY), b"tmpfs", ctypes.c_ulong(_MS_NOSUID | _MS_NODEV), options)
        if not kept:
            return True
        os.mkdir(kept, 0o700)
        _call("mount", f"/proc/self/fd/{fd}".encode(), os.fsencode(kept), None, ctypes.c_ulong(_MS_BIND), None)
    finally:
        os.close(fd)
    return True


def _leave_mounts(also: int = 0) -> bool:
    """For a mount namespace of our own, in which mounts the machine makes later still appear. False where that is not permitted."""
    try:
        _call("unshare", ctypes.c_int(_CLONE_NEWNS | also))
        _call("mount", b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None)
    except PermissionError:
        return False
    return True


def join_network(fd: int) -> None:
    """Go into the network namespace that `fd` holds, for good."""
    _call("setns", ctypes.c_int(fd), ctypes.c_int(_CLONE_NEWNET))
    os.close(fd)


class Network:
    """A network of its own for each of `nodes`, all joined by one switch; the machine's own is not reached from it."""

    def __init__(self, nodes: Sequence[str]) -> None:
        if len(nodes) > _NODES_MAX:
            raise UserError(f"--own-network joins up to {_NODES_MAX} nodes, not {len(nodes)}: ask for fewer, or leave it out")
        if shutil.which("ip") is None:
            raise UserError("--own-network needs the `ip` command: install iproute2, or leave it out")
        self._fds: list[int] = []
        try:
            self._switch = self._new()
            self._of = {node: self._new() for node in nodes}
            self._wire(nodes)
        except PermissionError as error:
            self.close()
            raise UserError("--own-network makes network namespaces, which only root may: run as root, or leave it out") from error
        except BaseException:
            self.close()
            raise

    def fd(self, node: str) -> int:
        return self._of[node]

    def held_by(self, node: str) -> list[int]:
        """What the agent of a node keeps open: with the switch in its hands the network outlives a launcher that is killed, until the agents have left."""
        return [self._of[node], self._switch]

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def _new(self) -> int:
        """A namespace starts with a process; a descriptor keeps it when the process is gone."""
        ready, leave = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _call("unshare", ctypes.c_int(_CLONE_NEWNET))
                os.write(ready[1], b".")
                os.close(leave[1])
                os.read(leave[0], 1)
                code = 0
            finally:
                os._exit(code)
        os.close(ready[1])
        try:
            if not os.read(ready[0], 1):
                raise PermissionError
            self._fds.append(os.open(f"/proc/{child}/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        finally:
            for fd in (ready[0], *leave):
                os.close(fd)
            os.waitpid(child, 0)
        return self._fds[-1]

    def _wire(self, nodes: Sequence[str]) -> None:
        self._ip(self._switch, "link add bridge type bridge", "link set bridge up")
        for number, node in enumerate(nodes):
            fd = self._of[node]
            self._ip(self._switch, f"link add {node} type veth peer name {INTERFACE} netns /proc/self/fd/{fd}", f"link set {node} master bridge up")
            self._ip(fd, f"address add {address(number)}/24 dev {INTERFACE}", f"link set {INTERFACE} up", "link set lo up")

    def _ip(self, inside: int, *commands: str) -> None:
        done = subprocess.run(
            ["ip", "-batch", "-"], input="\n".join(commands), text=True, capture_output=True, pass_fds=self._fds, preexec_fn=_joiner(inside), check=False
        )
        if done.returncode != 0:
            raise UserError(f"--own-network: `ip` could not lay the network of the nodes: {done.stderr.strip()}; leave it out, or see what `ip` misses")


def address(number: int) -> str:
    return f"10.0.0.{number + 1}"


def _joiner(fd: int) -> Callable[[], None]:
    return lambda: join_network(os.dup(fd))


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
