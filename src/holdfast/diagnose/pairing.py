"""Pairing: nodes are tested two by two, in two rounds; who is at fault when a pair fails?

    first = first_round(nodes)                 each with one other
    second = second_round(nodes, results)      each suspect with a node that is known to be good
    judged = judge(nodes, results)             what both rounds say, and why

A test of two fails when at least one of them is bad, so a pair that passes clears both, and a pair that fails with a good node in it convicts the other.
Nothing else is concluded: nobody is called bad who may be good. After two rounds everybody is judged if any pair of the first round passed; with one bad
node of three or more, and with two of six or more, that is always so.

Is wrong    when a fault comes and goes between the rounds, or lies in the link between two nodes that are each well: that pair fails, and both are
            cleared by others, which is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    bad: tuple[str, ...]
    good: tuple[str, ...]
    unclear: tuple[str, ...]
    links: tuple[Pair, ...]  # Pairs that failed although both nodes are good: what is between them is at fault.
    because: tuple[str, ...]  # A sentence for each bad node, link and unclear node.


def first_round(nodes: Sequence[str]) -> tuple[Pair, ...]:
    """Neighbours in the order given. One is left over when their number is odd, and waits for the second round."""
    return tuple(zip(nodes[::2], nodes[1::2], strict=False))


def second_round(nodes: Sequence[str], results: Mapping[Pair, bool]) -> tuple[Pair, ...]:
    """Everybody who is not known to be good, with somebody who is; the good ones take turns. Where nobody is, suspects with those of another pair."""
    good = _cleared(results)
    open_ = [node for node in nodes if node not in good]
    if good:
        known = [node for node in nodes if node in good]
        return tuple((node, known[index % len(known)]) for index, node in enumerate(open_))
    untested = [node for node in nodes if not any(node in pair for pair in results)]
    if untested:
        return tuple((node, untested[0]) for node in open_ if node not in untested)
    pairs = [pair for pair in results if set(pair) <= set(nodes)]
    return tuple((a, b) for one, other in pairwise(pairs) for a, b in zip(one, other, strict=True))


def judge(nodes: Sequence[str], results: Mapping[Pair, bool]) -> Judged:
    """`results` of both rounds: pair to whether it passed."""
    good = _cleared(results)
    convicted: dict[str, str] = {}
    for (a, b), passed in results.items():
        if not passed and (a in good) != (b in good):
            bad, with_ = (b, a) if a in good else (a, b)
            convicted.setdefault(bad, f"{bad} is bad: it fails with {with_}, which passes with others")
    links = tuple(pair for pair, passed in results.items() if not passed and set(pair) <= good)
    unclear = tuple(node for node in nodes if node not in good and node not in convicted)
    return Judged(
        bad=tuple(node for node in nodes if node in convicted), good=tuple(node for node in nodes if node in good), unclear=unclear, links=links,
        because=(
            *(convicted[node] for node in nodes if node in convicted),
            *(f"the link between {a} and {b} is bad: both pass with others" for a, b in links),
            *(f"{node} is unclear: it was tested with no node that is known to be good" for node in unclear),
        ),
    )  # fmt: skip


def _cleared(results: Mapping[Pair, bool]) -> set[str]:
    return {node for pair, passed in results.items() if passed for node in pair}
