"""What is asked for, and what is known of it while it waits and runs. Nothing here knows how long a job will take."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from holdfast.errors import UserError
from holdfast.schedule.policy import PriorityClass
from holdfast.schedule.usage import Meter

Placement = tuple[tuple[int, int], ...]  # (node, GPUs on it), by node.


class JobRefused(UserError):
    """A job that could never run here."""


class Lane(enum.IntEnum):
    """Which queue a waiting job stands in. Lower ones are served first."""

    ADMIN = 0
    TRIAL = 1  # Has run less than its trial.
    DUE = 2  # Has waited its patience out. Starts firm, and may take the place of loose jobs.
    WHOLE = 3  # Needs whole nodes, where trials would starve it: the same rights as those that are due, after them.
    REST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job as a user asks for it. A gang of `gpus` starts whole or not at all; an elastic one may grow to `gpus_max`."""

    id: str
    account: tuple[str, ...]
    gpus: int
    gpus_max: int = 0  # 0: not elastic.
    priority: str = "medium"
    estimate_s: float | None = None  # The user's own limit.
    preemptible: bool = True
    checkpoint_every_s: float | None = None  # Of run time; None when it never saves.
    needs: tuple[str, ...] = ()  # Jobs that must have ended well, or made what they are needed for, before it is considered.


class Job:
    """A job that waits or runs. Its cluster alone changes it."""

    __slots__ = (
        "account", "attained_s", "banned_until", "evicted_at", "extras", "failures", "firm", "gpus",
        "lane", "line", "loose", "loose_at", "missing",
        "number", "on_trial", "overdue", "placement", "priority", "reason", "request", "resized_at", "saved_at", "seen_estimate_s", "since",
        "stands_at", "submitted_at", "ticket", "use", "waited_s",
    )  # fmt: skip

    def __init__(self, request: JobRequest, *, number: int, account: int, line: tuple[int, ...], priority: PriorityClass, use: Meter, now: float) -> None:
        self.request = request
        self.number = number  # In order of submission; settles every tie.
        self.account = account
        self.line = line
        self.gpus = request.gpus
        self.priority = priority
        self.use = use
        self.submitted_at = now
        self.stands_at = now  # Its place in the queue: first when a node failed it, last after a crash loop, later by what it has run loose.
        self.since = now  # Of waiting, or of running.
        self.waited_s = 0.0
        self.attained_s = 0.0
        self.lane = Lane.TRIAL
        self.overdue = False  # Has waited its patience out, and waits.
        self.ticket = 0  # Changes with every move, so that what was noted for an earlier state is known to be old.
        self.placement: Placement = ()
        self.extras: Placement = ()
        self.on_trial = False  # Runs, and counts against the share of trials.
        self.firm = False  # Its turn had come: it is not evicted for ordinary work.
        self.loose = False  # May be evicted.
        self.loose_at = math.inf  # When it will be.
        self.saved_at = now
        self.seen_estimate_s = 0.0
        self.evicted_at: list[float] = []  # Within the last day.
        self.failures = 0  # In a row, each soon after a start.
        self.banned_until = 0.0
        self.resized_at = now
        self.missing = dict.fromkeys(request.needs)  # Of what it needs.
        self.reason = ""  # Why its class was lowered, if it was.

    @property
    def running(self) -> bool:
        return bool(self.placement)

    @property
    def gpus_now(self) -> int:
        return self.gpus + sum(gpus for _, gpus in self.extras) if self.placement else 0

    @property
    def gpus_most(self) -> int:
        """All it could use."""
        return max(self.gpus, self.request.gpus_max)

    def unsaved_s(self, now: float) -> float:
        """Run time that an eviction now would lose."""
        ran = max(0.0, now - self.saved_at)
        every = self.request.checkpoint_every_s
        return ran % every if every else ran

    def __repr__(self) -> str:
        return f"Job({self.request.id}, {self.gpus} GPUs, {self.lane.name})"
