"""What a gang is started with on this node: packages, interpreter, code, environment, driver and kernel, as facts that can be compared later.

Nothing of it is needed to start, so what cannot be found out is left out. Files are read and one short process of the job's interpreter is run, once, to learn
where it looks for packages; versions are those in the names of installed packages, which costs milliseconds.

Is wrong    of a package whose files were changed by hand: its version is the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock

from holdfast.domain.node import NodeSpec

# What libraries of a training read. Others change with every session, and say nothing.
_READ_BY_TRAINING = (
    "PYTHON", "LD_", "CUDA", "NVIDIA_", "NCCL_", "TORCH", "PYTORCH_", "GLOO_", "OMP_", "MKL_", "OPENBLAS_", "UCX_", "FI_", "XLA_", "JAX_", "TF_", "HF_",
    "TRANSFORMERS_", "TOKENIZERS_", "ACCELERATE_", "DS_", "DEEPSPEED_", "TRITON_", "CUBLAS", "CUDNN", "HSA_", "ROCM_", "WANDB_MODE",
)  # fmt: skip
_DRIVER = Path("/proc/driver/nvidia/version")
_DRIVER_NUMBER = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d[\d.]+)")
_WHERE_TO_LOOK = "import json, sys; print(json.dumps([sys.version.split()[0], sys.path]))"
_INTERPRETER_S = 20.0
_SCRIPT_BYTES_MAX = 4 << 20
_PACKAGES_MAX = 3000


class Surroundings:
    """Of one node and one job. `news` is run in a thread: it reads files that may be on a slow disk."""

    def __init__(self, spec: NodeSpec) -> None:
        self._spec = spec
        self._asked = Lock()
        self._python: tuple[str, tuple[str, ...]] | None = None
        self._told: dict[str, str] = {}

    def prepare(self) -> None:
        """Ask the interpreter ahead of the first start: it takes the longest."""
        if self._spec.job.python:
            self._interpreter()

    def news(self) -> dict[str, str]:
        """The facts as they are now; nothing where they are those of the last time."""
        facts = dict(self._facts())
        if facts == self._told:
            return {}
        self._told = facts
        return facts

    def _facts(self) -> Iterator[tuple[str, str]]:
        job = self._spec.job
        yield "kernel", os.uname().release
        with contextlib.suppress(OSError):
            if (found := _DRIVER_NUMBER.search(_DRIVER.read_text())) is not None:
                yield "driver", found[1]
        program = Path(job.cwd, job.argv[0]) if job.argv and not job.module else Path(job.cwd, ".")
        with contextlib.suppress(OSError):
            if program.is_file() and program.stat().st_size <= _SCRIPT_BYTES_MAX:
                yield "script", _digest(program.read_bytes())
        if commit := _commit(program.parent):
            yield "commit", commit
        yield from _environment({**os.environ, **job.env}, asked=job.env)
        if job.python:
            version, paths = self._interpreter()
            if version:
                yield "python", version
            yield from ((f"package {name}", number) for name, number in _packages(paths).items())

    def _interpreter(self) -> tuple[str, tuple[str, ...]]:
        with self._asked:
            if self._python is None:
                self._python = _ask(self._spec)
            return self._python


def _ask(spec: NodeSpec) -> tuple[str, tuple[str, ...]]:
    """The interpreter's version, and where it looks for packages."""
    command, environment = [spec.interpreter, "-c", _WHERE_TO_LOOK], {**os.environ, **spec.job.env}
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        told = subprocess.run(command, capture_output=True, timeout=_INTERPRETER_S, check=True, cwd=spec.job.cwd, env=environment)
        version, paths = json.loads(told.stdout)
        return version, tuple(paths)
    return "", ()


def _environment(variables: Mapping[str, str], *, asked: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in sorted(variables.items()):
        if not name.startswith("HOLDFAST_") and (name in asked or name.startswith(_READ_BY_TRAINING)):
            yield f"environment {name}", _digest(value.encode(errors="surrogateescape"))


def _packages(paths: tuple[str, ...]) -> dict[str, str]:
    """Name to version of what is installed where the interpreter looks, the first place first."""
    found: dict[str, str] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            for entry in sorted(os.listdir(path)):
                stem, _, ending = entry.rpartition(".")
                if ending in ("dist-info", "egg-info") and "-" in stem and len(found) < _PACKAGES_MAX:
                    name, _, version = stem.partition("-")
                    found.setdefault(name.lower().replace("_", "-"), version.partition("-")[0])
    return found


def _commit(directory: Path) -> str:
    """What is checked out where the program stands, read from git's own files; empty where nothing is."""
    with contextlib.suppress(OSError):
        top = next((one for one in (directory.resolve(), *directory.resolve().parents) if (one / ".git").exists()), None)
        if top is None:
            return ""
        git = top / ".git"
        if git.is_file():  # A worktree or a submodule: the file says where the rest is.
            git = top / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head[:12]
        shared = git / (git / "commondir").read_text().strip() if (git / "commondir").exists() else git
        reference = head.removeprefix("ref: ")
        for place in (git / reference, shared / reference):
            if place.is_file():
                return place.read_text().strip()[:12]
        packed = (shared / "packed-refs").read_text().splitlines()
        return next((line[:12] for line in packed if line.endswith(f" {reference}")), "")
    return ""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
