"""Limits of the machine and of the operating system, signals, crashes, loader workers."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

from incidents.running import Running
from incidents.way import Way
from incidents.world import limited, memory_group, small_shared_memory

_PRELOADED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
static int left = 3;
static int fails(const char *path) { return path && strstr(path, "/remote/") && --left < 0; }
int open64(const char *path, int flags, ...) {
  va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest);
  if (fails(path)) { errno = atoi(getenv("INCIDENT_ERRNO")); return -1; }
  return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64"))(path, flags, mode);
}
int open(const char *path, int flags, ...) {
  va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest);
  if (fails(path)) { errno = atoi(getenv("INCIDENT_ERRNO")); return -1; }
  return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open"))(path, flags, mode);
}
"""


def remote_files(scratch: Path) -> None:
    import subprocess

    (scratch / "fail.c").write_text(_PRELOADED)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(scratch / "fail.so"), str(scratch / "fail.c"), "-ldl"], check=True, timeout=30, capture_output=True)
    directory = scratch / "remote" / "shards"
    directory.mkdir(parents=True)
    for number in range(12):
        (directory / f"shard_{number:02d}.bin").write_bytes(b"x" * 1000)


def after(text: str, number: int, *, rank: int = 0) -> Callable[[Running], None]:
    def during(running: Running) -> None:
        running.until_said(text, rank=rank)
        running.kill(number, rank)

    return during


def to_python(text: str, number: int) -> Callable[[Running], None]:
    """To the interpreter under a batch script: the shell lives on and says what became of it."""

    def during(running: Running) -> None:
        running.until_said(text)
        for pid in children(running.pids[0]):
            os.kill(pid, number)

    return during


def a_loader_worker(number: int) -> Callable[[Running], None]:
    def during(running: Running) -> None:
        running.until_said("step 10")
        for pid in children(running.pids[0])[:1]:
            os.kill(pid, number)

    return during


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _memory(name: str, variant: str, *command: str, **more: object) -> Way:
    return Way(name=name, variant=variant, cause="host_oom", permanence="permanent", scope="config", command=("host.py", *command), **more)  # type: ignore[arg-type]


def _open(variant: str, *command: str, limit: int = 64, quick: bool = False) -> Way:
    return Way(
        name="open_files_limit", variant=variant, cause="too_many_open_files", permanence="permanent", scope="config", command=command,
        inside=limited(resource.RLIMIT_NOFILE, limit), quick=quick,
    )  # fmt: skip


def _crash(cause: str, variant: str, *command: str, launch: str = "bash", quick: bool = False, **more: object) -> Way:
    return Way(
        name="crash" if cause == "segfault" else "abort", variant=variant, cause=cause, permanence="unclear", scope="worker", command=("host.py", *command),
        launch=launch, quick=quick, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def _shared(variant: str, *more: str, size: str, quick: bool = False) -> Way:
    return Way(
        name="shared_memory_small", variant=variant, cause="shm_exhausted", permanence="permanent", scope="config",
        command=("train.py", "--workers", "2", "--steps", "300", *more), inside=small_shared_memory(size), root=True, quick=quick, within_s=30.0,
    )  # fmt: skip


def _worker(variant: str, number: int, quick: bool = False) -> Way:
    return Way(
        name="loader_worker_ended", variant=variant, cause="dataloader_worker_died", permanence="unclear", scope="worker",
        command=("train.py", "--workers", "2", "--steps", "3000", "--seconds-per-step", "0.005"), during=a_loader_worker(number), quick=quick,
    )  # fmt: skip


def _cancelled(variant: str, number: int, *, launch: str = "fork", script: str = "train.py", quick: bool = False) -> Way:
    command = ("train.py", "--steps", "5000", "--seconds-per-step", "0.01") if script == "train.py" else ("host.py", "wait")
    during = after("step 10", number) if launch == "fork" else to_python("step 10", number)
    return Way(
        name="cancelled", variant=variant, cause="user_cancelled", permanence="unclear", scope="scheduler", command=command, during=during, launch=launch,
        quick=quick,
    )  # fmt: skip


def _limit(variant: str, before: str, *, quick: bool = False) -> Way:
    return Way(
        name="time_over", variant=variant, cause="time_limit", permanence="unclear", scope="scheduler", command=("host.py", "wait"), launch="bash",
        before=before, quick=quick,
    )  # fmt: skip


def _notice(variant: str, kind: str, *more: str, quick: bool = False) -> Way:
    number = signal.SIGTERM if kind == "term" else signal.SIGUSR1
    return Way(
        name="taken_away", variant=variant, cause="preempted", permanence="transient", scope="scheduler",
        command=("train.py", "--steps", "5000", "--seconds-per-step", "0.01", "--on-notice", kind, *more), during=after("oss", number), quick=quick,
    )  # fmt: skip


def _stale(variant: str, number: int, *command: str) -> Way:
    return Way(
        name="remote_files_fail", variant=variant, cause="storage_io", permanence="transient", scope="storage", command=("host.py", *command), launch="bash",
        prepare=remote_files, env=(("LD_PRELOAD", "./fail.so"), ("INCIDENT_ERRNO", str(number))), preload=os.strerror(number),
    )  # fmt: skip


WAYS: tuple[Way, ...] = (
    _memory("group_limit", "bash", "gather_features", launch="bash", inside=memory_group(100 << 20), root=True, kernel_log=True, quick=True),
    _memory("group_limit", "no_kernel_log", "gather_features", launch="bash", inside=memory_group(64 << 20), root=True),
    _memory("group_limit", "larger", "gather_features", launch="bash", inside=memory_group(200 << 20), root=True, kernel_log=True),
    _memory("address_space_limit", "list", "gather_features", launch="plain", inside=limited(resource.RLIMIT_AS, 300 << 20)),
    _memory("address_space_limit", "numpy", "build_table", "40000", launch="plain", inside=limited(resource.RLIMIT_AS, 3 << 30), quick=True),
    _memory("array_too_large", "numpy", "build_table", "90000000", launch="plain"),
    _open("files", "host.py", "open_shards", quick=True),
    _open("sockets", "host.py", "connect_workers"),
    _open("pipes", "host.py", "start_loaders"),
    _open("loader", "train.py", "--workers", "8", "--steps", "400", limit=40),
    _crash("segfault", "bash", "native_step", quick=True),
    _crash("segfault", "faulthandler", "native_step", "faulthandler", launch="plain"),
    _crash("segfault", "thread", "native_thread"),
    _crash("segfault", "signal", "native_signal", "SIGSEGV"),
    _crash("process_abort", "bash", "native_finish", quick=True),
    _crash("process_abort", "faulthandler", "native_finish", "faulthandler", launch="plain"),
    _crash("process_abort", "free", "native_finish", "free"),
    _shared("tiny", size="16k", quick=True),
    _shared("small", "--width", "2000", "--batch", "64", size="600k"),
    _shared("wide", "--width", "9000", "--batch", "32", size="2m"),
    _worker("killed", signal.SIGKILL, quick=True),
    _worker("terminated", signal.SIGTERM),
    _worker("aborted", signal.SIGABRT),
    _worker("crashed", signal.SIGSEGV),
    _cancelled("ctrl_c", signal.SIGINT, quick=True),
    _cancelled("ctrl_c_plain", signal.SIGINT, launch="bash", script="host.py"),
    _cancelled("hang_up", signal.SIGHUP, launch="bash", script="host.py"),
    _limit("verbose", "timeout -v 1.5 ", quick=True),
    _limit("kill", "timeout -v -s KILL 1.5 "),
    _limit("usr2", "timeout -v -s USR2 1.2 "),
    _notice("term", "term", quick=True),
    _notice("term_saved", "term", "--save", "{dir}"),
    _notice("usr1", "usr1", "--save", "{dir}", "--style", "1"),
    _notice("usr1_plain", "usr1", "--style", "2"),
    _notice("term_bar", "term", "--style", "3"),
    Way(name="stands_still", variant="", cause="hang", permanence="unclear", scope="worker", command=("host.py", "wait_for_lock"), launch="plain"),
    _stale("stale_read", 116, "read_all", "{dir}/remote/shards"),
    _stale("timed_out", 110, "read_all", "{dir}/remote/shards"),
    _stale("not_connected_write", 107, "save_checkpoints", "{dir}/remote/shards"),
    _stale("stale_write", 116, "save_checkpoints", "{dir}/remote/shards"),
    _stale("io_error_append", 5, "numpy_save", "{dir}/remote/shards"),
)
