"""Notes: sentences for whoever watches a job, now or later, about what no incident tells."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.domain.state import State
from holdfast.wire.messages import Uploading


class Notes:
    def __init__(self, state: State) -> None:
        self.texts: list[str] = []
        self.uploading: Uploading | None = None  # As it was last said.
        self._profiles_told = max((one.number for one in state.profiles if one.ended_at is not None), default=0)

    def take(self, text: str) -> None:
        print(f"holdfast control: {text}", file=sys.stderr, flush=True)
        self.texts.append(text)

    def take_once(self, text: str) -> None:
        if text and text not in self.texts:  # Nodes of one machine say the same.
            self.take(text)

    def uploads_stand(self, now: Uploading) -> None:
        """What a person should hear of it: that the store begins to fail, and that it works again."""
        before, self.uploading = self.uploading, now
        failed = before is not None and bool(before.error)
        if now.error and not failed:
            self.take(f"checkpoints do not reach the remote store: {now.error} Training goes on, and it is tried again")
        elif failed and not now.error:
            self.take(f"checkpoints reach the remote store again: step {now.step} is there")

    def uploads_end(self, job: str) -> None:
        if self.uploading is None:
            return
        step, missing = self.uploading.step, self.uploading.missing
        if missing >= 0:
            self.take(f"step {missing} is not in the remote store yet; `holdfast checkpoint upload {job}` or `holdfast resume {job}` sends it")
        else:
            self.take(f"step {step} is in the remote store" if step >= 0 else "nothing is in the remote store: nothing was saved")

    def profiles_stand(self, state: State, directory: Path) -> None:
        """Whoever asked for one is told by the command; what was taken by itself is told here."""
        for one in state.profiles:
            if one.ended_at is not None and one.number > self._profiles_told:
                self._profiles_told = one.number
                if one.incident and one.ranks:
                    self.take(f"incident {one.incident} was profiled: {'; '.join(one.says)}; traces in {directory / one.name}")
