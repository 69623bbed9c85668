"""Whatever a log says, the rules come to a verdict: a log that is wrong in any way is material, never an error."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from support.logs import GOOD, OPTIONS, long_log
from unlockstep.checkers import check
from unlockstep.core.events import Event

LOGS = (GOOD, tuple(long_log(12, lambda _: "ab")))


@st.composite
def damaged(draw: st.DrawFn) -> list[Event]:
    """A good log with some events gone, told twice, in another order, or saying something else."""
    events = list(draw(st.sampled_from(LOGS)))
    for _ in range(draw(st.integers(1, 6))):
        at, other = (draw(st.integers(0, len(events) - 1)) for _ in range(2))
        match draw(st.sampled_from(["gone", "twice", "swapped", "changed"])):
            case "gone":
                del events[at]
            case "twice":
                events.insert(other, events[at])
            case "swapped":
                events[at], events[other] = events[other], events[at]
            case "changed":
                events[at] = changed(draw, events[at])
    return events


def changed(draw: st.DrawFn, event: Event) -> Event:
    name = draw(st.sampled_from(event.__struct_fields__))
    match getattr(event, name):
        case bool(value):
            return msgspec.structs.replace(event, **{name: not value})
        case int(value):
            return msgspec.structs.replace(event, **{name: draw(st.sampled_from([value - 1, value + 1, -1, 0, 99]))})
        case str():
            return msgspec.structs.replace(event, **{name: draw(st.sampled_from(["a", "b", "stranger"]))})
    return event


@given(damaged())
def test_any_log_is_judged(events: list[Event]) -> None:
    rules = [violation.rule for violation in check(events, OPTIONS)]
    assert len(rules) <= 100 * len(events)


@given(damaged(), st.integers(0, 60))
def test_what_is_found_in_a_log_is_found_however_it_goes_on(events: list[Event], length: int) -> None:
    """A rule that is broken stays broken: what follows does not make it good."""
    begun = {
        violation.sentence for violation in check(events[:length], OPTIONS) if violation.at_ns < before(events, length)
    }
    assert begun <= {violation.sentence for violation in check(events, OPTIONS)}


def before(events: list[Event], length: int) -> int:
    """The time of the last event of the beginning: what is found then may only be so because nothing follows."""
    return max((event.at_ns for event in events[:length]), default=0)
