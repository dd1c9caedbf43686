"""What surrounds a process, made bad for real: small file systems, files that cannot be read any more, another user, memory limits, no network.

Every mount is made in a mount namespace of the process itself, so it is gone with it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MS_RDONLY, _MS_REMOUNT, _MS_REC, _MS_PRIVATE = 1, 32, 16384, 1 << 18
_NOBODY = 65534
_libc = ctypes.CDLL(None, use_errno=True)

Inside = Callable[[Path, int], None]


def small_disk(size: str, *, name: str = "full") -> Inside:
    """A tmpfs of this size at `{dir}/<name>`."""

    def inside(scratch: Path, rank: int) -> None:
        own_mounts()
        mount("tmpfs", scratch / name, "tmpfs", options=f"size={size}")

    return inside


def small_shared_memory(size: str) -> Inside:
    def inside(scratch: Path, rank: int) -> None:
        own_mounts()
        mount("tmpfs", Path("/dev/shm"), "tmpfs", options=f"size={size}")

    return inside


def becomes_read_only(after_s: float) -> Inside:
    """A file system that a helper makes read-only in the middle of the run, as the kernel does after an error."""

    def inside(scratch: Path, rank: int) -> None:
        own_mounts()
        mount("tmpfs", scratch / "full", "tmpfs", options="size=64m")
        if os.fork() == 0:
            import time

            time.sleep(after_s)
            mount("none", scratch / "full", "", flags=_MS_REMOUNT | _MS_RDONLY)
            os._exit(0)

    return inside


def failing_disk(keep: float) -> Inside:
    """An ext4 image with `{dir}/files` in it at `{dir}/disk`, whose device lost all but the first part: reading the rest is an I/O error of the kernel."""

    def inside(scratch: Path, rank: int) -> None:
        own_mounts()
        image, at = scratch / "disk.img", scratch / "disk"
        at.mkdir(exist_ok=True)
        size = 24 << 20
        with image.open("wb") as file:
            file.truncate(size)
        quiet(["mkfs.ext4", "-q", "-O", "^has_journal", "-d", str(scratch / "files"), str(image)])
        quiet(["mount", "-o", "loop,ro", str(image), str(at)])
        os.truncate(image, int(size * keep))

    return inside


def dead_fuse(scratch: Path, rank: int) -> None:
    """A FUSE mount at `{dir}/full` whose server is gone, as a crashed s3fs or gcsfuse leaves it."""
    own_mounts()
    device = os.open("/dev/fuse", os.O_RDWR)
    mount("bucket", scratch / "full", "fuse", options=f"fd={device},rootmode=40000,user_id=0,group_id=0")
    os.close(device)


def no_network(scratch: Path, rank: int) -> None:
    """A network namespace without any interface that is up: names cannot be resolved, and nothing leaves the machine."""
    checked(_libc.unshare(_CLONE_NEWNET), "unshare")


def as_nobody(scratch: Path, rank: int) -> None:
    os.environ["HOME"] = str(scratch)
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)


def limited(kind: int, value: int) -> Inside:
    def inside(scratch: Path, rank: int) -> None:
        resource.setrlimit(kind, (value, value))

    return inside


def memory_group(size_bytes: int, *, only_rank: int | None = None) -> Inside:
    """A memory control group of this size: what is over it is killed by the kernel."""

    def inside(scratch: Path, rank: int) -> None:
        if only_rank not in (None, rank):
            return
        group = memory_group_path(scratch)
        group.mkdir(exist_ok=True)
        old = (group / "memory.limit_in_bytes").exists()
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(size_bytes))
        (group / "cgroup.procs").write_text(str(os.getpid()))

    return inside


def memory_group_path(scratch: Path) -> Path:
    root = Path("/sys/fs/cgroup/memory")
    return (root if root.is_dir() else Path("/sys/fs/cgroup")) / f"holdfast-incident-{scratch.name}"


def own_mounts() -> None:
    checked(_libc.unshare(_CLONE_NEWNS), "unshare")
    mount("none", Path("/"), "", flags=_MS_REC | _MS_PRIVATE)


def mount(source: str, at: Path, kind: str, *, flags: int = 0, options: str = "") -> None:
    at.mkdir(parents=True, exist_ok=True)
    checked(_libc.mount(source.encode(), bytes(at), kind.encode(), flags, options.encode() or None), f"mount {at}")


def checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def quiet(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)
