"""Signatures of processes and nodes that are gone."""

from __future__ import annotations

from holdfast.diagnose.signatures.signature import FAIR, STRONG, SURE, WEAK, Signature
from holdfast.diagnose.taxonomy import Role
from holdfast.domain.log_event import LogForm

_LAUNCHED = (LogForm.NATIVE, LogForm.SCHEDULER, LogForm.LINE, LogForm.KERNEL)

SIGNATURES = (
    Signature(
        name="said_to_hang", cause="hang", strength=STRONG,
        says=(
            "has made no step", "no step finishes", "is stuck in", "is deadlocked", "does not advance", "nothing has been logged", "Timeout (0:",
            "no output for", "not advancing", "no step for", "hang detected", "job hang", "appears to be hung", "appears to be stuck", "no progress for",
            "has made no progress", "not made progress", "stuck for more than", "training is stuck", "No heartbeat received from … worker process is stuck",
            "stalled for",
        ),
        unless=("heartbeat monitor", "NCCL"),
        source="watchers of progress: DLRover hang detection, nvidia-resiliency-ext hang protection",
        example="ERROR watcher: hang detected, no progress for 1800 s",
    ),
    Signature(
        name="segmentation_fault", cause="segfault", strength=STRONG, form=_LAUNCHED,
        says=(
            "Segmentation fault", "SIGSEGV", "segfault at", "exitcode  : -11", "exitcode: -11", "exit code 139", "exit code -11", "exit code: 139",
            "return code = -11", "signal 11", "Signal 11", "general protection fault", "EXC_BAD_ACCESS", "SIGBUS", "Bus error", "exitcode  : -7", "signal 7",
            "code = -11", "`Segmentation fault` is detected", "`Access to an undefined portion",
        ),
        unless=("DataLoader worker", "shared memory"),
        source="signal(7): SIGSEGV 11, SIGBUS 7; Python faulthandler 'Fatal Python error: Segmentation fault'; Linux arch/x86/mm/fault.c 'segfault at'",
        example="Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n  File \"train.py\", line 8 in step",
    ),
    Signature(
        name="aborted", cause="process_abort", strength=FAIR, form=_LAUNCHED, role=Role.ECHO,
        says=(
            "terminate called", "Aborted (core dumped)", "Fatal Python error: Aborted", "SIGABRT", "exitcode  : -6", "exitcode: -6", "exit code 134",
            "exit code -6", "exit code: 134", "signal 6", "Signal 6", "pure virtual method called", "return code = -6", "Aborted", "code = -6",
            "libc++abi: terminating", "Fatal Python error:", "`Process abort signal` is detected",
        ),
        unless=("Segmentation fault", "Job step aborted", "*** STEP"),
        source="signal(7): SIGABRT 6; C++ std::terminate; Python faulthandler",
        example="terminate called after throwing an instance of 'std::runtime_error'\n  what():  the queue is gone",
    ),
    Signature(
        name="heap_broken", cause="process_abort", strength=STRONG,
        says=(
            "double free or corruption", "malloc(): ", "free(): invalid", "corrupted size vs. prev_size", "corrupted double-linked list",
            "stack smashing detected", "munmap_chunk(): invalid pointer", "corrupted unsorted chunks", "realloc(): invalid",
        ),
        source="glibc malloc/malloc.c malloc_printerr messages",
        example="double free or corruption (!prev)\nAborted (core dumped)",
    ),
    Signature(
        name="check_failed", cause="process_abort", strength=STRONG, form=_LAUNCHED,
        says=("OMP: Error #15", "Check failed:", "F … Check failure stack trace", "*** Check failure", "Assertion `… failed.", "INTERNAL ASSERT FAILED"),
        unless=("block: [", "thread: [", "CUDA"),
        source="glog CHECK; C assert(3); torch TORCH_INTERNAL_ASSERT",
        example="F1116 04:05:06.123456 991 server.cc:88] Check failed: queue_ != nullptr\n*** Check failure stack trace: ***",
    ),
    Signature(
        name="ray_died", cause="ray_worker_died", strength=SURE,
        says=(
            "KilledWorker", "ExecutorLostFailure", "actor … died,", "Ray … worker … died", "lost executor", "ActorDiedError", "RayActorError",
            "WorkerCrashedError", "The actor died unexpectedly", "The actor died because", "worker died or was killed", "LocalRayletDiedError",
            "the raylet died", "raylet … was marked dead", "A worker died or was killed while executing a task", "The actor is dead because",
            "NodeDiedError", "OwnerDiedError", "ObjectLostError", "Raylet is terminated", "ActorUnavailableError", "The node … has been marked dead",
        ),
        unless=("running low on memory", "The actor died because of an error raised in its creation task"),
        source="docs.ray.io, ray.exceptions: ActorDiedError, WorkerCrashedError, NodeDiedError",
        example="ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    ),
    Signature(
        name="node_failed", cause="node_fail", strength=SURE,
        says=(
            "was rebooted", "instance terminated", "hardware failure", "heartbeat … lost", "Node … rebooted", "lost with its host", "unexpected reboot",
            "host … unreachable", "fatal hardware error", "DUE TO NODE FAILURE", "Node failure on", "NODE_FAIL", "DUE TO NODE_FAIL", "Kernel panic",
            "NodeLost", "node is not ready", "NodeNotReady", "node … not responding", "Zero Bytes were transmitted or received",
            "has lost communication with a remote daemon", "Hardware Error … Machine Check", "mce: [Hardware Error]", "Machine check events logged",
            "soft lockup", "hard LOCKUP", "failed heartbeats", "missed too many heartbeats", "Lost heartbeat", "lost connection to node",
            "node has been terminated", "EDAC … UE ", "Uncorrected error", "watchdog: BUG", "kernel BUG at", "NODE FAILURE", "node … is down",
            "Host is down", "lost node", "the node may be down", "agent … lost",
        ),
        unless=("hardware error: corrected",),
        source="Slurm: 'CANCELLED … DUE TO NODE FAILURE', srun 'Node failure on'; Linux panic.c, mce; Kubernetes node conditions; Open MPI ORTE 'lost "
        "communication with a remote daemon'",
        example="slurmstepd: error: *** JOB 5150 ON n17 CANCELLED AT 2026-11-16T04:05:06 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
    ),
    Signature(
        name="child_failed", cause="unknown", strength=WEAK, role=Role.CLEAN_UP,
        says=(
            "ChildFailedError", "CalledProcessError", "ProcessExitedException", "ProcessRaisedException", "exits with return code",
            "Primary job terminated normally", "returned a non-zero exit code", "Job step aborted", "Terminating StepId", "Sending process … closing signal",
            "torch.distributed.elastic.multiprocessing.api … failed (exitcode", "Killing subprocess", "Some of the ranks", "MPI_ABORT was invoked",
            "exited with exit code", "Exited with exit code", "non-zero exit status", "step creation temporarily disabled", "BackoffLimitExceeded",
            "CrashLoopBackOff", "Back-off restarting failed container",
        ),
        source="launchers: torch elastic, DeepSpeed, srun, mpirun, subprocess; they say that a child failed and not why",
        example="torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n train.py FAILED",
    ),
)  # fmt: skip
