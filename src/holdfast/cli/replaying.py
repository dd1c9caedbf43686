"""Replay: take the events of a journal again and compare what is decided with what was decided then."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.control.journal import Entry, Journal
from holdfast.core import Core
from holdfast.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    entries: tuple[Entry, ...]
    differences: tuple[str, ...]  # Where today's code decides otherwise; none when it is the code that ran.


def replayed(journal: Journal, incident: int | None) -> Replayed:
    """Every event of the job, or those of one incident, each with the effects decided on it."""
    core, kept, differences = Core(), [], []
    known = 0
    for entry in journal.entries():
        was_open = {one.id for one in core.state.incidents if one.is_open}
        effects = core.step(entry.event)
        known = len(core.state.incidents)
        if effects != entry.effects:
            differences.append(f"event {entry.seq}: this version decides {_names(effects)}, the one that ran decided {_names(entry.effects)}")
        if incident is None or incident in was_open or any(one.id == incident and one.is_open for one in core.state.incidents):
            kept.append(entry)
    if incident is not None and not kept:
        raise UserError(f"there is no incident {incident}; there are {known}")
    return Replayed(entries=tuple(kept), differences=tuple(differences))


def _names(effects: tuple[object, ...]) -> str:
    return ", ".join(type(effect).__name__ for effect in effects) or "nothing"
