"""Scripts that are odd and legal: a tenth of benchmarks/legal, another one each day, with pauses that are longer than the detectors' shortest limit."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PAUSE_S = 25.0


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_nothing_is_done_to_scripts_that_are_odd_and_legal(state: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from legal.run_scripts import NAMES, run_holdfast

    in_turn = random.Random(0).sample(NAMES, len(NAMES))
    ranks = {name: random.Random(f"{seed} {name}").choice((1, 2)) for name in in_turn[seed % 10 :: 10]}
    for name in ranks:
        (state / name).mkdir()
    with ThreadPoolExecutor(len(ranks)) as pool:
        running = {name: pool.submit(run_holdfast, state / name, name, ranks[name], PAUSE_S, threading.Event()) for name in ranks}
    for name, one in running.items():
        ended = one.result()
        assert not ended.acted, f"{name} with {ranks[name]} ranks was struck: {ended.acted}"
        assert (ended.code, len(ended.said), ended.printed) == (0, ranks[name], True), f"{name} with {ranks[name]} ranks ended otherwise: {ended}"
        assert ended.processes == ranks[name], f"{name} was started again: {ended.processes} processes for {ranks[name]} ranks"
