"""`holdfast simulate` without a trace: the core run through made-up faults, from seeds. And what its options say, with one or without."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from holdfast.cli.screen import Screen, Table
from holdfast.cli.words import one_line
from holdfast.errors import UserError
from holdfast.simulate.cores import cores
from holdfast.simulate.failures import Lost, Recording, read_failures
from holdfast.simulate.sites import SITES
from holdfast.simulate.survey import Played, Survey, play, survey
from holdfast.simulate.table import skipped_lines

_OF_REPLAYS = (
    "gpus_per_node", "policy", "days", "clip", "accounts", "restart_s", "node_mtbf_hours", "repair_hours", "lemons", "failures_from", "png",
)  # fmt: skip
_OF_WORLDS = ("story",)
_FEW = 10  # Seeds of which each hash is shown.
_DIGITS = 15  # Of a seed, or of how many.


def fitting(given: Collection[str], *, replay: bool) -> None:
    """Refuses what a person says for nothing: of a trace where there is none, of made-up faults where there is one, of repairs where nothing fails."""
    for name in given:
        option = f"--{name.replace('_', '-')}"
        if name in _OF_REPLAYS and not replay:
            raise UserError(f"{option} is for the replay of a trace, and none is given; add --trace FILE, or leave out {option}")
        if name in _OF_WORLDS and replay:
            raise UserError(f"{option} is for made-up faults, and here a trace is replayed; leave out {option}, or --trace")
    if "repair_hours" in given and not {"node_mtbf_hours", "failures"} & {*given}:
        raise UserError("--repair-hours says when nodes are back, and none fail; give --node-mtbf-hours, such as 6000, or --failures FILE")


def seeds_of(text: str, start: int | None, *, usual: int) -> range:
    """`--seeds`: so many from `--start` on, or from one to another, both among them."""
    first, dash, last = (part.strip() for part in text.partition("-"))
    if not all(part.isdecimal() and part.isascii() for part in ((first, last) if dash else (first or str(usual),))):
        raise UserError(f"--seeds {text!r} is neither how many seeds nor a range of them; expected a number such as 1000, or 200-299")
    if max(len(first), len(last)) > _DIGITS:
        raise UserError(f"--seeds {text[:40]} has a number of {max(len(first), len(last))} digits; expected {_DIGITS} or fewer")
    if not dash:
        count = int(first or usual)
        if not count:
            raise UserError("--seeds 0 would play nothing; give how many, such as 1000, or a range such as 200-299")
        return range(start or 0, (start or 0) + count)
    if start is not None:
        raise UserError(f"--seeds {text} says where to begin, and so does --start {start}; leave out --start")
    if int(last) < int(first):
        raise UserError(f"--seeds {text} ends before it begins; did you mean {last}-{first}?")
    return range(int(first), int(last) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worlds:
    """What is asked for of made-up faults."""

    seeds: range
    nodes: int | None = None  # None: as each seed says.
    failures: Path | None = None
    story: bool = False

    def again(self, seed: str) -> str:
        """The command that plays one seed again, and tells all of it."""
        more = [f"--nodes {self.nodes}"] if self.nodes is not None else []
        more += [f"--failures {shlex.quote(str(self.failures))}"] if self.failures is not None else []
        return " ".join(["holdfast simulate --seeds", f"{seed}-{seed}", *more, "--story"])


def run_survey(asked: Worlds, *, as_json: bool) -> int:
    """Made-up faults, from seeds; 0 when every world kept its promises."""
    if asked.story and as_json:
        raise UserError("--story is lines to read, and none of it is JSON; leave out one of the two: --json alone has the hash of each seed's event log")
    failures = recording(asked.failures).rows if asked.failures is not None else ()
    if asked.story:
        return _told(asked, failures)
    broken = 0
    with progress_bar() as progress:
        task = progress.add_task("worlds", total=len(asked.seeds))

        def each(one: Played) -> None:
            nonlocal broken
            broken += one.report is None
            progress.update(task, advance=1, description=f"worlds, [red]{broken:,} broke a promise[/]" if broken else "worlds")

        found = survey(asked.seeds, processes=cores(), failures=failures, nodes=asked.nodes, each=each)
    if as_json:
        again = {seed: asked.again(seed) for seed in found.failed}
        print(json.dumps({"from": asked.seeds.start, "nodes": asked.nodes, **asdict(found), "again": again}))
    else:
        _show_survey(asked, found)
    if found.stopped:
        print(f"holdfast: stopped after {found.seeds:,} of {len(asked.seeds):,} seeds", file=sys.stderr)
        return 128 + signal.SIGINT
    return 1 if found.failed else 0


def recording(path: Path) -> Recording:
    """Of machines that were lost. What is left out of it is told."""
    found = read_failures(path)
    for line in skipped_lines(found.skipped):
        print(f"holdfast: {path}: {one_line(line)}", file=sys.stderr)
    return found


def _told(asked: Worlds, failures: Sequence[Lost]) -> int:
    """All that happens, seed by seed."""
    broken = 0
    for seed in asked.seeds:
        lines: list[str] = []
        one = play(seed, failures=failures, nodes=asked.nodes, lines=lines)
        print(*lines, sep="\n")
        broken += one.report is None
        went = f": {one.report.outcome}, {one.report.events:,} events, hash {one.report.hash}" if one.report else f" broke a promise: {one.broke}"
        print(f"seed {seed}{went}")
    return 1 if broken else 0


def _show_survey(asked: Worlds, found: Survey) -> None:
    console = Screen(highlight=False, markup=False)
    console.print(
        f"{found.seeds:,} seeds in {found.wall_s:.1f} s: {found.events:,} events, {found.median_events:,.0f} in the median seed, "
        f"{found.events_per_s:,} events/s, {found.virtual_hours_per_s:,.1f} virtual hours a second, {found.seeds_per_minute:,} seeds a minute"
    )
    console.print("outcomes: " + (", ".join(f"{count:,} {outcome}" for outcome, count in found.outcomes.items()) or "none"))
    sites = Table.grid(padding=(0, 2))
    sites.add_column(justify="right")
    sites.add_column(no_wrap=True)
    sites.add_column()
    for site, hits in found.sites.items():
        sites.add_row(f"{hits:,}", site, Text(SITES[site], style="dim"))
    console.print("fault sites, and how often something went wrong there:", sites)
    console.print(f"never hit: {', '.join(found.never_hit)}" if found.never_hit else "every fault site was hit")
    for seed, hash in found.hashes.items() if len(found.hashes) <= _FEW else ():
        console.print(f"seed {seed}: hash of its event log {hash}")
    console.print(f"hash of all event logs {found.hash}; that of each is in --json")
    for seed, because in found.failed.items():
        console.print(Text(f"seed {seed} broke a promise: {because}", style="red"))
        console.print(f"  play it again: {asked.again(seed)}", soft_wrap=True)
    console.print(f"{len(found.failed):,} seeds broke a promise" if found.failed else "no seed broke a promise")


def progress_bar() -> Progress:
    """For whoever looks; nothing where nobody does."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True), transient=True,
        disable=not sys.stderr.isatty(),
    )  # fmt: skip
