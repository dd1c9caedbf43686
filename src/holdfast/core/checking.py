"""Checking: a node that was left for another is checked before it is trusted again: by itself, and with idle nodes, two by two, in two rounds.

    left, or asked ─► the gang works ─► it computes rightly? ─► links: first round ─► second round, with who is known to be good ─► a verdict
                                             └ no ─► retired                                    good: returned · bad: retired · else unclear

Retired is cordoned, with the reason; returned is used last, as before: it is on probation. Nothing here holds up a gang: one that is formed meanwhile comes
first, and what was begun is begun anew when it works.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.core import checks
from holdfast.core.stopping import Stopping
from holdfast.domain.effect import CheckNode
from holdfast.domain.event import CheckAsked
from holdfast.domain.state import NodeCheck


class Checking(Stopping):
    __slots__ = ()

    def _check_asked(self, event: CheckAsked) -> None:
        """What is refused was told to whoever asked."""
        self.state.checks[event.node] = NodeCheck(because=f"asked by {event.who or 'somebody'}")
        self._check_if_due()

    def _check_if_due(self) -> None:
        """The next node that waits for it; one at a time, since each may take the others' partners."""
        due, known = checks.due(self.state), self.state.checks
        if due and not self._awaiting("CheckNode"):
            known |= {name: replace(check, begun=False) for name, check in known.items()}  # Nobody answers any more what was asked before.
            known[due] = NodeCheck(because=known[due].because, begun=True, partners=checks.partners(self.state, due))
            self._ask(due, due, "compute")

    def _ask(self, of: str, node: str, part: str, *, host: str = "", port: int = 0) -> None:
        """Have a part of the check of one node done by `node`. If that is lost or busy meanwhile, all of it is begun anew when it is due again."""
        check = self.state.checks[of]
        if checks.is_idle(self.state, node):
            self._emit(CheckNode(id=self._id(), generation=self.state.generation, node=node, because=check.because, part=part, host=host, port=port))
        else:
            self.state.checks[of] = replace(check, begun=False)

    def _checked(self, *, passed: bool, said: str, port: int = 0) -> None:
        """One part of it is answered."""
        node = checks.under_way(self.state)
        if not node:
            return
        check = self.state.checks[node]
        if check.pair and not check.port and port:
            self._call(node, check, port)
        elif check.pair:
            listener, caller = check.pair
            self._next_pair(node, replace(check, results=(*check.results, (listener, caller, passed)), said=check.said if passed else said))
        elif passed:
            self._next_pair(node, replace(check, said=said))
        else:
            checks.conclude(self.state, node, "retired", said)
            self._check_if_due()

    def _next_pair(self, node: str, check: NodeCheck) -> None:
        pair = checks.next_pair(node, check)
        self.state.checks[node] = replace(check, pair=pair, port=0)
        if pair:
            self._ask(node, pair[0], "listen")
        else:
            checks.conclude(self.state, node, *checks.verdict(node, check))
            self._check_if_due()

    def _call(self, node: str, check: NodeCheck, port: int) -> None:
        """Somebody listens: the other one of the pair calls."""
        listener, caller = check.pair
        self.state.checks[node] = replace(check, port=port)
        self._ask(node, caller, "call", host=self.state.nodes[listener].host, port=port)
