"""How a diagnosis is shown: as a few lines for a person, as JSON for a program, as a page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from rich.console import Console
from rich.text import Text

from holdfast.cli.words import one_line
from holdfast.diagnose.causes import NUMBERS_ARE_BAD
from holdfast.diagnose.taxonomy import HEALTHY, UNKNOWN, Permanence, class_of
from holdfast.domain.job import Outcome
from holdfast.domain.log_diagnosis import LogDiagnosis, Quote
from holdfast.domain.log_event import LogDigest

_PAGE = Path(__file__).with_name("diagnose_page.html")
_RETRY = {
    Permanence.TRANSIENT.value: "yes: the job can run as it is, here a little later or on another node.",
    Permanence.PERMANENT.value: "no: the same job would end here again.",
    Permanence.UNCLEAR.value: "perhaps: the log does not say. Try it once more, on other nodes; if it fails in the same way, do not try again.",
}
_COLOUR = {Permanence.TRANSIENT.value: "yellow", Permanence.PERMANENT.value: "red", Permanence.UNCLEAR.value: "magenta"}
_SCOPES = {
    "worker": "one of the job's processes", "node": "the node", "network": "the network between the nodes", "storage": "the storage",
    "scheduler": "the scheduler", "external": "a service outside the job", "job_code": "the job's code", "data": "the job's data",
    "config": "the job's options, files, software or memory",
}  # fmt: skip
_SHOWN_CHARACTERS = 240
_CHANGES_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    path: str
    digest: LogDigest
    diagnosis: LogDiagnosis
    said: tuple[str, ...] = ()  # What could not be read, and why.
    outcome: Outcome | None = None  # Of one of our own jobs that has ended.
    changed: tuple[str, ...] = ()  # What is different since the last attempt of the job that worked.


def as_record(case: Case, *, explain: bool) -> dict[str, Any]:
    """What `--json` prints of a case."""
    one = case.diagnosis
    record: dict[str, Any] = {
        "path": case.path, "cause": one.cause, "permanence": one.permanence, "scope": one.scope, "confidence": round(one.confidence, 4),
        "alternatives": [{"cause": name, "probability": round(share, 4)} for name, share in one.alternatives],
        "evidence": [_quote_record(quote) for quote in one.evidence],
        "because": one.because, "action": one.action, "ranks": list(one.ranks), "node": one.node, "step": one.step, "fingerprint": one.fingerprint,
        "hardware_persists": class_of(one.cause).hardware_persists, "files": len(case.digest.paths), "lines": case.digest.lines,
        "changed": list(case.changed), "notes": [*case.digest.notes, *case.said],
    }  # fmt: skip
    if case.outcome is not None:
        record["outcome"] = str(case.outcome)
    if explain:
        record["reasoning"] = list(one.reasoning)
    return record


def _quote_record(quote: Quote) -> dict[str, Any]:
    return {"path": quote.path, "line": quote.line, "text": quote.text, "says": quote.says, "rank": quote.rank, "node": quote.node}


def retry_sentence(case: Case) -> str:
    if case.outcome is Outcome.FINISHED or case.diagnosis.cause == HEALTHY:
        return "there is nothing to try again."
    if case.outcome is Outcome.STOPPED:
        return "as you like: the job was stopped, and did not fail."
    return _RETRY[case.diagnosis.permanence]


def show(case: Case, console: Console, *, explain: bool) -> None:
    one = case.diagnosis
    style = "bold green" if one.cause == HEALTHY else f"bold {_COLOUR[one.permanence]}"
    console.print(Text.assemble((one.cause, style), f"  {one.confidence:.0%}  ", (one_line(case.path), "dim")))
    console.print(Text(one.because))
    for name, said in _rows(case):
        console.print(Text.assemble((f"{name:<7}", "bold"), said))
    if explain:
        console.print(Text("How:", style="bold"))
        for line in one.reasoning:
            console.print(Text(f"  {line}", style="dim"))
        known = class_of(one.cause)
        if one.cause not in (HEALTHY, UNKNOWN):
            console.print(Text(f"  {known.page}", style="dim"))
            console.print(Text(f"  Mistaken for: {', '.join(known.look_alikes)}", style="dim"))
    console.print()


def _rows(case: Case) -> list[tuple[str, str]]:
    one = case.diagnosis
    rows: list[tuple[str, str]] = []
    rows += _places(one)
    for number, quote in enumerate(one.evidence):
        rank = f" rank {quote.rank}" if quote.rank is not None else ""
        rows.append(("why" if number == 0 else "", f"{_place(quote)}{rank}  {one_line(quote.text)[:_SHOWN_CHARACTERS]}"))
    rows.append(("retry", retry_sentence(case)))
    rows.append(("now", one.action))
    if one.alternatives:
        rows.append(("else", ", ".join(f"{name} {share:.0%}" for name, share in one.alternatives)))
    if case.changed:
        rows.append(("since", f"the last attempt that worked: {_changes(case.changed)}"))
    rows += [("note", note) for note in case.digest.notes]
    return rows


def _changes(changed: Sequence[str]) -> str:
    return "; ".join(changed[:_CHANGES_SHOWN]) + (f"; and {len(changed) - _CHANGES_SHOWN} more, see --json" if len(changed) > _CHANGES_SHOWN else "")


def _places(one: LogDiagnosis) -> list[tuple[str, str]]:
    """Where it broke, and what is at fault."""
    return [row for row in (("where", where_sentence(one)), ("fault", _SCOPES.get(one.scope, ""))) if row[1]]


def where_sentence(one: LogDiagnosis) -> str:
    """On which ranks, on which node, and at which step."""
    ranks = f"rank {', '.join(map(str, one.ranks[:8]))}{' and others' if len(one.ranks) > 8 else ''}" if one.ranks else ""
    step = "" if one.step is None else f"from step {one.step} on" if one.cause == NUMBERS_ARE_BAD else f"after step {one.step}"
    return ", ".join(part for part in (ranks, f"node {one.node}" if one.node else "", step) if part)


def page(cases: Sequence[Case]) -> str:
    """Everything as one file: it loads nothing, runs nothing, and follows the reader's light or dark. Whatever came out of a log is escaped."""
    template = Template(_PAGE.read_text(encoding="utf-8"))
    title = cases[0].diagnosis.cause if len(cases) == 1 else f"{len(cases)} diagnoses"
    return template.substitute(title=escape(title), cases="\n".join(_section(case) for case in cases))


def _section(case: Case) -> str:
    one = case.diagnosis
    kind = "good" if one.cause == HEALTHY else one.permanence
    quotes = "".join(
        f'<li><code class="place">{escape(_place(quote))}</code>{_says(quote)}<pre>{escape(quote.text)}</pre></li>' for quote in one.evidence
    )
    others = "".join(
        f'<tr><td>{escape(name)}</td><td class="bar"><i style="width:{100 * share:.1f}%"></i></td><td>{share:.0%}</td></tr>'
        for name, share in ((one.cause, one.confidence), *one.alternatives)
    )
    how = "".join(f"<li>{escape(line)}</li>" for line in one.reasoning)
    notes = "".join(f"<p class=quiet>{escape(note)}</p>" for note in (*case.digest.notes, *case.said))
    places = "".join(f"<p><b>{name.capitalize()}</b> {escape(said)}</p>" for name, said in _places(one))
    return (
        f'<section class="{escape(kind)}"><p class="quiet">{escape(case.path)}</p><h1>{escape(one.cause)} <small>{one.confidence:.0%}</small></h1>'
        f"<p>{escape(one.because)}</p>{places}"
        f"{f'<p><b>Since the last attempt that worked</b> {escape(_changes(case.changed))}</p>' if case.changed else ''}"
        f"<p><b>Can trying again help?</b> {escape(retry_sentence(case))}</p><p><b>What to do now</b> {escape(one.action)}</p>"
        f"<h2>What speaks for it</h2><ul class=quotes>{quotes}</ul><h2>What else it could be</h2><table>{others}</table>"
        f"<details><summary>How it was come to</summary><ol>{how}</ol><p>{escape(class_of(one.cause).page)}</p></details>{notes}</section>"
    )


def _place(quote: Quote) -> str:
    return f"{quote.path}:{quote.line}" if quote.line else quote.path


def _says(quote: Quote) -> str:
    rank = f" rank {quote.rank}" if quote.rank is not None else ""
    return f'<span class="quiet">{escape(quote.says)}{rank}</span>'
