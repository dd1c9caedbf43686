"""Treatment: what a job's training does otherwise than its script says, because it had gone wrong. Kept with the job over its attempts, and recorded in its
checkpoints.

Data is counted in draws: one draw is the data of one optimizer step, those that were left out counted in. So a place in the data keeps its number, however much
is left out before it, at any world size; and a step is the draw of the same number as long as nothing was left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Window:
    """Draws that are left out, both ends among them. The first of all is 0."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    left_out: tuple[Window, ...] = ()  # Apart from each other, in order.
    rate: float = 1.0  # The learning rate is so many times what the script says.
    clip: float = 0.0  # Gradients are clipped to this norm; 0: as the script does.
    warm_up: int = 0  # Over so many steps the rate rises from nothing,
    warm_up_from: int = 0  # from this step on.

    def __str__(self) -> str:
        said = (
            f"the data of {_steps(self.draws_left_out)} left out (draws {', '.join(map(str, self.left_out))})" if self.left_out else "",
            f"learning rate times {self.rate:g}" if self.rate != 1.0 else "",
            f"gradients clipped to a norm of {self.clip:g}" if self.clip else "",
            f"warmed up again over {_steps(self.warm_up)} from step {self.warm_up_from}" if self.warm_up else "",
        )
        return ", ".join(filter(None, said)) or "as the script says"

    @property
    def draws_left_out(self) -> int:
        return sum(map(len, self.left_out))

    @property
    def tunes(self) -> bool:
        """Whether more than data is changed."""
        return bool(self.rate != 1.0 or self.clip or self.warm_up)

    def environment(self) -> dict[str, str]:
        """How a worker hears of it."""
        if self == Treatment():
            return {}
        tuned = (
            f"lr=*{self.rate!r}" if self.rate != 1.0 else "",
            f"clip={self.clip!r}" if self.clip else "",
            f"warmup={self.warm_up}@{self.warm_up_from}" if self.warm_up else "",
        )
        return {"HOLDFAST_LEAVE_OUT": ",".join(map(str, self.left_out)), "HOLDFAST_TUNE": ",".join(filter(None, tuned))}

    def draw_of(self, step: int) -> int:
        """The draw that the step after `step` finished ones is made of."""
        draw = step
        for window in self.left_out:
            if draw >= window.first:
                draw += len(window)
        return draw

    def step_of(self, draw: int) -> int:
        """How many steps are finished when this draw is due; of one that is left out, when its window is reached."""
        return draw - sum(min(window.last, draw - 1) - window.first + 1 for window in self.left_out if window.first < draw)


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"


def next_draw(left_out: Sequence[Window], draw: int) -> int:
    """The first from `draw` on that is not left out."""
    for window in left_out:
        if window.first <= draw <= window.last:
            draw = window.last + 1
    return draw


def windows_of(text: str) -> tuple[Window, ...]:
    """What `environment` wrote; raises ValueError for anything else."""
    bounds = [part.partition("-") for part in text.split(",") if part]
    return tuple(Window(first=int(first), last=int(last or first)) for first, _, last in bounds)


def joined(windows: Sequence[Window]) -> tuple[Window, ...]:
    """The same draws in windows that are apart from each other."""
    found: list[Window] = []
    for window in sorted(windows):
        if found and window.first <= found[-1].last + 1:
            found[-1] = Window(first=found[-1].first, last=max(found[-1].last, window.last))
        else:
            found.append(window)
    return tuple(found)
