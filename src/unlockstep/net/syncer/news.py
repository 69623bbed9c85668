"""What a person who watches a syncer wants to read of what happens.

Decides which events are news, and the line each of them is. All of them are in the run log.
"""

from __future__ import annotations

from unlockstep.core.events import (
    Event,
    JoinWasRefused,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LossSpiked,
    RolledBack,
    RunFinishing,
    RunSeeded,
    StateHandedOver,
    StateNotHandedOver,
)
from unlockstep.core.ids import seconds


def told(event: Event) -> str | None:
    """The event in one line; None for the many that are no news."""
    match event:
        case LearnerJoined():
            return f"{event.learner}.{event.incarnation} has {'come back' if event.resumed else 'joined'}"
        case JoinWasRefused():
            return f"{event.learner} may not join: {event.detail}"
        case LearnerAway():
            return f"{event.learner}.{event.incarnation} has lost its connection"
        case LearnerDeparted():
            pause = f", for {seconds(event.pause_ns)}" if event.pause_ns else ""
            return f"{event.learner}.{event.incarnation} is gone: {event.reason.value.replace('_', ' ')}{pause}"
        case LossSpiked():
            then = f"going back to record {event.record}" if event.record else "there is no record to go back to"
            return f"the validation loss is {event.loss:.4g} after {event.level:.4g}: {then}"
        case RolledBack():
            return f"all parameters are those of record {event.record} again"
        case StateHandedOver():
            return f"{event.learner}.{event.incarnation} has the state of {event.donor} ({event.size_bytes} bytes)"
        case StateNotHandedOver():
            what = f"does not get the state of {event.donor}" if event.donor else "gets no learner's state"
            return f"{event.learner}.{event.incarnation} {what}: {event.reason}"
        case RunSeeded():
            return f"the parameters of {event.learner} are version 0"
        case RunFinishing():
            return f"the end is reached: {event.reason}"
    return None
