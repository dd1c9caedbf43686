"""Goodput: productive seconds over the seconds the job was run, with every lost second in exactly one named bucket.

The ledger is a line from the job's first second to now, cut into spans; each span has one bucket, and the spans meet. So the buckets add up to
the wall time by construction. A fault is noticed after it happened: `enter` may therefore reach back into the span that is still open, never further.

A script that does not carry our lines does not say when it steps. Its seconds are in a bucket of their own, and its goodput is not known: None, and never 0.
The time when nobody ran the job is in the wall time, and neither in the goodput nor in the shares.

A gang that is smaller than it was asked to be does the same step in more time. Of its productive seconds the share counts that it has of the whole gang, as
nodes over nodes; what it lacks of them is a bucket of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum


class Bucket(StrEnum):
    START = "start"  # From submission to the first step.
    PRODUCTIVE = "productive"
    UNKNOWN = "unknown"  # Workers are up and have not said of any step: they may train, wait or stand still.
    SAVE = "save"
    DETECT = "detect"  # From the fault to the moment it was noticed.
    DIAGNOSE = "diagnose"
    STOP = "stop"
    REPLACE = "replace"  # A spare takes the place of a node.
    RENDEZVOUS = "rendezvous"  # Workers are up and finding each other.
    RESTORE = "restore"
    RECOMPUTE = "recompute"  # Steps that had been done before.
    SMALLER = "smaller"  # What a gang on fewer nodes than asked for lacks: its productive seconds, but for its share.
    WAIT = "wait"  # For nodes, or for a back-off to pass.
    END = "end"  # Every rank has left its loop: what the script does after it, and taking everything down.
    DOWN = "down"  # Nobody was running the job: between a stop and a resume.


@dataclass(slots=True, kw_only=True)
class Span:
    bucket: Bucket
    since: float
    until: float
    kept: float = 1.0  # Of its seconds; the others belong to `SMALLER`.


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Spans that meet, the last one open, and corrections between their totals."""

    spans: list[Span] = field(default_factory=list)
    moved: dict[str, float] = field(default_factory=dict)  # Seconds moved between buckets: a save inside a productive span.
    firm_until: float = 0.0  # A span some seconds of which were moved keeps as many of them when it is cut short afterwards.

    def enter(self, bucket: Bucket, at: float, kept: float = 1.0) -> None:
        """From `at` on, seconds belong to `bucket`; a share of them, where so much of the gang is left."""
        if not self.spans:
            self.spans.append(Span(bucket=bucket, since=at, until=at, kept=kept))
            return
        last = self.spans[-1]
        at = max(at, last.since, self.firm_until)
        now = max(at, last.until)  # Whatever is cut off the open span goes to the new one: no second is lost by reaching back.
        if (last.bucket, last.kept) != (bucket, kept):
            last.until = at
            if last.since == at:
                self.spans.pop()
            if not self.spans or (self.spans[-1].bucket, self.spans[-1].kept) != (bucket, kept):
                self.spans.append(Span(bucket=bucket, since=at, until=at, kept=kept))
        self.spans[-1].until = now

    def run_to(self, at: float) -> None:
        """Time has passed."""
        if self.spans:
            self.spans[-1].until = max(self.spans[-1].until, at)

    def up_to(self, at: float) -> Ledger:
        """The same ledger as it will read at `at`, if nothing happens until then. This one is left as it is."""
        ahead = Ledger(spans=[*self.spans[:-1], *(replace(last) for last in self.spans[-1:])], moved=self.moved)
        ahead.run_to(at)
        return ahead

    def move(self, seconds: float, *, out_of: Bucket, into: Bucket) -> float:
        """Say that `seconds` of one bucket were really spent on another; never more than it has. How many were moved."""
        seconds = max(0.0, min(seconds, self.totals().get(out_of, 0.0)))
        if not seconds:
            return 0.0
        last = self.spans[-1]
        self.firm_until = min(last.until, max(self.firm_until, last.since) + seconds / max(last.kept, 1e-9))
        self.moved[out_of] = self.moved.get(out_of, 0.0) - seconds
        self.moved[into] = self.moved.get(into, 0.0) + seconds
        return seconds

    def learned(self) -> None:
        """Take back what was unknown of this run: the workers say when they step, so what came before was the way to their first step."""
        begin = max((place for place, span in enumerate(self.spans) if span.bucket is Bucket.DOWN), default=-1)
        spans, self.spans = self.spans, []
        for place, span in enumerate(spans):
            if span.bucket is Bucket.UNKNOWN and place > begin:
                first = not self.spans or self.spans[-1].bucket in (Bucket.START, Bucket.DOWN)
                span = replace(span, bucket=Bucket.START if first else Bucket.RENDEZVOUS)
            if self.spans and (self.spans[-1].bucket, self.spans[-1].kept) == (span.bucket, span.kept):
                self.spans[-1] = replace(self.spans[-1], until=span.until)
            else:
                self.spans.append(span)

    def bill(self, since: float, until: float, restore_s: float = 0.0) -> dict[str, float]:
        """What is known to be lost between the two, by bucket. Of the last rendezvous in it `restore_s` were for the state."""
        costs: dict[str, float] = {}
        for span in self.spans:
            seconds = min(span.until, until) - max(span.since, since)
            if seconds > 0 and span.bucket not in (Bucket.PRODUCTIVE, Bucket.UNKNOWN, Bucket.DOWN):
                costs[span.bucket] = costs.get(span.bucket, 0.0) + seconds
        if restore_s and Bucket.RENDEZVOUS in costs:
            costs[Bucket.RESTORE] = min(restore_s, costs[Bucket.RENDEZVOUS])
            costs[Bucket.RENDEZVOUS] -= costs[Bucket.RESTORE]
        return costs

    @property
    def open_bucket(self) -> Bucket | None:
        return self.spans[-1].bucket if self.spans else None

    @property
    def wall_s(self) -> float:
        return self.spans[-1].until - self.spans[0].since if self.spans else 0.0

    @property
    def ends_at(self) -> float:
        return self.spans[-1].until if self.spans else 0.0

    @property
    def run_s(self) -> float:
        """The wall time without the time when nobody ran the job."""
        return self.wall_s - self.totals().get(Bucket.DOWN, 0.0)

    @property
    def run_since(self) -> float:
        """When the newest run of the job began."""
        down = next((span.until for span in reversed(self.spans) if span.bucket is Bucket.DOWN), None)
        return down if down is not None else self.spans[0].since if self.spans else 0.0

    def totals(self) -> dict[Bucket, float]:
        """Seconds by bucket, in the order of the enumeration."""
        sums = dict.fromkeys(Bucket, 0.0)
        for span in self.spans:
            sums[span.bucket] += span.kept * (span.until - span.since)
            sums[Bucket.SMALLER] += (1.0 - span.kept) * (span.until - span.since)
        for name, seconds in self.moved.items():
            sums[Bucket(name)] += seconds
        return {bucket: seconds for bucket, seconds in sums.items() if seconds > 0.0}

    def smaller_s(self, since: float, until: float) -> float:
        """What was lacking between two times."""
        return sum((1.0 - span.kept) * max(0.0, min(span.until, until) - max(span.since, since)) for span in self.spans if span.kept < 1.0)

    @property
    def goodput(self) -> float | None:
        """Productive over run time. None: not known, because no step was seen yet, or because of some of the time nobody can say what it was."""
        totals, run_s = self.totals(), self.run_s
        known = Bucket.PRODUCTIVE in totals and Bucket.UNKNOWN not in totals
        return totals[Bucket.PRODUCTIVE] / run_s if known and run_s > 0 else None
