"""The peers: other launchers that promise to survive, each made to run the same script. Optional: installed on request into a cache, beside our torch.

A peer's packages lie in a directory that is put on its PYTHONPATH and on nobody else's, so that what they bring along breaks nothing.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.jobs import SCRIPTS, Gang
from harness.measure import say

SCRIPT = "struck_ddp.py"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast-benchmark-peers"
# Wheels from 0.5 on ask for a newer glibc than many machines have, for a part that needs a GPU: taken as if this one had it.
_NEWER = ("--platform", "manylinux_2_39_x86_64", "--python-version", "3.11", "--only-binary", ":all:")
_NO_HARD_SHARING = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # Without it torchrun rarely comes back on gloo, and those built on it neither.


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    key: str
    name: str
    packages: tuple[tuple[str, ...], ...]  # What `pip install --target` is told, call by call.
    launch: Callable[[Path, str, int], Gang]
    brings: str  # The module that shows that it is there.

    @property
    def place(self) -> Path:
        return _CACHE / self.key

    def is_there(self) -> bool:
        return (self.place / self.brings).exists()

    def install(self) -> bool:
        for words in self.packages:
            say(f"installing {self.name} into {self.place}: {' '.join(words)}")
            done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(self.place), *words], check=False, timeout=900)
            if done.returncode:
                return False
        return self.is_there()


def _path(key: str) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(SCRIPTS.parents[1] / "src"), str(_CACHE / key), os.environ.get("PYTHONPATH", ""))))}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def _ft_launcher(scratch: Path, name: str, nproc: int) -> Gang:
    """With the lines that let it notice a hang, at five seconds: its default is an hour."""
    limits = ("--ft-initial-rank-heartbeat-timeout", "120", "--ft-rank-heartbeat-timeout", "5", "--ft-workload-check-interval", "1")
    launcher = [sys.executable, "-m", "nvidia_resiliency_ext.fault_tolerance.launcher", "--nproc-per-node", str(nproc), "--max-restarts", "10",
                "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{_free_port()}", *limits]  # fmt: skip
    return _gang(scratch, name, launcher, "nvrx", nproc, _path("ft_launcher"))


def _dlrover(scratch: Path, name: str, nproc: int) -> Gang:
    """Its own `--standalone` does not start on this torch: a master is started beside it."""
    launcher = [sys.executable, str(SCRIPTS / "dlrover_gang.py"), str(_free_port()), str(nproc)]
    return _gang(scratch, name, launcher, "plain", nproc, _path("dlrover"))


def _torchft(scratch: Path, name: str, nproc: int) -> Gang:
    """Replica groups of one process each, a lighthouse, and somebody who starts a dead one again."""
    directory = scratch / name
    return Gang(directory, name, [sys.executable, str(SCRIPTS / "torchft_gang.py"), str(directory), str(nproc)], world_size=nproc, env=_path("torchft"))


class _RayTrain(Gang):
    """A Ray of its own, on loopback and with a token, and the limits that let it notice a hang: its defaults are ten minutes of silence, and half a minute for
    a process group to end. It looks five times a second, for a report of the script waits until the next look."""

    def __init__(self, scratch: Path, name: str, nproc: int) -> None:
        self._session = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)  # Not in scratch: the sockets in it need a short path.
        limits = {"RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "5", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2", "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "5"}
        # What it is called for other systems keeps it on loopback here too.
        alone = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
        directory = scratch / name
        command = [sys.executable, str(SCRIPTS / "ray_ddp.py"), str(directory), str(nproc), self._session.name]
        super().__init__(directory, name, command, world_size=nproc, env={**_path("ray"), **limits, **alone})

    def end(self, *, patience_s: float = 30.0) -> int:
        killed = super().end(patience_s=patience_s)
        self._session.cleanup()
        return killed


def _gang(scratch: Path, name: str, launcher: Sequence[str], kind: str, nproc: int, env: dict[str, str]) -> Gang:
    directory = scratch / name
    return Gang(directory, name, [*launcher, str(SCRIPTS / SCRIPT), str(directory), kind], world_size=nproc, env={**env, **_NO_HARD_SHARING})


PEERS = (
    Peer(key="ft_launcher", name="NVIDIA's ft_launcher 0.6.0", launch=_ft_launcher, brings="nvidia_resiliency_ext",
         packages=((*_NEWER, "--no-deps", "nvidia-resiliency-ext==0.6.0"), ("defusedxml", "grpcio-tools", "httpx", "psutil", "pynvml", "packaging", "pyyaml"))),
    Peer(key="torchft", name="torchft 0.2.0", launch=_torchft, brings="torchft",
         packages=(("--no-deps", "torchft==0.2.0"), ("opentelemetry-sdk", "opentelemetry-exporter-otlp"))),
    Peer(key="dlrover", name="DLRover's launcher 0.6.1", launch=_dlrover, brings="dlrover",
         packages=(("--no-deps", "dlrover==0.6.1"), ("kubernetes", "psutil", "grpcio", "protobuf", "deprecated", "packaging"))),
    Peer(key="ray", name="Ray Train 2.60.0", launch=_RayTrain, brings="ray", packages=(("ray[train]==2.60.0",),)),
)  # fmt: skip
