"""Versions: Python, torch, CUDA and NCCL beside what the driver can do. A torch built for a newer CUDA than the driver's fails at its first kernel."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys

from holdfast.preflight.check import Check, Place, bad, looking, ok, warn

_ASK = (
    "import torch; n = torch.cuda.nccl.version() if torch.cuda.is_available() else ();"
    "print(torch.__version__, torch.version.cuda or '-', '.'.join(map(str, n)) or '-', torch.distributed.is_available())"
)
_WITHIN_S = 12.0


def look(place: Place) -> list[Check]:
    ours = f"Python {platform.python_version()}, Linux {platform.release()}, numpy {importlib.metadata.version('numpy')}"
    return [ok("versions", ours), judge(*_torch(), driver())]


def _torch() -> tuple[str, str]:
    """What torch says of itself, or what is wrong with it. In a process of its own: a torch that does not fit may take its process with it."""
    try:
        importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "", "it is not installed here"
    looking("torch")
    try:
        done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        return "", f"its import takes longer than {_WITHIN_S:.0f} s: the disk it lies on is slow, or the machine is busy"
    lines = done.stderr.strip().splitlines()
    return done.stdout.strip(), "" if done.returncode == 0 else f"its import fails: {lines[-1] if lines else f'code {done.returncode}'}"


def driver() -> str:
    """The CUDA version that the driver can do, such as 12.8; empty without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        version = int(pynvml.nvmlSystemGetCudaDriverVersion())
    except Exception:  # NVML has errors of its own for every way in which it is not there.
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"


def judge(said: str, problem: str, driver_cuda: str) -> Check:
    if problem:
        return warn("versions", f"torch: {problem}", "pip install 'holdfast[torch]', or name the environment that has it", culprit="torch")
    torch, cuda, nccl, distributed = said.split()
    told = f"torch {torch}, CUDA {cuda}, NCCL {nccl}, driver's CUDA {driver_cuda or '-'}"
    if distributed != "True":
        return bad("versions", f"{told}, built without torch.distributed", "install a torch that was built with it", culprit="torch")
    if driver_cuda and cuda == "-":
        return warn("versions", f"{told}: torch has no CUDA, and there is a GPU", "install the torch that is built for CUDA", culprit="torch")
    if driver_cuda and cuda.split(".")[0] > driver_cuda.split(".")[0]:
        return bad("versions", f"{told}: torch wants a newer driver", f"update the driver, or install a torch built for CUDA {driver_cuda}", culprit="torch")
    return ok("versions", told)
