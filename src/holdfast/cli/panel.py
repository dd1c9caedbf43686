"""The panel: the rows below rank 0's output that say how the job is doing.

`panel_lines` turns a `View` into that many lines of that many cells, with colour as the terminal takes it. A job of four ranks and one of four thousand
fit in the same rows: ranks that are alike share a row, the worst come first, and the rest is a count.

    ── holdfast · demo ──────────────────────────────── running, generation 2
    step 420 of 1,000  ━━━━━━━━━━━━───────────────  42 %  ends in 1m 53s
    5.12 steps/s · loss 2.3104 · saved at 400 · goodput 93.1 % of 1m 22s
    saving every 458 steps (55 s); why: `holdfast show`
    nodes  node0 node1 · spare node2
    ranks  0-3 step, at 420 · slowest silent for 0.1 s
    ✓ 1  killed, respawn, 0.42 s: rank 2 was ended by SIGKILL
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from io import StringIO

from rich.console import Console
from rich.text import Text

from holdfast.cli.words import duration, loss_text, one_line, percent, ranges, saving_line
from holdfast.wire.messages import IncidentView, NodeView, Reading, SavingView, Uploading, View

_SILENT_S = 5.0  # From here on silence is worth a word; what it means is the detector's to say.
_INCIDENTS_MAX = 3
_GROUPS_MAX = 4
_PHASE_STYLES = {"running": "green", "ended": "bold", "examining": "yellow", "stopping": "yellow", "waiting": "yellow", "starting": "cyan"}


def panel_lines(view: View, *, columns: int, rows: int) -> list[str]:
    """The panel as lines with control sequences for style alone; never more than `rows`, none wider than `columns` cells."""
    saving = [_saving(view.saving)] if view.saving is not None else []
    head = [_rule(view, columns), _progress(view, columns), _figures(view), *saving, _nodes(view.nodes)][: max(1, rows - 1)]
    room = rows - len(head)
    recent = min(_INCIDENTS_MAX, room // 2, len(view.incidents))
    incidents = [_incident(incident) for incident in view.incidents[len(view.incidents) - recent :]]
    ranks = _ranks(_rank_groups(view.ranks), min(_GROUPS_MAX, room - recent))
    return _styled([*head, *ranks, *incidents], columns)


def _rule(view: View, columns: int) -> Text:
    left = Text.assemble(("── ", "dim"), ("holdfast", "bold"), (" · ", "dim"), one_line(view.job), " ")
    state = Text(f" {one_line(view.phase)}", style=_PHASE_STYLES.get(view.phase, ""))
    if view.outcome:
        state = Text(f" {one_line(view.outcome)}", style="bold")
    if columns >= 60:
        state.append(f", generation {view.generation}", style="dim")
    left.truncate(max(8, columns - state.cell_len), overflow="ellipsis")
    return Text.assemble(left, ("─" * max(0, columns - left.cell_len - state.cell_len), "dim"), state)


def _progress(view: View, columns: int) -> Text:
    """How far it is; while it does not run, why not."""
    if view.phase != "running" or view.step < 0:
        return Text(one_line(view.because), style=_PHASE_STYLES.get(view.phase, ""))
    if view.steps_total <= 0:
        return Text(f"step {view.step:,}", style="bold")
    share = min(1.0, view.step / view.steps_total)
    left, right = f"step {view.step:,} of {view.steps_total:,}  ", f"  {100 * share:.0f} %{_ends_in(view)}"
    cells = max(0, min(48, columns - len(left) - len(right)))
    full = round(cells * share)
    return Text.assemble((left, "bold"), ("━" * full, "green"), ("─" * (cells - full), "dim"), right)


def _ends_in(view: View) -> str:
    left = view.steps_total - view.step
    return f"  ends in {duration(left / view.steps_per_s)}" if left > 0 and view.steps_per_s else ""


def _figures(view: View) -> Text:
    parts = []
    if view.steps_per_s is not None:
        parts.append(Text(f"{view.steps_per_s:.3g} steps/s"))
    if view.loss is not None:
        parts.append(Text(f"loss {loss_text(view.loss)}", style="" if math.isfinite(view.loss) else "bold red"))
    if view.saved_step >= 0:
        parts.append(Text(f"saved at {view.saved_step:,}"))
    if view.uploading is not None:
        parts.append(_uploading(view.uploading))
    goodput = percent(view.goodput) if view.goodput is not None else "–"
    parts.append(Text(f"goodput {goodput} of {duration(view.run_s)}"))
    return _joined(parts)


def _uploading(uploading: Uploading) -> Text:
    if uploading.error:
        return Text("remote store failing", style="bold red")
    return Text(f"remote at {uploading.step:,}" if uploading.step >= 0 else "nothing remote yet")


def _saving(saving: SavingView) -> Text:
    return Text(saving_line(saving.every, saving.interval_s))


def _nodes(nodes: Sequence[NodeView]) -> Text:
    """Names while they fit; those in trouble first, because a narrow terminal cuts the end."""
    bad = [Text(f"{one_line(node.name)} {_trouble_of(node)}", style="bold red") for node in nodes if _trouble_of(node)]
    well = {role: [one_line(node.name) for node in nodes if node.role == role and not _trouble_of(node)] for role in ("gang", "spare")}
    parts = [*bad[:3], *([Text(f"{len(bad) - 3} more in trouble", style="red")] if len(bad) > 3 else [])]
    parts += [Text(text) for text in (_folded(well["gang"]), f"spare {_folded(well['spare'])}" if well["spare"] else "") if text]
    return Text.assemble(("nodes  ", "dim"), _joined(parts) if parts else "none yet")


def _trouble_of(node: NodeView) -> str:
    if node.state != "ready":
        return one_line(node.state).replace("_", " ")
    return one_line(node.service) if node.connected else "not connected"


def _folded(names: Sequence[str]) -> str:
    return " ".join(names) if len(names) <= 6 else f"{' '.join(names[:3])} … {names[-1]} ({len(names)})"


class _Group:
    """Ranks that look alike."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.ranks: list[int] = []
        self.steps: list[int] = []
        self.silent_s = 0.0

    @property
    def urgency(self) -> tuple[bool, int, int]:
        """Silent ones first, then those behind, then the small groups: the odd one out is the news."""
        return (self.silent_s < _SILENT_S, min(self.steps), len(self.ranks))


def _rank_groups(ranks: Iterable[Reading]) -> list[_Group]:
    groups: dict[tuple[str, bool], _Group] = {}
    for reading in sorted(ranks, key=lambda reading: reading.rank):
        phase = one_line(reading.phase) or "up"
        group = groups.setdefault((phase, reading.silent_s >= _SILENT_S), _Group(phase))
        group.ranks.append(reading.rank)
        group.steps.append(reading.step)
        group.silent_s = max(group.silent_s, reading.silent_s)
    return sorted(groups.values(), key=lambda group: group.urgency)


def _ranks(groups: Sequence[_Group], room: int) -> list[Text]:
    if room < 1 or not groups:
        return []
    shown = list(groups[:room])
    lines = [Text.assemble(("ranks  " if index == 0 else "       ", "dim"), _rank_line(group)) for index, group in enumerate(shown)]
    folded = sum(len(group.ranks) for group in groups[room:])
    if folded:
        lines[-1].append(f" · and {folded} more ranks", style="dim")
    return lines


def _rank_line(group: _Group) -> Text:
    low, high = min(group.steps), max(group.steps)
    at = "" if high < 0 else f", at {low:,}" if low == high else f", at {low:,} to {high:,}"
    names = ranges(group.ranks)
    names = names if len(names) <= 24 else f"{names[:20]}… ({len(group.ranks)})"
    silent = group.silent_s >= _SILENT_S
    line = Text(f"{names} {group.phase}{at}", style="bold yellow" if silent else "")
    return line.append(f", silent for {duration(group.silent_s)}") if silent else line


def _incident(incident: IncidentView) -> Text:
    mark, style = {"resolved": ("✓", "green"), "gave_up": ("✗", "bold red")}.get(incident.phase, ("●", "bold yellow"))
    words = [one_line(incident.cause).replace("_", " "), one_line(incident.rung), duration(incident.seconds)]
    said = ", ".join(word for word in words if word)
    return Text.assemble((f"{mark} {incident.id}  ", style), f"{said}: ", (one_line(incident.because), "dim" if incident.phase == "resolved" else ""))


def _joined(parts: Sequence[Text]) -> Text:
    between = Text(" · ", style="dim")
    return Text.assemble(*(piece for part in parts for piece in (between, part)))[len(between) :]


def _styled(lines: Sequence[Text], columns: int) -> list[str]:
    """As the terminal takes it: NO_COLOR, TERM and COLORTERM are rich's to read."""
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=columns, highlight=False, legacy_windows=False)
    for line in lines:
        line.truncate(columns, overflow="ellipsis")
        console.print(line, no_wrap=True, crop=True, soft_wrap=False)
    return out.getvalue().removesuffix("\n").split("\n")
