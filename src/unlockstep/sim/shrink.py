"""Makes a story that fails as small as it goes: fewer actions, fewer learners, quiet links, ordinary settings.

Decides what is tried, in which order, and what counts as the same failure: the same verdict by the same rule. Every
attempt plays a story from its beginning, so what remains fails by itself. Does not look for the smallest story, but for
one in which nothing can be left out by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from unlockstep.config import RunConfig
from unlockstep.core.errors import UsageError
from unlockstep.sim.network import Costs, LinkModel
from unlockstep.sim.story import STEPS_ENDLESS, Story
from unlockstep.sim.swarm import Outcome
from unlockstep.tape import Join

PLAYS_MAX = 400
"""Attempts, unless told otherwise."""

Play = Callable[[Story], Outcome]
Watch = Callable[[int, Story], None]
"""Plays so far, and the smallest story so far."""


def shrink(
    story: Story, outcome: Outcome, play: Play, *, plays_max: int = PLAYS_MAX, watch: Watch = lambda plays, story: None
) -> tuple[Story, Outcome]:
    """The smallest story found that fails as this one does, and how.

    Args:
        story: one that fails.
        outcome: how.
        play: tells what becomes of a story.
        plays_max: how often it may be asked.
        watch: told after every attempt.
    """
    plays, progress = 0, True
    while progress:
        progress = False
        for step in _STEPS:
            candidates = step(story)
            candidate = next(candidates, None)
            while candidate is not None and plays < plays_max:
                plays += 1
                found = play(candidate)
                if found.is_like(outcome):
                    story, outcome, progress = candidate, found, True
                    candidates = step(story)
                watch(plays, story)
                candidate = next(candidates, None)
    return story, outcome


def _fewer_actions(story: Story) -> Iterator[Story]:
    """Without a stretch of the actions: first half of them, in the end single ones and pairs that belong together; with
    somebody there from the start instead of joining."""
    actions = story.tape.actions
    size = len(actions)
    while size > 0:
        for start in range(0, len(actions), size):
            yield from _with_tape(story, actions=(*actions[:start], *actions[start + size :]))
        size //= 2
    for number, action in enumerate(actions):
        if isinstance(action, Join) and action.target not in story.tape.learners:
            learners = (*story.tape.learners, action.target)
            yield from _with_tape(story, learners=learners, actions=(*actions[:number], *actions[number + 1 :]))
    for first in range(len(actions)):
        for second in range(first + 1, len(actions)):
            if actions[first].target == actions[second].target:
                yield from _with_tape(
                    story, actions=(*actions[:first], *actions[first + 1 : second], *actions[second + 1 :])
                )


def _fewer_learners(story: Story) -> Iterator[Story]:
    for name in sorted(story.step_ns, reverse=True):
        if len(story.step_ns) > max(1, story.config.protocol.quorum):
            learners = tuple(learner for learner in story.tape.learners if learner != name)
            actions = tuple(action for action in story.tape.actions if action.target != name)
            for smaller in _with_tape(story, learners=learners, actions=actions):
                step_ns = {learner: ns for learner, ns in story.step_ns.items() if learner != name}
                diverges = {learner: step for learner, step in story.diverges.items() if learner != name}
                yield msgspec.structs.replace(smaller, step_ns=step_ns, diverges=diverges)


def _shorter(story: Story) -> Iterator[Story]:
    tape = story.tape
    last_ns = max((action.at_ns for action in tape.actions), default=0)
    for end_ns in (last_ns + 1, (last_ns + tape.end_ns) // 2):
        if end_ns < tape.end_ns:
            yield from _with_tape(story, end_ns=end_ns)


def _plainer(story: Story) -> Iterator[Story]:
    """Quiet links, ordinary costs, sound learners, one speed."""
    for field, value in (("links", LinkModel()), ("diverges", {}), ("evaluation_ns", 0), ("costs", Costs())):
        if getattr(story, field) != value:
            yield msgspec.structs.replace(story, **{field: value})
    for field in LinkModel.__dataclass_fields__:
        if getattr(story.links, field):
            fields = {name: getattr(story.links, name) for name in LinkModel.__dataclass_fields__}
            yield msgspec.structs.replace(story, links=LinkModel(**{**fields, field: 0}))
    fastest_ns = min(story.step_ns.values())
    if set(story.step_ns.values()) != {fastest_ns}:
        yield msgspec.structs.replace(story, step_ns=dict.fromkeys(story.step_ns, fastest_ns))


def _default_settings(story: Story) -> Iterator[Story]:
    default = RunConfig(run=msgspec.structs.replace(RunConfig().run, steps=STEPS_ENDLESS))
    for section in ("run", "outer", "adoption", "codec", "limits", "protocol"):
        fields, usual = getattr(story.config, section), getattr(default, section)
        for field in fields.__struct_fields__:
            value = getattr(usual, field)
            if getattr(fields, field) != value:
                try:
                    replaced = msgspec.structs.replace(fields, **{field: value})
                    config = msgspec.structs.replace(story.config, **{section: replaced})
                except UsageError:
                    continue
                yield msgspec.structs.replace(story, config=config)


_STEPS = (_fewer_actions, _fewer_learners, _shorter, _plainer, _default_settings)


def _with_tape(story: Story, **changes: object) -> Iterator[Story]:
    """The story with its tape changed, if that still makes sense."""
    try:
        tape = msgspec.structs.replace(story.tape, **changes)
    except UsageError:
        return
    if set(tape.cast) <= story.step_ns.keys():
        yield msgspec.structs.replace(story, tape=tape)
