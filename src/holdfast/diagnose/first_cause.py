"""The first cause: of all that went wrong at once, the thing that went wrong first.

When one rank dies, the others follow within milliseconds with connection errors of their own, and we kill the rest. Those are echoes. What is left,
ordered by time of death, names the culprit. When only echoes are left, the ranks lost each other and nobody died first: that is the network.

Is wrong    when a rank's own failure reads like a lost connection (a data base gone, say) and no other rank failed: it is then called network,
            with the exception itself as the evidence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from holdfast.diagnose.gpu_memory import GpuShortage, Shortage, gpu_missing, gpu_shortage
from holdfast.diagnose.odd_stack import odd_ranks
from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.finding import Finding

CHECKPOINT_CORRUPT_CODE = 76  # What our trainer exits with when a checkpoint does not verify.
STOPPED_CODE = 143  # What it exits with when it was asked to stop.

_ECHO = re.compile(
    r"connection (reset|closed|refused|aborted)|broken pipe|socket (closed|timeout)"
    r"|\bpeers?\b|\bgloo\b|\bnccl\b|distnetworkerror|diststoreerror"
    r"|remote process exited|failed to recv|failed to send|store.*(wait|get)|rendezvous",
    re.IGNORECASE,
)
# Mistakes in a program's own code, whatever words their text uses.
_OWN_MISTAKES = {
    "AssertionError", "AttributeError", "ImportError", "IndentationError", "IndexError", "KeyError", "ModuleNotFoundError", "NameError", "NotImplementedError",
    "RecursionError", "SyntaxError", "TabError", "TypeError", "UnboundLocalError", "UnicodeDecodeError", "ZeroDivisionError",
}  # fmt: skip
_OF_A_NODE = ("file_not_found", "remote_service_error")  # Files and tokens may lie on one node and not on another.
_NEVER_RAN = ("SyntaxError", "IndentationError", "TabError", "ModuleNotFoundError", "ImportError")
_NATIVE_CRASHES = {4, 6, 7, 8, 11}  # SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV.
_NOT_FOUND_CODES = {126, 127}  # What an exec that cannot find or run its program exits with.


def diagnose(
    exits: Sequence[Exit], findings: Sequence[Finding], stacks: Mapping[str, str], *, first_try_on: Mapping[int, str] | None = None
) -> Diagnosis:
    """Names the cause of one fault from all that was seen of it. `stacks` is rank, as text, to what it was doing, where a hang was examined. `first_try_on` is
    each rank's node, where a run has just begun and no rank has made a step yet."""
    for kind, judge in _BY_FINDING:
        of_kind = [finding for finding in findings if finding.kind == kind]
        if of_kind:
            return judge(of_kind[0])
    own = sorted((exit for exit in exits if exit.kind is not ExitKind.FINISHED and not exit.stopped_by_us), key=lambda exit: exit.at_ns)
    hangs = [finding for finding in findings if finding.kind in ("silent_rank", "stopped_rank")]
    if hangs and not any(not is_echo(exit) for exit in own):
        return _hang(hangs, own, stacks)
    if not own:
        return Diagnosis(cause=Cause.VANISHED, permanent=False, confidence=0.2, because="workers are gone and left no trace of why")
    first = next((exit for exit in own if not is_echo(exit)), None)
    if first is None:
        return _network(own)
    if first_try_on and _never_passes([exit for exit in own if not is_echo(exit)], first_try_on):
        return _refused(first, own)
    return _of_exit(first, own)


def is_echo(exit: Exit) -> bool:
    """Whether this reads like what a rank does when somebody else is gone."""
    if exit.kind is not ExitKind.EXCEPTION or exit.exception.rpartition(".")[2] in _OWN_MISTAKES:
        return False
    return bool(_ECHO.search(f"{exit.exception} {exit.message}"))


def _of_exit(first: Exit, own: Sequence[Exit]) -> Diagnosis:
    cause, permanent, confidence = _judge(first)
    shortage = gpu_shortage(first.message, first.holders) if cause is Cause.OUT_OF_MEMORY else None
    besides = shortage.because if shortage else gpu_missing(first.message, first.gpus, first.holders)
    leak = first.leak if cause is Cause.OUT_OF_MEMORY and (shortage is None or shortage.kind is Shortage.SIZE) else ""
    echoes = [exit for exit in own if exit is not first]
    because = "; ".join(filter(None, (first.because, besides, f"it leaks: {leak}" if leak else "")))
    evidence = [first.because, *filter(None, (besides, leak)), *(f"echo: rank {exit.rank}: {exit.because}" for exit in echoes[:4])]
    if len(echoes) > 4:
        evidence.append(f"and {len(echoes) - 4} more ranks that followed")
    fingerprint = first.fingerprint or f"{cause}:{first.code}:{first.signal}"
    return Diagnosis(
        cause=cause, permanent=permanent, confidence=confidence, because=because, ranks=(first.rank,), step=first.step,
        fingerprint=f"{fingerprint}:leak" if leak else fingerprint, evidence=tuple(evidence), own_code=first.own_code, alternatives=_alternatives(cause),
        memory=_memory(first, cause, shortage), limit=first.limit, leak=leak, micro_batch=first.micro_batch, loader_workers=first.loader_workers,
    )  # fmt: skip


def _never_passes(own: Sequence[Exit], node_of: Mapping[int, str]) -> bool:
    """Whether all that ended say what another start would meet again. What one node alone may lack counts only where every node has said it, and rank 0 too,
    which may be the one to write what the others read."""
    everywhere = any(exit.rank == 0 for exit in own) and {node_of.get(exit.rank) for exit in own} >= set(node_of.values())
    return all(exit.never_passes and (everywhere or exit.never_passes not in _OF_A_NODE) for exit in own)


def _refused(first: Exit, own: Sequence[Exit]) -> Diagnosis:
    because = f"{first.because} ({first.never_passes}: the same at every start)"
    return Diagnosis(
        cause=Cause.NOT_STARTABLE, permanent=True, confidence=0.95, because=because, ranks=(first.rank,), step=first.step, fingerprint=first.fingerprint,
        evidence=tuple(exit.because for exit in own[:5]), own_code=first.own_code, alternatives=("what it asks for may be there later",),
    )  # fmt: skip


def _memory(exit: Exit, cause: Cause, shortage: GpuShortage | None) -> str:
    """What an out-of-memory came from. Another framework's words about a GPU are not known here; most of the time it is the job's own size."""
    if shortage is not None:
        return shortage.kind
    return Shortage.SIZE if cause is Cause.OUT_OF_MEMORY and exit.kind is ExitKind.EXCEPTION else ""


def _judge(exit: Exit) -> tuple[Cause, bool, float]:
    """Cause, whether it is permanent, and how sure we are."""
    if exit.code == CHECKPOINT_CORRUPT_CODE:
        return Cause.CHECKPOINT_CORRUPT, False, 0.99
    match exit.kind:
        case ExitKind.OUT_OF_MEMORY:
            return Cause.OUT_OF_MEMORY, False, 0.95
        case ExitKind.EXCEPTION if exit.exception.rpartition(".")[2] == "OutOfMemoryError":
            return Cause.OUT_OF_MEMORY, False, 0.97
        case ExitKind.EXCEPTION:
            never_ran = exit.exception.rpartition(".")[2] in _NEVER_RAN and exit.step <= 0
            return (Cause.NOT_STARTABLE, True, 0.97) if never_ran else (Cause.EXCEPTION, False, 0.9)
        case ExitKind.SIGNAL:
            crashed = exit.signal in _NATIVE_CRASHES
            return (Cause.CRASH, False, 0.85) if crashed else (Cause.KILLED, False, 0.9)
        case ExitKind.VANISHED:
            return Cause.VANISHED, False, 0.6
        case ExitKind.CODE | ExitKind.FINISHED:
            return (Cause.NOT_STARTABLE, True, 0.9) if exit.code in _NOT_FOUND_CODES else (Cause.EXIT_CODE, False, 0.6)


def _alternatives(cause: Cause) -> tuple[str, ...]:
    match cause:
        case Cause.KILLED:
            return ("out_of_memory: the kernel's own kill looks the same where its counters cannot be read",)
        case Cause.CRASH:
            return ("faulty memory or GPU of the node, if it comes back on the same one",)
        case Cause.EXIT_CODE:
            return ("exception: the program may have caught it and printed nothing",)
        case _:
            return ()


def _hang(hangs: Sequence[Finding], echoes: Sequence[Exit], stacks: Mapping[str, str]) -> Diagnosis:
    """Stopped ranks are culprits for certain; then those whose stack is not where all others wait; else the first to fall silent is the best guess."""
    stopped = [finding for finding in hangs if finding.kind == "stopped_rank"]
    first = min(hangs, key=lambda finding: finding.since)
    odd = odd_ranks(stacks)
    if stopped:
        ranks, confidence, because = tuple(sorted({rank for finding in stopped for rank in finding.ranks})), 0.95, stopped[0].because
    elif odd:
        who = f"rank {odd[0]} is" if len(odd) == 1 else f"ranks {', '.join(map(str, odd))} are"
        ranks, confidence, because = odd, 0.85, f"{who} not where the other ranks wait; {first.because}"
    else:
        ranks, confidence, because = first.ranks, 0.5, first.because
    place = "" if stopped else first.place
    fingerprint = ":".join(filter(None, ("hang", first.kind, place)))
    return Diagnosis(
        cause=Cause.HANG, permanent=False, confidence=confidence, ranks=ranks, because=because, fingerprint=fingerprint, place=place,
        step=first.step if place else -1,
        evidence=tuple(line for finding in hangs for line in (finding.because, *finding.evidence)) + tuple(exit.because for exit in echoes[:4]),
        alternatives=() if stopped else ("another rank never entered the collective this one waits in: compare the stacks",), own_code=1,
    )  # fmt: skip


def _node_lost(finding: Finding) -> Diagnosis:
    return Diagnosis(
        cause=Cause.NODE_LOST, permanent=False, confidence=0.9, because=finding.because, node=finding.node, fingerprint=f"node_lost:{finding.node}",
        evidence=(finding.because, *finding.evidence), alternatives=("the network to it is cut and it still runs: it is fenced by generation",),
    )  # fmt: skip


def _unkillable(finding: Finding) -> Diagnosis:
    return Diagnosis(
        cause=Cause.UNKILLABLE, permanent=False, confidence=0.99, because=finding.because, node=finding.node, ranks=finding.ranks,
        fingerprint=f"unkillable:{finding.node}", evidence=(finding.because, *finding.evidence),
    )  # fmt: skip


def _not_startable(finding: Finding) -> Diagnosis:
    return Diagnosis(cause=Cause.NOT_STARTABLE, permanent=True, confidence=0.95, because=finding.because, node=finding.node, evidence=finding.evidence)


def _start_failed(finding: Finding) -> Diagnosis:
    return Diagnosis(
        cause=Cause.VANISHED, permanent=False, confidence=0.5, because=finding.because, fingerprint=f"start_failed:{finding.node}", evidence=(finding.because,)
    )


def _poisoned(finding: Finding) -> Diagnosis:
    """Whatever broke besides: what was restored is not worth going on with."""
    return Diagnosis(
        cause=Cause.POISONED_CHECKPOINT, permanent=False, confidence=0.9, because=finding.because, step=finding.step, fingerprint="poisoned_checkpoint",
        evidence=(finding.because, *finding.evidence), alternatives=("the data of the first step after it: from an older one the loss is finite up to there",),
    )  # fmt: skip


def _gone_wrong(finding: Finding) -> Diagnosis:
    """Whatever broke besides, such as a script that raises when it sees NaN. Whose doing it was is found out by trying."""
    cause = {"not_finite": Cause.NOT_FINITE, "replicas_disagree": Cause.REPLICAS_DISAGREE}.get(finding.kind, Cause.DIVERGED)
    return Diagnosis(
        cause=cause, permanent=False, confidence=0.9, because=finding.because, ranks=finding.ranks, step=finding.step, sound=finding.sound,
        fingerprint=str(cause), evidence=(finding.because, *finding.evidence),
        alternatives=("data, hardware, hyper-parameters or a checkpoint: a replay tells the first two apart",),
    )  # fmt: skip


def _network(own: Sequence[Exit]) -> Diagnosis:
    first = own[0]
    return Diagnosis(
        cause=Cause.NETWORK, permanent=False, confidence=0.5, because=f"ranks lost each other and none died first; rank {first.rank} said: {first.because}",
        ranks=(first.rank,), step=first.step, fingerprint=first.fingerprint, evidence=tuple(exit.because for exit in own[:5]), own_code=first.own_code,
        alternatives=("exception: the connection that failed may be one of the script's own",),
    )  # fmt: skip


# What explains all that was seen besides, in this order.
_BY_FINDING = (
    ("unkillable", _unkillable), ("not_startable", _not_startable), ("silent_node", _node_lost), ("start_failed", _start_failed),
    ("poisoned_checkpoint", _poisoned), ("replicas_disagree", _gone_wrong), ("not_finite", _gone_wrong), ("loss_jump", _gone_wrong),
)  # fmt: skip
