"""Templates of lines, and fingerprints of errors."""

from __future__ import annotations

import re

from diagnose.reading.reading_logs import digest, only
from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnose.reading.templates import GAP, Templates, masked

words = st.sampled_from(["loading", "shard", "failed", "to", "open", "worker", "7", "0x7f", "/data/a/b.json", "10.0.0.1:29500", "node3", "the"])
lines = st.lists(words, max_size=12).map(" ".join)


def test_lines_that_differ_in_a_name_share_a_template() -> None:
    templates = Templates()
    for user in ("ann", "bob", "eve"):
        template = templates.learn(f"connection of user {user} to the store was closed")
    assert template.text == f"connection of user {GAP} to the store was closed"
    assert (template.times, len(templates)) == (3, 1)


def test_lines_that_say_different_things_do_not() -> None:
    templates = Templates()
    assert templates.learn("the disk is full") is not templates.learn("the loss is small")


def test_a_template_is_found_without_being_learned() -> None:
    templates = Templates()
    assert templates.find("waiting for worker 3") is None
    templates.learn("waiting for worker 3")
    assert templates.find("waiting for worker 4") is not None
    assert templates.all()[0].times == 1


@given(texts=st.lists(lines, max_size=60))
def test_templates_never_outgrow_their_bound(texts: list[str]) -> None:
    templates = Templates(templates_max=5)
    for text in texts:
        templates.learn(text)
    assert len(templates) <= 5


@given(texts=st.lists(lines, max_size=40))
def test_a_line_that_was_just_learned_is_found(texts: list[str]) -> None:
    templates = Templates()
    for text in texts:
        learned = templates.learn(text)
        assert templates.find(text) is learned


@given(texts=st.lists(lines, max_size=40))
def test_every_line_is_counted_once(texts: list[str]) -> None:
    templates = Templates()
    for text in texts:
        templates.learn(text)
    assert sum(template.times for template in templates.all()) == len(texts)


@given(text=lines)
def test_masking_a_masked_line_changes_nothing(text: str) -> None:
    assert masked(masked(text)) == masked(text)


@given(numbers=st.lists(st.integers(0, 10**6), min_size=4, max_size=4), directory=st.sampled_from(["/data/a", "/mnt/x/y/z", "/srv/ann"]))
def test_the_same_failure_elsewhere_has_the_same_fingerprint(numbers: list[int], directory: str) -> None:
    def failure(numbers: list[int], directory: str) -> str:
        rank, node, step, last = numbers
        where = f"10.0.0.{last % 256}:{1 + step % 60000}"
        return only(f"[rank{rank}]: RuntimeError: node{node}: cannot read {directory}/shard.json at step {step} from {where}\n").fingerprint

    assert failure(numbers, directory) == failure([3, 7, 120, 4], "/other/place")


def test_another_failure_has_another_fingerprint() -> None:
    texts = [
        "ValueError: too many values to unpack", "KeyError: 'label'", "TypeError: too many values to unpack", "OSError: [Errno 28] No space left on device",
        "OSError: [Errno 5] Input/output error", "requests.exceptions.HTTPError: 404 Client Error: Not Found", "requests.exceptions.HTTPError: 503 Server "
        "Error: Unavailable",
        "FileNotFoundError: No such file: '/data/a.json'", "FileNotFoundError: No such file: '/data/b.json'", "NVRM: Xid (PCI:0000:3b:00): 79, gone", "NVRM: "
        "Xid (PCI:0000:3b:00): 63, gone",
    ]  # fmt: skip
    assert len({only(text + "\n").fingerprint for text in texts}) == len(texts)


def test_what_is_like_nothing_before_is_rare() -> None:
    found = digest("".join(f"saved part {number} of the model\n" for number in range(200)) + "the cooling water is gone\n")
    assert [line.text for line in found.rare] == ["the cooling water is gone"]


def test_masks_keep_what_numbers_name() -> None:
    assert masked("float16 and [Errno 28] and exit code 137") == "float16 and [Errno 28] and exit code 137"
    assert re.search(r"\d", masked("step 12 of node7 at 0x7f at /a/b12/c3")) is None
