"""Plays a scenario: commands in, what the core said out.

    submit nodes=2 [min=1] spares=1 ranks=2 [mesh=dp=2,pp=2] [policy=value …]
    hear NODE [running=GENERATION:RANK,RANK] [warm=no]     warmed NODE     silent NODE
    holds NODE RANK:NUMBER … [dimensions=pp:2:no,dp:2:yes]     mesh
    done KIND [NODE] [port=1] [checkpoint=NAME:STEP]     fail KIND NODE [permanent] [unkillable=77]   up [NAME:STEP]      stopped
    exit RANK KIND [code=1] [signal=9] [step=5] [exception=E] [print=F] [micro_batch=N] [leak=TEXT] [never_passes=CLASS] [ours] [generation=G]
    find KIND RANK [node=NODE] [share=0.9] [of=GPU] [grew=TEXT] [micro_batch=N] [generation=G] [checkpoint=NAME:STEP] [step=STEP sound=STEP]
                   [place=CALLS lasted=SECONDS]
    passed KIND RANK [place=CALLS lasted=SECONDS]     undo     pauses
    profile [RANK …] [steps=N]     done ChooseRanks slow=RANK,… [beside=RANK]     profiled NODE RANK:COMPUTE_MS …
    approve     veto [RUNG]     cordon NODE     drain NODE     uncordon NODE     notice NODE SECONDS     withdraw NODE
    check NODE     checked [fails] [SAID] [port=1]
    parted [RANK:STEP[:REACHED] …] [cannot=RANK:WHY]
    restored STEP     progress STEP [rejoins] [sharded]     saved STEP     stop [now]     wait SECONDS
    tick     restart     resume     story     ledger     nodes

`up` answers all that a start waits for, `stopped` all that a stop waits for, `parted` all that a parting waits for.
`restart` reads the state again from its bytes, as a control that was killed does,
and says what it would send again. Time stands still but for `wait`, which ticks whenever the core asked for it, `tick`, which goes straight to the next
deadline, and `away`, during which control does not run.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from holdfast.core import Core, asking, pauses
from holdfast.domain.effect import (
    CaptureProfile,
    CaptureStacks,
    CheckNode,
    ChooseRanks,
    Effect,
    EndJob,
    FindCheckpoint,
    PartGang,
    StartGang,
    StartStore,
    StopGang,
)
from holdfast.domain.event import (
    CheckAsked,
    CheckpointSaved,
    EffectDone,
    EffectFailed,
    Event,
    FindingEnded,
    FindingMade,
    GangRestored,
    JobResumed,
    JobSubmitted,
    MeshSeen,
    NodeCordoned,
    NodeHeard,
    NodeSilent,
    NodeUncordoned,
    NodeWarmed,
    PlanApproved,
    PlanVetoed,
    ProfileAsked,
    ProgressSeen,
    StopAsked,
    Ticked,
    TreatmentUndone,
    WorkerExited,
)
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.finding import BREAKING, Finding
from holdfast.domain.fitting import Fitting
from holdfast.domain.job import JobSpec, MayChange, Policy
from holdfast.domain.mesh import parsed
from holdfast.domain.profile import RankProfile
from holdfast.domain.state import State
from holdfast.domain.treatment import Treatment

EPOCH = 1000.0


@dataclass
class Teller:
    core: Core = field(default_factory=Core)
    at: float = EPOCH
    said: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def play(self, command: str) -> list[str]:
        """Take one command; the lines the core answered with."""
        self.said = []
        words = shlex.split(command)
        plain = [word for word in words[1:] if "=" not in word]
        named = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        getattr(self, f"_{words[0]}")(plain, named)
        return self.said

    def take(self, event: Event) -> None:
        before = self.core.state.phase
        self.events.append(event)
        effects = self.core.step(event)
        self.core.check()
        self.said += [describe(effect) for effect in effects]
        if self.core.state.phase != before:
            self.said.append(f"{self.core.state.phase}: {self.core.state.because}")

    def _submit(self, plain: list[str], named: dict[str, str], event: type[JobSubmitted] | type[JobResumed] = JobSubmitted) -> None:
        sizes = {"nodes": int(named.pop("nodes", 1)), "spares": int(named.pop("spares", 0)), "ranks_per_node": int(named.pop("ranks", 1))}
        sizes["min_nodes"] = int(named.pop("min", 0))
        mesh = parsed(named.pop("mesh")) if "mesh" in named else None
        never = tuple(filter(None, named.pop("never", "").split(",")))
        may_change = MayChange(rate_min=float(named.pop("rate_min", 1.0)))
        policy = replace(msgspec.convert(named, type=Policy, strict=False), never=never, may_change=may_change)
        self.take(event(at=self.at, spec=JobSpec(job="scenario", argv=("train.py",), policy=policy, mesh=mesh, **sizes)))

    def _resume(self, plain: list[str], named: dict[str, str]) -> None:
        spec = self.core.state.spec
        assert spec is not None
        self.take(JobResumed(at=self.at, spec=spec))

    def _hear(self, plain: list[str], named: dict[str, str]) -> None:
        running = {}
        if "running" in named:
            generation, ranks = named["running"].split(":")
            running[generation] = tuple(int(rank) for rank in ranks.split(",") if rank)
        for node in plain:
            self.take(NodeHeard(at=self.at, node=node, host="10.0.0.1", running=running, warm=named.get("warm") != "no"))

    def _warmed(self, plain: list[str], named: dict[str, str]) -> None:
        self.take(NodeWarmed(at=self.at, node=plain[0]))

    def _holds(self, plain: list[str], named: dict[str, str]) -> None:
        holds = {rank: int(number) for rank, number in (one.split(":") for one in plain[1:])}
        parts = [one.split(":") for one in named.get("dimensions", "").split(",") if one]
        dimensions = tuple((name, int(size), resizes == "yes") for name, size, resizes in parts)
        self.take(MeshSeen(at=self.at, node=plain[0], generation=self.core.state.generation, holds=holds, dimensions=dimensions))

    def _mesh(self, plain: list[str], named: dict[str, str]) -> None:
        state = self.core.state
        self.said += [f"{state.mesh}", *filter(None, [state.mesh_said, f"stand by: {', '.join(state.left_over)}" if state.left_over else ""])]

    def _silent(self, plain: list[str], named: dict[str, str]) -> None:
        self.take(NodeSilent(at=self.at, node=plain[0], since=self.at - 2.5, because=f"node {plain[0]} was not heard for 2.5 s"))

    def _done(self, plain: list[str], named: dict[str, str]) -> None:
        known: dict[str, Any] = {}
        if "port" in named:
            known["port"] = int(named["port"])
        if "checkpoint" in named:
            name, _, step = named["checkpoint"].partition(":")
            known |= {"checkpoint": name, "checkpoint_step": int(step)}
        known |= {name: tuple(int(rank) for rank in named[name].split(",")) for name in ("slow", "beside") if name in named}
        id, node, generation = self._waiting(plain)
        self.take(EffectDone(at=self.at, effect=id, generation=generation, node=node, **known))

    def _fail(self, plain: list[str], named: dict[str, str]) -> None:
        id, node, generation = self._waiting(plain)
        pids = tuple(int(pid) for pid in named.get("unkillable", "").split(",") if pid)
        because = named.get("because", f"{plain[0]} did not work")
        permanent = "permanent" in plain
        self.take(EffectFailed(at=self.at, effect=id, generation=generation, node=node, because=because, permanent=permanent, unkillable=pids))

    def _waiting(self, plain: list[str]) -> tuple[str, str, int]:
        node = plain[1] if len(plain) > 1 else ""
        for id, pending in self.core.state.pending.items():
            if pending.kind == plain[0] and node in ("", pending.node):
                return id, pending.node, pending.generation
        raise AssertionError(f"nobody waits for {' '.join(plain)}; pending: {self.core.state.pending}")

    def _all(self, kind: str, **known: Any) -> None:
        for id, pending in list(self.core.state.pending.items()):
            if pending.kind == kind and id in self.core.state.pending:
                self.take(EffectDone(at=self.at, effect=id, generation=pending.generation, node=pending.node, **known))

    def _up(self, plain: list[str], named: dict[str, str]) -> None:
        name, _, step = plain[0].partition(":") if plain else ("", "", "-1")
        self._all("StartStore", port=29500)
        self._all("FindCheckpoint", checkpoint=name, checkpoint_step=int(step))
        self._all("StartGang")

    def _stopped(self, plain: list[str], named: dict[str, str]) -> None:
        self._all("StopGang", **({"cannot": {"0": named["cannot"]}} if "cannot" in named else {}))

    def _parted(self, plain: list[str], named: dict[str, str]) -> None:
        state = self.core.state
        words = [word.split(":") for word in plain]
        held, reached = {int(rank): int(step) for rank, step, *_ in words}, {int(rank): int(last[0] if last else step) for rank, step, *last in words}
        for id, one in [(id, one) for id, one in state.pending.items() if one.kind == "PartGang"]:
            assert state.gang is not None
            assert state.spec is not None
            here = [rank for rank in held if state.gang.nodes[rank // state.spec.ranks_per_node] == one.node]
            said = {"waiting": {str(rank): held[rank] for rank in here}, "reached": {str(rank): reached[rank] for rank in here}}
            given_up, _, why = named.get("cannot", "").partition(":")
            cannot = {given_up: why} if given_up else {}
            self.take(EffectDone(at=self.at, effect=id, generation=one.generation, node=one.node, cannot=cannot, **said))

    def _exit(self, plain: list[str], named: dict[str, str]) -> None:
        rank, kind = int(plain[0]), ExitKind(plain[1])
        gang = self.core.state.gang
        assert gang is not None
        numbers = {name: int(named[name]) for name in ("code", "signal", "step", "micro_batch", "loader_workers") if name in named}
        exit = Exit(
            rank=rank, pid=100 + rank, kind=kind, because=f"rank {rank} left: {' '.join(plain[1:])}", exception=named.get("exception", ""),
            message=named.get("message", ""), fingerprint=named.get("print", ""), stopped_by_us="ours" in plain, leak=named.get("leak", ""),
            never_passes=named.get("never_passes", ""), at_ns=len(self.events), **numbers,
        )  # fmt: skip
        assert self.core.state.spec is not None
        node = gang.nodes[rank // self.core.state.spec.ranks_per_node]
        self.take(WorkerExited(at=self.at, node=node, generation=int(named.get("generation", gang.generation)), exit=exit))

    def _find(self, plain: list[str], named: dict[str, str]) -> None:
        kind, rank = plain[0], int(plain[1])
        because = f"rank {rank} made no progress for 12.0 s" if kind in BREAKING else f"rank {rank}: {kind}"
        share = float(named.get("share", 0))
        more = {"of": named.get("of", ""), "grew": named.get("grew", ""), "micro_batch": int(named.get("micro_batch", 0))}
        more |= {"place": named.get("place", ""), "lasted_s": float(named.get("lasted", 0))}
        since = self.at - float(named.get("lasted", 12.0))
        finding = Finding(kind=kind, node=named.get("node", ""), ranks=(rank,), since=since, because=because, share=share, **more)
        if "checkpoint" in named:
            name, _, step = named["checkpoint"].partition(":")
            because = f"the loss of rank {rank} is not finite right after {name} was restored"
            finding = Finding(kind=kind, ranks=(rank,), since=self.at - 1.0, because=because, checkpoint=name, step=int(step))
        elif "step" in named:
            finding = replace(finding, because=f"{kind} of rank {rank} since step {named['step']}", step=int(named["step"]), sound=int(named["sound"]))
        self.take(FindingMade(at=self.at, generation=int(named.get("generation", self._generation())), finding=finding))

    def _passed(self, plain: list[str], named: dict[str, str]) -> None:
        kind, rank = plain[0], int(plain[1])
        key = Finding(kind=kind, node=named.get("node", ""), ranks=(rank,), because="").key
        self.take(FindingEnded(at=self.at, generation=self._generation(), key=key, because=f"rank {rank}: {kind} no more", place=named.get("place", ""),
                               lasted_s=float(named.get("lasted", 0))))  # fmt: skip

    def _pauses(self, plain: list[str], named: dict[str, str]) -> None:
        self.said += [f"{place}: {seconds:g} s" for place, seconds in sorted(self.core.state.pauses.items())]
        self.said += [f"taken for hung in {place} after {seconds:g} s" for place, seconds in sorted(pauses.struck(self.core.state).items())]
        self.said.append(f"{len(self.core.state.attempts)} attempts are remembered")

    def _profile(self, plain: list[str], named: dict[str, str]) -> None:
        ranks = tuple(int(rank) for rank in plain)
        self.take(ProfileAsked(at=self.at, because="asked by a person", ranks=ranks, steps=int(named.get("steps", 5))))

    def _profiled(self, plain: list[str], named: dict[str, str]) -> None:
        id, node, generation = self._waiting(["CaptureProfile", plain[0]])
        taken = []
        for word in plain[1:]:
            rank, _, compute_ms = word.partition(":")
            parts = {"compute": float(compute_ms) / 1000, "communication": 0.001}
            step_s = sum(parts.values())
            taken.append(RankProfile(rank=int(rank), node=node, generation=generation, first_step=2, steps=5, step_s=step_s, parts=parts, trace="t"))
        self.take(EffectDone(at=self.at, effect=id, generation=generation, node=node, profiles=tuple(taken)))

    def _approve(self, plain: list[str], named: dict[str, str]) -> None:
        self._person(PlanApproved(at=self.at, who="ann"))

    def _veto(self, plain: list[str], named: dict[str, str]) -> None:
        self._person(PlanVetoed(at=self.at, who="ann", instead=plain[0] if plain else ""))

    def _undo(self, plain: list[str], named: dict[str, str]) -> None:
        self._person(TreatmentUndone(at=self.at, who="ann"))

    def _cordon(self, plain: list[str], named: dict[str, str], *, drain: bool = False) -> None:
        self._person(NodeCordoned(at=self.at, node=plain[0], because="it is to be repaired", drain=drain, who="ann"))

    def _drain(self, plain: list[str], named: dict[str, str]) -> None:
        self._cordon(plain, named, drain=True)

    def _uncordon(self, plain: list[str], named: dict[str, str]) -> None:
        self._person(NodeUncordoned(at=self.at, node=plain[0], who="ann"))

    def _check(self, plain: list[str], named: dict[str, str]) -> None:
        self._person(CheckAsked(at=self.at, node=plain[0], who="ann"))

    def _checked(self, plain: list[str], named: dict[str, str]) -> None:
        id, node, generation = self._waiting(["CheckNode"])
        passed = "fails" not in plain
        said, port = " ".join(word for word in plain if word != "fails") or "all is well", int(named.get("port", 0))
        self.take(EffectDone(at=self.at, effect=id, generation=generation, node=node, passed=passed, said=said, port=port))

    def _notice(self, plain: list[str], named: dict[str, str]) -> None:
        self.take(NodeCordoned(at=self.at, node=plain[0], because="it is to go: maintenance", drain=True, goes_at=self.at + float(plain[1])))

    def _withdraw(self, plain: list[str], named: dict[str, str]) -> None:
        self.take(NodeUncordoned(at=self.at, node=plain[0], withdrawn=True))

    def _person(self, event: asking.Said) -> None:
        """As control does: what is refused is told, and taken all the same, which changes nothing."""
        refused = asking.refused(self.core.state, event)
        self.take(event)
        self.said.append(f"refused: {refused}" if refused else f"agreed: {asking.agreed(self.core.state, event)}")

    def _generation(self) -> int:
        return self.core.state.generation

    def _restored(self, plain: list[str], named: dict[str, str]) -> None:
        self.take(GangRestored(at=self.at, generation=self._generation(), step=int(plain[0]), restore_s=0.5))

    def _progress(self, plain: list[str], named: dict[str, str]) -> None:
        generation = int(named.get("generation", self._generation()))
        save_s, rejoins, sharded = float(named.get("save_s", 0)), "rejoins" in plain, "sharded" in plain
        self.take(ProgressSeen(at=self.at, generation=generation, step=int(plain[0]), save_s=save_s, rejoins=rejoins, sharded=sharded))

    def _saved(self, plain: list[str], named: dict[str, str]) -> None:
        self.take(CheckpointSaved(at=self.at, generation=self._generation(), step=int(plain[0])))

    def _stop(self, plain: list[str], named: dict[str, str]) -> None:
        self.take(StopAsked(at=self.at, because="Ctrl-C", code=130, now="now" in plain))

    def _wait(self, plain: list[str], named: dict[str, str]) -> None:
        until = self.at + float(plain[0])
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.at = max(self.at, due)
            self.take(Ticked(at=self.at))
        self.at = until

    def _away(self, plain: list[str], named: dict[str, str]) -> None:
        self.at += float(plain[0])
        self.take(Ticked(at=self.at))

    def _tick(self, plain: list[str], named: dict[str, str]) -> None:
        due = self.core.next_deadline()
        assert due is not None
        self.at = max(self.at, due)
        self.said.append(f"at {self.at - EPOCH:.1f} s")
        self.take(Ticked(at=self.at))

    def _restart(self, plain: list[str], named: dict[str, str]) -> None:
        self.core = Core(msgspec.json.decode(msgspec.json.encode(self.core.state), type=State))
        self.core.check()
        self.said += [f"again: {pending.kind} g{pending.generation} on {pending.node}" for pending in self.core.state.pending.values()]

    def _story(self, plain: list[str], named: dict[str, str]) -> None:
        for incident in self.core.state.incidents:
            self.said.append(f"incident {incident.id}, {incident.phase}, step {incident.step_before} -> {incident.step_after}")
            self.said += [f"  {line.at - EPOCH:.1f} {line.what}" for line in incident.story]
            self.said.append("  costs " + (", ".join(f"{bucket} {seconds:.1f}" for bucket, seconds in incident.costs.items()) or "nothing"))

    def _ledger(self, plain: list[str], named: dict[str, str]) -> None:
        ledger = self.core.state.ledger
        self.said.append(f"wall {ledger.wall_s:.1f}: " + ", ".join(f"{bucket} {seconds:.1f}" for bucket, seconds in ledger.totals().items()))

    def _nodes(self, plain: list[str], named: dict[str, str]) -> None:
        state = self.core.state
        self.said.append(", ".join(f"{name} {node.state}" for name, node in sorted(state.nodes.items())))
        self.said += [f"{name} {check.verdict or 'waits'}: {check.said}" for name, check in sorted(state.checks.items())]
        self.said += [f"{name} is cordoned: {why}" for name, why in sorted(state.cordoned.items())]


def describe(effect: Effect) -> str:
    match effect:
        case StartStore():
            return f"StartStore g{effect.generation} on {effect.node}"
        case FindCheckpoint():
            return f"FindCheckpoint g{effect.generation}" + (f" but {', '.join(effect.distrusted)}" if effect.distrusted else "")
        case StartGang():
            kept = f", of which {effect.kept} live on from g{effect.kept_of}" if effect.kept else ""
            kept += f", where they were {effect.moved} higher" if effect.moved else ""
            room = f", {effect.fitting}" if effect.fitting != Fitting() else ""
            room += f", {effect.treatment}" if effect.treatment != Treatment() else ""
            return f"StartGang g{effect.generation} on {effect.node}: ranks {effect.ranks}{kept}, store port {effect.store_port}, {effect.because}{room}"
        case CaptureStacks():
            return f"CaptureStacks g{effect.generation} on {effect.node}"
        case ChooseRanks():
            return f"ChooseRanks g{effect.generation}: {'all' if effect.all else effect.ranks or 'the slow ones'}"
        case CaptureProfile():
            return f"CaptureProfile g{effect.generation} on {effect.node}: ranks {effect.ranks}, {effect.steps} steps, {effect.name}"
        case StopGang():
            return f"StopGang g{effect.generation} on {effect.node}, {'graceful' if effect.graceful else 'at once'}, {effect.grace_s:g} s"
        case PartGang():
            culprits = f", but for {effect.culprits}" if effect.culprits else ""
            return f"PartGang g{effect.generation} on {effect.node}{culprits}, {effect.within_s:g} s"
        case CheckNode():
            where = f" at port {effect.port}" if effect.port else ""
            return f"CheckNode {effect.part} on {effect.node}{where}"
        case EndJob():
            return f"EndJob {effect.outcome}, code {effect.code}: {effect.because}"
