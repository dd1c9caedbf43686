"""`holdfast doctor`: is this machine fit to train on, and if not, what is at fault? Also before a job (`run --check`), and of its nodes.

The nodes of a job on this machine share its cores and its memory, which are examined once; each has directories and, with `--own-network`, a network of its
own. Links between such nodes are tested in pairs, in two rounds, so that the bad one of a pair is told.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from holdfast.chaos.undo import in_network_of
from holdfast.cli.job import is_held, known_job, spec_of
from holdfast.cli.words import count, duration
from holdfast.diagnose.pairing import Pair, first_round, judge, second_round
from holdfast.domain.job import JobSpec
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory
from holdfast.launch.namespaces import address
from holdfast.launch.processes import process_of
from holdfast.preflight import links
from holdfast.preflight.check import Check, Place, Verdict, bad, ok, warn
from holdfast.preflight.examine import CHECKS, TOTAL_S, answers, examine, worst
from holdfast.settings import remote_root

_OF_A_NODE = ("ports", "storage", "links")
_SLOWER, _SLOW_S = 4.0, 0.001  # A pair that is so many times slower than the median, and slower than a busy machine makes it, has failed.
_ROOT_WITHIN_S = 5.0  # So long the place where jobs are kept may take to be listed.
_NODES_S = 20.0  # Of the time for all, what is kept for the nodes of a job.
_MARKS = {Verdict.OK: ("✓", "green"), Verdict.WARN: ("!", "yellow"), Verdict.BAD: ("✗", "bold red")}


def run_doctor(root: Path, name: str, *, only: str, full: bool, as_json: bool, out: TextIO) -> int:
    """Examine, print as it goes, and return the exit code: 0, or 1 when something is bad. With a job's name: for what that wants, and its nodes if it runs."""
    chosen = tuple(name.strip() for name in only.split(",")) if only else ()
    unknown = [name for name in chosen if name not in CHECKS]
    if unknown:
        raise UserError(f"there is no check {unknown[0]!r}; there are {', '.join(CHECKS)}")
    until = time.monotonic() + TOTAL_S
    told = list[Check]()

    def tell(checks: Iterable[Check]) -> None:
        told.extend(checks if as_json else _printed(checks, out))

    if name and not answers(str(root), _ROOT_WITHIN_S):
        tell([bad("storage", f"{root}, where jobs are kept, does not answer within {_ROOT_WITHIN_S:.0f} s", "see its mount and its disk", culprit=str(root))])
        name = ""
    job = known_job(root, name) if name else None
    spec = spec_of(job) if job is not None else None
    runs = job is not None and is_held(job)
    if job is not None and spec is not None and runs:
        tell(machine(root, spec, chosen, full=full, until=until - _NODES_S, holds=job.shared_memory_prefix))
        tell(of_nodes(job, spec, chosen, full=full, until=until))
    else:
        tell(machine(root, spec, chosen, full=full, until=until))
    verdict = worst(told)
    if as_json:
        print(json.dumps({"verdict": verdict, "checks": [asdict(check) for check in told]}, indent=2), file=out)
    else:
        _closing(told, out)
    return 1 if verdict is Verdict.BAD else 0


def check_before(root: Path, spec: JobSpec, out: TextIO) -> None:
    """Before a job: raises when something is bad, and prints what is not well. One that ran before is known to want as much as it saved."""
    found = [check for check in machine(root, spec, (), full=False) if check.verdict is not Verdict.OK]
    list(_printed(found, out))
    wrong = [check for check in found if check.verdict is Verdict.BAD]
    if wrong:
        raise UserError(f"this machine is not fit for the job: {wrong[0].name}: {wrong[0].said}. Nothing was started; without --check it would be.")


def machine(root: Path, spec: JobSpec | None, only: Sequence[str], *, full: bool, until: float | None = None, holds: str = "") -> Iterator[Check]:
    """The machine; for a job with what its newest checkpoint says it will want. Nothing below `root` is touched here: it may hang. `holds` is the beginning of
    the names of what the job has in shared memory already."""
    place = Place(state=str(root), checkpoints=str(root / "jobs"), remote=remote_root(), full=full)
    if spec is not None:
        job = JobDirectory(root / "jobs" / spec.job)
        ports = tuple(port for port in (spec.metrics.port, spec.metrics.agents_port) if port) if spec.metrics is not None else ()
        place = replace(
            place, checkpoints=str(job.checkpoints), ranks=spec.world_size, nodes=spec.nodes, ports=ports, holds=holds,
            remote=spec.remote or place.remote,
        )  # fmt: skip
    return examine(place, only, until=until)


def of_nodes(job: JobDirectory, spec: JobSpec, only: Sequence[str], *, full: bool, until: float) -> Iterator[Check]:
    """What each node of a running job has of its own, and the links between them."""
    left = max(1, spec.nodes + spec.spares)
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
        prefix = in_network_of(agents[name]) if spec.own_network else ()
        within_s = (until - time.monotonic()) / (left - number + 1)  # The same for each that comes after, and for their links.
        yield from examine(place, [one for one in _OF_A_NODE if not only or one in only], prefix=prefix, until=time.monotonic() + within_s)
    if spec.own_network and len(agents) > 1 and (not only or "links" in only):
        hosts = {name: address(number) for number, name in enumerate(names) if name in agents}
        inside = {name: in_network_of(agents[name]) for name in hosts}
        yield from between(list(hosts), lambda pair: links.measure(hosts[pair[0]], serve=inside[pair[0]], call=inside[pair[1]]), until=until)


def between(nodes: Sequence[str], measure: Callable[[Pair], links.Measured], *, until: float = float("inf")) -> Iterator[Check]:
    """The links, in pairs and two rounds; a node that fails with a good one is named."""
    seen: dict[Pair, links.Measured] = {}
    results: dict[Pair, bool] = {}
    for round_ in range(2):
        pairs = second_round(nodes, results) if round_ else first_round(nodes)
        for pair in pairs:
            if time.monotonic() > until - 2 * links.WITHIN_S:
                yield warn("links", f"{pair[0]} and {pair[1]} were not tried: the time for all checks is over", "see what did not answer above")
                return
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
