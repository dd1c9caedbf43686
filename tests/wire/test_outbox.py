"""Told once, heard once: whatever is lost, repeated or late between two connections."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.wire.messages import Told
from holdfast.wire.outbox import Inbox, Outbox

# What happens: a message is told, some of those on their way arrive, the connection breaks (what was on its way arrives late, or not at all),
# acknowledgements come.
STEPS = st.lists(
    st.one_of(
        st.just(("tell", 0)),
        st.tuples(st.just("arrive"), st.integers(1, 5)),
        st.tuples(st.just("break"), st.integers(0, 3)),
        st.tuples(st.just("acknowledge"), st.integers(1, 5)),
    ),
    max_size=60,
)


@given(STEPS)
def test_every_message_is_taken_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    outbox, inbox = Outbox(), Inbox()
    told: list[int] = []
    taken: list[int] = []
    on_the_way: list[Told] = []
    late: list[Told] = []  # Read from a broken connection after its successor was opened.
    acks: list[int] = []

    def arrive(queue: list[Told], count: int) -> None:
        for message in queue[:count]:
            if inbox.is_new("agent", message.seq):
                taken.append(message.seq)
            acks.append(message.seq)
        del queue[:count]

    for what, count in steps:
        match what:
            case "tell":
                on_the_way.append(outbox.tell("Ticked", b""))
                told.append(on_the_way[-1].seq)
            case "arrive":
                arrive(late, count % 2)
                arrive(on_the_way, count)
            case "break":
                late, on_the_way, acks = on_the_way[:count], list(outbox.unacknowledged()), []
            case "acknowledge":
                for seq in acks[:count]:
                    outbox.acknowledged(seq)
                del acks[:count]
    on_the_way = list(outbox.unacknowledged())
    arrive(late, len(late))
    arrive(on_the_way, len(on_the_way))
    assert taken == told


@given(st.lists(st.integers(1, 20), max_size=60))
def test_a_number_is_new_once(numbers: list[int]) -> None:
    inbox = Inbox()
    new = [seq for seq in numbers if inbox.is_new("agent", seq)]
    assert new == sorted(set(new))


def test_another_instance_of_an_agent_counts_from_one_again() -> None:
    inbox = Inbox()
    assert inbox.is_new("first", 1)
    assert inbox.is_new("second", 1)
    assert not inbox.is_new("first", 1)


def test_what_is_acknowledged_is_kept_no_longer() -> None:
    outbox = Outbox()
    for _ in range(5):
        outbox.tell("Ticked", b"")
    outbox.acknowledged(3)
    outbox.acknowledged(2)
    assert [told.seq for told in outbox.unacknowledged()] == [4, 5]
