"""`holdfast learn`: what was learned from earlier jobs, from how much, since when, how sure, and what it changed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli.checkpoints.drawing import print_json
from holdfast.cli.common import AsJson, State
from holdfast.cli.foretelling import foretold
from holdfast.cli.job import jobs, runs_of, state_of
from holdfast.cli.learning_shown import corrections_table, report, report_json
from holdfast.cli.lessons import lessons_in
from holdfast.cli.screen import Screen
from holdfast.cli.words import count, one_line
from holdfast.control.past import Past
from holdfast.errors import HoldfastError, UserError
from holdfast.launch.layout import past_database
from holdfast.learn.corrections import material, standing
from holdfast.learn.remembering import past_of
from holdfast.settings import state_root

app = typer.Typer()


@app.command("report")
def report_command(state: State = None, as_json: AsJson = False) -> None:
    """What was learned: from how much, since when, how sure, and what it changed."""
    root, now = state_root(state), time.time()
    lessons, told = lessons_in(root, now), foretold(root, now)
    print_json(report_json(lessons, told)) if as_json else Screen().print(report(lessons, told))


@app.command("export")
def export(
    to: Annotated[Path, typer.Argument(metavar="FILE", help="One JSON object a line; - for the standard output.")],
    corrections: Annotated[bool, typer.Option("--corrections", help="Only what people corrected, as labelled texts: what training takes.")] = False,
    state: State = None,
) -> None:
    """Write all that is remembered, or the corrections as material to train with."""
    lessons = lessons_in(state_root(state), time.time())
    rows: list[Any]
    if corrections:
        rows = material(lessons.corrections)
    else:
        kinds = (("incident", lessons.incidents), ("service", lessons.service), ("run", lessons.runs), ("correction", lessons.corrections))
        rows = [{"kind": kind, **msgspec.to_builtins(one)} for kind, kept in kinds for one in kept]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    if str(to) == "-":
        print(text, end="")
        return
    try:
        to.write_text(text)
    except OSError as error:
        raise UserError(f"{to} cannot be written: {error.strerror}; name another file") from error
    print(f"{count(len(rows), 'row')} written to {to}")


@app.command("corrections")
def corrections_command(state: State = None, as_json: AsJson = False) -> None:
    """List what people corrected, also what was revoked."""
    with Past(past_database(state_root(state)), read_only=True) as past:
        kept = past.corrections()
    if as_json:
        holding = standing(kept)
        print_json([{**msgspec.to_builtins(one), "holds": holding.get(one.fingerprint) == one} for one in kept])
    else:
        Screen().print(corrections_table(kept))


@app.command("revoke")
def revoke(number: Annotated[int, typer.Argument(help="As `holdfast learn corrections` lists it.")], state: State = None, as_json: AsJson = False) -> None:
    """Take a correction back: the next answer is what it was before."""
    with Past(past_database(state_root(state))) as past:
        kept = past.corrections()
        one = next((one for one in kept if one.number == number), None)
        if one is None or one.revoked_at is not None:
            why = "it is revoked already" if one is not None else f"there are {len(kept)}: `holdfast learn corrections` lists them"
            raise UserError(f"there is no correction {number} to revoke; {why}")
        past.revoke(one, time.time())
    said = f"correction {number} is revoked: {one.fingerprint} is no longer taken for {one.cause}"
    print_json({"number": number, "revoked": True}) if as_json else print(said)


@app.command("rebuild")
def rebuild(state: State = None, as_json: AsJson = False) -> None:
    """Read the journals of all jobs again and put their incidents into the history. What is there already stays one row."""
    root = state_root(state)
    incidents, unread = [], []
    for directory in jobs(root):
        try:
            runs = runs_of(directory)
            incidents += [past_of(directory.job, incident, runs) for incident in state_of(directory).incidents]
        except (HoldfastError, msgspec.MsgspecError) as error:
            unread.append(f"{directory.job}: {one_line(str(error))}")
    with Past(past_database(root)) as past:
        past.keep(incidents=incidents)
    if as_json:
        print_json({"incidents": len(incidents), "unread": unread})
    else:
        print(f"{count(len(incidents), 'incident')} of {count(len(jobs(root)), 'job')} in the history")
        for line in unread:
            print(f"holdfast: not read: {line}", file=sys.stderr)
