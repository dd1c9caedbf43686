"""What was learned, as tables for people and, in a `…_json` twin each, for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.checkpoints.drawing import new_table, size_text, when_text
from holdfast.cli.words import count, duration, one_line
from holdfast.domain.past import Correction, PastIncident
from holdfast.learn.corrections import standing
from holdfast.learn.decay import DAY_S
from holdfast.learn.lessons import Lessons
from holdfast.learn.precursors import Foretold
from holdfast.learn.remedies import HALF_LIFE_S as REMEDIES_HALF_LIFE_S
from holdfast.learn.reputation import Against, Reputation, Rules

_ROWS = 20


def search_table(found: Sequence[PastIncident]) -> RenderableType:
    if not found:
        return Text("No such incident.")
    table = new_table("incident", "when", "cause", "where", "done", "outcome", ("cost", "right"))
    for one in found:
        done = ", ".join(remedy.rung for remedy in one.remedies) or ("watched" if one.stands else "–")
        where = one_line(one.node) or ", ".join(f"rank {rank}" for rank in one.ranks[:3])
        table.add_row(one.id, when_text(one.opened_at), _cause(one.cause), where or "–", done, one.outcome.replace("_", " "), duration(one.cost_s))
    return table


def search_json(found: Sequence[PastIncident]) -> list[dict[str, Any]]:
    return [{"id": one.id, **msgspec.to_builtins(one)} for one in found]


def corrections_table(kept: Sequence[Correction]) -> RenderableType:
    if not kept:
        return Text("Nothing was corrected. `holdfast correct JOB/NUMBER CAUSE` does.")
    holding = standing(kept)
    table = new_table(("", "right"), "when", "who", "name", "")
    for one in kept:
        now = "revoked" if one.revoked_at is not None else "holds" if holding.get(one.fingerprint) == one else "replaced"
        what = f"{one_line(one.fingerprint)}: {_cause(one.cause)}, not {_cause(one.was)}" + (f"; {one_line(one.because)}" if one.because else "")
        table.add_row(str(one.number), when_text(one.at), one_line(one.who), what, now)
    return table


def report(lessons: Lessons, told: Sequence[tuple[str, Foretold]]) -> RenderableType:
    if not (lessons.taught or lessons.service or lessons.corrections):
        return Text("Nothing is remembered yet. Every job that runs adds to it; `holdfast learn rebuild` reads the journals of earlier ones.")
    nodes = lessons.nodes
    head = (
        f"From {count(len(lessons.taught), 'incident')}, {count(len(lessons.runs), 'run')} and {nodes.node_days:.1f} node-days"
        + (f", since {when_text(lessons.since)}" if lessons.taught else "")
        + f". New jobs start with version {lessons.learned('').version} of this; `holdfast run --no-learning` with none."
    )
    parts: list[RenderableType] = [Text(head), *_nodes(lessons), *_foretold(told), *_remedies(lessons), *_memory(lessons), *_corrections(lessons)]
    return Group(*parts)


def report_json(lessons: Lessons, told: Sequence[tuple[str, Foretold]]) -> dict[str, Any]:
    nodes = lessons.nodes
    return {
        "incidents": len(lessons.taught), "runs": len(lessons.runs), "node_days": nodes.node_days, "since": lessons.since if lessons.taught else None,
        "version": lessons.learned("").version,
        "fleet": {
            "faults_per_node_day": nodes.fleet_per_day, "lemons": [one.node for one in nodes.lemons], "healthy_on_the_list_expected": nodes.expected_false,
            "half_life_s": Rules().half_life_s,
        },
        "nodes": [_node_json(one) for one in nodes.nodes],
        "foretold": [{"node": node, **msgspec.to_builtins(one)} for node, one in told],
        "remedies": {"half_life_s": REMEDIES_HALF_LIFE_S, "rows": [msgspec.to_builtins(one) for one in lessons.remedies]},
        "memory": [msgspec.to_builtins(one) for one in lessons.peaks],
        "corrections": [msgspec.to_builtins(one) for one in lessons.corrections],
        "changed": {"plans_with_learned_tables": _with_tables(lessons), "suspects": list(lessons.learned("").suspects)},
    }  # fmt: skip


def _nodes(lessons: Lessons) -> list[RenderableType]:
    nodes = lessons.nodes
    if not nodes.nodes:
        return []
    listed = nodes.lemons
    said = (
        f"{count(len(listed), 'lemon')} of {count(len(nodes.nodes), 'node')}; of healthy nodes {nodes.expected_false:.2g} are expected on the list by chance. "
        f"A healthy node has {nodes.fleet_per_day:.2g} faults a day. Forgotten by half in {Rules().half_life_s / DAY_S:.0f} days."
    )
    table = new_table("node", ("faults", "right"), ("days", "right"), ("times others", "right"), "90 %", "mostly", "")
    for one in nodes.nodes[:_ROWS]:
        table.add_row(
            one_line(one.node), str(one.seen), f"{one.service_s / DAY_S:.1f}", f"{one.all.times:.1f}", _between(one.all),
            _cause(one.causes[0][0]) if one.causes else "–", Text("lemon", style="red") if one.lemon else "",
        )  # fmt: skip
    return [_section("Nodes"), Text(said), table, *_left_out(len(nodes.nodes))]


def _foretold(told: Sequence[tuple[str, Foretold]]) -> list[RenderableType]:
    """Only alarms: the model was fitted on simulated nodes, and a list of small numbers would say more than it knows."""
    sick = [(node, one) for node, one in told if one.alarm]
    if not sick:
        return []
    said = Text("By a model fitted on simulated nodes: look at them, and drain them if you agree. Nothing acts on it.")
    return [_section("About to fail"), said, *(Padding(Text(f"{one_line(node)}: {one.says}"), (0, 0, 0, 2)) for node, one in sick[:_ROWS])]


def _remedies(lessons: Lessons) -> list[RenderableType]:
    if not lessons.remedies:
        return []
    table = new_table("name", "remedy", ("helped", "right"), "chance (90 %)", ("cost", "right"))
    for one in lessons.remedies[:_ROWS]:
        tries = one.worked + one.failed
        low, high = beta_limits(one.worked, one.failed)
        rung = f"{one.rung} again" if one.again else one.rung
        cost_s = (one.worked * one.worked_s + one.failed * one.failed_s) / tries
        chance = f"{100 * (one.worked + 1) / (tries + 2):.0f} % ({100 * low:.0f} to {100 * high:.0f})"
        name = f"  {one_line(one.fingerprint)}" if one.fingerprint else _cause(one.cause)
        table.add_row(name, rung, f"{one.worked:.1f} of {tries:.1f}", chance, duration(cost_s))
    with_tables = count(_with_tables(lessons), "incident")
    forgotten = f"Forgotten by half in {REMEDIES_HALF_LIFE_S / DAY_S:.0f} days."
    said = f"By cause, and below it by fingerprint. {forgotten} Answered with such a table in hand: {with_tables}."
    return [_section("Remedies"), Text(said), table, *_left_out(len(lessons.remedies))]


def _memory(lessons: Lessons) -> list[RenderableType]:
    if not lessons.peaks:
        return []
    table = new_table("command", "shape", ("runs", "right"), ("peak of a worker", "right"), "95 %")
    for one in lessons.peaks[:_ROWS]:
        shape = ", ".join(f"{name}={value}" for name, value in one.shape)
        between = f"{size_text(one.low_bytes)} to {size_text(one.high_bytes)}"
        table.add_row(one_line(one.command), one_line(shape) or "–", str(one.runs), size_text(one.bytes), between)
    return [_section("Memory"), table, *_left_out(len(lessons.peaks))]


def _corrections(lessons: Lessons) -> list[RenderableType]:
    return [_section("Corrections"), corrections_table(lessons.corrections)] if lessons.corrections else []


def _with_tables(lessons: Lessons) -> int:
    return sum(1 for one in lessons.taught if one.learned)


def beta_limits(worked: float, failed: float) -> tuple[float, float]:
    """Between which the chance lies with 90 %: of a Beta distribution that began even. By its normal approximation on the scale of log-odds."""
    first, second = worked + 1.0, failed + 1.0
    middle, spread = math.log(first / second), 1.645 * math.sqrt(1.0 / first + 1.0 / second)
    return 1.0 / (1.0 + math.exp(spread - middle)), 1.0 / (1.0 + math.exp(-spread - middle))


def _node_json(one: Reputation) -> dict[str, Any]:
    return {
        "node": one.node, "faults": one.seen, "service_days": one.service_s / DAY_S, "lemon": one.lemon, "because": one.because,
        "chance_if_healthy": one.chance, **_against_json(one.all), "causes": {cause: _against_json(against) for cause, against in one.causes},
    }  # fmt: skip


def _against_json(one: Against) -> dict[str, float]:
    return {"decayed_faults": one.faults, "per_day": one.rate.mean * DAY_S, "times_others": one.times, "low": one.low, "high": one.high}


def _between(one: Against) -> str:
    return f"{one.low:.1f} to {one.high:.1f}"


def _cause(cause: str) -> str:
    return one_line(cause.removeprefix("rule:").replace("_", " ")) or "–"


def _left_out(number: int) -> list[RenderableType]:
    return [Text(f"… and {number - _ROWS} more: --json has all", style="dim")] if number > _ROWS else []


def _section(title: str) -> Text:
    return Text(f"\n{title}", style="bold")
