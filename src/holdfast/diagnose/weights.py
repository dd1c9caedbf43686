"""How much each kind of evidence weighs, in log-odds: one table. Set on incidents caused for real and written from documentation, never on logs of others."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SIGNATURE = 1.0  # Of a signature's own strength.
MODEL = 0.5  # Of the text model's logarithm of a probability.
MODEL_UNREAD = 0.9  # The same where somebody says a cause that no signature knows.
MODEL_FLOOR = -7.0  # What it thinks impossible is only very unlikely.
ECHO_BESIDE_ROOT = 0.1  # What is left of an echo when somebody says a cause.
AGAIN = 0.3  # What a second signature of the same class adds, on another event.
PRIOR = -2.0  # What a class has for which nothing speaks.
UNKNOWN = 1.0  # What `unknown` has without anything,
UNKNOWN_BESIDE_FATAL = -0.8  # and where something fatal was said.
UNKNOWN_IN_SILENCE = 2.0  # And more where there is neither an error nor progress.
CODE_UNREAD = 1.3  # A traceback that no signature knows is most often the program's own.
HEALTHY_NOTHING_FATAL = 3.0
HEALTHY_WARNINGS = 1.0  # And there were warnings, after which it said more.
HEALTHY_UNREAD = -1.5  # Something was called an error, and nobody knows it.
LINE_BEFORE_WORSE = 0.3  # What is left of a lone line when the same writer says worse later.
HEALTHY_FINISHED = 3.5
HEALTHY_PROGRESS = 2.0
HEALTHY_EXIT_ZERO = 3.0
HEALTHY_FATAL = -3.5
HANG_IN_MIDDLE = 0.3
FINDING = 3.0
NOT_SEEN_AS = -4.0  # What hardly stands behind the name that the core gave it: it may be mistaken about that name,
NO_FAILURE = -20.0  # and not about that there was a failure: what `healthy` and `unknown` lose by it.
NAMED = 20.0  # What the last words of a worker said by themselves.
SEEN_AS = 0.5  # Of how much rarer the classes are that the core's own name for it leaves.
TEMPERATURE = 0.8  # Of the whole answer; both are fitted by benchmarks/calibrate.py.
LAPSE = 0.04  # How much is left for everything else however clear a log is: what a log says is not always what happened.

# Exit codes and signals by themselves; who sent a signal is not said, so none of them is worth much.
EXIT_CODES: Mapping[int, tuple[tuple[str, float], ...]] = MappingProxyType({
    -9: (("host_oom", 1.2),), 137: (("host_oom", 1.2),), 247: (("host_oom", 1.0),),
    -11: (("segfault", 2.5),), 139: (("segfault", 2.5),),
    -6: (("process_abort", 0.8),), 134: (("process_abort", 0.8),),
    -7: (("shm_exhausted", 1.0), ("segfault", 1.5)), 135: (("shm_exhausted", 1.0), ("segfault", 1.5)),
    -15: (("user_cancelled", 0.8), ("preempted", 0.4)), 143: (("user_cancelled", 0.8), ("preempted", 0.4)),
    -2: (("user_cancelled", 3.0),), 130: (("user_cancelled", 3.0),), -1: (("user_cancelled", 2.0),), 129: (("user_cancelled", 2.0),),
    124: (("time_limit", 2.0),), 140: (("time_limit", 2.5),), 127: (("import_missing", 2.0),), 126: (("permission_denied", 2.0),), 2: (("config_error", 0.8),),
})  # fmt: skip

# What our own detectors found, and the class it speaks for.
FINDINGS: Mapping[str, str] = MappingProxyType({
    "silent_rank": "hang", "stopped_rank": "hang",
    "silent_node": "node_fail", "not_finite": "numeric_nan", "loss_jump": "loss_divergence", "gpu_fault": "gpu_xid_other",
    "throttled": "gpu_thermal_power", "over_time": "time_limit", "poisoned_checkpoint": "numeric_nan", "gradient_explosion": "loss_divergence",
})  # fmt: skip

# What is different since the last attempt that worked, by the kind of the fact, each once: it worked with the rest.
CHANGED: Mapping[str, tuple[str, float]] = MappingProxyType({
    "package": ("version_incompat", 1.0), "python": ("version_incompat", 1.0), "driver": ("gpu_driver_mismatch", 1.0), "kernel": ("gpu_driver_mismatch", 0.5),
    "commit": ("code_error", 0.7), "script": ("code_error", 0.7), "arguments": ("config_error", 0.7), "environment": ("config_error", 0.5),
    "world": ("config_error", 0.5),
})  # fmt: skip

# What the kernel told of our nodes, by the kind of the event; Xids are read by number.
KERNEL: Mapping[str, tuple[str, float]] = MappingProxyType({
    "oom_kill": ("host_oom", 7.0), "gpu_lost": ("gpu_fell_off_bus", 7.0), "gpu_off_bus": ("gpu_fell_off_bus", 7.0), "disk_error": ("storage_io", 5.0),
    "disk_io_error": ("storage_io", 5.0), "nfs_not_responding": ("storage_io", 4.0), "filesystem_read_only": ("storage_io", 5.0),
    "link_down": ("nccl_system_error", 3.0), "machine_check": ("node_fail", 4.0), "lockup": ("node_fail", 4.0), "segfault": ("segfault", 4.0),
    "hung_task": ("storage_io", 2.5),
})  # fmt: skip
