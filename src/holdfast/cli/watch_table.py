"""What `holdfast watch` draws: a head, the ranks, the nodes, the GPUs, and what stands. Fits into 80 columns; more show more.

    ── holdfast · demo ──────────────────────────────────── running, generation 1
    step 420 of 1,000  ━━━━━━━━━━━━───────────────  42 %  ends in 1m 53s
    loss ▇▆▅▄▃▃▂▂▁▁ 2.31    a step ▂▂▁▂▃▂▂ 0.12 s

     rank    pid  node    step  a step  of which    loss   norm   cpu   memory
        0  23456  node-0   420  0.12 s  ░██████▓    2.31   0.52   1.0  312 MiB
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.cli.checkpoints.drawing import new_table
from holdfast.cli.look import NO_STEP, Look, Numbers, own_numbers, step_time
from holdfast.cli.panel import panel_lines
from holdfast.cli.spark import legend, sparkline, split_bar
from holdfast.cli.words import culprit_of, finding_sentence, one_line
from holdfast.detect.rules.units import written
from holdfast.domain.finding import Severity
from holdfast.domain.metric import Scope

_COLOURS: Final = {Severity.INFO: "cyan", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}
_WIDE: Final = 110  # From here on there is room for more.
_FINDINGS_MAX: Final = 8
_NODE_CELLS: Final = 16


def watch_table(look: Look, *, columns: int, rows: int) -> RenderableType:
    """At most about `rows` lines: of more ranks those with the longest compute are shown, of more nodes the first."""
    gpus = look.things.get(Scope.GPU, {})
    tables = 3 if gpus else 2
    room = rows - 8 - 4 * tables - 2 * min(_FINDINGS_MAX, len(look.findings))  # Heads, rules, empty lines, and what may be said below a table.
    nodes_room, gpus_room = (max(2, min(len(some), room // tables)) for some in (look.nodes, gpus))
    parts: list[RenderableType] = [*(Text.from_ansi(line) for line in panel_lines(look.view, columns=columns, rows=5)[:3]), _curves(look, columns)]
    if look.ranks:
        parts += [*_ranks(look, columns, max(2, room - nodes_room - (gpus_room if gpus else 0))), legend()]
    if look.nodes:
        parts += [Text(), *_nodes(look, columns, nodes_room)]
    if gpus:
        parts += [Text(), *_gpus(look, gpus_room)]
    parts += [Text(), *_findings(look, columns)]
    return Group(*parts)


def _curves(look: Look, columns: int) -> Text:
    line = Text()
    for metric, name in (("loss", "loss"), ("step_seconds", "a step")):
        value = look.over_ranks(metric)
        said = "" if not math.isfinite(value) else step_time(value) if metric == "step_seconds" else f"{value:.4g}"
        drawn = sparkline(look.curves.get(metric, ()), max(8, columns // 2 - 20))
        if drawn or said:
            line.append(f"{name} ", "dim").append(drawn, "cyan").append(f" {said}    ", "bold")
    return line


def _ranks(look: Look, columns: int, room: int) -> Iterable[RenderableType]:
    wide = columns >= _WIDE
    table = new_table(("rank", "right"), ("pid", "right"), "node", ("step", "right"), ("a step", "right"), "of which", ("loss", "right"), ("norm", "right"),
                      ("cpu", "right"), ("memory", "right"), *((name, "right") for name in (own_numbers(look)[:2] if wide else ())))  # fmt: skip
    shown, pids = _slowest(look, room), look.pids
    for rank in shown:
        said = look.ranks[rank]
        cells: list[Text | str] = [str(rank), str(pids.get(rank, "–")), _short(look.rank_nodes.get(rank, "–"), _NODE_CELLS if wide else 9)]
        cells += [_number(said, "step", ",.0f"), _seconds(said, "step_seconds")]
        cells += [split_bar(look.step_parts(rank), 30 if wide else 8), _number(said, "loss", ".4g"), _number(said, "gradient_norm", ".3g")]
        cells += [_number(said, "worker_cpu_ratio", ".2f"), _unit(said, "worker_memory_bytes", "bytes")]
        cells += [_number(said, f"user_{name}", ".4g") for name in (own_numbers(look)[:2] if wide else ())]
        table.add_row(*cells)
    yield table
    yield from _more(len(look.ranks) - len(shown), "ranks, with less compute a step")


def _slowest(look: Look, room: int) -> list[int]:
    if len(look.ranks) <= room:
        return list(look.ranks)
    slow = sorted(look.ranks, key=lambda rank: -look.ranks[rank].get("step_compute_seconds", 0.0))
    return sorted(slow[:room])


def _nodes(look: Look, columns: int, room: int) -> Iterable[RenderableType]:
    wide = columns >= _WIDE
    more = (("waits for cpu", "right"), ("for memory", "right"), ("for disk", "right"), ("agent", "right")) if wide else ()
    table = new_table("node", ("cpu", "right"), ("load", "right"), ("memory free", "right"), ("least disk free", "right"), *more)
    for node, said in list(look.nodes.items())[:room]:
        free, size = said.get("host_memory_available_bytes", math.nan), said.get("host_memory_bytes", math.nan)
        memory = f"{written(free, 'bytes')} of {written(size, 'bytes')}" if math.isfinite(free) and math.isfinite(size) else "–"
        cells = [_short(node), _share(said, "host_cpu_ratio"), _number(said, "host_load", ".2f"), memory, _least_disk(look, node)]
        if wide:
            cells += [_share(said, f"host_{what}_pressure_ratio") for what in ("cpu", "memory", "io")] + [_share(said, "agent_cpu_ratio")]
        table.add_row(*cells)
    yield table
    yield from _more(max(0, len(look.nodes) - room) + look.nodes_left_out, "nodes")


def _least_disk(look: Look, node: str) -> str:
    disks = [(said["disk_free_bytes"] / said["disk_size_bytes"], said["disk_free_bytes"]) for (place, _), said in look.things.get(Scope.DISK, {}).items()
             if place == node and said.get("disk_size_bytes", 0) > 0 and "disk_free_bytes" in said]  # fmt: skip
    return f"{written(min(disks)[1], 'bytes')}, {100 * min(disks)[0]:.0f} %" if disks else "–"


def _gpus(look: Look, room: int) -> Iterable[RenderableType]:
    gpus = sorted(look.things[Scope.GPU].items(), key=lambda one: (one[0][0], len(one[0][1]), one[0][1]))
    table = new_table("node", ("gpu", "right"), ("busy", "right"), ("memory", "right"), ("°C", "right"), ("power", "right"), ("clock", "right"), "held back by")
    for (node, gpu), said in gpus[:room]:
        held = [name for name in ("thermal", "power", "hardware") if said.get(f"gpu_throttled_{name}", 0.0) > 0]
        memory = said.get("gpu_memory_used_bytes", math.nan) / (said.get("gpu_memory_size_bytes") or math.nan)
        power = f"{_number(said, 'gpu_power_watts', '.0f')} of {_number(said, 'gpu_power_limit_watts', '.0f')} W"
        heat, clock = _number(said, "gpu_temperature_celsius", ".0f"), _unit(said, "gpu_sm_clock_hertz", "hertz")
        held_back = Text(", ".join(held) or "–", style="yellow" if held else "")
        table.add_row(_short(node), gpu, _share(said, "gpu_utilisation_ratio"), _share({"memory": memory}, "memory"), heat, power, clock, held_back)
    yield table
    yield from _more(len(gpus) - room, "GPUs")


def _findings(look: Look, columns: int) -> Iterable[Text]:
    findings = look.findings
    if look.tells_nothing:
        yield Text(f"{NO_STEP[:1].upper()}{NO_STEP[1:]}.", style="yellow")
    elif not findings:
        yield Text("Nothing stands out.", style="dim")
    for finding in findings[:_FINDINGS_MAX]:
        said = finding_sentence(finding) if culprit_of(finding) else finding.kind.removeprefix("rule:").replace("_", " ")
        line = Text.assemble(("● ", _COLOURS[finding.severity]), (f"{said}: ", "bold"), one_line(finding.because))
        line.truncate(columns * 2, overflow="ellipsis")
        yield line
    if len(findings) > _FINDINGS_MAX:
        yield Text(f"  and {len(findings) - _FINDINGS_MAX} more", style="dim")


def _more(number: int, what: str) -> Iterable[Text]:
    if number > 0:
        yield Text(f"… and {number} more {what}", style="dim")


def _short(node: str, cells: int = _NODE_CELLS) -> str:
    """The end of a long name tells it from its neighbours."""
    name = one_line(node)
    return name if len(name) <= cells else f"…{name[1 - cells :]}"


def _number(said: Numbers, metric: str, form: str) -> str:
    value = said.get(metric)
    return "–" if value is None else format(value, form) if math.isfinite(value) else "NaN"


def _share(said: Numbers, metric: str) -> str:
    value = said.get(metric, math.nan)
    return f"{100 * value:.0f} %" if math.isfinite(value) else "–"


def _seconds(said: Numbers, metric: str) -> str:
    value = said.get(metric, math.nan)
    return step_time(value) if math.isfinite(value) else "–"


def _unit(said: Numbers, metric: str, unit: str) -> str:
    value = said.get(metric, math.nan)
    return written(value, unit) if math.isfinite(value) else "–"
