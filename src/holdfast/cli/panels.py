"""Under which heading a command, or an option of `holdfast run`, stands in the help."""

from __future__ import annotations

from typing import Any, Final

COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "Run": ("run", "resume", "attach", "stop"),
    "Look": ("ps", "show", "watch", "logs", "incidents", "replay", "nodes", "profile", "checkpoint"),
    "Act": ("approve", "veto", "undo", "correct", "cordon", "uncordon", "drain", "check"),
    "Find what is wrong": ("diagnose", "doctor", "detect", "bisect"),
    "Watch and tell": ("rules", "alerts", "dashboards", "learn"),
    "Plan and share": ("plan", "simulate", "queue", "why", "shares"),
    "Try it": ("demo", "chaos", "selftest", "version"),
}
_RUN: Final[dict[str, tuple[str, ...]]] = {
    "What is run": ("nproc", "nodes", "name", "module", "no_python", "spares", "mesh", "domains", "detached", "state", "as_json"),
    "Saving": ("save_every", "remote"),
    "When something fails": (
        "max_restarts", "policy", "never", "budget", "resize_every_s", "smaller_batch", "hang_limit", "slow_wait_s",
        "skip_batches", "may_change", "notice_file",
        "stop_grace_s", "power_cap",
    ),
    "How workers start": ("no_warm", "preimport", "stage"),
    "Limits of time": ("time_limit", "epoch_limit", "target", "within", "at_limit"),
    "What it may use": ("memory", "memory_high", "memory_per_worker", "cpus", "cpu_weight", "max_processes", "gpus", "private", "own_network"),
    "Who is told": ("alerts", "rules", "metrics", "agent_metrics", "metrics_token_file", "metrics_cert", "metrics_key"),
    "Before, and beside": ("check", "chaos", "no_profile", "no_learning", "shape"),
}  # fmt: skip


_KINDS: Final = {"int": "N", "integer": "N", "float": "NUMBER", "path": "PATH"}  # Shorter than what they are called otherwise, so that the help has room.


def panel_of(command: str) -> str:
    return next((panel for panel, names in COMMANDS.items() if command in names), "Other")


def sort_options_of_run(params: list[Any]) -> None:
    for param in params:
        panel = next((panel for panel, names in _RUN.items() if param.name in names), None)
        if panel is not None:
            param.rich_help_panel = panel
            param.metavar = param.metavar or (None if param.is_flag else _KINDS.get(param.type.name.partition(" ")[0], "TEXT"))
    place = {name: number for number, names in enumerate(_RUN.values()) for name in names}
    params.sort(key=lambda param: place.get(param.name, -1))  # In the order of the headings; within one, as they were.
