"""How Holdfast speaks to people: durations, shares, sentences. The same words in the live view, the tables and the report.

What a job printed, raised or was called ends up on somebody's terminal; `clean` takes the control characters out of it first, so that nothing a job
says can move a cursor or colour a screen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.diagnose.together import leading
from holdfast.domain.diagnosis import Diagnosis
from holdfast.domain.exit import Exit
from holdfast.domain.finding import Finding
from holdfast.domain.goodput import Bucket
from holdfast.domain.job import Outcome
from holdfast.domain.plan import Rung

if TYPE_CHECKING:  # A command that only wants a clean line is not to wait for all that a job consists of.
    from holdfast.domain.goodput import Ledger
    from holdfast.domain.incident import Incident
    from holdfast.domain.state import State

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~]?)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

# The parts of a recovery, in the order in which they happen, and the bucket's meaning in a few words.
BUCKET_MEANS: dict[Bucket, str] = {
    Bucket.PRODUCTIVE: "new steps",
    Bucket.UNKNOWN: "ranks up, no step told",
    Bucket.START: "before the first step",
    Bucket.SAVE: "training stood still to save",
    Bucket.DETECT: "until the fault was noticed",
    Bucket.DIAGNOSE: "finding out what it was",
    Bucket.STOP: "ending the rest of the gang",
    Bucket.REPLACE: "bringing in a spare node",
    Bucket.RENDEZVOUS: "ranks start and find each other",
    Bucket.RESTORE: "loading the checkpoint",
    Bucket.RECOMPUTE: "steps done before, again",
    Bucket.SMALLER: "what a smaller gang lacks",
    Bucket.WAIT: "for nodes, or backing off",
    Bucket.END: "after the last step",
    Bucket.DOWN: "nobody ran the job",
}

ALL_AGAIN = "all work since the start is done again"

OUTCOME_SAYS: dict[Outcome, str] = {
    Outcome.FINISHED: "finished",
    Outcome.STOPPED: "stopped",
    Outcome.FAILED: "failed",
    Outcome.PERMANENT: "failed for good",
    Outcome.BROKEN: "could not go on",
}


def clean(text: str) -> str:
    """`text` without anything a terminal would obey; tabs and line ends stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _SEQUENCE.sub("", text))


def one_line(text: str) -> str:
    return " ".join(clean(text).split())


def printed(tail: str) -> str:
    """The last lines of a worker as they looked on its screen: of a progress bar, only what was last drawn over it."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in _SEQUENCE.sub("", tail).split("\n"))
    return "\n".join(clean(line) for line in lines).strip("\n")


def duration(seconds: float) -> str:
    """Two units at most: 0.42 s, 8.1 s, 42 s, 2m 05s, 3h 04m, 2d 05h."""
    if seconds < 0.9995:
        return f"{max(seconds, 0.0):.2f} s" if seconds < 0.995 else "1.0 s"
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    whole = round(seconds)
    for unit, name, next_unit, next_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit:
            return f"{whole // unit}{name} {whole % unit // next_unit:02d}{next_name}"
    raise AssertionError(f"{seconds} is neither short nor long")


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percents(parts: Sequence[float], *, of: float = 100.0, decimals: int = 1) -> list[float]:
    """Shares that add up to exactly `of` percent: what rounding leaves over goes to those it robbed most."""
    whole, units = sum(parts), round(of * 10**decimals)
    if whole <= 0:
        return [0.0] * len(parts)
    exact = [part / whole * units for part in parts]
    floors = [int(value) for value in exact]
    by_remainder = sorted(range(len(parts)), key=lambda index: (floors[index] - exact[index], index))
    for index in by_remainder[: units - sum(floors)]:
        floors[index] += 1
    return [floor / 10**decimals for floor in floors]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def goodput_of(ledger: Ledger) -> str:
    """The productive share of the time the job was run; a dash where it is not known."""
    return "–" if ledger.goodput is None else percent(ledger.goodput)


def why_unknown(ledger: Ledger) -> str:
    """Why the goodput is not known; empty when it is."""
    if ledger.goodput is not None:
        return ""
    if Bucket.UNKNOWN in ledger.totals():
        return "not known: the script does not say when it steps; three lines in it do, as the README shows"
    return "not known: no step was seen yet"


def shares_of(ledger: Ledger) -> list[tuple[Bucket, float, float | None]]:
    """Each bucket, its seconds, and its share in percent of the time the job was run. The time when nobody ran it has none."""
    totals, run_s = ledger.totals(), ledger.run_s
    productive = round(100 * totals.get(Bucket.PRODUCTIVE, 0.0) / run_s, 1) if run_s > 0 else 0.0  # As the goodput is written: it is the same number.
    others = [bucket for bucket in totals if bucket not in (Bucket.PRODUCTIVE, Bucket.DOWN)]
    shares: dict[Bucket, float] = dict(zip(others, percents([totals[bucket] for bucket in others], of=100.0 - productive), strict=True))
    shares[Bucket.PRODUCTIVE] = productive
    return [(bucket, seconds, None if bucket is Bucket.DOWN else shares[bucket]) for bucket, seconds in totals.items()]


def share_text(share: float | None) -> str:
    return "–" if share is None else f"{share:.1f} %"


def loss_text(loss: float) -> str:
    """Four decimals, and of a loss that would be none of them its first digits."""
    return f"{loss:.3g}" if 0 < abs(loss) < 0.001 else f"{loss:.4f}"


def ranges(numbers: Iterable[int]) -> str:
    """0-3, 7, 9-10."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def outcome_sentence(state: State) -> str:
    """How the job stands, in one sentence."""
    name = one_line(state.spec.job) if state.spec is not None else "the job"
    said = OUTCOME_SAYS[state.outcome] if state.outcome is not None else f"{state.phase}"
    down_s = state.ledger.wall_s - state.ledger.run_s
    down = f" (and {duration(down_s)} when nobody ran it)" if down_s else ""
    return f"{name} {said} after {duration(state.ledger.run_s)}{down}: {one_line(state.because)}"


def saving_sentence(every: int, interval_s: float, because: str) -> str:
    """How often is saved, and why."""
    return f"saving every {count(every, 'step')} ({duration(interval_s)}): {one_line(because)}"


def saving_line(every: int, interval_s: float) -> str:
    """How often is saved; the reasons are a command away."""
    return f"saving every {count(every, 'step')} ({duration(interval_s)}); why: `holdfast show`"


def shortened(text: str, length: int) -> str:
    """No longer than so many characters, and cut between words."""
    return text if len(text) <= length else f"{text[: length - 2].rpartition(' ')[0] or text[: length - 2]} …"


def cause_of(incident: Incident) -> str:
    """The cause with its culprit: "killed (rank 2)"; before the diagnosis, what was noticed."""
    if not incident.diagnoses:
        return finding_sentence(leading(incident.findings)) if incident.findings else "not known yet"
    last = incident.diagnoses[-1]
    where = f" ({culprit_of(last)})" if culprit_of(last) else ""
    return f"{(last.corrected or last.cause).replace('_', ' ')}{where}"


def finding_sentence(finding: Finding) -> str:
    """What and where: "slow rank (rank 2)"."""
    where = culprit_of(finding)
    return f"{finding.kind.removeprefix('rule:').replace('_', ' ')}{f' ({where})' if where else ''}"


def culprit_of(diagnosis: Diagnosis | Finding) -> str:
    parts = []
    if diagnosis.ranks:
        parts.append(f"rank{'s' if len(diagnosis.ranks) > 1 else ''} {ranges(diagnosis.ranks)}")
    if diagnosis.node:
        parts.append(one_line(diagnosis.node))
    return ", ".join(parts)


def remedy_of(incident: Incident) -> str:
    if incident.stands and not incident.acted:
        return "watched"
    if not incident.plans:
        return "none yet"
    proved = {"came_back": ", came back", "unsound": ", unsound"}.get(incident.outcome, "")
    return incident.plans[-1].name + proved


def timeline(incident: Incident) -> list[tuple[str, str]]:
    """The story with its times, counted from the fault on; what told of it beforehand has a minus."""
    first = "the fault happened" if incident.opened_at > incident.began_at else "the fault happened, and was seen at once"
    before = [(line.at - incident.began_at, line.what) for line in incident.story if line.at < incident.began_at]
    after = [(line.at - incident.began_at, line.what) for line in incident.story if line.at >= incident.began_at]
    told = [*before, (0.0, "the gang could not go on" if before else first), *after]
    return [(f"−{duration(-seconds)}" if seconds < 0 else duration(seconds), one_line(what)) for seconds, what in told]


def bill_of(state: State, incident: Incident) -> dict[Bucket, float]:
    """What an incident cost, by bucket: the core's own bill, and while it is open what the ledger holds since it began."""
    bill = {Bucket(name): seconds for name, seconds in incident.costs.items()}
    for bucket, seconds in state.bill(incident.began_at).items() if incident.is_open and not incident.stands else ():
        bill[Bucket(bucket)] = bill.get(Bucket(bucket), 0.0) + seconds
    return {bucket: bill[bucket] for bucket in Bucket if bill.get(bucket, 0.0) > 0 and bucket is not Bucket.PRODUCTIVE}


def lasted_s(state: State, incident: Incident) -> float:
    """From the fault until all ranks worked again, or until now. The work that was done again comes after it and is part of the cost."""
    return max(0.0, (incident.closed_at or state.ledger.ends_at) - incident.began_at)


def cost_s(state: State, incident: Incident) -> float | None:
    """None: not known, because nobody can say how much of the work was lost."""
    return None if incident.from_nothing else sum(bill_of(state, incident).values())


def cost_words(state: State, incident: Incident) -> str:
    seconds = cost_s(state, incident)
    return ALL_AGAIN if seconds is None else f"cost {duration(seconds)}"


def bill_sentence(bill: Mapping[Bucket, float]) -> str:
    return " · ".join(bill_items(bill))


def bill_items(bill: Mapping[Bucket, float]) -> list[str]:
    return [f"{bucket} {duration(seconds)}" for bucket, seconds in bill.items()]


def packed(items: Iterable[str], cells: int) -> list[str]:
    """Items on as few lines as fit, none of them broken."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + 3 + len(item) <= cells:
            lines[-1] += f" · {item}"
        else:
            lines.append(item)
    return lines


def steps_again(incident: Incident) -> int | None:
    """How many steps had to be done twice; None where that cannot be known."""
    if incident.step_before < 0 or incident.step_after < 0:
        return None
    return max(0, incident.step_before - incident.step_after)


def first_cause_exit(state: State) -> Exit | None:
    """Of the incident a job ended on, the exit of the rank to blame; its tail holds the traceback."""
    incident = _ended_on(state)
    if incident is None:
        return None
    diagnosis = incident.diagnoses[-1]
    # An incident may span several generations, in which the same rank may have died more than once: the last one is what was diagnosed last.
    blamed = [exit for exit in incident.exits if exit.rank in diagnosis.ranks and not exit.stopped_by_us]
    same = [exit for exit in blamed if exit.fingerprint == diagnosis.fingerprint]
    return next(reversed(same or blamed), None)


def culprits_words(state: State, number: int) -> str:
    """Returns what the culprit of an incident printed last, or nothing: for rank 0, whose output is on the screen anyway, and for the end of a job, which
    `last_words` tells."""
    incident = next((one for one in state.incidents if one.id == number), None)
    if incident is None or not incident.diagnoses or 0 in incident.diagnoses[-1].ranks:
        return ""
    if incident is _ended_on(state) or (incident.plans and incident.plans[-1].rung is Rung.STOP):
        return ""
    tails = [(exit.rank, printed(exit.tail)) for exit in incident.exits if exit.rank in incident.diagnoses[-1].ranks and not exit.stopped_by_us]
    rank, tail = next(((rank, tail) for rank, tail in tails if "Traceback (most recent call last)" in tail), (0, ""))
    lines = tail[tail.rfind("Traceback (most recent call last)") :].splitlines() if tail else []
    return f"incident {number} began with rank {rank}{_all_of(state, rank)}:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""


def _all_of(state: State, rank: int) -> str:
    return f" (`holdfast logs {one_line(state.spec.job)} --rank {rank}` has all)" if state.spec is not None else ""


def _ended_on(state: State) -> Incident | None:
    """The incident that ended a job that failed, if it was diagnosed."""
    broke = next((one for one in reversed(state.incidents) if not one.stands), None)
    failed = state.outcome not in (None, Outcome.FINISHED, Outcome.STOPPED)
    return broke if failed and broke is not None and broke.diagnoses else None


def last_words(state: State) -> str:
    """What to print last of all when a job failed: the first cause's own traceback, or the stack it hung in. Empty when there is none."""
    exit = first_cause_exit(state)
    if exit is not None and printed(exit.tail):
        return f"The first cause, rank {exit.rank}, printed last{_all_of(state, exit.rank)}:\n\n{printed(exit.tail)}\n"
    incident = _ended_on(state)
    if incident is None:
        return ""
    hung = [(rank, incident.stacks[str(rank)]) for rank in incident.diagnoses[-1].ranks if str(rank) in incident.stacks]
    return f"Rank {hung[0][0]} hung here:\n\n{clean(hung[0][1]).strip()}\n" if hung else ""
