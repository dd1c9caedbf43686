"""The text the demo's model reads: a ship's log, made here by a small grammar, so that it is nobody's and the same on every machine.

`ships_log` writes as many bytes of it as asked. Words, grammar and the few rules that tie one sentence to the next (weather decides the sail, the hour
decides the watch) are easy for a model of a few million parameters to learn in a minute, one after the other, which is what makes its loss worth watching.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeVar

Thing = TypeVar("Thing")

_WEATHER = {
    "calm": ("all sail set", "the sea like glass", "no more than a breath"),
    "a fresh breeze": ("topsails set", "white caps to windward", "a steady seven knots"),
    "a gale": ("sails close reefed", "green water over the bow", "two men at the wheel"),
    "fog": ("sails backed", "the bell struck every minute", "a lookout in the bows"),
}
_QUARTERS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")
_WATCHES = ((4, "middle"), (8, "morning"), (12, "forenoon"), (16, "afternoon"), (20, "dog"), (24, "first"))
_HANDS = ("the mate", "the boatswain", "the carpenter", "the cook", "the sailmaker", "the pilot", "the youngest hand")
_THINGS = {
    "a line parted": "was spliced and set up again",
    "the anchor dragged": "was let go again with more chain, and held fast",
    "a sail split": "was sent down and another bent in its place",
    "a pump choked": "was cleared, and the well sounded dry",
    "a boat broke loose": "was caught and lashed down twice over",
    "the compass stuck": "was checked by the stars and found true",
}


def ships_log(size_bytes: int, *, seed: int = 1) -> bytes:
    """The first `size_bytes` of the log that belongs to `seed`."""
    days: list[bytes] = []
    written = 0
    for day in _days(Random(seed)):
        days.append(day)
        written += len(day)
        if written >= size_bytes:
            break
    return b"".join(days)[:size_bytes]


def _days(chance: Random) -> Iterator[bytes]:
    day = 0
    while True:
        day += 1
        yield "".join((f"Day {day}.\n", *(_entry(hour, chance) for hour in range(1, 24, 5)), "\n")).encode()


def _entry(hour: int, chance: Random) -> str:
    watch = next(name for before, name in _WATCHES if hour < before)
    weather = _one(tuple(_WEATHER), chance)
    first = f"{hour:02d}:00, {watch} watch: {weather} from the {_one(_QUARTERS, chance)}, {_one(_WEATHER[weather], chance)}."
    if chance.random() < 0.5:
        return f"{first}\n"
    thing, cure = _one(tuple(_THINGS.items()), chance)
    return f"{first} At {hour:02d}:{int(chance.random() * 60):02d} {thing}; {_one(_HANDS, chance)} saw it, and it {cure}.\n"


def _one(things: Sequence[Thing], chance: Random) -> Thing:
    """`Random.random` is the one method whose numbers Python promises to keep, so the choice is made from it."""
    return things[int(chance.random() * len(things))]
