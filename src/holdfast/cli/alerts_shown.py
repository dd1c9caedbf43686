"""What `holdfast alerts list` shows, for a terminal and for programs."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.cli.checkpoints.drawing import new_table, when_text
from holdfast.cli.screen import Table
from holdfast.cli.words import one_line
from holdfast.control.alerts.outbox import Outbox
from holdfast.control.alerts.routing import Memory
from holdfast.domain.finding import Severity

_COLOURS = {Severity.INFO: "cyan", Severity.WARNING: "yellow", Severity.CRITICAL: "red"}
_VERDICTS = {"delivered": "green", "refused": "red", "dropped": "red"}
_SHOWN = 30  # Of what is done.


def _memory(outbox: Outbox) -> Memory:
    body = outbox.memory()
    return msgspec.json.decode(body, type=Memory) if body is not None else Memory(instance="")


def alerts_json(outbox: Outbox, now: float) -> dict[str, Any]:
    memory = _memory(outbox)
    firing = [{"id": one.id, "fingerprint": one.fingerprint, "severity": one.severity.value, "kind": one.kind, "summary": one.summary, "labels": one.labels,
               "starts_at": one.starts_at, "muted": memory.muted.get(one.fingerprint, "")} for one in memory.alerts.values() if one.fires]  # fmt: skip
    waiting = [{"id": one.notification.id, "sink": one.notification.sink, "title": one.notification.title, "since": one.since, "attempts": one.attempts,
                "due": one.due, "said": one.said} for one in outbox.waiting()]  # fmt: skip
    silences = [{"id": one.id, "match": [str(each) for each in one.match], "until": one.until, "because": one.because} for one in outbox.silences(now)]
    return {"firing": firing, "waiting": waiting, "done": [msgspec.to_builtins(one) for one in outbox.history()], "silences": silences}


def _table(*columns: str) -> Table:
    """Sentences are folded, and nothing else is."""
    table = new_table(*columns)
    for column in table.columns:
        column.no_wrap = column.header not in ("what", "said", "the last one", "because", "muted")
    return table


def alerts_tables(outbox: Outbox, now: float) -> RenderableType:
    memory = _memory(outbox)
    firing, waiting, done, silences = [one for one in memory.alerts.values() if one.fires], outbox.waiting(), outbox.history(_SHOWN), outbox.silences(now)
    shown: list[RenderableType] = []
    if firing:
        table = _table("firing", "severity", "what", "muted")
        for alert in firing:
            severity = Text(alert.severity, style=_COLOURS[alert.severity])
            table.add_row(alert.id, severity, Text(one_line(alert.summary)), memory.muted.get(alert.fingerprint, ""))
        shown.append(table)
    if waiting:
        table = _table("waiting for", "what", "tries", "the last one")
        for one in waiting:
            table.add_row(one.notification.sink, Text(one_line(one.notification.title)), str(one.attempts), Text(one_line(one.said or "–")))
        shown.append(table)
    if silences:
        table = _table("silence", "until", "what", "because")
        for silence in silences:
            table.add_row(str(silence.id), when_text(silence.until), Text(one_line(str(silence))), Text(one_line(silence.because)))
        shown.append(table)
    if done:
        table = _table("when", "sink", "became", "what", "said")
        for ended in done:
            verdict = Text(ended.verdict, style=_VERDICTS.get(ended.verdict, ""))
            table.add_row(when_text(ended.at), ended.sink, verdict, Text(one_line(ended.title)), Text(one_line(ended.said)))
        shown.append(table)
    return Group(*shown) if shown else Text("nothing fires, and nothing was sent yet")
