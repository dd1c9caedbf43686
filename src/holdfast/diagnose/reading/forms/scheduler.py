"""Schedulers and launchers: what Slurm, LSF, PBS, Kubernetes, MPI, DeepSpeed, Ray and torchrun say about the end of a job, and the exit codes they saw.

Is wrong    when it is believed about the cause: most of these lines say that something ended, and few of them why.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.diagnose.reading.forms.found import Found, single
from holdfast.diagnose.reading.line import Line
from holdfast.domain.log_event import LogForm

SIGNALS: Final = {
    "SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGABRT": 6, "SIGBUS": 7, "SIGFPE": 8, "SIGKILL": 9, "SIGUSR1": 10, "SIGSEGV": 11, "SIGUSR2": 12,
    "SIGPIPE": 13, "SIGTERM": 15, "SIGXCPU": 24,
}  # fmt: skip
_SLURM_CANCEL: Final = re.compile(
    r"\*\*\* (?:JOB|STEP) (?P<job>[\d.+_a-z]+) ON (?P<node>\S+) (?P<what>CANCELLED|FAILED|TIMEOUT)\b(?: AT (?P<at>\S+))?(?P<why>.*?)(?:\*\*\*|$)"
)
_WHY_CANCELLED: Final = (("TIME LIMIT", "time limit"), ("PREEMPT", "preempted"), ("NODE FAIL", "node failure"), ("TASK FAIL", "failed"))
_SRUN_TASK: Final = re.compile(r"srun: (?:error: )?(?P<node>[\w.\[\],-]+): tasks? (?P<tasks>[\d,\[\]-]+): (?P<what>.+)")
_TASK_CODE: Final = re.compile(r"[Ee]xit(?:ed)? (?:with )?(?:exit )?code (?P<code>\d+)")
_TASK_SIGNALS: Final = {
    "out of memory": 9, "killed": 9, "segmentation fault": 11, "terminated": 15, "bus error": 7, "aborted": 6, "illegal instruction": 4, "floating point": 8,
    "hangup": 1, "user defined signal 1": 10,
}  # fmt: skip
_TORCHRUN: Final = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+) \(pid: \d+\)")
_MPI_SIGNAL: Final = re.compile(r"process rank (?P<rank>\d+) with PID \d+ on node (?P<node>\S+) exited on signal (?P<signal>\d+)")
_MPI_ABORT: Final = re.compile(r"MPI_ABORT was invoked on rank (?P<rank>\d+)|application called MPI_Abort\(.*?, (?P<code>-?\d+)\) - process (?P<process>\d+)")
_EXIT: Final = re.compile(
    r"\b(?:exit(?:s|ed)?(?: with)?|returned|finished with)(?: an?)?(?: non-?zero)?[ -]?(?:return |exit )?(?:code|status)s?\b\s{0,8}(?:was"
    r"|is)?[ :=]{0,8}(?P<code>-?\d{1,3})\b"
    r"|\b[Ee](?:xit|XIT)[ _]?[Cc](?:ode|ODE)['\"]?\s{0,8}[:=]\s{0,8}(?P<code2>-?\d{1,3})\b|(?:return code =|terminated with code) (?P<code3>-?\d{1,3})\b"
    r"|(?:died with|exited with|terminated (?:with|by)|killed by) (?:<Signals\.|signal:? )(?P<signal>SIG[A-Z0-9]+|\d{1,2})\b"
)
_EXIT_WORDS: Final = frozenset(("exit", "exits", "exited", "exitcode", "returned", "return", "finished", "terminated", "signal", "signals"))
# What it is called; words of which a line must have one, for words are asked quicker than patterns; and the pattern. The first that fits names the line.
_LINES: Final = tuple(
    (error, frozenset(words.split()), re.compile(pattern))
    for error, words, pattern in (
        (
            "oom_kill", "oom oomkilled memory memlimit",
            r"oom_kill event|OOM Killed|oom-kill event|\bOOMKilled\b|memory cgroup limit|[Ee]xceeded (?:job |step )?memory limit|TERM_MEMLIMIT|OUT_OF_MEMORY",
        ),
        (
            "time limit", "limit runlimit cpulimit walltime wall deadlineexceeded timeout timelimit",
            r"DUE TO TIME LIMIT|TERM_(?:RUN|CPU)LIMIT|walltime .* exceeded limit|job killed: walltime|\bDeadlineExceeded\b|reached LSF run time limit"
            r"|hit (?:the )?wall ?time|State=TIMEOUT|Reason=TimeLimit|\bTIMEOUT\s+\d+:\d+",
        ),
        (
            "preempted", "preempted preemption preempting preempt spot instance",
            r"\b[Pp]reempt(?:ed|ion|ing)\b|PREEMPT(?:ED|ION)|TERM_PREEMPT|[Ss]pot (?:instance )?(?:interruption|termination)|instance-action",
        ),
        (
            "node failure", "node nodenotready nodelost",
            r"DUE TO NODE FAIL|NODE_FAIL|Node failure on|NodeNotReady|node .* (?:is )?(?:down|not responding|became unresponsive)|NodeLost"
            r"|lost connection to node",
        ),
        ("evicted", "evicted eviction resource", r"\bEvicted\b|The node was low on resource|\bEviction\b"),
        (
            "cancelled", "term killed revoked terminated scancel cancelled",
            r"TERM_OWNER|TERM_ADMIN|TERM_FORCE_\w+|job killed by owner|has been revoked|Force Terminated|\bscancel\b|[Jj]ob (?:was )?cancelled"
            r"|CANCELLED by \d+",
        ),
        (
            "image", "errimagepull imagepullbackoff crashloopbackoff back createcontainererror failedmount failedscheduling",
            r"ErrImagePull|ImagePullBackOff|CrashLoopBackOff|Back-off restarting failed container|CreateContainerError|FailedMount|FailedScheduling",
        ),
        (
            "clean-up", "closing killing aborted shutting terminating shutdown",
            r"Sending process \d+ closing signal|Killing subprocess \d+|Job step aborted|death signal, shutting down|Terminating (?:process|worker)"
            r"|closing signal SIGTERM|Unable to shutdown process \d+ via",
        ),
        ("worker group failed", "group attempt attempts", r"[Ww]orker group .*(?:failed|FAILED)|attempts? left; will restart"
        r"|Local worker group finished \(FAILED"),
        (
            "ray", "raylet worker workers actor ownerdiederror node memory",
            r"\(raylet\)|A worker died or was killed|The actor died|Workers? \(tasks / actors\) killed|OwnerDiedError|node died|raylet.*(?:died|crash|fail)"
            r"|killed due to memory pressure",
        ),
        (
            "mpirun", "bad mpirun mpiexec prterun orterun pmi pmix orte prte daemon",
            r"BAD TERMINATION OF ONE|(?:mpirun|mpiexec|prterun|orterun)(?: has)? (?:noticed|detected)|PMIX? ERROR|(?:ORTE|PRTE) has lost"
            r"|A process or daemon was unable",
        ),
        ("slurm", "slurmstepd srun sbatch salloc", r"(?:slurmstepd|srun|sbatch|salloc)(?:-\w+)?: (?:error|fatal): "),
    )
)  # fmt: skip
_NOTES: Final = frozenset(("clean-up",))  # What a launcher does after something has ended.
_WORDS: Final = _EXIT_WORDS.union(("job", "step", "rank", "mpi"), *(words for _, words, _ in _LINES))


def read(line: Line) -> Found | None:
    text = line.text.strip()
    if line.words.isdisjoint(_WORDS):
        return None
    found = _ended(line, text)
    if found is None:
        for error, words, pattern in _LINES:
            if not line.words.isdisjoint(words) and pattern.search(text):
                found = single(LogForm.SCHEDULER, error, text, line, warning=error in _NOTES)
                break
    if line.words.isdisjoint(_EXIT_WORDS):
        return found
    if found is not None and not found.exit_codes:
        found.exit_codes = exit_codes(text, line.about)
    elif found is None and (codes := exit_codes(text, line.about)):
        found = single(LogForm.SCHEDULER, "exit", text, line, warning=all(code == 0 for _, code in codes))
        found.exit_codes = codes
    return found


def exit_codes(text: str, rank: int | None) -> list[tuple[int | None, int]]:
    """The codes that a text says somebody exited with; a signal is negative."""
    found = []
    for one in _EXIT.finditer(text):
        code = one["code"] or one["code2"] or one["code3"]
        if code is not None:
            found.append((rank, int(code)))
        else:
            name = one["signal"]
            found.append((rank, -(int(name) if name.isdigit() else SIGNALS.get(name, 0))))
    return [(rank, code) for rank, code in found if -65 < code < 256]


def _ended(line: Line, text: str) -> Found | None:
    """Lines that name who ended, and how."""
    if "*** " in text and (found := _SLURM_CANCEL.search(text)) is not None:
        why = found["why"].strip()
        error = next((name for words, name in _WHY_CANCELLED if words in why), "cancelled")
        error = {"FAILED": "failed", "TIMEOUT": "time limit"}.get(found["what"], error)
        one = single(LogForm.SCHEDULER, error, text, line)
        one.node = found["node"]
        return one
    if "srun" in line.words and (found := _SRUN_TASK.search(text)) is not None:
        one = single(LogForm.SCHEDULER, "oom_kill" if "out of memory" in found["what"].lower() else "task ended", text, line)
        one.exit_codes = [(task, code) for task in tasks(found["tasks"]) for code in _codes_of_task(found["what"])]
        one.node = found["node"] if "[" not in found["node"] else ""
        one.rank = one.exit_codes[0][0] if len(one.exit_codes) == 1 else None
        one.warning = found["what"].strip().lower().startswith("terminated")
        return one
    if "exitcode" in line.words and (found := _TORCHRUN.search(text)) is not None:
        one = single(LogForm.SCHEDULER, "child failed", text, line)
        one.exit_codes = [(line.rank, int(found["code"][:4]))]  # It names a local rank, which is a rank only where there is one node.
        return one
    if "rank" in line.words and (found := _MPI_SIGNAL.search(text)) is not None:
        one = single(LogForm.SCHEDULER, "mpirun", text, line)
        one.rank, one.node = int(found["rank"][:6]), found["node"]
        one.exit_codes = [(one.rank, -int(found["signal"][:2]))]
        return one
    if "mpi" in line.words and (found := _MPI_ABORT.search(text)) is not None:
        one = single(LogForm.SCHEDULER, "MPI_ABORT", text, line)
        one.rank = int((found["rank"] or found["process"])[:6])
        return one
    return None


def tasks(text: str) -> list[int]:
    """Slurm's short form of several numbers: 0-3,7."""
    found: list[int] = []
    for part in text.strip("[]").split(","):
        first, _, last = part.strip("[]").partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            found += range(int(first[:6]), min(int((last or first)[:6]), int(first[:6]) + 4096) + 1)
    return found[:4096]


def _codes_of_task(what: str) -> list[int]:
    if (found := _TASK_CODE.search(what)) is not None:
        return [int(found["code"][:3])]
    return [-signal for words, signal in _TASK_SIGNALS.items() if words in what.lower()][:1]
