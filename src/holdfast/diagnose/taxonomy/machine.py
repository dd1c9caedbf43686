"""Classes about processes and nodes that are gone."""

from __future__ import annotations

from holdfast.diagnose.taxonomy.cause_class import CauseClass, Permanence, Role, Scope
from holdfast.domain.diagnosis import Cause

CLASSES = (
    CauseClass(
        name="hang",
        definition="Nothing goes on, and nothing was said.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.WORKER,
        seen_as=(Cause.HANG, Cause.UNKILLABLE),
        action="Take the stacks of all ranks (`py-spy dump`) and the flight recorder's dump before ending it; the rank that stands elsewhere is the one. "
        "Then try once more.",
        look_alikes=("nccl_timeout", "rendezvous_timeout"),
        page="A log that ends in the middle of a step with no error, or somebody's watch that ended the job because it stood still.",
        retries=1,
    ),
    CauseClass(
        name="segfault",
        definition="A process was ended by SIGSEGV or SIGBUS, and nothing clearer is known.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.WORKER,
        seen_as=(Cause.CRASH,),
        action="Try once on another node. The same again: run with `python -X faulthandler`, and look at the native library on top of the stack.",
        look_alikes=("process_abort", "version_incompat", "shm_exhausted"),
        page="-11 and exit code 139, `Segmentation fault (core dumped)`, `Fatal Python error: Segmentation fault`. Compiled parts that do not fit, a bad "
        "kernel, or memory that is bad.",
        retries=1,
    ),
    CauseClass(
        name="process_abort",
        definition="A process ended itself with abort(), and nothing clearer is known.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.WORKER,
        seen_as=(Cause.CRASH,),
        action="Read the last line before the abort; try once on another node. The same again is a bug in the native code that is named.",
        otherwise={Permanence.PERMANENT: "Raise the limit of processes and threads (`ulimit -u`, the container's limit of pids), or start fewer of them."},
        look_alikes=("segfault", "nccl_timeout", "gpu_illegal_access"),
        page="-6 and exit code 134, `terminate called`, `Aborted (core dumped)`, a failed CHECK, `double free or corruption`. Where the abort says why, "
        "that is the cause.",
        retries=1,
    ),
    CauseClass(
        name="ray_worker_died",
        definition="A Ray actor, worker or raylet died, and its own end is not in the log.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.WORKER,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        role=Role.ECHO,
        action="Read the worker's own log under /tmp/ray/session_latest/logs on its node; most often the node ran out of memory.",
        look_alikes=("host_oom", "node_fail", "segfault"),
        page="ActorDiedError, WorkerCrashedError, `The actor died unexpectedly before finishing this task`, a raylet that is marked dead.",
        retries=1,
    ),
    CauseClass(
        name="node_fail",
        definition="A node went down, stopped answering or panicked.",
        permanence=Permanence.TRANSIENT,
        scope=Scope.NODE,
        seen_as=(Cause.NODE_LOST, Cause.VANISHED),
        action="Leave the node out and start elsewhere; ask for it to be checked.",
        look_alikes=("preempted", "nccl_remote_closed", "time_limit"),
        hardware_persists=True,
        page="`DUE TO NODE FAILURE`, a lost heartbeat, `Kernel panic`, a machine check, a Kubernetes node that is NotReady.",
    ),
)
