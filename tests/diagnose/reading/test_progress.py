"""How far training came, and whether it went on after an error."""

from __future__ import annotations

import math

import pytest
from diagnose.reading.reading_logs import digest, only


@pytest.mark.parametrize(
    ("line", "step", "loss"),
    [
        ("step 120 loss: 0.123", 120, 0.123),
        ("{'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}", None, 2.31),
        (" iteration      100/  500000 | consumed samples:  800 | lm loss: 1.069312E+01 | number of skipped iterations:   0 | number of nan iterations:   0 "
        "|", 100, 10.69312),
        (" 45%|████▌     | 450/1000 [00:10<00:12, 44.1it/s, loss=0.5]", 450, 0.5),
        ("Epoch 3/10: 100%|██████████| 782/782 [00:30<00:00, 25.8it/s]", 782, None),
        ("Epoch [3/10], Step [200/938], Loss: 0.1234", 200, 0.1234),
        ("INFO global_step=77 train_loss=inf", 77, math.inf),
        ("epoch 3 done", None, None),
    ],
)
def test_progress_is_read_in_the_common_forms(line: str, step: int | None, loss: float | None) -> None:
    (sign,) = digest(line + "\n").progress
    assert (sign.step, sign.loss) == (step, loss)


@pytest.mark.parametrize("line", ["Downloading shards: 100%|██████| 2/2 [00:10<00:00]", "failed at step 120", "resumed from step 100", "batch size is large"])
def test_other_lines_are_no_progress(line: str) -> None:
    assert digest(line + "\n").progress == ()


def test_a_loss_that_is_not_finite_is_an_event_and_always_kept() -> None:
    lines = [f"step {step} loss {'nan' if step == 4321 else 1.0}\n" for step in range(9000)]
    found = digest("".join(lines))
    assert [event.error for event in found.events] == ["loss not finite"]
    assert any(sign.step == 4321 and sign.loss is not None and math.isnan(sign.loss) for sign in found.progress)
    assert {found.progress[0].step, found.progress[-1].step} == {0, 8999}
    assert len(found.progress) < 2000


def test_an_error_that_training_went_on_after_was_caught() -> None:
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "    x()", "OSError: [Errno 5] Input/output error",
        *(f"step {step} loss 1.{step}" for step in range(9))]
    event = only("\n".join(lines) + "\n")
    assert event.progress_after == 9
    assert event.warning


def test_progress_of_another_rank_does_not_excuse_one() -> None:
    lines = ["[rank1]: step 1 loss 1", "[rank1]: ValueError: x", *(f"[rank0]: step {step} loss 1" for step in range(9))]
    event = only("\n".join(lines) + "\n")
    assert (event.progress_after, event.warning) == (0, False)


def test_progress_of_the_next_run_in_the_same_file_does_not_excuse_an_error() -> None:
    lines = ["step 1 loss 1", "ValueError: x", "***** Running training *****", *(f"step {step} loss 1.{step}" for step in range(9))]
    found = digest("\n".join(lines) + "\n")
    assert not found.events[0].warning
    assert found.started_lines == (("train.log", 1), ("train.log", 3))


@pytest.mark.parametrize("line", ["Training completed. Do not forget to share your model on huggingface.co/models =)", "`Trainer.fit` stopped: "
    "`max_epochs=3` reached.", "Finished training", "done."])
def test_a_log_that_ends_as_one_that_is_done_says_so(line: str) -> None:
    assert digest(f"step 1 loss 2\n{line}\n").said_finished


@pytest.mark.parametrize("lines", ["step 1 loss 2\n", "Training completed\nTraceback (most recent call last):\n  File \"a.py\", line 1, in f\nValueError: "
    "x\n", "Training has not completed\n", ""])
def test_one_that_does_not_end_so_does_not(lines: str) -> None:
    assert not digest(lines).said_finished


def test_only_the_last_state_of_a_bar_is_in_the_tail() -> None:
    bar = "".join(f"\r {step:2d}%|█ | {step}/100 [00:10<00:12, 1.1it/s]" for step in range(50))
    found = digest(f"start\n{bar}\nend\n")
    assert [line.text.strip()[:4] for line in found.tail] == ["star", "49%|", "end"]
    assert [line.line for line in found.tail] == [1, 2, 3]


def test_repeated_lines_are_folded_with_their_count() -> None:
    found = digest("".join(f"waiting for worker {number}\n" for number in range(12)))
    assert [(line.times, line.line) for line in found.tail] == [(12, 12)]


def test_an_error_said_over_and_over_is_one_event_with_its_count() -> None:
    found = digest("".join(f"2026-11-16 04:05:06 ERROR request {number} failed\n" for number in range(5000)))
    assert len(found.events) <= 2
    assert sum(event.times for event in found.events) == 5000


def test_a_loss_that_is_not_finite_is_found_deep_inside_a_long_log() -> None:
    line = b" iteration %d/ 500000 | lm loss: %s | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    found = digest(b"".join(line % (step, b"NAN" if step == 17_000 else b"1.2E+00") for step in range(20_000)))
    assert [(event.error, event.first_line) for event in found.events] == [("loss not finite", 17_001)]
    assert found.notes == ()
