"""Whatever arrives, in whatever order: every invariant holds, every second has its bucket, and a replay gives the same state at every prefix."""

from __future__ import annotations

import random

import msgspec
from core.teller import Teller
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core import Core
from holdfast.domain.effect import StartGang
from holdfast.domain.event import JobSubmitted
from holdfast.domain.job import JobSpec, Policy
from holdfast.domain.learned import Learned, Remedy
from holdfast.domain.state import NodeState, State
from holdfast.simulate.judge import encoded

_ALWAYS = (
    "hear n0", "hear n1", "hear n2", "hear n3", "silent n0", "silent n1", "silent n2", "wait 0.1", "wait 1", "wait 7", "wait 40", "away 90", "restored 0",
    "hear n1 running=1:1", "hear n0 running=1:0", "hear n2 running=2:0,1", "hear n0 running=3:0",
)  # fmt: skip
_WITH_GANG = (
    "up", "up step-4:4", "up", "up", "stopped", "stopped", "stopped", "progress 3", "progress 5", "progress 9 save_s=2", "saved 4",
    "find silent_rank 0", "find stopped_rank 1", "find poisoned_checkpoint 0 checkpoint=step-4:4",
    "find slow_rank 0 share=0.9", "find slow_rank 1 share=0.6", "find slow_rank 1 node=n1 share=0.9", "wait 90", "wait 400",
    "find slow_rank 0", "find memory_running_out 0", "find slow_rank 1", "find slow_job 0", "passed slow_rank 0", "passed memory_running_out 0",
    "profile", "profile 0", "profile 1 steps=9", "find data_stall 1",
    "exit 0 finished code=0", "exit 1 finished code=0", "exit 0 signal signal=9", "exit 0 code code=76",
    "exit 1 exception code=1 exception=ValueError print=f step=5", "exit 1 out_of_memory signal=9", "exit 0 signal signal=9 ours",
    "approve", "approve", "veto", "veto respawn", "veto replace", "veto shrink", "drain n0", "drain n1", "cordon n1", "uncordon n0", "uncordon n1", "saved 9",
    "find not_finite 0 step=6 sound=5", "find not_finite 1 step=6 sound=5", "find replicas_disagree 1 step=8 sound=2", "find loss_jump 0 step=9 sound=8",
    "undo", "veto skip",
    "find memory_leak 0 node=n0 grew=slowly", "find memory_leak 1 grew=slowly", "find memory_peak 0 of=0 micro_batch=8", "find memory_peak 1 of=0",
    "find too_hot 0 node=n0", "check n0", "check n1", "check n3", "checked", "checked port=7", "checked fails",
    "notice n0 20", "notice n1 60", "notice n1 400", "notice n2 5", "withdraw n0", "withdraw n1",
    "exit 1 vanished generation=1", "progress 3 rejoins", "progress 5 rejoins", "parted", "parted 0:5", "parted 0:-1",
)  # fmt: skip
_KINDS = ("StartStore", "FindCheckpoint", "StartGang", "CaptureStacks", "ChooseRanks", "CaptureProfile", "StopGang", "PartGang")
_ANSWERS = (
    *(f"{how} {kind}" for how in ("done", "fail") for kind in _KINDS), "fail StopGang n1 unkillable=7", "fail StartGang n0 permanent",
    "done slow=0 ChooseRanks",
)  # fmt: skip
_RARE = ("stop", "stop now", "resume")


def _learned(dice: random.Random) -> Learned:
    """Tables that speak for leaving nodes, suspects, and a correction: what a job may be started with."""
    causes = dice.sample(("killed", "exception", "out_of_memory", "hang", "node_lost", "vanished"), 4)
    rows = tuple(Remedy(cause=cause, rung="respawn", again=dice.random() < 0.5, failed=dice.uniform(0.0, 9.0), failed_s=200.0) for cause in causes)
    said = (("ValueError:f", dice.choice(("disk_full", "hang"))),)
    return Learned(version="v", remedies=rows, suspects=tuple(dice.sample(("n0", "n1", "n2", "n3"), 2)), corrections=said)


def _play(seed: int, length: int) -> Teller:
    """A random story: whatever could be said is said, sense or not."""
    dice, teller = random.Random(seed), Teller()
    nodes = dice.choice((1, 2, 3))
    if dice.random() < 0.5:
        least, mode = dice.randint(0, nodes - 1), dice.choice(("auto", "auto", "ask", "advise"))
        teller.play(f"submit nodes={nodes} min={least} spares=1 restarts_in_a_row=3 mode={mode} resize_every_s=1 rate_min={dice.choice((0.2, 1))}")
    else:
        spec = JobSpec(job="scenario", argv=("train.py",), nodes=nodes, spares=1, policy=Policy(restarts_in_a_row=3), learned=_learned(dice))
        teller.take(JobSubmitted(at=teller.at, spec=spec))
    for _ in range(length):
        pool = dice.choice((_ALWAYS, _WITH_GANG, _WITH_GANG, _ANSWERS, _RARE if dice.random() < 0.2 else _WITH_GANG))
        command = dice.choice(pool)
        words = command.split()
        waiting = [one for one in teller.core.state.pending.values() if one.kind == words[-1] or (one.kind, one.node) == tuple(words[1:3])]
        gang = teller.core.state.gang
        world_size = len(gang.nodes) if gang is not None else 0
        if pool is _ANSWERS and not waiting:
            continue
        if words[0] == "exit" and int(words[1]) >= world_size:
            continue
        if words[0] == "checked" and not any(one.kind == "CheckNode" for one in teller.core.state.pending.values()):
            continue
        teller.play(command)
    return teller


@settings(max_examples=150)
@given(st.integers(0, 2**32))
@example(169677)  # A rank is slow that the gang does not have.
def test_any_story_keeps_every_invariant_and_every_second(seed: int) -> None:
    state = _play(seed, 80).core.state  # `check` runs after every event.
    wall_s = state.ledger.wall_s
    assert wall_s == state.at - state.ledger.spans[0].since
    assert abs(sum(state.ledger.totals().values()) - wall_s) < 1e-6 * max(1.0, wall_s)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_a_replay_gives_the_same_state_at_every_prefix_also_from_a_snapshot(seed: int) -> None:
    events = _play(seed, 60).events
    live, snapshotted = Core(), Core()
    for index, event in enumerate(events):
        effects = live.step(event)
        if index % 7 == 0:
            snapshotted = Core(msgspec.json.decode(msgspec.json.encode(snapshotted.state), type=State))
        assert snapshotted.step(event) == effects
        assert encoded(snapshotted.state) == encoded(live.state)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_no_rank_is_started_on_a_node_that_is_not_ready(seed: int) -> None:
    core = Core()
    for event in _play(seed, 60).events:
        for effect in core.step(event):
            if isinstance(effect, StartGang):
                assert core.state.nodes[effect.node].state is NodeState.READY


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_an_effect_has_an_id_of_its_own(seed: int) -> None:
    core = Core()
    ids = [effect.id for event in _play(seed, 60).events for effect in core.step(event)]
    assert len(ids) == len(set(ids))
