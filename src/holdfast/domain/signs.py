"""Signs: what an agent sees of a rank that has not moved for a while. Control judges them over the whole gang; no agent accuses a rank by itself.

Every age counts the seconds in which the agent looked. Time in which the agent was stopped too (a sleeping laptop, a suspended terminal) is in none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

COLLECTIVE: Final = "collective"  # The newest frames of its main thread are torch's, in a collective.
BEGUN: Final = "begun"  # In a backward pass or in `work.wait()`: it computes, or it waits for collectives that were begun before.
DATA: Final = "data"  # It waits for data: in the loop over `run.steps`, or in a data loader.
ELSEWHERE: Final = "elsewhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """One rank that does not move. `None` for an age: that was never seen."""

    quiet_s: float  # Since its last beat.
    usual_s: float  # How long its phase may last by what was learned; see `detect/phases.py`.
    quick: bool = False  # It has finished many steps, all of them short.
    process_state: str = ""  # As in /proc: R, S, D, T, t, Z.
    stopped_s: float = 0.0  # Since when it is in state T.
    inside: str = ""  # One of the four above. Empty: its stack is not known.
    doing: str = ""  # What its main thread waits for, in words for people: "sleeps", "waits for a process", …; empty: not known, or it runs.
    place: str = ""  # The calls of the script that stay the same while it pauses, outermost first: "train.py:main:45 > train.py:evaluate".
    where: str = ""  # The newest of them, for people: "`evaluate`, train.py:31".
    stack_s: float | None = None  # Since its stack was last seen to change.
    sampled_s: float | None = None  # The age of the newest sample.
    main_idle_s: float = 0.0  # Since its main thread last ran: it used the processor, or was woken again and again.
    main_busy_s: float = 0.0  # Since when it has done so at every look.
    own_idle_s: float = 0.0  # Since its own process used the processor,
    children_idle_s: float = 0.0  # since a process below it did,
    io_idle_s: float = 0.0  # and since one of them read or wrote.
    on_gpu: bool = False  # Its main thread may wait for a GPU by running all the while.
    pending_s: float | None = None  # Since when a collective that it has given to its GPU has not ended there, and no other was given or ended. None: none.
    group_timeout_s: float | None = None  # After how long torch itself ends a collective that does not end.
