"""Copies in memory: whether a state survives that nodes are lost, by where its copies lie.

        groups     n / m groups of m nodes, each with all that any of its members has            survives unless a whole group is lost
        ring       each node's copy on the next one                                              survives unless two neighbours are lost
        spread     groups with a member outside each failure domain: what `recover` does         survives the loss of any one domain, always

Spread takes a node outside the largest domain for every group: with two copies no domain may have more than half of the nodes.

Independent losses are not the risk: two partners within the minutes until a copy is made again are lost once in decades. What is lost at once is the risk, and
placement is the answer to it.

Is wrong    when the domains told are not what fails together.
"""

from __future__ import annotations

import math


def groups_lost(nodes: int, copies: int, lost: int) -> float:
    """The chance that `lost` nodes, any of them, take a whole group: in other words, of losing state that only memory had."""
    if lost > nodes or nodes % copies:
        raise ValueError(f"{lost} of {nodes} nodes in groups of {copies}: nodes must be a multiple of the copies, and no more can be lost than there are")
    groups, ways = nodes // copies, 0
    for whole in range(1, min(groups, lost // copies) + 1):  # Inclusion and exclusion, over how many groups are certainly lost.
        ways -= (-1) ** whole * math.comb(groups, whole) * math.comb(nodes - whole * copies, lost - whole * copies)
    return ways / math.comb(nodes, lost)


def ring_lost(nodes: int, lost: int) -> float:
    """The same if each node's copy is on the next one, all around."""
    if lost > nodes:
        raise ValueError(f"{lost} of {nodes} nodes cannot be lost")
    if lost < 2:
        return 0.0
    apart = nodes / (nodes - lost) * math.comb(nodes - lost, lost) if 2 * lost <= nodes else 0.0  # Ways to lose no two neighbours.
    return 1.0 - apart / math.comb(nodes, lost)


def domain_lost(nodes: int, copies: int, domain_nodes: int, *, spread: bool) -> float:
    """The chance of losing state when a whole domain goes, with partners drawn at random or spread over domains as well as these can be."""
    if not spread:
        return groups_lost(nodes, copies, domain_nodes)
    return 0.0 if spreads(nodes, copies, domain_nodes) else 1.0


def spreads(nodes: int, copies: int, domain_nodes: int) -> bool:
    """Whether each group can have a member outside a domain of so many nodes; a node is in one group, since a copy is as large as what it is of."""
    return (nodes - domain_nodes) * copies >= nodes


def partners_lost_per_s(nodes: int, *, node_per_s: float, exposed_s: float) -> float:
    """How often, of pairs, the second is lost before the first one's copy was made again."""
    return nodes * node_per_s * -math.expm1(-node_per_s * exposed_s)
