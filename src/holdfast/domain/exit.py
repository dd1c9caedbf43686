"""An exit: how one worker ended, and what is known about why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdfast.domain.gpu_holder import GpuHolder


class ExitKind(StrEnum):
    FINISHED = "finished"
    CODE = "code"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    EXCEPTION = "exception"
    VANISHED = "vanished"  # The process is gone and nobody saw how: its parent died first.


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    rank: int
    pid: int
    kind: ExitKind
    because: str  # One sentence for people.
    code: int | None = None
    signal: int | None = None
    at_ns: int = 0  # CLOCK_MONOTONIC of the node, so that "who went first" is exact within one machine.
    exception: str = ""  # The exception's type, where a Python traceback was seen.
    message: str = ""
    frame: str = ""  # Innermost frame of the user's own code, "file:function:line".
    fingerprint: str = ""  # The same fault again has the same fingerprint; no addresses, no numbers.
    tail: str = ""  # The last lines the worker printed.
    step: int = -1  # The last step it finished; -1 when it does not beat.
    phase: str = ""
    micro_batch: int = 0  # The samples it was given at once, where that may be changed; else 0.
    loader_workers: int = 0  # Of its data loader.
    limit: str = ""  # Of one that ran out of memory: the option whose limit it met, such as "--memory"; empty: none of the job's own.
    leak: str = ""  # And how memory had grown with the steps, in words; empty: it had not.
    gpus: int = -1  # On its node, where what it said was about them; -1: nobody looked, or the driver did not say.
    holders: tuple[GpuHolder, ...] = ()  # And who had memory on them.
    never_passes: str = ""  # The class of causes it says it is, where every further start of the same script would end the same; empty: it may pass.
    stopped_by_us: bool = False  # It ended after this node was told to stop its generation: an echo, not a cause.

    @property
    def own_code(self) -> int:
        """The exit code a shell would show."""
        if self.signal is not None:
            return 128 + self.signal
        return self.code if self.code is not None else 1
