"""`holdfast doctor`: is this machine fit to train on, and if not, what is at fault? Also before a job (`run --check`), and of its nodes.

The nodes of a job on this machine share its cores and its memory, which are examined once; each has directories and, with `--own-network`, a network of its
own. Links between such nodes are tested in pairs, in two rounds, so that the bad one of a pair is told.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

import msgspec
from rich.console import Console
from rich.text import Text

from holdfast.chaos.undo import in_network_of
from holdfast.cli.job import is_held
from holdfast.cli.words import count, duration
from holdfast.diagnose.pairing import Pair, first_round, judge, second_round
from holdfast.domain.job import JobSpec
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory
from holdfast.launch.namespaces import address
from holdfast.launch.processes import process_of
from holdfast.preflight import links
from holdfast.preflight.check import Check, Place, Verdict, bad, ok, warn
from holdfast.preflight.examine import CHECKS, examine, worst

_OF_A_NODE = ("ports", "storage", "links")
_SLOWER, _SLOW_S = 4.0, 0.001  # A pair that is so many times slower than the median, and slower than a busy machine makes it, has failed.
_MARKS = {Verdict.OK: ("✓", "green"), Verdict.WARN: ("!", "yellow"), Verdict.BAD: ("✗", "bold red")}


def run_doctor(root: Path, job: JobDirectory | None, *, only: str, full: bool, as_json: bool, out: TextIO) -> int:
    """Examine, print as it goes, and return the exit code: 0, or 1 when something is bad."""
    chosen = tuple(name.strip() for name in only.split(",")) if only else ()
    unknown = [name for name in chosen if name not in CHECKS]
    if unknown:
        raise UserError(f"there is no check {unknown[0]!r}; there are {', '.join(CHECKS)}")
    spec = msgspec.json.decode(job.spec.read_bytes(), type=JobSpec) if job is not None else None
    if job is not None and not is_held(job):
        raise UserError(f"job {job.job!r} is not running, and its nodes are only there while it does; `holdfast doctor` examines the machine")
    checks = machine(root, spec, chosen, full=full)
    told = list(checks if as_json else _printed(checks, out))
    if job is not None and spec is not None:
        nodes = of_nodes(job, spec, chosen, full=full)
        told += nodes if as_json else _printed(nodes, out)
    verdict = worst(told)
    if as_json:
        print(json.dumps({"verdict": verdict, "checks": [asdict(check) for check in told]}, indent=2), file=out)
    else:
        _closing(told, out)
    return 1 if verdict is Verdict.BAD else 0


def check_before(root: Path, spec: JobSpec, out: TextIO) -> None:
    """Before a job: raises when something is bad, and prints what is not well."""
    found = [check for check in machine(root, spec, (), full=False) if check.verdict is not Verdict.OK]
    list(_printed(found, out))
    wrong = [check for check in found if check.verdict is Verdict.BAD]
    if wrong:
        raise UserError(f"this machine is not fit for the job: {wrong[0].name}: {wrong[0].said}. Nothing was started; without --check it would be.")


def machine(root: Path, spec: JobSpec | None, only: Sequence[str], *, full: bool) -> Iterator[Check]:
    ranks = spec.world_size if spec is not None else 1
    ports: tuple[int, ...] = ()
    if spec is not None and spec.metrics is not None:
        ports = tuple(port for port in (spec.metrics.port, spec.metrics.agents_port) if port)
    return examine(Place(state=str(root), checkpoints=str(root / "jobs"), ranks=ranks, ports=ports, full=full), only)


def of_nodes(job: JobDirectory, spec: JobSpec, only: Sequence[str], *, full: bool) -> Iterator[Check]:
    """What each node of a running job has of its own, and the links between them."""
    names = [f"node-{number}" for number in range(spec.nodes + spec.spares)]
    agents = {name: agent for name in names if (agent := process_of(job, name)) is not None}
    for number, name in enumerate(names):
        if name not in agents:
            yield warn("agent", f"{name} has no agent now", "a lost node stays away; an agent that was killed is started again: look once more", culprit=name)
            continue
        place = Place(
            state=str(job.node_state(name)), checkpoints=str(job.checkpoints), node=name, ranks=spec.ranks_per_node, full=full,
            host=address(number) if spec.own_network else "127.0.0.1",
        )  # fmt: skip
        yield from examine(place, [one for one in _OF_A_NODE if not only or one in only], prefix=in_network_of(agents[name]) if spec.own_network else ())
    if spec.own_network and len(agents) > 1 and (not only or "links" in only):
        hosts = {name: address(number) for number, name in enumerate(names) if name in agents}
        inside = {name: in_network_of(agents[name]) for name in hosts}
        yield from between(list(hosts), lambda pair: links.measure(hosts[pair[0]], serve=inside[pair[0]], call=inside[pair[1]]))


def between(nodes: Sequence[str], measure: Callable[[Pair], links.Measured]) -> Iterator[Check]:
    """The links, in pairs and two rounds; a node that fails with a good one is named."""
    seen: dict[Pair, links.Measured] = {}
    results: dict[Pair, bool] = {}
    for round_ in range(2):
        pairs = second_round(nodes, results) if round_ else first_round(nodes)
        for pair in pairs:
            try:
                seen[pair] = measure(pair)
            except OSError as error:
                yield warn("links", f"{pair[0]} and {pair[1]} do not reach each other: {error}", "see who is named below", culprit=" and ".join(pair))
        usual_s = statistics.median_low([one.round_trip_s for one in seen.values()] or [0.0])
        results |= {pair: pair in seen and seen[pair].round_trip_s <= max(_SLOW_S, _SLOWER * usual_s) for pair in pairs}
    for (a, b), one in seen.items():
        said = f"{a} to {b}: {1e6 * one.round_trip_s:.0f} µs there and back, {one.bytes_per_s / 1e9:.2f} GB/s"
        yield ok("links", said, **asdict(one)) if results[(a, b)] else warn("links", said, "see who is named below", culprit=f"{a} and {b}", **asdict(one))
    judged = judge(nodes, results)
    do = "look at its network: `ip -s link`, cables, switch port"
    for node, why in zip((*judged.bad, *judged.links, *judged.unclear), judged.because, strict=True):
        who = node if isinstance(node, str) else " and ".join(node)
        yield warn("links", why, do, culprit=who) if node in judged.unclear else bad("links", why, f"take it out of service, and {do}", culprit=who)


def _printed(checks: Iterable[Check], out: TextIO) -> Iterator[Check]:
    console = Console(file=out, highlight=False)
    for check in checks:
        mark, style = _MARKS[check.verdict]
        where = f" ({check.node})" if check.node else ""
        console.print(Text.assemble((mark, style), f" {check.name.replace('_', ' ')}{where}: {check.said}"), soft_wrap=True)
        if check.do:
            console.print(Text(f"  → {check.do}", style="dim"), soft_wrap=True)
        yield check


def _closing(checks: Sequence[Check], out: TextIO) -> None:
    verdict = worst(checks)
    wrong = [check for check in checks if check.verdict is verdict]
    took = f"{count(len(checks), 'check')} in {duration(sum(check.seconds for check in checks))}"
    if verdict is Verdict.OK:
        said = f"{took}: fit to train."
    else:
        at_fault = ", ".join(dict.fromkeys(check.culprit or check.name for check in wrong))
        said = f"{took}: {'NOT fit to train' if verdict is Verdict.BAD else 'fit to train, with a warning'}: {at_fault}."
    Console(file=out, highlight=False).print(Text(said, style=_MARKS[verdict][1]), soft_wrap=True)
