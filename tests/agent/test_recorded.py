"""Effects recorded before they are performed: a repeat finds the answer, and a crash in between is seen as one."""

from __future__ import annotations

from pathlib import Path

from holdfast.agent.recorded import Recorded
from holdfast.domain.effect import StartGang, StartStore

STORE = StartStore(id="e1", generation=1, node="node-0", because="a test")
GANG = StartGang(
    id="e2", generation=1, node="node-0", because="a test", ranks=(2, 3), node_rank=1, nodes=2, world_size=4, store_host="127.0.0.1", store_port=1,
    store_hosted=True, restarts=0, restore="step-00000010.g0",
)  # fmt: skip


def test_an_answer_survives_the_agent_and_answers_the_repeat(tmp_path: Path) -> None:
    first = Recorded(tmp_path / "effects.jsonl")
    first.begin(STORE)
    first.answer("e1", {"port": 4711})
    first.close()
    second = Recorded(tmp_path / "effects.jsonl")
    assert second.was_begun("e1")
    assert second.answer_of("e1") == {"port": 4711}
    second.close()


def test_an_effect_begun_and_not_answered_is_known_as_such_with_its_ranks(tmp_path: Path) -> None:
    first = Recorded(tmp_path / "effects.jsonl")
    first.begin(GANG)
    first.close()
    second = Recorded(tmp_path / "effects.jsonl")
    assert second.was_begun("e2")
    assert second.answer_of("e2") is None
    assert second.last_start() == (1, (2, 3), "step-00000010.g0")
    second.close()


def test_a_line_torn_by_a_crash_counts_for_nothing_wherever_it_was_torn(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    recorded = Recorded(whole)
    recorded.begin(GANG)
    recorded.close()
    line = whole.read_bytes()
    for length in range(len(line) - 1):
        torn = tmp_path / "torn.jsonl"
        torn.write_bytes(line[:length])
        found = Recorded(torn)
        assert not found.was_begun("e2"), line[:length]
        found.close()


def test_an_effect_never_seen_is_unknown(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "effects.jsonl")
    assert not recorded.was_begun("e9")
    assert recorded.answer_of("e9") is None
    assert recorded.last_start() == (0, (), "")
    recorded.close()
