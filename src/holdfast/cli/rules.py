"""`holdfast rules`: which rules are in force, whether one's own are good, whether they do what their tests say, and the same for Prometheus."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from holdfast.cli.checkpoints.drawing import new_table, print_json
from holdfast.cli.common import AsJson
from holdfast.cli.screen import Screen
from holdfast.cli.words import count, one_line
from holdfast.control.rulebook import own, rules_in_force, shipped, text_of
from holdfast.detect.rules.cases import Case, Result, read_cases, run_case
from holdfast.detect.rules.document import Problem
from holdfast.detect.rules.evaluate import limit
from holdfast.detect.rules.prometheus import SCRAPE_S, Exported, exported, promtool_tests
from holdfast.detect.rules.reading import RuleSet, combined
from holdfast.detect.rules.rule import Rule
from holdfast.detect.rules.units import BadNumber, duration_s, short_duration
from holdfast.domain.finding import Severity
from holdfast.errors import UserError

Own = Annotated[list[Path] | None, typer.Option("--rules", metavar="FILE", help="Rules of your own; they add to the shipped ones. May be given often.")]
Sampling = Annotated[str, typer.Option("--sampling", metavar="TIME", help="How often readings are taken: no window may be shorter.")]
_COLOURS = {Severity.INFO: "cyan", Severity.WARNING: "yellow", Severity.CRITICAL: "red"}

app = typer.Typer()


@app.command("check")
def check(files: Annotated[list[Path], typer.Argument(metavar="FILE…")], sampling: Sampling = "1s", as_json: AsJson = False) -> None:
    """Read files of rules and say what is wrong with them. Exit code 1 when something is."""
    read = own(files, sampling_s=_seconds(sampling, "--sampling"))
    found = combined(shipped(), read)
    rules = sorted((rule for one in read for rule in one.rules), key=lambda rule: rule.name)
    if as_json:
        print_json({"ok": not found.problems, "problems": [_problem_json(one) for one in found.problems], "rules": [rule.name for rule in rules],
                    "replaced": list(found.replaced), "disabled": list(found.disabled)})  # fmt: skip
    else:
        for problem in found.problems:
            print(one_line(str(problem)))
        notes = [f"{len(names)} {what}: {', '.join(names)}" for what, names in (("replaced", found.replaced), ("switched off", found.disabled)) if names]
        good = f"{count(len(rules), 'rule')} good" + "".join(f"; {note}" for note in notes)
        print(good if not found.problems else f"{count(len(found.problems), 'problem')}; {good}")
    raise typer.Exit(1 if found.problems else 0)


@app.command("test")
def test(files: Annotated[list[Path], typer.Argument(metavar="FILE…")], rules: Own = None, as_json: AsJson = False) -> None:
    """Run tests of rules: series of values, and what must be firing when. Exit code 1 when one fails."""
    by_name = {rule.name: rule for rule in _good(rules_in_force(rules or ())).rules}
    cases, problems = _read(files, by_name)
    results = [run_case(case, by_name[case.rule]) for case in cases]
    failed = [result for result in results if result.failures]
    if as_json:
        print_json({"ok": not failed and not problems, "problems": [_problem_json(one) for one in problems], "tests": [_result_json(one) for one in results]})
    else:
        for problem in problems:
            print(one_line(str(problem)))
        for result in failed:
            print(f"{result.case.file}:{result.case.line}: {result.case.rule}: {one_line(result.case.name)}")
            print("".join(f"    {one_line(failure)}\n" for failure in result.failures), end="")
        bad = f", {len(failed)} failed" if failed else ""
        unread = f", {len(problems)} cannot be read" if problems else ""
        print(f"{count(len(results), 'test')} of {count(len({case.rule for case in cases}), 'rule')}{bad}{unread}")
    raise typer.Exit(1 if failed or problems else 0)


@app.command("list")
def list_(rules: Own = None, as_json: AsJson = False) -> None:
    """List the rules in force: those that come with Holdfast, and your own."""
    found = _good(rules_in_force(rules or ()))
    if as_json:
        print_json([_rule_json(rule) for rule in found.rules])
    else:
        Screen().print(_list_table(found))


@app.command("export")
def export(
    prometheus: Annotated[bool, typer.Option("--prometheus", help="As rule files of Prometheus; there is no other format yet.")] = True,
    rules: Own = None,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write the rules.", show_default="standard output")] = None,
    tests: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Write these tests of rules for promtool too, beside the rules. May be given often; needs --to.")
    ] = None,
    scrape: Annotated[str, typer.Option(metavar="TIME", help="How often Prometheus asks: a window must hold two answers.")] = short_duration(SCRAPE_S),
    as_json: AsJson = False,
) -> None:
    """Write the rules in force for Prometheus. Exit code 1 when a rule cannot be said in PromQL; which one and why is said."""
    if tests and to is None:
        raise UserError("--tests writes files beside the rules, and there is no file of rules. Say where with --to FILE.")
    found = _good(rules_in_force(rules or ()))
    made = exported(found.rules, scrape_s=_seconds(scrape, "--scrape"))
    written = _write(made, found.rules, to, tests or ())
    if as_json:
        print_json({"rules": list(made.rules), "left_out": dict(made.left_out), "files": [str(path) for path in written], "text": made.text})
    elif to is None:
        print(made.text, end="")
    said = Console(stderr=True, highlight=False, soft_wrap=True)
    for name, reason in made.left_out.items():
        said.print(Text(f"holdfast: left out: {name}: {one_line(reason)}"))
    if to is not None and not as_json:
        print(f"{count(len(made.rules), 'rule')} in {to}" + "".join(f"; tests in {path}" for path in written[1:]))
    raise typer.Exit(1 if made.left_out else 0)


def _write(made: Exported, rules: Iterable[Rule], to: Path | None, tests: Sequence[Path]) -> list[Path]:
    """The rules, and beside them one file of tests for each pace, because a file of promtool has one."""
    if to is None:
        return []
    texts = {to: made.text}
    if tests:
        kept = [rule for rule in rules if rule.name in made.rules]
        cases, problems = _read(tests, {rule.name: rule for rule in rules})
        if problems:
            raise UserError("the tests cannot be read:\n" + "\n".join(f"  {problem}" for problem in problems))
        cases = [case for case in cases if case.rule in made.rules]
        for every_s in sorted({case.every_s for case in cases}):
            path = to.with_name(f"{to.stem}.test-{short_duration(every_s)}.yaml")
            texts[path] = promtool_tests([case for case in cases if case.every_s == every_s], kept, to.name)
    for path, text in texts.items():
        _put(path, text)
    return list(texts)


def _put(path: Path, text: str) -> None:
    """Whole or not at all: Prometheus may read it at any moment."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}. Name another file with --to.") from error


def _read(files: Sequence[Path], rules: Iterable[str]) -> tuple[list[Case], list[Problem]]:
    names = list(rules)
    cases: list[Case] = []
    problems: list[Problem] = []
    for path in files:
        some, wrong = read_cases(text_of(path), str(path), names)
        cases += some
        problems += wrong
    return cases, problems


def _good(found: RuleSet) -> RuleSet:
    if found.problems:
        lines = "\n".join(f"  {one_line(str(problem))}" for problem in found.problems)
        raise UserError(f"{count(len(found.problems), 'problem')} in the rules:\n{lines}")
    return found


def _seconds(text: str, option: str) -> float:
    try:
        return duration_s(text)
    except BadNumber as error:
        raise UserError(f"{option}: {error}.") from error


# --- How it is shown.


def _list_table(found: RuleSet) -> RenderableType:
    table = new_table("rule", "severity", "of each", ("for", "right"), "holds when")
    table.columns[-1].no_wrap = False
    for file in dict.fromkeys(sorted(rule.file for rule in found.rules)):
        table.add_section()
        table.add_row(Text(one_line(file), style="bold"))
        for rule in (rule for rule in found.rules if rule.file == file):
            severity, lasting = Text(rule.severity, style=_COLOURS[rule.severity]), short_duration(rule.for_s) if rule.for_s else "–"
            table.add_row(f" {rule.name}", severity, rule.subject, lasting, Text(_holds_when(rule)))
    notes = [f"{what}: {', '.join(names)}" for what, names in (("Replaced", found.replaced), ("Switched off", found.disabled)) if names]
    return Group(table, *(Text(f"\n{note}", style="dim") for note in notes))


def _holds_when(rule: Rule) -> str:
    said = []
    for condition in rule.conditions:
        where = "".join(f" {label}={pattern}" for label, pattern in condition.where)
        said.append(f"{condition}{where} {limit(condition)}")
    return (" or " if rule.any else " and ").join(said)


def _rule_json(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name, "severity": rule.severity.value, "of_each": rule.subject.value, "for_s": rule.for_s, "keep_firing_for_s": rule.keep_firing_s,
        "joined": "any" if rule.any else "all", "metrics": list(rule.metrics),
        "conditions": [{"value": str(condition), "where": dict(condition.where), "limit": limit(condition)} for condition in rule.conditions],
        "labels": rule.labels, "route": rule.route, "summary": rule.summary, "why": rule.why, "doc": rule.doc, "file": rule.file, "line": rule.line,
    }  # fmt: skip


def _result_json(result: Result) -> dict[str, Any]:
    case = result.case
    return {"name": case.name, "rule": case.rule, "file": case.file, "line": case.line, "ok": not result.failures, "failures": list(result.failures)}


def _problem_json(problem: Problem) -> dict[str, Any]:
    return {"file": problem.file, "line": problem.line, "rule": problem.rule, "what": problem.what}
