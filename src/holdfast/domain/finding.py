"""A finding: a detector's claim that something is off."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    INFO = "info"  # Worth knowing.
    WARNING = "warning"  # It costs something, or will.
    CRITICAL = "critical"  # Training is lost, stands still, or is about to.


# Findings the gang cannot go on with. Every other one stands beside a job that runs, until it ends.
BREAKING = frozenset({"worker_exited", "silent_rank", "stopped_rank", "silent_node", "poisoned_checkpoint", "start_failed", "not_startable", "unkillable"})

# Findings about saves: the work since the newest checkpoint is nowhere but in memory.
UNSAVED = frozenset({"save_failed", "upload_failed"})
SAVES = UNSAVED | {"save_will_fail"}

# Findings about what is computed: nothing stands still, and training does not go on where it was.
NUMBERS = frozenset({"loss_jump", "gradient_explosion", "not_finite", "replicas_disagree", "poisoned_checkpoint"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    kind: str  # Names the fault and not the cure: "worker_exited", "silent_rank", "slow_rank", "loss_jump", "rule:DiskNearlyFull".
    because: str
    node: str = ""
    ranks: tuple[int, ...] = ()
    since: float = 0.0  # When it went wrong, as far as can be told; the time it was noticed stands in the event.
    evidence: tuple[str, ...] = ()
    checkpoint: str = ""  # The one it is about, if it is about one,
    step: int = -1  # and its step; or the step at which something went wrong.
    sound: int = -1  # Of what went wrong at a step, the last one before it that is known to have been right.
    severity: Severity = Severity.CRITICAL
    of: str = ""  # The GPU, disk or interface of the node it is about, if it is about one.
    adds_s: float = 0.0  # What it adds to a step, where that is known,
    share: float = 0.0  # and what part of the gang's step that is.
    place: str = ""  # Of a rank that stands still: the calls of the script that it is in, outermost first,
    lasted_s: float = 0.0  # and how long it had not moved.
    grew: str = ""  # Of memory that will be used up: how it has grown, in words,
    micro_batch: int = 0  # and the samples the rank is given at once, where that may be changed.

    @property
    def breaks(self) -> bool:
        return self.kind in BREAKING

    @property
    def is_of_rule(self) -> bool:
        """Whether a rule says it. It then holds for as long as the rule says so, beside whatever gang."""
        return self.kind.startswith("rule:")

    @property
    def key(self) -> str:
        """What is wrong with whom: the same while it stands, and when it comes again."""
        return "/".join((self.kind, self.node, self.of, ",".join(map(str, self.ranks))))
