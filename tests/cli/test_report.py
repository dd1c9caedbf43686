"""The report page: whole, honest, safe to open. No browser is needed to check that."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import histories
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli import charts
from holdfast.cli.report import Sample, page, text_report, write_report
from holdfast.domain.goodput import Bucket
from holdfast.domain.state import State

VOID = {"meta", "br", "hr", "img", "input", "link"}
ALL = (histories.calm, histories.stormy, histories.failed, histories.stopped)


class Page(HTMLParser):
    """Checks that what is opened is closed, and keeps what a test may ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(history: histories.History) -> Page:
    return Page(page(history.state, history.samples))


@pytest.mark.parametrize("make", ALL)
def test_the_page_is_well_formed_and_says_how_it_ended(make: histories.Make) -> None:
    history = make()
    text = page_of(history)
    assert text.named("h1")
    assert history.name in text.words
    assert history.state.because in text.words
    assert f"{100 * history.state.ledger.goodput:.1f} %" in text.words


def test_the_page_says_how_often_was_saved_and_why() -> None:
    assert "Saving every 458 steps (57 s): a save costs 0.04 s, a failure is expected every 11 h" in page_of(histories.stormy()).words
    assert "Saving every" not in page_of(histories.stopped()).words


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    text = page_of(histories.stormy())
    assert not [tag for tag, _ in text.tags if tag in ("script", "link", "img", "iframe", "object", "form", "image", "use")]
    for _, attributes in text.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")
        assert "src" not in attributes
    policy = next(one["content"] for one in text.named("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert "url(" not in page(histories.calm().state, [])


def test_every_mark_and_link_leads_to_a_story() -> None:
    text = page_of(histories.stormy())
    ids = [attributes["id"] for _, attributes in text.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {(attributes["href"] or "")[1:] for attributes in text.named("a")}
    assert links == {f"incident-{number}" for number in range(1, 6)}
    assert links <= set(ids)


def test_every_chart_has_a_title_a_description_and_the_keyboard() -> None:
    text = page(histories.stormy().state, histories.stormy().samples)
    assert text.count("<svg") == 1 + 3 + 5  # The ledger, three lines over time or steps, and the parts of each incident.
    assert len(re.findall(r"<svg[^>]*><title>[^<]+</title><desc>[^<]+</desc>", text)) == text.count("<svg")
    assert text.count('class="chart') == text.count('tabindex="0"')


def test_every_bucket_has_a_colour_of_its_own_in_light_and_in_dark() -> None:
    style = page(State(), [])
    for bucket in Bucket:
        assert len(re.findall(rf"--b-{bucket}: (#[0-9a-f]+);", style)) == 2
        assert f".b-{bucket} {{" in style
    light = re.findall(r"--b-[a-z]+: (#[0-9a-f]+);", style)
    assert len(set(light)) == len(light)


def test_what_a_job_says_is_escaped() -> None:
    history = histories.failed()
    state, evil = history.state, "<script>alert(1)</script>\x1b[2J"
    assert state.spec is not None
    state.spec = replace(state.spec, job=evil, argv=(evil,))
    state.because = evil
    incident = state.incidents[-1]
    state.incidents[-1] = replace(
        incident, stacks={evil: evil, "3": evil}, findings=tuple(replace(one, because=evil, evidence=(evil,)) for one in incident.findings),
        exits=tuple(replace(one, because=evil, tail=evil) for one in incident.exits), story=tuple(replace(one, what=evil) for one in incident.story),
        diagnoses=tuple(replace(one, because=evil, node=evil, evidence=(evil,), alternatives=(evil,)) for one in incident.diagnoses),
        plans=tuple(replace(one, because=evil, alternatives=(evil,)) for one in incident.plans),
    )  # fmt: skip
    text = page(state, history.samples)
    assert "<script" not in text
    assert "\x1b" not in text
    Page(text)


def test_the_parts_of_an_incident_are_drawn_in_the_order_they_happened() -> None:
    text = page(histories.stormy().state, [])
    article = text[text.index('<article id="incident-2">') : text.index('<article id="incident-3">')]
    labels = re.findall(r'<text class="label"[^>]*>([a-z]+)</text>', article)
    assert labels == ["detect", "diagnose", "stop", "rendezvous", "restore", "recompute"]


def test_a_failed_job_ends_with_its_first_cause() -> None:
    text = page_of(histories.failed())
    assert text.words.rstrip().endswith("ValueError: batch <3> has 0 rows & cannot be used")


def test_a_job_without_samples_or_incidents_has_a_page_too() -> None:
    assert "Nothing went wrong" in Page(page(histories.calm().state, [])).words
    Page(page(State(), []))


def test_losses_that_are_not_numbers_break_the_line_and_are_counted() -> None:
    history = histories.calm()
    samples = [replace(sample, loss=math.nan) if index in (3, 4) else sample for index, sample in enumerate(history.samples)]
    text = page(history.state, samples)
    assert "2 samples had a loss that is not a number" in text
    assert not re.search(r'(points|x|y|cx|cy|width)="[^"]*(nan|inf)', text)
    assert "too few samples" in page(history.state, [replace(sample, loss=math.inf) for sample in samples])


def test_a_hundred_thousand_samples_make_a_page_of_reasonable_size() -> None:
    state = histories.calm().state
    samples = [Sample(at=histories.BEGAN + step / 8, step=step, loss=2 + math.sin(step), steps_per_s=8.0, generation=1) for step in range(100_000)]
    assert len(page(state, samples)) < 200_000


@given(points=st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=3000).map(sorted))
def test_thinning_keeps_the_highest_the_lowest_and_the_order(points: list[charts.Point]) -> None:
    kept = charts.thinned(points, 100)
    assert len(kept) <= 102
    assert max(y for _, y in kept) == max(y for _, y in points)
    assert min(y for _, y in kept) == min(y for _, y in points)
    assert kept == sorted(kept)


@given(low=st.floats(0, 1e7), span=st.floats(0.01, 1e7), timed=st.booleans())
def test_ticks_are_within_the_axis_and_not_too_many(low: float, span: float, timed: bool) -> None:
    ticks = charts.x_ticks(low, low + span, timed=timed)
    assert len(ticks) <= 10
    assert all(low - 1e-3 * span <= tick <= low + span * 1.001 for tick in ticks)


@given(values=st.lists(st.one_of(st.floats(-1e30, 1e30), st.just(math.nan), st.just(math.inf)), max_size=30), marks=st.lists(st.floats(0, 1e6), max_size=5))
def test_any_values_give_a_chart_that_can_be_drawn(values: list[float], marks: list[float]) -> None:
    runs = [[(float(index), value) for index, value in enumerate(values)]]
    some = [charts.Mark(since=one, until=one + 1, label="1", title="<&>", href="#x") for one in marks]
    text = charts.line_chart("any", runs, some, x_label=str, timed=True, says="any")
    Page(text)
    assert not re.search(r'="[^"]*(nan|inf)', text)


def test_the_page_replaces_an_older_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    history = histories.stormy()
    write_report(history.state, history.samples, path)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_the_text_report_tells_the_same_in_eighty_columns() -> None:
    text = text_report(histories.stormy().state, loss=1.45)
    assert all(len(line) <= 80 for line in text.split("\n"))
    assert "Where the time went" in text
    assert all(f"Incident {number}:" in text for number in range(1, 6))
    assert "\x1b" not in text
