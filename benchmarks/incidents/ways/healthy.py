"""Trainings that go well although their logs do not read so."""

from __future__ import annotations

from incidents.way import Way
from incidents.ways.files import of_shape

_CAUGHT = (
    "bad_samples", "validate", "draw_plot", "optional_import", "missing_cache", "no_permission", "warned", "skipped_nan", "worker_again",
    "killed_worker", "smaller_batch", "upload", "partial_load", "many_words", "broken_pipe", "timeout_then_fine", "group",
)  # fmt: skip
_RESTARTED = {
    "raise": "raise RuntimeError('a worker of the loader died')",
    "memory": "raise MemoryError",
    "exit": "print('ERROR: lost connection to the tracker'); sys.exit(3)",
    "kill": "import os; os.kill(os.getpid(), 9)",
    "crash": "import ctypes; ctypes.string_at(0)",
    "key": "{}['step']",
}


def _healthy(name: str, variant: str, *command: str, **more: object) -> Way:
    return Way(name=name, variant=variant, cause="healthy", permanence="unclear", scope="none", command=command, **more)  # type: ignore[arg-type]


WAYS: tuple[Way, ...] = (
    *(_healthy(f"healthy_{what}", "", "calm.py", what, launch="plain", quick=what in ("validate", "bad_samples", "warned")) for what in _CAUGHT),
    *(_healthy("healthy_retried_request", str(times), "calm.py", "retried_request", f"{{url}}/flaky?times={times}", launch="plain") for times in (1, 2, 4)),
    *(_healthy("healthy_tracker_gone", path, "calm.py", "tracker_gone", "{url}/" + path, launch="plain") for path in ("500", "reset", "404")),
    _healthy("healthy_next_port", "", "calm.py", "next_port", "{port}", launch="plain", quick=True),
    *(_healthy("healthy_restarted", what, "restarts.sh", code, launch="restarts", quick=what == "raise") for what, code in _RESTARTED.items()),
    *(_healthy("healthy_training", f"style_{style}", "train.py", "--style", str(style), quick=style == 0) for style in range(4)),
    _healthy("healthy_saved", "", "train.py", "--save", "{dir}"),
    _healthy("healthy_resumed", "", "train.py", "--resume", "{dir}/step_20.pt", prepare=of_shape()),
    _healthy("healthy_workers", "", "train.py", "--workers", "2"),
    _healthy("healthy_ranks", "two", "train.py", ranks=2, one_log=False),
    _healthy("healthy_ranks", "three_one_log", "train.py", ranks=3),
    _healthy("healthy_limit_far", "", "host.py", "steps_only", launch="bash", before="timeout -v 20 "),
)  # fmt: skip
