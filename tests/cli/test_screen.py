"""Tables: over a pipe nothing has a width, and on a narrow terminal long text gives way, an id or a figure never."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import histories
import pytest
from rich.console import Group, RenderableType
from rich.padding import Padding

import holdfast.cli
from holdfast.chaos.faults import FAULTS
from holdfast.cli import learning_shown, operating, tables
from holdfast.cli.chaos_shown import possible_shown
from holdfast.cli.checkpoints.drawing import new_table
from holdfast.cli.screen import Screen, Table
from holdfast.domain.past import PastIncident, PastRemedy

CLI = Path(holdfast.cli.__file__).parent
LONG = "finetune-llama-70b-1119-184436-2bf0"


def past(number: int) -> PastIncident:
    return PastIncident(
        job=LONG, number=number, opened_at=1.0, closed_at=30.0, cause="silent_data_corruption", fingerprint="x", node="node-0", ranks=(3,),
        outcome="gave_up", stands=False, cost_s=26.4, remedies=(PastRemedy(rung="roll_back", worked=True, cost_s=26.4),),
    )  # fmt: skip


def shown() -> Iterator[RenderableType]:
    for make in (histories.calm, histories.stormy, histories.failed, histories.stopped):
        state = make().state
        yield from (tables.jobs_table([state]), tables.show(state), tables.incidents_table(state), operating.nodes_table(state))
        yield from (tables.story(state, incident) for incident in state.incidents)
    yield learning_shown.search_table([past(number) for number in (1, 12, 100)])
    yield possible_shown(dict.fromkeys(FAULTS, "the machine has no network of its own, and nothing can be cut off"))


def tables_in(renderable: object) -> Iterator[Table]:
    match renderable:
        case Table():
            yield renderable
        case Group(renderables=parts):
            for part in parts:
                yield from tables_in(part)
        case Padding(renderable=inner):
            yield from tables_in(inner)


@pytest.fixture(autouse=True)
def _no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def drawn(renderable: RenderableType, columns: int | None) -> list[str]:
    """None: over a pipe."""
    out = StringIO()
    screen = Screen(out, highlight=False)
    if columns is not None:
        screen.width = columns
    screen.print(renderable)
    return out.getvalue().split("\n")


def kept_whole(table: Table) -> Iterator[str]:
    """What is in the columns that do not wrap, and the names of all columns of figures."""
    for column in table.columns:
        if column.no_wrap:
            for cell in column.cells:
                yield from str(cell).split("\n")


@pytest.mark.parametrize("columns", [60, 80, 120, None])
def test_no_id_and_no_figure_is_cut(columns: int | None) -> None:
    seen = 0
    for renderable in shown():
        for table in tables_in(renderable):
            lines = drawn(table, columns)
            for text in filter(None, map(str.strip, kept_whole(table))):
                seen += 1
                assert any(text in line for line in lines), f"{text!r} is not whole in\n" + "\n".join(lines)
            assert not any("…" in line for line in lines)
    assert seen > 200


@pytest.mark.parametrize("columns", [60, 80])
def test_the_incidents_of_all_jobs_have_their_ids_and_figures_on_a_narrow_terminal(columns: int) -> None:
    said = "\n".join(drawn(learning_shown.search_table([past(1), past(12)]), columns))
    for text in (f"{LONG}/1 ", f"{LONG}/12 ", "node-0", "26 s"):
        assert text in said


def test_columns_of_text_give_way_so_that_short_names_fit_into_eighty_columns() -> None:
    table = learning_shown.search_table([past(1)])
    assert isinstance(table, Table)
    table = new_table("incident", "when", "cause", "where", "done", "outcome", ("cost", "right"))
    table.add_row("job/12", "Nov 19 19:14", "silent data corruption of some length", "node-0", "roll back and more", "gave up", "26 s")
    assert max(map(len, drawn(table, 80))) <= 80


def test_over_a_pipe_a_row_is_one_line_however_long_it_is() -> None:
    table = new_table("incident", "what", "name")
    table.add_row("job/1", "word " * 100, "path/" * 100)
    (row,) = [line for line in drawn(table, None) if "job/1" in line]
    assert "word " * 99 in row
    assert "path/" * 100 in row


def test_every_table_of_the_command_line_is_made_of_these() -> None:
    elsewhere = [
        f"{path.relative_to(CLI)}:{node.lineno}"
        for path in CLI.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if path.name != "screen.py" and isinstance(node, ast.ImportFrom) and node.module == "rich.table"
    ]
    assert elsewhere == [], "rich's own tables cut what does not fit: take holdfast.cli.screen.Table"


def test_over_a_pipe_no_line_ends_in_blanks() -> None:
    for renderable in shown():
        assert not [line for line in drawn(renderable, None) if line.endswith(" ")]
