"""The program's own doing: its code, its arguments, what is installed, its numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from incidents.way import Way

_MISTAKES = {
    "code_error": (
        "attribute", "none", "key", "zero", "name", "types", "recursion", "unbound", "detached", "callable", "assertion", "inplace", "twice", "json", "unpack",
        "not_implemented", "keyword", "dtype",
    ),
    "shape_mismatch": ("matmul", "broadcast", "view", "cat", "conv", "batch_size", "stack"),
    "index_out_of_range": ("target", "embedding", "gather", "dimension", "list"),
    "config_error": ("empty", "negative"),
}  # fmt: skip
_QUICK = {"attribute", "matmul", "embedding", "key"}


def config(text: str) -> Callable[[Path], None]:
    def prepare(scratch: Path) -> None:
        (scratch / "config.json").write_text(text)

    return prepare


def _mistake(cause: str, mistake: str) -> Way:
    scope = "config" if cause == "config_error" else "job_code"
    return Way(
        name=f"mistake_{mistake}", variant="", cause=cause, permanence="permanent", scope=scope, command=("mistakes.py", mistake), quick=mistake in _QUICK
    )


def _argument(variant: str, *more: str, prepare: Callable[[Path], None] | None = None, quick: bool = False) -> Way:
    return Way(
        name="argument_refused", variant=variant, cause="config_error", permanence="permanent", scope="config", command=("train.py", *more), prepare=prepare,
        quick=quick,
    )  # fmt: skip


def _import(variant: str, *command: str, cause: str = "import_missing", quick: bool = False) -> Way:
    name = "part_missing" if cause == "import_missing" else "part_of_another_version"
    return Way(name=name, variant=variant, cause=cause, permanence="permanent", scope="config", command=("host.py", *command), quick=quick)


def _numbers(variant: str, *more: str, cause: str, quick: bool = False) -> Way:
    permanence = "unclear" if cause == "numeric_nan" else "permanent"
    return Way(
        name="loss_not_finite" if cause == "numeric_nan" else "loss_grew", variant=variant, cause=cause, permanence=permanence, scope="job_code",
        command=("train.py", "--steps", "200", *more), quick=quick,
    )  # fmt: skip


WAYS: tuple[Way, ...] = (
    *(_mistake(cause, mistake) for cause, mistakes in _MISTAKES.items() for mistake in mistakes),
    _argument("unknown", "--leraning-rate", "0.1", quick=True),
    _argument("not_a_number", "--lr", "fast"),
    _argument("choice", "--optimizer", "lion"),
    _argument("no_value", "--steps"),
    _argument("batch", "--batch", "0"),
    _argument("setting", "--config", "{dir}/config.json", prepare=config(json.dumps({"learning_rat": 0.1}))),
    _argument("worker_count", "--workers", "-3"),
    _import("module", "import_one", "flash_attn_9", quick=True),
    _import("submodule", "import_one", "numpy.nothing_here"),
    _import("tool", "run_tool", "nvcc-99", "--version"),
    _import("library", "import_one", "torchvision_not_installed.models"),
    _import("name", "from_import", "numpy", "float128_t", cause="version_incompat"),
    _import("attribute", "import_name", "numpy", "bool8_t", cause="version_incompat"),
    _import("old_name", "from_import", "collections", "Mapping", cause="version_incompat", quick=True),
    _numbers("raised", "--lr", "1e30", "--check-finite", cause="numeric_nan", quick=True),
    _numbers("adam", "--lr", "1e36", "--optimizer", "adam", "--check-finite", cause="numeric_nan"),
    _numbers("styled", "--lr", "1e25", "--check-finite", "--style", "2", cause="numeric_nan"),
    _numbers("limit", "--lr", "3", "--loss-limit", "60", cause="loss_divergence", quick=True),
    _numbers("limit_logged", "--lr", "4", "--loss-limit", "90", "--style", "1", cause="loss_divergence"),
    _numbers("limit_bar", "--lr", "5", "--loss-limit", "120", "--style", "3", cause="loss_divergence"),
)
