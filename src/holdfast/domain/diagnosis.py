"""A diagnosis: what broke, where, whether trying again can help, and what speaks for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """What the core can tell from exits and findings alone. The classes of the taxonomy (`diagnose/taxonomy`) each say as which of these they are seen."""

    KILLED = "killed"  # A signal from outside the job.
    OUT_OF_MEMORY = "out_of_memory"
    EXCEPTION = "exception"  # The user's code raised.
    CRASH = "crash"  # SIGSEGV and its kin: native code fell over.
    EXIT_CODE = "exit_code"  # The program said it failed, and no more.
    HANG = "hang"
    NODE_LOST = "node_lost"
    VANISHED = "vanished"  # The parent of the workers died and took them along.
    NOT_STARTABLE = "not_startable"  # No such script, a syntax error, a missing module, wrong arguments: it never ran.
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    POISONED_CHECKPOINT = "poisoned_checkpoint"  # It verifies, and gives a loss that is not finite at once.
    NOT_FINITE = "not_finite"  # The loss is NaN or infinite.
    DIVERGED = "diverged"  # The loss jumped, and stays there.
    REPLICAS_DISAGREE = "replicas_disagree"  # Ranks that must hold the same parameters do not.
    UNKILLABLE = "unkillable"  # A process survived SIGKILL; its node cannot be used.
    NETWORK = "network"  # Ranks lost each other and none of them died first.


# Everything runs, and what is computed is wrong.
TRAINING = (Cause.NOT_FINITE, Cause.DIVERGED, Cause.REPLICAS_DISAGREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    cause: Cause
    permanent: bool
    confidence: float
    because: str
    ranks: tuple[int, ...] = ()  # The culprit workers; empty when a node or nothing in particular is to blame.
    node: str = ""
    step: int = -1
    sound: int = -1  # Of training gone wrong, the last step that is known to have been right; `step` is the first that was seen not to be.
    fingerprint: str = ""
    evidence: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    own_code: int = 1  # What the job exits with if it ends on this.
    memory: str = ""  # Of an out-of-memory on a GPU what it came from: "size", "fragmented", "held", "too_small". Empty: it was the host's memory.
    limit: str = ""  # Of one of the host's memory: the option whose limit was met, such as "--memory".
    leak: str = ""  # Of an out-of-memory: how memory had grown with the steps, in words; empty: it had not, and what was asked for is too big.
    place: str = ""  # Of a hang: the calls of the script it is in, outermost first; empty: not known, or it does not matter.
    micro_batch: int = 0  # What the culprit was given at once, where that may be changed; else 0.
    loader_workers: int = 0
    corrected: str = ""  # The class that a person gave to failures of this fingerprint, if one did.
