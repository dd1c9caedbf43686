"""What `ps`, `show`, `incidents` and `replay` print, on histories the real core made."""

from __future__ import annotations

import json
import math
from io import StringIO

import histories
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from holdfast.cli import tables, words
from holdfast.control.journal import Entry
from holdfast.domain.event import EffectDone
from holdfast.domain.goodput import Bucket
from holdfast.domain.state import State


def text_of(renderable: RenderableType, columns: int = 80) -> str:
    out = StringIO()
    Console(file=out, width=columns, force_terminal=False, highlight=False).print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n"))


ALL = (histories.calm, histories.stormy, histories.failed, histories.stopped)


def test_jobs_have_a_line_each() -> None:
    lines = text_of(tables.jobs_table(make().state for make in ALL)).split("\n")
    assert lines[0].split() == ["job", "state", "step", "goodput", "for", "incidents"]
    assert lines[3].split()[:5] == ["storm", "<&>", "gpt", "finished", "751"]
    assert [line.split()[1] for line in (lines[2], lines[4], lines[5])] == ["finished", "permanent", "stopped"]


def test_how_often_is_saved_is_shown_with_its_reasons() -> None:
    history = histories.stormy()
    said = "every 458 steps (57 s): a save costs 0.04 s, a failure is expected every 11 h (3.6 to 210 h, none seen in 82 s)"
    assert said in " ".join(text_of(tables.show(history.state)).split())
    assert f"IntervalChosen saving {said}; from step 152 on" in " ".join(text_of(tables.replay(history.entries)).split())
    shown = tables.show_json(history.state)["interval"]
    assert (shown["every"], shown["from_step"], shown["automatic"], shown["stall_s"]) == (458, 152, True, 0.04)
    assert tables.show_json(histories.stopped().state)["interval"] is None


def test_no_jobs_is_said_with_the_way_to_the_first() -> None:
    assert "holdfast run" in text_of(tables.jobs_table([]))


def test_show_names_the_process_of_each_rank_of_a_job_that_runs() -> None:
    state = histories.stormy().state
    assert "pids" not in text_of(tables.show(state))
    assert "4711 (rank 0), 4712 (rank 1)" in " ".join(text_of(tables.show(state, processes={1: 4712, 0: 4711})).split())
    assert "and 50 more" in " ".join(text_of(tables.show(state, processes={rank: 5000 + rank for rank in range(64)})).split())
    assert tables.show_json(state, processes={0: 4711})["pids"] == {"0": 4711}


def test_show_says_what_where_how_far_and_what_it_cost() -> None:
    text = text_of(tables.show(histories.stormy().state, loss=1.4521))
    for said in ("finished after", "train.py --steps 1000", "2 nodes with 2 ranks each, 1 spare", "node1 (lost)", "751, saved at 740", "1.4521"):
        assert said in text
    assert "Where the time went" in text
    assert "5 incidents" in text
    assert "node lost (node1)" in text


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_nothing_is_wider_than_the_terminal(make: histories.Make, columns: int) -> None:
    history = make()
    shown = [tables.show(history.state), tables.closing(history.state), tables.replay(history.entries), tables.jobs_table([history.state])]
    shown += [tables.story(history.state, incident) for incident in history.state.incidents]
    for renderable in shown:
        assert all(len(line) <= columns for line in text_of(renderable, columns).split("\n"))


def test_at_eighty_columns_nothing_that_matters_is_cut_off() -> None:
    for make in ALL:
        assert "…" not in text_of(tables.show(make().state))


@pytest.mark.parametrize("make", ALL)
def test_the_shares_of_the_ledger_add_up_to_a_hundred(make: histories.Make) -> None:
    body = tables.show_json(make().state)
    assert math.isclose(sum(row["percent"] for row in body["ledger"]), 100.0, abs_tol=1e-9)
    assert math.isclose(sum(row["seconds"] for row in body["ledger"]), body["wall_s"], rel_tol=1e-9)


@given(parts=st.lists(st.floats(0, 1e9), min_size=1, max_size=13).filter(lambda parts: sum(parts) > 1e-6))
@example(parts=[1.0, 1.0, 1.0])
def test_shares_add_up_to_a_hundred_and_are_never_far_off(parts: list[float]) -> None:
    shares = words.percents(parts)
    assert math.isclose(sum(shares), 100.0, abs_tol=1e-9)
    assert all(abs(share - 100 * part / sum(parts)) <= 0.1 + 1e-9 for share, part in zip(shares, parts, strict=True))


def test_a_bill_holds_no_productive_second_and_all_bills_fit_into_the_run() -> None:
    state = histories.stormy().state
    bills = [words.bill_of(state, incident) for incident in state.incidents]
    assert all(Bucket.PRODUCTIVE not in bill and bill[Bucket.RECOMPUTE] > 0 for bill in bills)
    assert sum(sum(bill.values()) for bill in bills) <= state.ledger.wall_s


def test_an_open_incident_has_a_running_bill() -> None:
    history = histories.History().submit().up().train(41).raises(3)
    assert history.state.incidents[-1].is_open
    assert words.bill_of(history.state, history.state.incidents[-1])[Bucket.STOP] > 0
    assert "acting" in text_of(tables.story(history.state, history.state.incidents[-1]))


def test_a_story_goes_from_the_first_sign_to_the_outcome() -> None:
    state = histories.stormy().state
    text = text_of(tables.story(state, state.incidents[1]))
    order = ("Incident 2: hang (rank 1), resolved", "0.00 s  the fault happened", "noticed: rank 1 is stopped", "examining", "diagnosed: hang", "resolved:",
             "Seen", "its process is in state T", "Diagnosis", "95 % sure; may pass", "Plan", "→  respawn",
             "the node itself shows no fault", "Cost", "11 steps done again",
             "Stacks", "rank 1", "all_reduce(gradients)")  # fmt: skip
    place = 0
    for one in order:
        place = text.find(one, place)
        assert place >= 0, f"{one!r} is not told, or not in its place:\n{text}"


def test_a_sentence_is_told_once_in_a_story() -> None:
    for incident in (state := histories.stormy().state).incidents:
        text = " ".join(text_of(tables.story(state, incident), 160).split())
        for said in {*(one.because for one in incident.findings), *(one.because for one in incident.diagnoses)}:
            assert text.count(words.one_line(said)) == 1, f"{said!r} in incident {incident.id}"


def test_a_field_of_many_names_is_counted_in_a_replay() -> None:
    event = EffectDone(at=1.0, effect="1", generation=1, node="node0", surroundings={f"package {number}": "1.0" for number in range(60)})
    text = text_of(tables.replay([Entry(seq=1, event=event, effects=())]))
    assert "of 60 names; --json has them" in " ".join(text.split())
    assert "package 7" not in text


def test_stacks_that_are_alike_are_told_once_and_long_ones_are_folded() -> None:
    state = histories.stormy().state
    long = "\n".join(f"frame {index}" for index in range(40))
    state.incidents[1].stacks.update({"0": long, "2": long, "3": long})
    text = text_of(tables.story(state, state.incidents[1]))
    assert "ranks 0, 2, 3" in text
    assert "… 28 lines above" in text
    assert text.count("frame 39") == 1


def test_an_incident_that_ended_a_job_shows_the_traceback_as_it_was_seen() -> None:
    state = histories.failed().state
    text = text_of(tables.story(state, state.incidents[-1]))
    assert "ValueError: batch <3> has 0 rows & cannot be used" in text
    assert "42/42" in text
    assert "41/41" not in text  # The bar was drawn over it.
    assert "\x1b" not in text


def test_replay_tells_each_decision_with_its_reason_and_each_answer_with_its_question() -> None:
    text = text_of(tables.replay(histories.failed().entries))
    assert "JobSubmitted demo: 2 nodes with 2 ranks each" in text
    assert "→ StopGang e5 on node0: rank 3 raised ValueError" in text
    assert "EffectDone StopGang e5, node node0" in text
    assert "→ EndJob" in text
    assert "nothing has happened" in text_of(tables.replay([]))


@pytest.mark.parametrize("make", ALL)
def test_every_table_has_a_twin_for_programs(make: histories.Make) -> None:
    history = make()
    twins = [tables.jobs_json([history.state]), tables.show_json(history.state, loss=math.nan), tables.replay_json(history.entries)]
    body = json.loads(json.dumps(twins, allow_nan=False))
    assert body[0][0]["job"] == history.name
    assert body[1]["loss"] is None
    assert len(body[1]["incidents"]) == len(history.state.incidents)
    assert body[2][0]["event"]["kind"] == "JobSubmitted"


def test_the_json_of_an_incident_has_the_rung_by_name_and_its_bill() -> None:
    state = histories.stormy().state
    body = tables.incident_json(state, state.incidents[2])
    assert body["plans"][0]["rung"] == "replace"
    assert body["seconds"] == pytest.approx(sum(body["bill"].values()))
    assert body["steps_again"] == 11


def test_a_job_that_has_not_begun_can_be_shown() -> None:
    assert "waiting" in text_of(tables.show(State()))
    assert tables.show_json(State())["spec"] is None
    assert text_of(tables.incidents_table(State())).strip() == "No incidents."


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0.00 s"), (0.42, "0.42 s"), (0.996, "1.0 s"), (8.14, "8.1 s"), (9.96, "10 s"), (42, "42 s"), (59.7, "1m 00s"), (125, "2m 05s"), (3599.6, "1h 00m"),
     (11040, "3h 04m"), (190800, "2d 05h"), (-1, "0.00 s")],
)  # fmt: skip
def test_durations_have_two_units_at_most(seconds: float, said: str) -> None:
    assert words.duration(seconds) == said


@given(seconds=st.floats(0, 1e9))
def test_a_duration_never_fails_and_never_says_sixty(seconds: float) -> None:
    said = words.duration(seconds)
    assert "60" not in said.split()[-1]
    assert len(said) <= 9 or seconds > 86400 * 1000


def test_ranks_are_told_as_ranges() -> None:
    assert words.ranges([3, 0, 1, 2, 9, 7, 7]) == "0-3, 7, 9"


@given(text=st.text(st.sampled_from("ab\x1b[]\x07\x9b\r\n\t;1m\u202e"), max_size=30))
def test_cleaned_text_holds_nothing_a_terminal_obeys(text: str) -> None:
    said = words.one_line(text + "\x1b[2J\x9b1m\x07")
    assert not any(ord(one) < 32 or 127 <= ord(one) < 160 for one in said)
