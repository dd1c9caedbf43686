"""Classes about what surrounds a job: scheduler, people, services; and the two that are no failure."""

from __future__ import annotations

from holdfast.diagnose.taxonomy.cause_class import CauseClass, Permanence, Role, Scope
from holdfast.domain.diagnosis import Cause

CLASSES = (
    CauseClass(
        name="remote_service_error",
        definition="A service outside the job did not answer, or not as it should: a hub, a tracker, a download.",
        permanence=Permanence.TRANSIENT,
        scope=Scope.EXTERNAL,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE, Cause.NOT_STARTABLE),
        action="Wait and try again.",
        otherwise={
            Permanence.PERMANENT: "Check the name of what is asked for, the token (log in), and that its licence is accepted. Where there is no way out to the "
            "service, download it before and work offline.",
            Permanence.UNCLEAR: "Check from a node of the job whether the service can be reached. If it can, try once more; if not, mend the way out, or "
            "download before and work offline.",
        },
        look_alikes=("file_not_found", "permission_denied", "storage_io"),
        page="Name resolution, connection refused or timed out, 429 and 5xx pass by. 401, 403, 404 and a gated repository do not.",
    ),
    CauseClass(
        name="time_limit",
        definition="The scheduler ended the job because its time was over.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.SCHEDULER,
        seen_as=(Cause.KILLED,),
        action="If it saves checkpoints, queue it again: it goes on from the newest. If it does not, ask for more time, or it will end here again.",
        otherwise={Permanence.TRANSIENT: "Nothing: the scheduler queues it again. See that it goes on from its newest checkpoint."},
        look_alikes=("preempted", "user_cancelled"),
        page="`CANCELLED … DUE TO TIME LIMIT`, TERM_RUNLIMIT, exit code 140 of LSF, DeadlineExceeded of Kubernetes, 124 of timeout.",
    ),
    CauseClass(
        name="preempted",
        definition="The scheduler or the cloud took the node for somebody else.",
        permanence=Permanence.TRANSIENT,
        scope=Scope.SCHEDULER,
        seen_as=(Cause.KILLED, Cause.NODE_LOST),
        action="Queue it again: nobody is to blame and no retry is used up.",
        otherwise={Permanence.UNCLEAR: "Ask the scheduler why it ended (`sacct -j JOB -o JobID,State,ExitCode`). If it was preempted, queue it again."},
        look_alikes=("time_limit", "user_cancelled", "node_fail"),
        page="`CANCELLED … DUE TO PREEMPTION`, a notice of a spot instance, an eviction by priority, SIGTERM with a preemption handler that says so.",
    ),
    CauseClass(
        name="user_cancelled",
        definition="Somebody ended the job.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.SCHEDULER,
        seen_as=(Cause.KILLED,),
        action="Nothing, if you did it. If not, ask who cancelled it before starting it again: `sacct -j JOB -o JobID,State,ExitCode` may know.",
        look_alikes=("preempted", "time_limit", "host_oom"),
        page="Ctrl-C, `scancel`, a hang-up of the terminal, TERM_OWNER. Slurm's `CANCELLED AT` without a reason may be a user, an administrator or a "
        "drained node.",
        retries=0,
    ),
    CauseClass(
        name="healthy",
        definition="Nothing failed.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.NONE,
        role=Role.NOTE,
        action="Nothing.",
        page="A run that says that it is done or still makes progress. Alarming words do not count where they are warnings, advice, errors that were retried, "
        "or errors after which training made progress.",
    ),
    CauseClass(
        name="unknown",
        definition="Nothing in what was given supports a class.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.NONE,
        role=Role.NOTE,
        action="Give more: the logs of all ranks, the launcher's and scheduler's output, and the kernel log of the node.",
        page="An honest answer: an empty or cut log, a bare `Killed`, an exit code with nothing around it.",
    ),
)
