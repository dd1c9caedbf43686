"""Signals in, findings out: what changed since the last look, beside which generation, and no more than once."""

from __future__ import annotations

import time

from holdfast.control.heard import Heard
from holdfast.control.rulebook import rules_in_force
from holdfast.control.watching import Watching
from holdfast.detect.rules.reading import read_rules
from holdfast.detect.rules.rule import Rule
from holdfast.domain.event import Event, FindingEnded, FindingMade
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.incident import Incident
from holdfast.domain.job import JobPhase, JobSpec
from holdfast.domain.metric import METRICS, Scope
from holdfast.domain.state import Gang, Node, NodeState, State
from holdfast.wire.messages import Signals


def running(generation: int = 1, started_at: float = 0.0) -> State:
    state = State(phase=JobPhase.RUNNING, spec=JobSpec(job="j", argv=("t.py",), nodes=2, ranks_per_node=2))
    state.gang = Gang(generation=generation, nodes=("a", "b"), started_at=started_at)
    state.gang.ready = True
    return state


def rows(step: int, **of_rank: dict[int, float]) -> list[Signals]:
    """What two agents say of two ranks each: a step, and what the test is about."""
    said = []
    for node, ranks in (("a", (0, 1)), ("b", (2, 3))):
        named = [(("step", str(rank)), float(step)) for rank in ranks]
        named += [((metric, str(rank)), value) for metric, values in of_rank.items() for rank, value in values.items() if rank in ranks]
        said.append(Signals(node=node, columns=tuple(name for name, _ in named), values=tuple(value for _, value in named)))
    return said


def look(watching: Watching, state: State, second: int, messages: list[Signals]) -> list[Event]:
    for message in messages:
        watching.take(message, float(second))
    return watching.look(state, [], second + 0.5)


def kinds(events: list[Event]) -> list[str]:
    return [event.finding.kind if isinstance(event, FindingMade) else f"no {event.key.partition('/')[0]}" for event in events
            if isinstance(event, (FindingMade, FindingEnded))]  # fmt: skip


def test_a_loss_that_is_not_finite_is_told_once_and_its_end_once() -> None:
    watching, state = Watching(()), running()
    told = [kinds(look(watching, state, second, rows(10 * second, not_finite_since_step={2: 15.0} if 2 < second < 6 else {}))) for second in range(1, 9)]
    assert told == [[], [], ["not_finite"], [], [], ["no not_finite"], [], []]


def test_a_new_generation_is_told_again_what_is_still_so() -> None:
    watching = Watching(())
    bad = {2: 15.0}
    look(watching, running(1), 1, rows(20, not_finite_since_step=bad))
    look(watching, running(1), 2, rows(21, not_finite_since_step=bad))
    began = running(2, started_at=3.2)
    assert look(watching, began, 3, rows(30, not_finite_since_step=bad)) == [], "it was said of the one before"
    events = look(watching, began, 4, rows(31, not_finite_since_step=bad))
    assert [(event.generation, event.finding.kind) for event in events if isinstance(event, FindingMade)] == [(2, "not_finite")]


def _rules() -> tuple[Rule, ...]:
    text = "rules:\n  - name: TooHigh\n    metric: loss\n    is: '> 0.5'\n    severity: warning\n    summary: 'rank {rank} has {value}'\n    why: it is said\n"
    read = read_rules(text, "own.yaml")
    assert not read.problems, read.problems
    return tuple(read.rules)


def test_what_a_rule_says_through_restarts_is_told_once_and_its_end_once() -> None:
    watching, high = Watching(_rules(), job="j"), dict.fromkeys(range(4), 0.7)
    told = [kinds(look(watching, running(1 + second // 5, started_at=second // 5 * 5.0), second, rows(10 * second, loss=high))) for second in range(1, 20)]
    assert [kind for kinds_ in told for kind in kinds_] == ["rule:TooHigh"] * 4, "once of each rank, over four generations"
    low = [kinds(look(watching, running(4, started_at=15.0), second, rows(10 * second, loss=dict.fromkeys(range(4), 0.1)))) for second in range(20, 24)]
    assert [kind for kinds_ in low for kind in kinds_] == ["no rule:TooHigh"] * 4


def test_a_series_of_a_node_that_no_longer_has_the_rank_says_nothing_of_it() -> None:
    watching = Watching(_rules(), job="j")
    look(watching, running(1), 1, rows(20, loss={0: 0.7}))
    swapped = running(2, started_at=1.9)
    assert swapped.gang is not None
    swapped.gang.nodes = ("b", "a")
    said = [Signals(node="b", columns=(("step", "0"), ("loss", "0")), values=(30.0, 0.1)), Signals(node="a", columns=(("step", "2"),), values=(30.0,))]
    assert kinds(look(watching, swapped, 2, said)) == ["no rule:TooHigh"]


def test_what_was_said_since_the_last_look_counts_at_once_where_that_is_asked_for() -> None:
    watching, state = Watching(()), running()
    look(watching, state, 1, rows(10))
    for message in rows(15, not_finite_since_step={2: 12.0}):
        watching.take(message, 1.7)
    assert watching.look(state, [], 1.8) == [], "it was looked half a second ago"
    assert kinds(watching.look(state, [], 1.8, at_once=True)) == ["not_finite"]


def test_a_loss_that_had_jumped_is_not_told_again_when_the_gang_goes_back_to_before_that() -> None:
    watching = Watching(())

    def told(generation: int, seconds: range, loss: float) -> list[str]:
        looks = (look(watching, running(generation), second, rows(second, loss=dict.fromkeys(range(4), loss * (1 + second % 3 / 100)))) for second in seconds)
        return [kind for events in looks for kind in kinds(events)]

    for second in range(1, 121):
        told(1, range(second, second + 1), 3.0 * 0.98**second + 0.3)
    assert told(1, range(121, 150), 3.0) == ["loss_jump"]
    assert told(2, range(150, 200), 0.56) == []


def test_while_the_gang_is_not_up_nothing_is_told() -> None:
    watching, state = Watching(()), running()
    state.phase = JobPhase.STOPPING
    assert look(watching, state, 1, rows(20, not_finite_since_step={2: 15.0})) == []


def test_a_slow_rank_is_found_in_what_two_agents_say() -> None:
    watching, state = Watching(()), running()
    told: list[Event] = []
    for second in range(1, 40):
        step_s = dict.fromkeys(range(4), 0.2)
        waits = {rank: 0.0 if rank == 1 else 0.1 for rank in range(4)}
        told += look(watching, state, second, rows(second, step_seconds=step_s, step_communication_seconds=waits))
    (made,) = [event for event in told if isinstance(event, FindingMade)]
    assert (made.finding.kind, made.finding.ranks, made.finding.node) == ("slow_rank", (1,), "a")


def test_a_rank_whose_agent_fell_silent_is_not_judged() -> None:
    watching, state = Watching(()), running()
    look(watching, state, 1, rows(20, not_finite_since_step={2: 15.0})[:1])
    assert watching.standing == ()


def test_memory_that_is_leaked_names_the_rank_that_grows() -> None:
    watching, state = Watching(()), running()
    told: list[Event] = []
    for second in range(1, 80):
        both = rows(second, worker_memory_bytes={0: 1e9, 1: 1e9 + second * 30e6, 2: 1e9, 3: 1e9})
        node = both[0]
        extra = (("host_memory_bytes", ""), 16e9), (("host_memory_available_bytes", ""), 8e9 - second * 30e6)
        both[0] = Signals(node="a", columns=(*(node.columns or ()), *(name for name, _ in extra)), values=(*node.values, *(value for _, value in extra)))
        told += look(watching, state, second, both)
    (made,) = [event for event in told if isinstance(event, FindingMade)]
    assert (made.finding.kind, made.finding.node, made.finding.ranks) == ("memory_running_out", "a", (1,))


def test_values_whose_names_were_never_said_are_not_taken() -> None:
    watching, state = Watching(()), running()
    watching.take(Signals(node="a", values=(1.0, 2.0)), 1.0)
    assert watching.look(state, [], 1.5) == []


def test_what_is_only_worth_knowing_is_shown_and_told_to_nobody() -> None:
    watching, state = Watching(()), running()
    hung = Finding(kind="hung_probe", node="a", because="the probe disk hangs", severity=Severity.INFO)
    (first, second) = rows(10)
    events = look(watching, state, 1, [Signals(node="a", columns=first.columns, values=first.values, findings=(hung,)), second])
    assert (events, watching.standing) == ([], (hung,))


def test_a_node_that_is_lost_is_not_missed_for_hours() -> None:
    watching, state = Watching(()), running()
    look(watching, state, 1, rows(10, step_seconds={0: 1.0, 2: 1.0}))
    state.nodes["b"] = Node(host="b", state=NodeState.LOST)
    watching.look(state, [], 3.0)
    assert [watching.rings.name("step", key).node for key in watching.rings.layout("step").keys] == ["a", "a"]


def test_a_rule_that_is_left_to_a_detector_is_not_looked_at() -> None:
    left = [rule for rule in rules_in_force().rules if rule.left_to]
    assert {rule.left_to for rule in left} == {"not_finite", "slow_job", "slow_rank"}
    watching, state = Watching(left), running()
    told = [event for second in range(1, 2000, 10) for event in look(watching, state, second, rows(second, not_finite={0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}))]
    assert told == []


def test_a_number_of_the_scripts_own_that_does_something_new_is_shown_and_opens_nothing() -> None:
    watching, state = Watching(()), running()
    told: list[Event] = []
    for second in range(1, 700):
        value = 50.0 if second == 650 else 1.0 + 0.1 * (second * 7919 % 13) / 13
        told += look(watching, state, second, rows(second, user_entropy=dict.fromkeys(range(4), value)))
    (finding,) = watching.standing
    assert (finding.kind, finding.of) == ("unusual_value", "user_entropy")
    assert finding.because.startswith("user_entropy: ")
    assert told == []


def test_a_look_at_two_thousand_ranks_takes_milliseconds() -> None:
    """Some 30 ms of one core with all rules; ten times that would be a fault."""
    nodes, ranks = 256, 8
    state = State(phase=JobPhase.RUNNING, spec=JobSpec(job="j", argv=("t.py",), nodes=nodes, ranks_per_node=ranks))
    state.gang = Gang(generation=1, nodes=tuple(f"n{node}" for node in range(nodes)))
    state.gang.ready = True
    watching = Watching(rules_in_force().rules)
    odd = ("parameter_", "not_finite", "samples_left_out")
    metrics = [metric.name for metric in METRICS.values() if metric.scope is Scope.RANK and not metric.name.startswith(odd)]
    took_s = []
    for second in range(1, 6):
        for node in range(nodes):
            columns = tuple((metric, str(rank)) for rank in range(node * ranks, (node + 1) * ranks) for metric in metrics)
            values = tuple(float(second) if metric.startswith("step") else 0.02 for metric, _ in columns)
            watching.take(Signals(node=f"n{node}", columns=columns if second == 1 else None, values=values), float(second))
        began = time.process_time()
        assert watching.look(state, [], second + 0.5) == []
        took_s.append(time.process_time() - began)
    assert min(took_s) < 0.3


def test_ranks_that_were_swapped_are_read_from_the_node_they_are_on_now() -> None:
    heard = Heard()
    columns = (("step", "0"), ("step", "1"))
    heard.take(Signals(node="a", columns=columns, values=(None, 7.0)), 10.0)
    heard.take(Signals(node="b", columns=columns, values=(8.0, None)), 10.0)
    assert heard.of_ranks(("b", "a"), 2, 10.5, after=0.0)["step"].tolist() == [8.0, 7.0]


FULL = Finding(kind="save_failed", because="No space left on device", node="a", of="/data")
WORKS = "saving works again: step 60 is saved, and nothing since 60 is lost"


def said_of_saves(second: int, *findings: Finding, **ended: str) -> list[Signals]:
    first, *others = rows(10 * second)
    return [Signals(node="a", columns=first.columns, values=first.values, findings=findings, ended=ended), *others]


def test_the_node_says_how_a_save_that_failed_came_to_its_end() -> None:
    watching, state = Watching(()), running()
    assert kinds(look(watching, state, 1, said_of_saves(1, FULL))) == ["save_failed"]
    (ended,) = look(watching, state, 2, said_of_saves(2, **{FULL.key: WORKS}))
    assert isinstance(ended, FindingEnded)
    assert ended.because == WORKS


def test_a_control_that_was_away_hears_how_it_ended_and_believes_nothing_before_the_node_speaks() -> None:
    state = running()
    state.incidents.append(Incident(id=1, generation=1, opened_at=1.0, began_at=1.0, findings=(FULL,), stands=True))
    watching = Watching(())
    assert look(watching, state, 1, rows(10)[1:]) == [], "only the other node was heard"
    assert kinds(look(watching, state, 2, said_of_saves(2, FULL))) == [], "it was told of before control went"
    (ended,) = look(watching, state, 3, said_of_saves(3, **{FULL.key: WORKS}))
    assert isinstance(ended, FindingEnded)
    assert (ended.key, ended.because) == (FULL.key, WORKS)
