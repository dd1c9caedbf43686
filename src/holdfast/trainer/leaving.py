"""Leaving: which step the state is of when a loop is left in the middle, by `break`, an exception, or the end of the script.

    next ─► mark: step 7 is done ─► forward, backward, optimizer, scheduler ─► next ─► mark: step 8 is done
                                 │                                        │
             left here: nothing has moved, this is step 7      all has moved that moves in a step: this is step 8

Sees        how often the optimizers given to `guard` have stepped, the counts of schedulers, the version that torch counts of a parameter or a buffer of each
            model, and the plain values of all other pieces. What moves in a step is learned from the steps before.
Says        the step, or why it cannot be known: something has moved in the step that was left and something else has not, or no step before it is like it.
Is wrong    about a piece that changes where nothing of it is seen, such as an array deep inside an object: it is saved as it is when the loop is left. And
            about random numbers that are drawn after the loop, where its iterator is kept: the loop is taken for left when the process ends.
Costs       a few microseconds for a mark, of which there are at most 250 a second; between two marks only what is counted is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Final

from holdfast.checkpoint.pieces import unwrapped
from holdfast.trainer.randomness_marks import Marked, RandomnessMarks
from holdfast.trainer.side import why_not

MARK_EVERY_S: Final = 0.004
_REGULAR_STEPS: Final = 100  # So many steps at least must have moved all optimizers alike, where there were as many.
_VALUES: Final = 8  # Of a piece that is a dictionary or an object of the script's own,
_DEPTH: Final = 2  # and of dictionaries in it.


@dataclass(frozen=True, slots=True)
class Mark:
    """What was seen when `step` was done. `place` is where a loader stood."""

    step: int
    values: tuple[Any, ...]
    place: tuple[Any, ...] | None
    randomness: Marked


@dataclass(frozen=True, slots=True)
class State:
    """The step that the state is of; None: that cannot be known, and why. `moved`: something has changed since the last step was done. `mark`: where the random
    numbers and the data stood, if the step is the last one that was marked."""

    step: int | None
    because: str = ""
    moved: bool = True
    mark: Mark | None = None


class Leaving:
    def __init__(self, pieces: Mapping[str, Any]) -> None:
        import torch

        self._randomness = RandomnessMarks()
        self._probes: list[_Probe] = []
        self._handles: list[Any] = []
        optimizers = {name: piece for name, piece in pieces.items() if isinstance(piece, torch.optim.Optimizer)}
        self._unseen = why_not(list(optimizers.values())) if optimizers else ""
        for name, optimizer in optimizers.items():
            steps = _Steps()
            self._handles += [optimizer.register_step_pre_hook(steps.add), optimizer.register_step_post_hook(steps.add)]
            self._probes.append(_Probe(name, lambda steps=steps: steps.count, counts=True, steadily=True))  # type: ignore[misc]
        stepped = {id(parameter) for one in optimizers.values() for group in one.param_groups for parameter in group["params"]}
        for name, piece in ((name, unwrapped(piece)) for name, piece in pieces.items() if name not in optimizers):
            self._probes += _probes_of(name, piece, stepped)
        self._scalers = [piece for piece in pieces.values() if isinstance(piece, torch.amp.GradScaler)]
        self._at: Mark | None = None
        self._before: Mark | None = None
        self._earlier: Mark | None = None
        self._anchors: list[Mark] = []  # Two at most, `_REGULAR_STEPS` apart.

    def begin(self, step: int) -> None:
        """A loop is entered: what was moved outside of one is no part of a step."""
        self._at = self._before = self._earlier = None
        self._anchors = []
        self.mark(step, None)

    def mark(self, step: int, place: tuple[Any, ...] | None) -> None:
        """`step` is done, and the loop asks for the next."""
        mark = Mark(step, tuple([probe.read() for probe in self._probes]), place, self._randomness.read())
        self._earlier, self._before, self._at = self._before, self._at, mark
        if not self._anchors or step >= self._anchors[-1].step + _REGULAR_STEPS:
            self._anchors = [*self._anchors[-1:], mark]

    def take_off(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def state(self, step: int) -> State:
        """Judge what is there now, with `step` the last that was done."""
        at = self._at
        if at is None:
            return State(None, "the loop had just begun", moved=False)
        if self._unseen:
            return State(None, self._unseen)
        now = tuple(probe.read() for probe in self._probes)
        since = step - at.step
        if now == at.values and since == 0:
            seen = self._anchors[0].values != at.values
            return State(step, moved=False, mark=at) if seen else State(None, "no step has changed anything that is seen to change", moved=False)
        if since and self._is_after(since, now, at) and at.place is None and self._randomness.same(at.randomness, self._randomness.read()):
            return State(step, moved=False, mark=at)
        if any(scaler._per_optimizer_states for scaler in self._scalers):
            return State(None, "the GradScaler had not been updated")
        because = self._not_whole(since + 1, now, at)
        return State(None, because) if because else State(step + 1)

    def _is_after(self, steps: int, now: tuple[Any, ...], at: Mark) -> bool:
        """Whether everything stands where `steps` whole steps after the mark leave it."""
        for place, probe in enumerate(self._probes):
            usual = self._usual(place, at) if probe.counts else 0
            if usual is None or (now[place] != at.values[place] + steps * usual if probe.counts else now[place] != at.values[place]):
                return False
        return not self._irregular(at) and self._anchors[0].values != at.values

    def _not_whole(self, steps: int, now: tuple[Any, ...], at: Mark) -> str:
        """Why this is not the state after so many whole steps, or nothing."""
        if self._before is None:
            return "it was the first step of this process, so nothing was there to compare it with"
        irregular = self._irregular(at)
        if irregular:
            return irregular
        for place, probe in enumerate(self._probes):
            before, moved = at.values[place], now[place] != at.values[place]
            if probe.counts:
                usual = self._usual(place, at)
                if usual is None or (now[place] != before + steps * usual and (usual or probe.steadily)):
                    return f"{probe.name} does not stand where a whole step leaves it"
            elif self._changes(place, at) and (not moved or steps > 1):
                return f"{probe.name} changes in every step, and whether it did in this one cannot be seen"
        return ""

    def _usual(self, place: int, at: Mark) -> int | None:
        """How much a count grows in a step; None where that is not the same in every step."""
        if self._before is None:
            return None
        grown, rest = divmod(at.values[place] - self._before.values[place], max(1, at.step - self._before.step))
        return None if rest else grown

    def _changes(self, place: int, at: Mark) -> bool:
        """Whether a value was another one after each of the steps before."""
        before, earlier = self._before, self._earlier
        return before is not None and at.values[place] != before.values[place] and (earlier is None or before.values[place] != earlier.values[place])

    def _irregular(self, at: Mark) -> str:
        """Why a step cannot be told by how often the optimizers stepped, or nothing."""
        first = self._anchors[0]
        for place, probe in ((place, probe) for place, probe in enumerate(self._probes) if probe.steadily):
            usual = self._usual(place, at)
            if usual is None or at.values[place] - first.values[place] != (at.step - first.step) * usual:
                return f"{probe.name} does not step equally often in every step"
        return ""


class _Steps:
    """Counts the beginnings and the ends of an optimizer's steps: one that was broken off in the middle leaves an odd number."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self, *_: Any) -> None:
        self.count += 1


@dataclass(frozen=True, slots=True)
class _Probe:
    """One thing to read of a piece. `counts`: a number that grows by steps. `steadily`: by the same in every step, or a step cannot be told."""

    name: str
    read: Callable[[], Any]
    counts: bool = False
    steadily: bool = False


def _probes_of(name: str, piece: Any, stepped: set[int]) -> list[_Probe]:
    import torch

    if isinstance(piece, torch.nn.Module):
        own = [parameter for parameter in piece.parameters() if id(parameter) not in stepped][:1]
        return [_Probe(name, lambda tensor=tensor: tensor._version, counts=True) for tensor in (*own, *list(piece.buffers())[-1:])]  # type: ignore[misc]
    if isinstance(piece, torch.amp.GradScaler):
        return [_Probe(name, lambda: piece._scale._version if piece._scale is not None else 0, counts=True)]
    if isinstance(piece, torch.Generator):
        return [_Probe(name, lambda: piece.get_state().numpy().tobytes())]
    if isinstance(getattr(piece, "last_epoch", None), int):  # One of torch's schedulers.
        return [_Probe(name, lambda: piece.last_epoch, counts=True)]
    values = piece if isinstance(piece, Mapping) else getattr(piece, "__dict__", None)
    return [_Probe(name, lambda: _seen(values))] if values is not None else []


def _seen(value: Any, depth: int = 0) -> Any:
    """What can be told of a value at once, without keeping it alive."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if hasattr(type(value), "_version"):
        return id(value), -1 if value.is_inference() else value._version
    if isinstance(value, Mapping) and depth < _DEPTH:
        return len(value), tuple([_seen(inner, depth + 1) for inner, _ in zip(value.values(), range(_VALUES), strict=False)])
    return (id(value), len(value)) if isinstance(value, Sized) else id(value)
