"""Tables: what is known about jobs and incidents, for a terminal of 80 columns and, in a `…_json` twin each, for programs.

    jobs_table         `holdfast ps`               one line a job
    show               `holdfast show JOB`         what, where, how far, where the time went, what went wrong and what it cost
    incidents_table    `holdfast incidents JOB`    one line an incident
    story              `holdfast incidents JOB N`  one incident from first sign to outcome
    replay             `holdfast replay JOB`       each event and what was decided on it, with the reason
    closing            the end of `holdfast run`

All of them take a core `State` and return something rich can print; nothing here opens, asks or prints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.mesh_shown import drawn, mesh_json, mesh_now, mesh_rows
from holdfast.cli.screen import Table
from holdfast.cli.words import (
    ALL_AGAIN,
    BUCKET_MEANS,
    bill_items,
    bill_of,
    cause_of,
    clean,
    cost_s,
    count,
    culprit_of,
    duration,
    goodput_of,
    loss_text,
    one_line,
    outcome_sentence,
    packed,
    printed,
    remedy_of,
    saving_sentence,
    share_text,
    shares_of,
    steps_again,
    timeline,
    why_unknown,
)
from holdfast.control.journal import Entry
from holdfast.core.membership import out_of_service
from holdfast.domain.diagnosis import Diagnosis
from holdfast.domain.effect import Effect
from holdfast.domain.event import EffectDone, EffectFailed, Event, FindingMade, IntervalChosen, JobResumed, JobSubmitted, WorkerExited
from holdfast.domain.fitting import Fitting
from holdfast.domain.goodput import Bucket
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.job import JobPhase, Outcome
from holdfast.domain.plan import Plan
from holdfast.domain.profile import Profile
from holdfast.domain.scaling import Scaling
from holdfast.domain.state import Node, State
from holdfast.domain.treatment import Treatment

_BAR_CELLS = 20
_BILL_CELLS = 42  # What the widest column of the incidents has left on a terminal of 80.
_NONE: Mapping[int, int] = MappingProxyType({})
_SHORT_ITEMS = 8  # More of one field than this are counted.
_STACK_LINES = 12  # Of each rank; the whole stack is in the JSON.
_GOOD = {Outcome.FINISHED: "green", Outcome.STOPPED: "yellow"}


# Jobs.


def jobs_table(states: Iterable[State]) -> RenderableType:
    rows = list(states)
    if not rows:
        return Text("No jobs yet. `holdfast run train.py` starts one.")
    table = _table("job", "state", ("step", "right"), ("goodput", "right"), ("for", "right"), ("incidents", "right"))
    for state in rows:
        cells = (_name(state), _standing(state), _step_text(state), goodput_of(state.ledger), duration(state.ledger.run_s), str(len(state.incidents)))
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return table


def jobs_json(states: Iterable[State]) -> list[dict[str, Any]]:
    return [_job_json(state) for state in states]


def _job_json(state: State) -> dict[str, Any]:
    return {
        "job": state.spec.job if state.spec is not None else "",
        "phase": str(state.phase),
        "outcome": str(state.outcome) if state.outcome is not None else None,
        "code": state.code,
        "because": state.because,
        "generation": state.generation,
        "step": _known(state.step),
        "step_best": _known(state.step_best),
        "saved_step": _known(state.saved_step),
        "remote": state.spec.remote if state.spec is not None and state.spec.remote else None,
        "goodput": round(state.ledger.goodput, 6) if state.ledger.goodput is not None else None,
        "goodput_because": why_unknown(state.ledger) or None,
        "wall_s": state.ledger.wall_s,
        "run_s": state.ledger.run_s,
        "incidents": len(state.incidents),
    }


def _known(step: int) -> int | None:
    return step if step >= 0 else None


def _name(state: State) -> str:
    return one_line(state.spec.job) if state.spec is not None else "(not submitted)"


def _standing(state: State) -> Text:
    if state.outcome is None:
        return Text(str(state.phase), style="bold red" if state.phase is JobPhase.LOST else "cyan")
    return Text(str(state.outcome), style=_GOOD.get(state.outcome, "bold red"))


def _step_text(state: State) -> str:
    known = max(state.step, state.step_best, state.saved_step)  # A save is told of at once, steps now and then.
    return f"{known:,}" if known >= 0 else "–"


# One job.


def show(state: State, *, loss: float | None = None, processes: Mapping[int, int] = _NONE, saved: str = "") -> RenderableType:
    """All about one job. The loss, the ranks' processes and what lies on the disk are not the core's business: the caller that has seen them passes them in."""
    parts: list[RenderableType] = [_headline(state), _facts(state, loss, processes, saved)]
    grid = mesh_now(state)
    parts += [_section("Mesh"), Padding(grid, (0, 0, 0, 2))] if grid is not None else []
    parts += [_section("Where the time went"), _ledger_table(state)]
    if state.incidents:
        parts += [_section(count(len(state.incidents), "incident")), _line_items(state)]
    if state.profiles:
        parts += [_section("Profiles"), *(_profile(state, one) for one in state.profiles)]
    return Group(*parts)


def _profile(state: State, profile: Profile) -> RenderableType:
    """What it says and where it lies."""
    why = f"for incident {profile.incident}" if profile.incident else "asked for"
    when = duration(_since_start(state, profile.asked_at))
    says = [one_line(one) for one in profile.says] or ["it is being taken"]
    return _indented(f"at {when}, {why}: {says[0]}", *says[1:], f"profiles/{profile.name}")


def show_json(state: State, *, loss: float | None = None, processes: Mapping[int, int] = _NONE) -> dict[str, Any]:
    spec = msgspec.to_builtins(state.spec) if state.spec is not None else None
    return _job_json(state) | {
        "spec": spec,
        "nodes": {name: _node_json(node) for name, node in sorted(state.nodes.items())},
        "gang": list(state.gang.nodes) if state.gang is not None else [],
        "pids": {str(rank): pid for rank, pid in sorted(processes.items())},
        "mesh": mesh_json(state),
        "cordoned": dict(sorted(state.cordoned.items())),
        "changes": msgspec.to_builtins(state.changes),
        "interval": msgspec.to_builtins(state.interval),
        "fitting": msgspec.to_builtins(state.fitting),
        "treatment": msgspec.to_builtins(state.treatment),
        "scaling": msgspec.to_builtins(state.gang.scaling if state.gang is not None else Scaling()),
        "loss": loss if loss is not None and math.isfinite(loss) else None,
        "ledger": [{"bucket": str(bucket), "seconds": seconds, "percent": share} for bucket, seconds, share in shares_of(state.ledger)],
        "incidents": incidents_json(state),
        "profiles": msgspec.to_builtins(state.profiles),
    }


def _node_json(node: Node) -> dict[str, str]:
    return {"host": node.host, "state": str(node.state), "isolation": node.isolation, "unkept": node.unkept}


def closing(state: State) -> RenderableType:
    """What `holdfast run` says at the end: less than `show`, because the reader has just watched it."""
    parts: list[RenderableType] = [Text(""), _headline(state), Text(""), _ledger_table(state)]
    if state.incidents:
        parts += [Text(""), _line_items(state)]
    return Group(*parts)


def _headline(state: State) -> Text:
    style = _GOOD.get(state.outcome, "red") if state.outcome is not None else "cyan"
    return Text(outcome_sentence(state), style=f"bold {style}")


def _facts(state: State, loss: float | None, processes: Mapping[int, int], saved: str) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in [*_fact_rows(state, loss, processes), *([("saved", saved)] if saved else [])]:
        table.add_row(name, Text(value))
    return table


def _fact_rows(state: State, loss: float | None, processes: Mapping[int, int]) -> list[tuple[str, str]]:
    rows = []
    if state.spec is not None:
        rows.append(("runs", one_line(" ".join((*(("-m",) if state.spec.module else ()), *state.spec.argv)))))
        spares = f", {count(state.spec.spares, 'spare')}" if state.spec.spares else ""
        least = f"{state.spec.min_nodes} to " if state.spec.min_nodes else ""
        rows.append(("on", f"{least}{count(state.spec.nodes, 'node')} with {count(state.spec.ranks_per_node, 'rank')} each{spares}"))
        if state.gang is not None and len(state.gang.nodes) < state.spec.nodes:
            rows.append(("", f"now on {count(len(state.gang.nodes), 'node')}: {one_line(state.changes[-1].because if state.changes else state.smaller)}"))
            if state.gang.scaling != Scaling():
                rows.append(("", f"{state.gang.scaling} (--smaller-batch {state.spec.policy.smaller_batch}), until it is whole again"))
    if state.nodes:
        rows.append(("nodes", _nodes_text(state)))
    if processes:
        rows.append(("pids", _pids_text(processes)))
    rows += mesh_rows(state)
    rows += _resource_rows(state)
    if max(state.step, state.step_best) >= 0:
        saved = f", saved at {state.saved_step:,}" if state.saved_step >= 0 else ", nothing saved yet"
        behind = f", at {state.step:,} again" if 0 <= state.step < state.step_best else ""
        rows.append(("step", f"{_step_text(state)}{behind}{saved}"))
    if state.interval is not None:
        rows.append(("saving", saving_sentence(state.interval.every, state.interval.interval_s, state.interval.because).removeprefix("saving ")))
    if state.fitting != Fitting():
        rows.append(("memory", str(state.fitting)))
    if state.treatment != Treatment():
        rows.append(("treatment", f"{state.treatment}; `holdfast undo {state.spec.job if state.spec is not None else 'JOB'}` takes back what can be"))
    if state.spec is not None and state.spec.remote:
        rows.append(("remote", one_line(state.spec.remote)))
    if state.spec is not None and state.spec.stage:
        rows.append(("staged", one_line(", ".join(f"{one.source} as {one.target}" for one in state.spec.stage))))
    if state.spec is not None and state.spec.power_cap_watts is not None:
        rows.append(("heat", f"a GPU throttled for it gets a lower power limit, down to {state.spec.power_cap_watts:g} W; else its work moves to a spare"))
    if loss is not None:
        rows.append(("loss", loss_text(loss)))
    rows.append(("goodput", why_unknown(state.ledger) or f"{goodput_of(state.ledger)} of {duration(state.ledger.run_s)}"))
    return rows


def _resource_rows(state: State) -> list[tuple[str, str]]:
    """What the job may use of each node, and what of that is not kept; nothing where nothing was asked for."""
    asked = state.spec.resources.words() if state.spec is not None else ()
    kept_by = sorted({node.isolation for node in state.nodes.values() if node.isolation})
    by = f"; kept by {one_line(' and '.join(kept_by))}" if kept_by else ""
    rows = [("may use", f"{', '.join(asked)}, on each node{by}")] if asked else []
    return rows + [("", one_line(unkept)) for unkept in sorted({node.unkept for node in state.nodes.values() if node.unkept})]


def _nodes_text(state: State) -> str:
    gang = state.gang.nodes if state.gang is not None else ()
    said = []
    for name in sorted(state.nodes, key=lambda name: (name not in gang, name)):
        node = state.nodes[name]
        word = str(node.state).replace("_", " ") if node.state != "ready" else "" if name in gang else "spare"
        word = out_of_service(state, name) or word
        said.append(f"{one_line(name)} ({word})" if word else one_line(name))
    return ", ".join(said) if len(said) <= 8 else f"{', '.join(said[:6])} … and {len(said) - 6} more"


def _pids_text(processes: Mapping[int, int]) -> str:
    said = [f"{pid} (rank {rank})" for rank, pid in sorted(processes.items())]
    return ", ".join(said) if len(said) <= 16 else f"{', '.join(said[:14])} … and {len(said) - 14} more"


def _ledger_table(state: State) -> Table:
    """Largest first; the bars share one scale, and the percents add up to 100. The time when nobody ran the job comes last and has none."""
    rows = sorted(shares_of(state.ledger), key=lambda row: (row[2] is None, row[0] is not Bucket.PRODUCTIVE, -row[1]))
    table = Table.grid(padding=(0, 2))
    justifies: tuple[JustifyMethod, ...] = ("left", "right", "right", "left")
    for justify in justifies:
        table.add_column(justify=justify, no_wrap=True)
    table.add_column(style="dim")  # The only column that wraps gives way first on a narrow terminal.
    for bucket, seconds, share in rows:
        style = "green" if bucket is Bucket.PRODUCTIVE else "yellow"
        halves = max(1, round(2 * _BAR_CELLS * share / 100)) if share is not None else 0
        bar = Text("━" * (halves // 2) + "╸" * (halves % 2), style=style)
        table.add_row(str(bucket), duration(seconds), share_text(share), bar, BUCKET_MEANS[bucket])
    return table


# Incidents.


def incidents_table(state: State) -> RenderableType:
    if not state.incidents:
        return Text("No incidents.")
    return _line_items(state)


def incidents_json(state: State) -> list[dict[str, Any]]:
    return [incident_json(state, incident) for incident in state.incidents]


def incident_json(state: State, incident: Incident) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(incident)
    bill = bill_of(state, incident)
    for plan, written in zip(incident.plans, body["plans"], strict=True):
        written["rung"] = plan.rung.name.lower()
        for one, told in zip(plan.candidates, written["candidates"], strict=True):
            told |= {"rung": one.rung.name.lower(), "expected_s": one.expected_s}
    return body | {
        "cause": cause_of(incident), "steps_again": steps_again(incident), "seconds": cost_s(state, incident), "bill": {str(k): v for k, v in bill.items()}
    }


def _line_items(state: State) -> RenderableType:
    table = _table(("#", "right"), ("at", "right"), "what", "remedy", ("cost", "right"), ("steps\nredone", "right"))
    for incident in state.incidents:
        cost, again = cost_s(state, incident), steps_again(incident)
        items = packed([*([ALL_AGAIN] if cost is None else []), *bill_items(bill_of(state, incident))], _BILL_CELLS)
        what = Text.assemble(_mark(incident), cause_of(incident), *((f"\n{line}", "dim") for line in items))
        table.add_row(
            str(incident.id), duration(_since_start(state, incident.opened_at)), what, remedy_of(incident),
            "–" if cost is None else duration(cost), "–" if again is None else f"{again:,}",
        )  # fmt: skip
    return table


def _mark(incident: Incident) -> Text:
    match incident.phase:
        case IncidentPhase.RESOLVED:
            return Text("✓ ", style="green")
        case IncidentPhase.GAVE_UP:
            return Text("✗ ", style="bold red")
        case _:
            return Text("● ", style="bold yellow")


def _since_start(state: State, at: float) -> float:
    return at - state.ledger.spans[0].since if state.ledger.spans else 0.0


def story(state: State, incident: Incident) -> RenderableType:
    """One incident from first sign to outcome."""
    head = Text.assemble(_mark(incident), (f"Incident {incident.id}: {cause_of(incident)}", "bold"), f", {str(incident.phase).replace('_', ' ')}")
    parts: list[RenderableType] = [head, _section("Timeline, from the fault on"), _timeline(incident)]
    told = {said for said in _sentences(incident) if any(what.endswith(said) for _, what in timeline(incident))}
    seen = [_indented(*lines) for one in incident.findings if (lines := _news([one.because, *one.evidence], told))]
    parts += [_section("Seen"), *seen] if seen else []
    for diagnosis in incident.diagnoses:
        parts += [_section("Diagnosis"), _diagnosis(diagnosis, told)]
    for plan in incident.plans:
        parts += [_section("Plan"), _plan(plan)]
    parts += [_section("Cost"), _cost(state, incident)]
    if incident.communication and not incident.diagnoses:  # Else they are part of its evidence.
        parts += [_section("What NCCL says"), *(_indented(one_line(one)) for one in incident.communication)]
    if incident.stacks:
        parts += [_section("Stacks, innermost last"), *_stacks(incident)]
    tails = [exit for exit in incident.exits if incident.diagnoses and exit.rank in incident.diagnoses[-1].ranks and printed(exit.tail)]
    if tails:
        parts += [_section(f"Last lines of rank {tails[-1].rank}"), Padding(Text(printed(tails[-1].tail)), (0, 0, 0, 2))]
    return Group(*parts)


def _timeline(incident: Incident) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True, style="cyan", width=10)
    table.add_column()
    told: set[str] = set()
    for when, what in timeline(incident):
        again = next((said for said in told if what.endswith(f": {said}")), "")
        table.add_row(when, Text(what.removesuffix(f": {again}") if again else what))
        told |= {said for said in _sentences(incident) if what.endswith(said)}
    return table


def _sentences(incident: Incident) -> list[str]:
    """What findings and diagnoses say in a sentence: often the same, and shown once."""
    texts = [*(finding.because for finding in incident.findings), *(diagnosis.because for diagnosis in incident.diagnoses)]
    return [said for text in texts if (said := one_line(text))]


def _news(texts: Iterable[str], told: set[str]) -> list[str]:
    """Those that were not told yet; from now on they are."""
    fresh = [said for said in dict.fromkeys(map(one_line, texts)) if said not in told]
    told.update(fresh)
    return fresh


def _diagnosis(diagnosis: Diagnosis, told: set[str]) -> RenderableType:
    lasting = "permanent: trying again cannot help" if diagnosis.permanent else "may pass"
    whose = f", {culprit_of(diagnosis)}" if culprit_of(diagnosis) else ""
    at = f", at step {diagnosis.step:,}" if diagnosis.step >= 0 else ""
    rows = [Text(f"{diagnosis.cause.replace('_', ' ')}{whose}{at}, {diagnosis.confidence * 100:.0f} % sure; {lasting}")]
    rows += [Text(said) for said in _news([diagnosis.because], told)]
    rows += [Text(f"evidence: {said}", style="dim") for said in _news(diagnosis.evidence, told)]
    rows += [Text(f"or else: {one_line(one)}", style="dim") for one in diagnosis.alternatives]
    return Padding(Group(*rows), (0, 0, 0, 2))


def _plan(plan: Plan) -> RenderableType:
    rows: list[RenderableType] = [Text(f"{plan.name}: {one_line(plan.because)}")]
    rows += [Text(one_line(plan.held))] if plan.held else []
    rows += [drawn(plan.mesh, plan.lost)] if plan.mesh is not None and plan.mesh.shards > 1 else []
    rows += [Text(f"not chosen: {one_line(one)}", style="dim") for one in plan.alternatives]
    if plan.candidates:
        rows.append(_candidates(plan))
    return Padding(Group(*rows), (0, 0, 0, 2))


def _candidates(plan: Plan) -> Table:
    """All that was weighed: the least expected cost of what is possible was chosen."""
    table = Table.grid(padding=(0, 2))
    table.add_row(*(Text(word, style="dim") for word in ("", "rung", "costs", "in vain", "expected", "because")))
    for one in plan.candidates:
        figures = (duration(one.cost_s), f"{100 * one.risk:.0f} %", duration(one.expected_s)) if one.possible else ("–", "–", "–")
        mark = Text("→", style="green") if one.name == plan.name else Text("")
        table.add_row(mark, one.name, *figures, Text(one_line(one.because), style="" if one.possible else "dim"))
    return table


def _cost(state: State, incident: Incident) -> RenderableType:
    bill, cost, again = bill_of(state, incident), cost_s(state, incident), steps_again(incident)
    lost = "how many steps were done again is not known" if again is None else f"{count(again, 'step')} done again"
    said = f"not known: {ALL_AGAIN}, unless the script restores itself" if cost is None else f"{duration(cost)}; {lost}"
    return _indented(said, *packed(bill_items(bill), 76))


def _stacks(incident: Incident) -> list[RenderableType]:
    """The culprits' stacks first, alike ones once, long ones folded."""
    culprits = {str(rank) for diagnosis in incident.diagnoses for rank in diagnosis.ranks}
    alike: dict[str, list[str]] = {}
    for rank in sorted(incident.stacks, key=lambda rank: (rank not in culprits, len(rank), rank)):
        alike.setdefault(clean(incident.stacks[rank]).strip("\n"), []).append(rank)
    return [_indented(f"rank{'s' if len(ranks) > 1 else ''} {one_line(', '.join(ranks))}", *_folded(stack.splitlines())) for stack, ranks in alike.items()]


def _folded(lines: Sequence[str]) -> list[str]:
    over = len(lines) - _STACK_LINES
    return [f"… {count(over, 'line')} above", *lines[over:]] if over > 0 else list(lines)


# Replay.


def replay(entries: Iterable[Entry]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(justify="right", style="cyan", no_wrap=True)
    table.add_column()
    began: float | None = None
    asked: dict[str, str] = {}  # Effect to its kind, so that an answer can be told with its question.
    for entry in entries:
        began = entry.event.at if began is None else began
        asked |= {effect.id: type(effect).__name__ for effect in entry.effects}
        said = Text.assemble((type(entry.event).__name__, "bold"), " ", one_line(_said(entry.event, asked)))
        for effect in entry.effects:
            said.append(f"\n→ {type(effect).__name__}", style="green").append(f" {effect.id} on {one_line(effect.node)}: {one_line(effect.because)}")
        table.add_row(str(entry.seq), duration(entry.event.at - began), said)
    return table if began is not None else Text("The journal is empty: nothing has happened yet.")


def replay_json(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    return [{"seq": entry.seq, "event": _tagged(entry.event), "effects": [_tagged(effect) for effect in entry.effects]} for entry in entries]


def _tagged(value: Event | Effect) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(value)
    return {"kind": type(value).__name__} | body


def _said(event: Event, asked: Mapping[str, str]) -> str:
    """The news in an event: what it says in a sentence, or else the fields that are not what they always are."""
    match event:
        case JobSubmitted(spec=spec) | JobResumed(spec=spec):
            return f"{spec.job}: {count(spec.nodes, 'node')} with {count(spec.ranks_per_node, 'rank')} each"
        case WorkerExited(node=node, exit=exit):
            return f"{node}, rank {exit.rank}: {exit.because}"
        case FindingMade(finding=finding):
            return f"{finding.kind}: {finding.because}"
        case IntervalChosen(every=every, from_step=from_step, because=because):
            return f"{saving_sentence(every, event.interval_s, because)}; from step {from_step:,} on"
        case EffectDone(effect=effect, stacks=stacks) if stacks:
            return f"{asked.get(effect, '')} {effect}, stacks of {count(len(stacks), 'rank')}"
        case EffectDone(effect=effect, profiles=profiles) if profiles:
            return f"{asked.get(effect, '')} {effect}, profiles of {count(len(profiles), 'rank')}"
        case EffectDone(effect=effect) | EffectFailed(effect=effect):
            return f"{asked.get(effect, '')} {effect}, {_fields(event, 'effect', 'generation')}"
        case _:
            return _fields(event)


def _fields(event: Event, *known: str) -> str:
    shown = []
    for field in fields(event):
        value = getattr(event, field.name)
        usual = field.default_factory() if field.default_factory is not MISSING else field.default
        if field.name not in ("at", *known) and value != usual:
            shown.append(str(value) if field.name == "because" else f"{field.name} {_short(value)}")
    return ", ".join(shown)


def _short(value: object) -> str:
    match value:
        case float():
            return f"{value:.2f}" if value < 1e6 else datetime.fromtimestamp(value, UTC).strftime("%H:%M:%S UTC")
        case tuple():
            return "+".join(str(one) for one in value)
        case dict() if len(value) > _SHORT_ITEMS:
            return f"of {len(value)} names; --json has them"
        case dict():
            return " ".join(f"{name}:{_short(inner)}" for name, inner in value.items())
        case _:
            return str(value)


# Small hands.


def _table(*columns: str | tuple[str, JustifyMethod]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False, pad_edge=False, header_style="dim")
    for column in columns:
        name = column if isinstance(column, str) else column[0]
        table.add_column(name, justify="left" if isinstance(column, str) else column[1], no_wrap=name not in ("what", "remedy"))
    return table


def _section(title: str) -> Text:
    return Text(f"\n{title}", style="bold")


def _indented(first: str, *rest: str) -> RenderableType:
    return Padding(Group(Text(first), *(Text(clean(line), style="dim") for line in rest)), (0, 0, 0, 2))
