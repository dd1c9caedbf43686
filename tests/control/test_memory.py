"""What control tells of the nodes' memory, when nothing of it is whole."""

from __future__ import annotations

from holdfast.control.memory import Memory
from holdfast.domain.held import Held
from holdfast.domain.job import JobPhase, JobSpec
from holdfast.domain.state import Gang, Node, State


def test_ranks_that_hold_different_steps_none_of_which_is_whole_are_given_leave_to_save_one_step_together() -> None:
    """As it is after a disk was full for a while: without leave nobody would ever save again."""
    names = ("node-0", "node-1")
    state = State(spec=JobSpec(job="test", argv=("x",), nodes=2), phase=JobPhase.RUNNING, generation=1, nodes={name: Node(host="") for name in names})
    state.gang = Gang(generation=1, nodes=names)
    memory = Memory(domains={name: name for name in names})
    memory.heard("node-0", (Held(generation=1, step=1200, rank=0, world_size=2),))
    memory.heard("node-1", (Held(generation=1, step=1300, rank=1, world_size=2),))
    assert memory.whole(state, step=1310, rate=13.0, now=100.0) is not None
    later = memory.whole(state, step=1360, rate=13.0, now=104.0)
    assert later is not None
    assert later.sealed == later.safe == (-1, -1)
    assert later.permit > 1360, "from a step on that nobody has reached yet"
