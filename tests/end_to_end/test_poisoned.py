"""A checkpoint that holds NaN is left behind, and nobody else is blamed."""

from __future__ import annotations

from pathlib import Path

import torch
from end_to_end.jobs import SCRIPTS, Job

from holdfast.checkpoint.found import list_complete
from holdfast.checkpoint.layout import directory_name
from holdfast.core.base import PERMANENT_CODE
from holdfast.domain.diagnosis import Cause
from holdfast.domain.job import Outcome

POISONED = SCRIPTS / "poisoned.py"


def poisoned(state: Path, name: str, *, nan_at: int, steps: int = 24, step_s: float = 0.1) -> Job:
    return Job(state, name, script=POISONED, arguments=[state / f"kept-{name}", steps, nan_at, step_s], torch=True)


def starts(job: Job) -> list[tuple[int, int]]:
    """Generation, and the step it began with."""
    return [(int(line.split()[0]), int(line.split()[1])) for line in (job.kept / "starts").read_text().splitlines()]


def weights(job: Job) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(job.kept / "weights.pt", weights_only=True)
    return found


def test_a_checkpoint_of_nan_is_left_behind_and_training_ends_as_it_would_have_without_it(state: Path) -> None:
    with poisoned(state, "calm", nan_at=-1, step_s=0.0) as calm:
        calm.finished(120.0)
    with poisoned(state, "job", nan_at=10) as job:
        ended = job.finished(120.0)
    assert starts(job) == [(1, 0), (2, 10), (3, 5)]
    assert all(torch.equal(one, weights(job)[name]) for name, one in weights(calm).items())
    name = directory_name(10, 1)
    assert ended.poisoned == (name,)
    causes = [diagnosis for incident in ended.incidents for diagnosis in incident.diagnoses]
    assert [one.cause for one in causes] == [Cause.KILLED, Cause.POISONED_CHECKPOINT]
    assert (causes[-1].ranks, causes[-1].node, causes[-1].step) == ((), "", 10)
    assert any(name in line.what for line in ended.incidents[-1].story), ended.incidents[-1]


def test_where_the_only_checkpoint_holds_nan_the_job_says_so_and_does_not_start_from_scratch(state: Path) -> None:
    with poisoned(state, "job", nan_at=5) as job:
        assert job.wait(120.0) == PERMANENT_CODE, job.said()
    ended = job.state()
    name = directory_name(5, 1)
    assert starts(job) == [(1, 0), (2, 5)]
    assert ended.outcome is Outcome.PERMANENT
    assert f"{name} gave a loss that is not finite" in ended.because
    assert name in [found.name for found in list_complete(job.directory.checkpoints)], "what is distrusted stays where it is"
