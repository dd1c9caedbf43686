"""A month of jobs on a fleet, through the real ladder, once without and once with what was learned from the days before. The same faults strike both.

Seven jobs a day of 32 nodes and 2 spares each on 256 nodes; one node in a hundred is a lemon. What ends jobs, and how often, is published: 0.0237 faults a
node and day (a 1,024-GPU job of Meta's RSC-1 ended every 7.9 h), causes as counted for Llama 3. What a remedy does to each kind is assumed (`KINDS`):
half of the GPU faults stay with the node, so that a respawn there mostly fails again; the ladder is not told which. `PASSING` is the same with no fault that
stays, to see whether learning then does harm. What it costs is published too: restart 60 s, another node 110 s (ByteRobust), up to five minutes of work done
again, and where it gives up, a person: 38 m 54 s (OLMo).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleets.lemons import FACTOR, SHARE
from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.job import Policy
from holdfast.domain.learned import Learned
from holdfast.domain.past import PastIncident, PastRemedy, PastService
from holdfast.domain.plan import Rung
from holdfast.domain.state import Attempt
from holdfast.learn.decay import DAY_S
from holdfast.learn.lessons import Lessons
from holdfast.recover.ladder import Fleet, decide
from holdfast.simulate.failures import poisson

NODES, JOBS, GANG, SPARES, DAYS = 256, 7, 32, 2, 30
PER_DAY = 0.0237
RESPAWN_S, REPLACE_S, FAILS_AGAIN_S, REDONE_S, PERSON_S = 60.0, 110.0, 120.0, 300.0, 2334.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault, as it shows and as it is."""

    share: float
    cause: Cause
    fingerprint: str
    respawn: float  # The chance that starting again on the same node helps,
    elsewhere: float  # and that it does on another one.
    lemon: bool = False  # What lemons fail of.


# Shares from the 419 unexpected interruptions of Llama 3: GPU and its memory 64 %, half of which is taken to persist; software 13 %; network 8 %; host 15 %.
KINDS = (
    Kind(share=0.32, cause=Cause.EXCEPTION, fingerprint="AcceleratorError@step:uncorrectable", respawn=0.1, elsewhere=0.95, lemon=True),
    Kind(share=0.16, cause=Cause.EXCEPTION, fingerprint="AcceleratorError@step:illegal", respawn=0.6, elsewhere=0.9),
    Kind(share=0.16, cause=Cause.CRASH, fingerprint="crash:SIGSEGV", respawn=0.8, elsewhere=0.9),
    Kind(share=0.13, cause=Cause.EXCEPTION, fingerprint="RuntimeError@loader", respawn=0.85, elsewhere=0.85),
    Kind(share=0.08, cause=Cause.NETWORK, fingerprint="DistBackendError", respawn=0.9, elsewhere=0.9),
    Kind(share=0.15, cause=Cause.NODE_LOST, fingerprint="node_lost", respawn=0.0, elsewhere=0.95, lemon=True),
)

PASSING = tuple(replace(kind, respawn=max(kind.respawn, 0.85)) if kind.cause is not Cause.NODE_LOST else kind for kind in KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    costs_s: tuple[float, ...]  # Of each incident, in the order of time.
    gave_up: int
    first_right: int  # The first remedy was the one that worked.


def play(seed: int, *, learning: bool, kinds: Sequence[Kind] = KINDS) -> Month:
    names = [f"n{number:03}" for number in range(NODES)]
    dice = random.Random(seed)
    lemons = set(dice.sample(names, max(1, round(SHARE * NODES))))
    faults = [(at, node, dice.random()) for at, node in poisson(dice, [n for n in names if n not in lemons], DAY_S / PER_DAY, DAYS * DAY_S)]
    faults += [(at, node, dice.random()) for at, node in poisson(dice, sorted(lemons), DAY_S / PER_DAY / FACTOR, DAYS * DAY_S)]
    past: list[PastIncident] = []
    service: list[PastService] = []
    gave_up = first_right = 0
    for day in range(DAYS):
        order = sorted(names, key=lambda name: random.Random(f"{seed}/{day}/{name}").random())  # Who gets which nodes today, whatever was learned.
        today = [one for one in sorted(faults) if int(one[0] // DAY_S) == day]
        lessons = Lessons(past, service, (), (), day * DAY_S)
        for job in range(JOBS):
            given = order[job * (GANG + SPARES) : (job + 1) * (GANG + SPARES)]
            learned = lessons.learned(f"job-{day}-{job}") if learning and past else None
            suspects = learned.suspects if learned is not None else ()
            ready = sorted(given, key=lambda name: (name in suspects, name))
            gang, spares = ready[:GANG], ready[GANG:]
            for at, node, what in today:
                if node in gang:
                    kind = _kind(what, kinds, lemon=node in lemons)
                    told = _incident(f"job-{day}-{job}", len(past) + 1, at, node, kind, gang, spares, learned, seed)
                    past.append(told)
                    gave_up += told.outcome == "gave_up"
                    first_right += bool(told.remedies) and told.remedies[0].worked
                    if any(remedy.rung == "replace" for remedy in told.remedies) and spares:
                        gang[gang.index(node)] = spares.pop(0)
            service += [PastService(node=name, run=f"{day}-{job}", day=day, seconds=DAY_S) for name in given]
    return Month(costs_s=tuple(one.cost_s for one in past), gave_up=gave_up, first_right=first_right)


def _kind(what: float, every: Sequence[Kind], *, lemon: bool) -> Kind:
    kinds = [kind for kind in every if kind.lemon or not lemon]
    total, reached = sum(kind.share for kind in kinds), 0.0
    for kind in kinds:
        reached += kind.share / total
        if what < reached:
            return kind
    return kinds[-1]


def _incident(
    job: str, number: int, at: float, node: str, kind: Kind, gang: Sequence[str], spares: Sequence[str], learned: Learned | None, seed: int
) -> PastIncident:
    """One fault, answered until training goes on or the ladder gives up. The dice depend on the fault and the try alone, so that both systems meet the same."""
    attempts: list[Attempt] = []
    tried: list[PastRemedy] = []
    lost = (node,) if kind.cause is Cause.NODE_LOST else ()
    cost_s, there, outcome = 0.0, True, "gave_up"
    left = list(spares)
    while len(tried) < 50:
        dice = random.Random(f"{seed}/{at}/{node}/{len(tried)}")
        diagnosis = Diagnosis(
            cause=kind.cause, permanent=False, confidence=0.9, because=kind.fingerprint, ranks=(0,), node=node if there else gang[0], step=1000 + len(tried),
            fingerprint=kind.fingerprint,
        )  # fmt: skip
        fleet = Fleet(gang=tuple(gang), spares=tuple(left), lost=lost if there else (), blamed=node if there else "", avoided=() if there else (node,))
        plan = decide(diagnosis, attempts, fleet, Policy(), learned)
        if plan.rung is Rung.STOP:
            cost_s += PERSON_S
            break
        elsewhere = plan.rung is Rung.REPLACE or not there
        works = dice.random() < (kind.elsewhere if elsewhere else kind.respawn)
        spent_s = plan.wait_s + dice.lognormvariate(0.0, 0.2) * (REPLACE_S if plan.rung is Rung.REPLACE else RESPAWN_S) + dice.random() * REDONE_S
        spent_s += 0.0 if works else dice.expovariate(1.0 / FAILS_AGAIN_S)
        cost_s += spent_s
        tried.append(PastRemedy(rung=plan.rung.name.lower(), worked=works, cost_s=spent_s))
        attempts.append(Attempt(cause=kind.cause, fingerprint=kind.fingerprint, step=diagnosis.step, progressed=False))
        if plan.rung is Rung.REPLACE:
            there, left = False, left[1:]
        if works:
            outcome = "resolved"
            break
    known = PastIncident(job=job, number=number, opened_at=at, closed_at=at + cost_s, cause=kind.cause, fingerprint=kind.fingerprint, node=node)
    return replace(known, outcome=outcome, remedies=tuple(tried), cost_s=cost_s)
