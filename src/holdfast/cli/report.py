"""The report: what happened to a job and what it cost, as one page that needs nothing else, and as text.

`write_report` makes an HTML file with charts drawn into it. It loads nothing, runs nothing, prints well, follows the reader's light or dark, and
says everything in words and tables that it says in pictures. Whatever came out of the job is escaped.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from io import StringIO
from pathlib import Path
from string import Template

from rich.console import Console, Group

from holdfast.cli.charts import Bar, Mark, Point, line_chart, span_chart, stacked_bar
from holdfast.cli.tables import show, story
from holdfast.cli.words import (
    BUCKET_MEANS,
    OUTCOME_SAYS,
    bill_of,
    bill_sentence,
    cause_of,
    clean,
    cost_s,
    cost_words,
    count,
    culprit_of,
    duration,
    goodput_of,
    last_words,
    one_line,
    printed,
    remedy_of,
    saving_sentence,
    share_text,
    shares_of,
    steps_again,
    timeline,
    why_unknown,
)
from holdfast.domain.diagnosis import Diagnosis
from holdfast.domain.goodput import Bucket
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.plan import Candidate, Plan
from holdfast.domain.state import State

_TABLE_ROWS = 24  # Of a chart's figures; the rest is in the history itself.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How training stood at one moment. `at` is on the clock of the journal."""

    at: float
    step: int
    loss: float | None = None
    steps_per_s: float | None = None
    generation: int = 0


def write_report(state: State, history: Sequence[Sample], path: Path) -> None:
    """Write the page; a reader of an older one at `path` sees that or the new one, never half."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(page(state, history), encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def text_report(state: State, *, loss: float | None = None, columns: int = 80, color: bool = False) -> str:
    """The same for a terminal: the ledger, then every incident's story."""
    out = StringIO()
    console = Console(file=out, width=columns, force_terminal=color, no_color=not color, highlight=False)
    console.print(Group(show(state, loss=loss), *itertools.chain.from_iterable(("", story(state, incident)) for incident in state.incidents)))
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n"))


def page(state: State, history: Sequence[Sample]) -> str:
    template = Template(Path(__file__).with_name("report_page.html").read_text(encoding="utf-8"))
    name = one_line(state.spec.job) if state.spec is not None else "job"
    sections = [_head(state, history), _time(state), _training(state, history), _incidents(state), _last_words(state)]
    return template.substitute(title=escape(f"{name}: {_outcome(state)}"), body="\n".join(section for section in sections if section))


# The head.


def _head(state: State, history: Sequence[Sample]) -> str:
    spec = state.spec
    began = datetime.fromtimestamp(state.ledger.spans[0].since, UTC).strftime("%-d %B %Y, %H:%M UTC") if state.ledger.spans else ""
    ran = f"<code>{escape(one_line(' '.join(spec.argv)))}</code> on {count(spec.nodes, 'node')} with {count(spec.ranks_per_node, 'rank')} each" if spec else ""
    figures = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in _figures(state, history))
    chosen = state.interval
    saving = f'<p class="quiet">S{escape(saving_sentence(chosen.every, chosen.interval_s, chosen.because))[1:]}.</p>' if chosen is not None else ""
    return (
        f'<header><p class="kind">Holdfast report</p><h1>{escape(one_line(spec.job) if spec else "job")}</h1>'
        f'<p class="outcome {state.outcome or "open"}"><strong>{escape(_outcome(state).capitalize())}</strong> '
        f"after {duration(state.ledger.run_s)}: {escape(one_line(state.because))}.</p>"
        f'<p class="quiet">{ran}, begun {escape(began)}</p><dl class="figures">{figures}</dl>{saving}</header>'
    )


def _outcome(state: State) -> str:
    return OUTCOME_SAYS[state.outcome] if state.outcome is not None else f"still {state.phase}"


def _figures(state: State, history: Sequence[Sample]) -> list[tuple[str, str]]:
    figures = [("goodput", goodput_of(state.ledger)), ("run time", duration(state.ledger.run_s))]
    if state.step_best >= 0:
        figures.append(("steps", f"{state.step_best:,}"))
    losses = [sample.loss for sample in history if sample.loss is not None and math.isfinite(sample.loss)]
    if losses:
        figures.append(("last loss", f"{losses[-1]:.3f}"))
    figures.append(("incidents", str(len(state.incidents))))
    resolved = [one for one in state.incidents if one.phase is IncidentPhase.RESOLVED and not one.stands]
    recoveries = sorted(one.closed_at - one.began_at for one in resolved if one.closed_at is not None)
    if recoveries:
        figures.append(("median recovery", duration(recoveries[len(recoveries) // 2])))
    return figures


# Where the time went.


def _time(state: State) -> str:
    if not state.ledger.spans:
        return ""
    ordered = sorted(shares_of(state.ledger), key=lambda row: (row[2] is None, row[0] is not Bucket.PRODUCTIVE, -row[1]))
    run = [(bucket, seconds, share) for bucket, seconds, share in ordered if share is not None]
    ends = list(itertools.accumulate(seconds for _, seconds, _ in run))
    bars = [
        Bar(kind=f"b-{bucket}", since=end - seconds, until=end, title=f"{bucket}: {duration(seconds)}, {share:.1f} %")
        for (bucket, seconds, share), end in zip(run, ends, strict=True)
    ]
    says = ", ".join(f"{bucket} {share:.1f} percent" for bucket, _, share in run)
    rows = "".join(
        f'<tr><th scope="row"><span class="key b-{bucket}"></span>{bucket}</th><td class="quiet">{escape(BUCKET_MEANS[bucket])}</td>'
        f'<td class="number">{duration(seconds)}</td><td class="number">{share_text(share)}</td></tr>'
        for bucket, seconds, share in ordered
    )
    head = '<tr><th scope="col">bucket</th><th scope="col">meaning</th><th scope="col" class="number">time</th><th scope="col" class="number">share</th></tr>'
    foot = f'<tr><th scope="row">run time</th><td></td><td class="number">{duration(state.ledger.run_s)}</td><td class="number">100.0 %</td></tr>'
    goodput = why_unknown(state.ledger) or goodput_of(state.ledger)
    return (
        '<section id="time"><h2>Where the time went</h2>'
        f"<p>Every second of the job is in one bucket. Goodput is the productive share of the time it was run: <strong>{escape(goodput)}</strong>.</p>"
        f"{stacked_bar('Share of run time by bucket', bars, says=says)}"
        f"<table><thead>{head}</thead><tbody>{rows}</tbody><tfoot>{foot}</tfoot></table></section>"
    )


# How training went.


def _training(state: State, history: Sequence[Sample]) -> str:
    if not history:
        return ""
    began = state.ledger.spans[0].since if state.ledger.spans else history[0].at
    in_time = _time_marks(state, began)
    by_time = _runs(history, lambda sample: (sample.at - began, _value(sample.loss)))
    by_step = _runs(history, lambda sample: (float(sample.step), _value(sample.loss)))
    rates = _runs(history, lambda sample: (sample.at - began, _value(sample.steps_per_s)))
    losses = [sample for sample in history if sample.loss is not None]
    bad = sum(1 for sample in losses if not math.isfinite(_value(sample.loss)))
    note = f" {count(bad, 'sample')} had a loss that is not a number; the line breaks there." if bad else ""
    charts = []
    if losses:
        charts += [
            "<h3>Loss over time</h3>",
            line_chart("Loss over time", by_time, in_time, x_label=_time_label, timed=True, says=_loss_says(losses)),
            "<h3>Loss over steps</h3>",
            line_chart("Loss over steps", by_step, _step_marks(state), x_label=lambda step: f"{step:,.0f}", timed=False, says=_loss_says(losses)),
        ]
    charts += [
        "<h3>Steps per second</h3>",
        line_chart("Steps per second over time", rates, in_time, x_label=_time_label, timed=True, from_zero=True, says="How fast training went."),
    ]
    told = "Numbered marks are incidents; each leads to its story." if state.incidents else "No incidents."
    return f'<section id="training"><h2>How training went</h2><p>{told}{note}</p>{"".join(charts)}{_samples_table(history, began)}</section>'


def _value(value: float | None) -> float:
    return math.nan if value is None else value


def _time_label(seconds: float) -> str:
    return duration(seconds) if seconds else "0"


def _runs(history: Sequence[Sample], point: Callable[[Sample], Point]) -> list[list[Point]]:
    """One line for each generation: between two of them nothing was measured, so nothing is drawn."""
    return [[point(sample) for sample in run] for _, run in itertools.groupby(history, key=lambda sample: sample.generation)]


def _loss_says(losses: Sequence[Sample]) -> str:
    first, last = losses[0], losses[-1]
    return f"The loss went from {_value(first.loss):.3f} at step {first.step} to {_value(last.loss):.3f} at step {last.step}."


def _time_marks(state: State, began: float) -> list[Mark]:
    return [_mark(one, one.began_at - began, (one.closed_at if one.closed_at is not None else state.at) - began) for one in state.incidents]


def _step_marks(state: State) -> list[Mark]:
    return [_mark(one, one.step_before, one.step_before) for one in state.incidents if one.step_before >= 0]


def _mark(incident: Incident, since: float, until: float) -> Mark:
    title = f"Incident {incident.id}: {cause_of(incident)}"
    return Mark(since=since, until=until, label=str(incident.id), title=title, href=f"#incident-{incident.id}")


def _samples_table(history: Sequence[Sample], began: float) -> str:
    stride = max(1, math.ceil(len(history) / _TABLE_ROWS))
    rows = "".join(
        f'<tr><td class="number">{duration(one.at - began)}</td><td class="number">{_cell(one.step if one.step >= 0 else None, 0)}</td>'
        f'<td class="number">{_cell(one.loss, 4)}</td>'
        f'<td class="number">{_cell(one.steps_per_s, 2)}</td><td class="number">{one.generation}</td></tr>'
        for one in history[::stride]
    )
    names = ("time", "step", "loss", "steps per second", "generation")
    head = "".join(f'<th scope="col" class="number">{name}</th>' for name in names)
    which = "The figures" if stride == 1 else f"Every {stride}th of the figures"
    return f"<details><summary>{which} as a table</summary><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></details>"


def _cell(value: float | None, decimals: int) -> str:
    return "–" if value is None else f"{value:.{decimals}f}"


# Incidents.


def _incidents(state: State) -> str:
    if not state.incidents:
        return '<section id="incidents"><h2>Incidents</h2><p>None. Nothing went wrong that Holdfast could see.</p></section>'
    rows = "".join(_incident_row(state, incident) for incident in state.incidents)
    names = (("#", "number"), ("at", "number"), ("what", ""), ("remedy", ""), ("outcome", ""), ("cost", "number"), ("steps redone", "number"))
    head = "".join(f'<th scope="col" class="{kind}">{name}</th>' for name, kind in names)
    table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    return f'<section id="incidents"><h2>Incidents</h2>{table}{"".join(_incident(state, incident) for incident in state.incidents)}</section>'


def _incident_row(state: State, incident: Incident) -> str:
    again, cost = steps_again(incident), cost_s(state, incident)
    at = incident.opened_at - state.ledger.spans[0].since if state.ledger.spans else 0.0
    return (
        f'<tr><td class="number">{incident.id}</td><td class="number">{duration(at)}</td>'
        f'<td><a href="#incident-{incident.id}">{escape(cause_of(incident))}</a></td><td>{escape(remedy_of(incident))}</td><td>{_phase(incident)}</td>'
        f'<td class="number">{"–" if cost is None else duration(cost)}</td>'
        f'<td class="number">{"–" if again is None else f"{again:,}"}</td></tr>'
    )


def _phase(incident: Incident) -> str:
    return f'<span class="phase {incident.phase}">{str(incident.phase).replace("_", " ")}</span>'


def _incident(state: State, incident: Incident) -> str:
    bill, cost = bill_of(state, incident), cost_words(state, incident)
    again = steps_again(incident)
    lost = f"; {count(again, 'step')} done again" if again is not None else ""
    parts = [
        f'<h3><span class="badge">{incident.id}</span> {escape(cause_of(incident).capitalize())} {_phase(incident)}</h3>',
        f"<p>{escape(_because(incident))}</p>",
        _spans(state, incident),
        f'<p class="quiet">{escape(cost[:1].upper() + cost[1:])}{lost}: {escape(bill_sentence(bill))}</p>' if bill else "",
        "<h4>Timeline</h4>",
        _story(incident),
        *(_diagnosis(diagnosis) for diagnosis in incident.diagnoses),
        *(_plan(plan) for plan in incident.plans),
        _folds(incident),
    ]
    return f'<article id="incident-{incident.id}">{"".join(parts)}</article>'


def _because(incident: Incident) -> str:
    said = incident.diagnoses[-1].because if incident.diagnoses else incident.findings[0].because if incident.findings else "Not known yet"
    said = one_line(said)
    return f"{said[:1].upper()}{said[1:]}."


def _spans(state: State, incident: Incident) -> str:
    """Each part of the recovery on its own row, to the end of the work that was done again."""
    if incident.stands:
        return ""
    until = min((other.began_at for other in state.incidents if other.id > incident.id and not other.stands), default=state.at)
    closed = incident.closed_at if incident.closed_at is not None else state.at
    rows: dict[Bucket, list[Bar]] = {}
    for span in state.ledger.spans:
        last = until if span.bucket is Bucket.RECOMPUTE else closed
        since, end = max(span.since, incident.began_at) - incident.began_at, min(span.until, last) - incident.began_at
        if end > since and span.bucket not in (Bucket.PRODUCTIVE, Bucket.UNKNOWN, Bucket.DOWN):
            rows.setdefault(span.bucket, []).append(Bar(kind=f"b-{span.bucket}", since=since, until=end, title=f"{span.bucket}: {duration(end - since)}"))
    _cut_restore(rows, incident.costs.get(Bucket.RESTORE, 0.0))
    if not rows:
        return ""
    ordered = sorted(rows.items(), key=lambda row: row[1][0].since)
    says = ", then ".join(f"{bucket} {duration(sum(bar.until - bar.since for bar in bars))}" for bucket, bars in ordered)
    return span_chart(f"Parts of incident {incident.id}, in seconds from the fault on", [(str(bucket), bars) for bucket, bars in ordered], says=says)


def _cut_restore(rows: dict[Bucket, list[Bar]], seconds: float) -> None:
    """The ledger learns only afterwards how long the ranks restored: it was the end of their rendezvous."""
    joining = rows.get(Bucket.RENDEZVOUS, [])
    if not joining or seconds <= 0:
        return
    last = joining.pop()
    cut = max(last.since, last.until - seconds)
    rows[Bucket.RESTORE] = [Bar(kind=f"b-{Bucket.RESTORE}", since=cut, until=last.until, title=f"restore: {duration(last.until - cut)}")]
    if cut > last.since:
        joining.append(Bar(kind=last.kind, since=last.since, until=cut, title=f"rendezvous: {duration(cut - last.since)}"))
    elif not joining:
        del rows[Bucket.RENDEZVOUS]


def _story(incident: Incident) -> str:
    rows = "".join(f'<tr><td class="number">{when}</td><td>{escape(what)}</td></tr>' for when, what in timeline(incident))
    return f'<table class="story"><tbody>{rows}</tbody></table>'


def _diagnosis(diagnosis: Diagnosis) -> str:
    lasting = "permanent: trying again cannot help" if diagnosis.permanent else "may pass"
    whose = f", {culprit_of(diagnosis)}" if culprit_of(diagnosis) else ""
    said = f"{diagnosis.cause.replace('_', ' ')}{whose}, {diagnosis.confidence * 100:.0f} % sure; {lasting}"
    return f"<h4>Diagnosis</h4><p>{escape(said)}</p>{_list('Evidence', diagnosis.evidence)}{_list('What else it could be', diagnosis.alternatives)}"


def _plan(plan: Plan) -> str:
    said = f"<strong>{plan.name}</strong>: {escape(one_line(plan.because))}"
    return f"<h4>Plan</h4><p>{said}</p>{_list('Considered and not chosen', plan.alternatives)}{_candidates(plan)}"


def _candidates(plan: Plan) -> str:
    if not plan.candidates:
        return ""
    rows = "".join(
        f"<tr><td>{'→ ' if one.name == plan.name else ''}{one.name}</td>"
        + ("".join(f"<td>{said}</td>" for said in _weighed(one)) if one.possible else "<td>–</td>" * 4)
        + f"<td>{escape(one_line(one.because))}</td></tr>"
        for one in plan.candidates
    )
    head = "".join(f"<th>{said}</th>" for said in ("rung", "costs", "of it again", "in vain", "expected", "because"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _weighed(one: Candidate) -> tuple[str, ...]:
    return duration(one.cost_s), duration(one.again_s), f"{100 * one.risk:.0f} %", duration(one.expected_s)


def _list(title: str, lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(one_line(line))}</li>" for line in lines)
    return f'<p class="lead">{title}</p><ul>{items}</ul>' if items else ""


def _folds(incident: Incident) -> str:
    """Stacks and last lines are long, and needed by few: folded, and opened without a script."""
    ranks = sorted(incident.stacks, key=lambda rank: (len(rank), rank))
    stacks = "".join(_fold(f"rank {rank}", clean(incident.stacks[rank])) for rank in ranks)
    tails = "".join(_fold(f"rank {exit.rank}: {exit.because}", printed(exit.tail)) for exit in incident.exits if exit.tail)
    folds = (("Stacks of all ranks when it hung", stacks), ("Last lines of the ranks that left", tails))
    return "".join(f"<details><summary>{title}</summary>{body}</details>" for title, body in folds if body)


def _fold(title: str, text: str) -> str:
    return f"<h5>{escape(one_line(title))}</h5><pre>{escape(text)}</pre>"


def _last_words(state: State) -> str:
    words = last_words(state)
    if not words:
        return ""
    title, _, text = words.partition("\n\n")
    return f'<section id="cause"><h2>The first cause</h2><p>{escape(title)}</p><pre>{escape(text.strip())}</pre></section>'
