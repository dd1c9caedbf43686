"""False alarms: a month of a large fleet in which nothing is wrong, and how often its job would have been restarted for nothing.

The detectors whose findings break a gang run as they are, on virtual time. Nodes: 2,048 agents are heard five times a second; one message in a thousand is
lost, agents pause, clocks jump, connections break and come back, and now and then control itself stands still. Ranks: those of one node, looked at once a
second for the whole month, through steps, saves, evaluations that rank 0 does alone, epochs that begin slowly and file servers that do not answer.

Paces: ranks of which now and then one is slower for a while; a job that has a spare must not be moved for it.

Between two pauses nothing can be found, so only the moments around them are played. What is assumed stands in the table of the report. It is a simulation.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

import numpy as np
from harness.measure import Report, arguments, say

from holdfast.detect.phases import Phases
from holdfast.detect.silent_node import Heard, SilentNode
from holdfast.detect.silent_rank import HangLimits, judge
from holdfast.detect.slow_rank import SlowRank
from holdfast.detect.standstill import Sight
from holdfast.domain.job import Policy
from holdfast.domain.plan import Plan
from holdfast.domain.signs import COLLECTIVE, DATA, ELSEWHERE, Signs
from holdfast.recover.candidates import Fleet
from holdfast.recover.costs import Costs
from holdfast.recover.slow import LEAST, Held, leave

DAY_S = 86400.0
LOOK_S = 0.2  # Control looks so often, and agents speak so often.
LOST = 0.001
PAUSES_A_DAY = 2.0  # Of each node,
PAUSE_MEDIAN_S, PAUSE_SIGMA = 0.4, 0.9  # log-normal: one in a hundred is longer than 3 s, one in ten thousand longer than 11 s.
STANDS_STILL = 0.5  # In half of them the node's ranks pause with the agent, and so does the gang; else it steps on.
BREAKS_A_DAY = 0.05  # Connections that break,
BACK_MEDIAN_S, BACK_SIGMA = 0.15, 0.6  # and are back.
SLOW_A_DAY = 20.0  # Times that a node is slower than the others (a page cache that is written out, another's job that starts),
SLOW_MEDIAN_S, SLOW_SIGMA, SLOW_MOST = 6.0, 0.8, 3.0  # for so long, log-normal, and up to so many times.
RESTART_S = 30.0  # What a move of that job would cost.
CONTROL_A_DAY = 1.0  # Times that control itself stands still,
CONTROL_MEDIAN_S, CONTROL_SIGMA = 1.0, 1.0  # for so long.


def main() -> None:
    chosen = arguments(
        __doc__ or "", nodes=(2048, 2048, "nodes"), days=(30, 30, "simulated days of the nodes"), months=(5, 1, "such months"),
        rank_days=(30, 3, "simulated days of the ranks of a node"), rank_nodes=(4, 1, "nodes whose ranks are played"),
    )
    report = Report("False alarms: a fleet in which nothing is wrong")
    lost = [play_nodes(chosen.nodes, chosen.days, seed=chosen.seed + month) for month in range(chosen.months)]
    hung = [play_ranks(chosen.rank_days, seed=chosen.seed + node) for node in range(chosen.rank_nodes)]
    slow = [play_paces(chosen.days, seed=chosen.seed + month) for month in range(chosen.months)]
    days = chosen.days * chosen.months
    report.note(
        f"nodes: {LOST:.1%} of messages lost; {PAUSES_A_DAY:g} pauses a node and day, log-normal, median {PAUSE_MEDIAN_S} s, sigma {PAUSE_SIGMA}; "
        f"{BREAKS_A_DAY:g} broken connections a node and day; control stands still {CONTROL_A_DAY:g} times a day"
    )
    report.note(f"longest pauses: {', '.join(f'{one.longest_s:.0f} s' for one in lost)}; limits learned: {', '.join(f'{one.limit_s:.0f} s' for one in lost)}")
    report.bar(f"restarts a day for nothing, {chosen.nodes} nodes, {days} days", sum(one.alarms for one in lost) / days, "a day", at_most=0.01)
    report.bar(f"ranks called hung for nothing, 8 ranks, {chosen.rank_days * chosen.rank_nodes} days", sum(hung), "findings", at_most=0)
    report.note(
        f"paces: 4 nodes with 2 ranks each, a node is slower {SLOW_A_DAY:g} times a day, log-normal, median {SLOW_MEDIAN_S} s, sigma {SLOW_SIGMA}, up to "
        f"{SLOW_MOST:g} times; longest {', '.join(f'{one.longest_s:.0f} s' for one in slow)}; a slow rank was told of {sum(one.found for one in slow)} times"
    )
    report.bar(f"jobs moved for a node that was slow for a while, {days} days", sum(one.moves for one in slow), "moves", at_most=0)
    report.finish(chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    alarms: int
    longest_s: float
    limit_s: float


def play_nodes(nodes: int, days: float, *, seed: int) -> Month:
    """Every pause of every node, in the order of time; around each, control looks as it always does, at those that are quiet."""
    dice, detector, end_s = random.Random(seed), SilentNode(), days * DAY_S
    alarms, longest_s, now = 0, 0.0, 0.0
    pauses = [(dice.expovariate(PAUSES_A_DAY / DAY_S), node, "pause") for node in range(nodes)]
    pauses += [(dice.expovariate(BREAKS_A_DAY / DAY_S), node, "break") for node in range(nodes)]
    pauses.append((dice.expovariate(CONTROL_A_DAY / DAY_S), -1, "control"))
    heapq.heapify(pauses)
    while pauses[0][0] < end_s:
        at, node, what = heapq.heappop(pauses)
        rate = {"pause": PAUSES_A_DAY, "break": BREAKS_A_DAY, "control": CONTROL_A_DAY}[what]
        heapq.heappush(pauses, (at + dice.expovariate(rate / DAY_S), node, what))
        median_s, sigma = {"pause": (PAUSE_MEDIAN_S, PAUSE_SIGMA), "break": (BACK_MEDIAN_S, BACK_SIGMA), "control": (CONTROL_MEDIAN_S, CONTROL_SIGMA)}[what]
        lasts_s = median_s * math.exp(sigma * dice.gauss(0.0, 1.0))
        while dice.random() < LOST:
            lasts_s += LOOK_S  # The first message after it is lost, too.
        longest_s = max(longest_s, lasts_s if what == "pause" else 0.0)
        if lasts_s < LOOK_S:
            continue
        now = max(now, at)
        if what == "control":
            detector.look({"n": Heard(at=now, connected=True)}, now)
            now += lasts_s
            detector.look({"n": Heard(at=now - lasts_s, connected=True)}, now)  # Nobody was heard meanwhile.
            detector.look({"n": Heard(at=now, connected=True)}, now + LOOK_S)
            continue
        vouched = what == "pause" and dice.random() >= STANDS_STILL
        alarms += quiet(detector, f"n{node}", now, lasts_s, connected=what == "pause", vouched=vouched)
        now += lasts_s + 2 * LOOK_S
    return Month(alarms=alarms, longest_s=longest_s, limit_s=detector.limit_s(connected=True))


def quiet(detector: SilentNode, node: str, since: float, lasts_s: float, *, connected: bool, vouched: bool) -> int:
    """Control looks at a node that says nothing for a while, and then does."""
    found, looks = 0, int(lasts_s / LOOK_S)
    detector.look({node: Heard(at=since, connected=True)}, since)
    for look in range(1, looks + 1):
        now = since + look * LOOK_S
        found += len(detector.look({node: Heard(at=since, connected=connected, alive_at=now - 1.0 if vouched else 0.0)}, now))
    detector.look({node: Heard(at=since + lasts_s, connected=True)}, since + lasts_s + LOOK_S)
    return found


def play_ranks(days: float, *, seed: int) -> int:
    """Eight ranks of one node in step; how many were called hung or stopped though each went on. What was told as a pause is remembered, as control does."""
    dice, phases, longest_s, standing = random.Random(1000 + seed), Phases(), dict[str, float](), dict[str, float]()
    now, step, found, told = 0.0, 0, 0, -1.0
    phase, since, until, beat_at = "start", 0.0, 40.0, 0.0
    busy = True  # Whether the processes compute; while a file server does not answer they do not.
    while now < days * DAY_S:
        now += 1.0
        while until <= now:
            phases.note(phase, until - since)
            beat_at = until
            phase, lasts_s, busy, step = following(dice, phase, step)
            since, until = beat_at, beat_at + lasts_s
            if phase == "step" and lasts_s < 0.5:  # Short steps pass by the dozen; the next look sees the newest of them.
                whole = max(0, int((now - until) / lasts_s))
                phases.note("step", lasts_s, times=whole)
                step, beat_at, until = step + whole, beat_at + whole * lasts_s, until + whole * lasts_s
                since = beat_at
        quiet_s = now - beat_at
        if quiet_s < 1.5:
            longest_s.update({place: max(seconds, longest_s.get(place, 0.0)) for place, seconds in standing.items()})
            standing.clear()
            continue
        gang = [seen(rank, phase, step, quiet_s, phases, busy=busy) for rank in range(8)]
        for finding in judge(gang, HangLimits(longest_s=longest_s)):
            if finding.kind in ("pause", "late_data"):
                standing[finding.place] = finding.lasted_s
            elif told != beat_at:
                told, found = beat_at, found + 1
                say(f"FALSE ALARM after {now / DAY_S:.2f} days: {finding.because}")
    return found


def seen(rank: int, phase: str, step: int, quiet_s: float, phases: Phases, *, busy: bool) -> Sight:
    """What control knows of a rank that does not move: rank 0 evaluates alone, and the others wait for it; all wait for the file server; or all compute."""
    waits = phase == "eval" and rank > 0
    own = "step" if waits else phase
    idle_s = quiet_s if waits or not busy else 0.0
    inside = COLLECTIVE if waits else DATA if not busy else ELSEWHERE
    signs = Signs(
        quiet_s=quiet_s, usual_s=phases.usual_s(own), quick=phases.quick and own == "step", process_state="S" if busy else "D", inside=inside,
        place=f"train.py:{inside}:{1 + (phase == 'eval')}", stack_s=quiet_s - 1.5, sampled_s=1.0, main_idle_s=idle_s, own_idle_s=idle_s,
        children_idle_s=quiet_s, io_idle_s=quiet_s,
    )  # fmt: skip
    return Sight(rank=rank, node="n0", phase=own, step=step, signs=signs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paces:
    found: int
    moves: int
    longest_s: float


def play_paces(days: float, *, seed: int) -> Paces:
    """Each time that a node of four is slower for a while: is a rank called slow, and would the job be moved?"""
    dice, noise, policy = random.Random(2000 + seed), np.random.default_rng(seed), Policy()
    nodes = tuple(f"n{rank // 2}" for rank in range(8))
    fleet = Fleet(gang=("n0", "n1", "n2", "n3"), spares=("n4",), lost=(), costs=Costs(restart_s=RESTART_S))
    found, moves, longest_s = 0, 0, 0.0
    for _ in range(int(4 * SLOW_A_DAY * days)):
        lasts_s, rank, times = SLOW_MEDIAN_S * math.exp(SLOW_SIGMA * dice.gauss(0.0, 1.0)), dice.randrange(8), dice.uniform(1.1, SLOW_MOST)
        longest_s = max(longest_s, lasts_s)
        detector, told = SlowRank(ranks=8), False
        for look in range(int(2 * detector.looks + lasts_s)):
            own = 0.4 * np.exp(0.1 * noise.standard_normal(8)) * np.where(np.arange(8) == 0, 1.05, 1.0)  # Rank 0 logs.
            if detector.looks <= look < detector.looks + lasts_s:
                own[rank] *= times
            step = np.full(8, own.max() + 0.05)
            detector.look(step, step - own, {}, nodes, float(look))
            standing = [one for one in detector.standing if one.share >= LEAST]
            told = told or bool(detector.standing)
            if standing and look - standing[0].since >= policy.slow_wait_s:
                stood_s = look - standing[0].since
                held = Held(node=standing[0].node, share=standing[0].share, stood_s=stood_s, from_start=False, because=standing[0].because)
                if isinstance(leave(held, fleet, policy), Plan):
                    moves += 1
                    say(f"MOVED for {lasts_s:.0f} s: {standing[0].because}")
                    break
        found += told
    return Paces(found=found, moves=moves, longest_s=longest_s)


def following(dice: random.Random, phase: str, step: int) -> tuple[str, float, bool, int]:
    """The phase after this one, how long it lasts, whether it computes, and the step."""
    step += phase in ("start", "step")
    if phase == "step" and step % 500 == 0:
        return "save", 2.0 * math.exp(0.5 * dice.gauss(0, 1)), True, step
    if phase == "save" and step % 5000 == 0:
        return "eval", 120.0 * math.exp(0.4 * dice.gauss(0, 1)), True, step
    stalls = dice.random() < 2e-5  # A file server that does not answer: nobody computes.
    lasts_s = 2.0 * math.exp(0.2 * dice.gauss(0, 1)) + (dice.choice((3.0, 6.0, 9.0)) if stalls else 0.0)
    return "step", lasts_s, not stalls, step


if __name__ == "__main__":
    main()
