"""What a run owes its learners once nothing goes wrong any more, and how soon.

Decides which progress is demanded and the bounds, each from a story's own durations. Does not decide who belongs to the
core that it is demanded for, nor when (``swarm``).
"""

from __future__ import annotations

from collections.abc import Sequence

from unlockstep import tape as tapes
from unlockstep.core.donation import DONORS_MAX
from unlockstep.core.events import Event, FragmentAdopted, FragmentCommitted
from unlockstep.core.options import Late, Participation
from unlockstep.core.recovery import PATIENCE_LEASES
from unlockstep.sim.learner_host import BACKOFF_NS_MAX, FLUSH_NS_MAX
from unlockstep.sim.network import MILLISECOND_NS, SECOND_NS
from unlockstep.sim.story import Story
from unlockstep.sim.world import World

SUPERVISION_NS = 500 * MILLISECOND_NS
"""How often a dead learner of the core is started again."""

ROTATIONS = 4
"""Rounds of a fragment until a learner's part is in a version that all have adopted: it may come late for one, may have
nothing to give to one because it has just adopted, and the version is adopted when the next is under way."""


class Goals:
    """What must happen once nothing goes wrong any more.

    Args:
        world: as it is now: what happens from now on counts.
        core: who must take part.
        everyone_gives: whether each of them must have a part in a version of each fragment.
    """

    def __init__(self, world: World, core: Sequence[str], everyone_gives: bool) -> None:
        fragments = range(world.config.protocol.fragments)
        self._newest = {notice.fragment: notice.version for notice in world.core.notices}
        self._commits = set(fragments)
        self._gives = {(name, fragment) for name in core if everyone_gives for fragment in fragments}
        self._adopts = {(name, fragment) for name in core for fragment in fragments}

    def see(self, event: Event) -> None:
        match event:
            case FragmentCommitted():
                self._commits.discard(event.fragment)
                self._gives -= {(name, event.fragment) for name in event.weights}
            case FragmentAdopted() if event.version > self._newest.get(event.fragment, 0):
                self._adopts.discard((event.learner, event.fragment))

    @property
    def are_met(self) -> bool:
        return not (self._commits or self._gives or self._adopts)

    def complaint(self) -> tuple[str, str]:
        """Rule and sentence."""
        if self._commits:
            return "progress", f"no commit of fragments {sorted(self._commits)} although nothing is in the way"
        if self._gives:
            name, fragment = min(self._gives)
            return "taking_part", f"{name} gives nothing to fragment {fragment} although nothing is in the way"
        name, fragment = min(self._adopts)
        return "adopting", f"{name} adopts no new version of fragment {fragment} although nothing is in the way"


# ------------------------------------------------------------------------------------------------ bounds


def slowest_and_fastest_ns(story: Story, core: Sequence[str]) -> tuple[int, int]:
    """Step times of the slowest of the core, and of the fastest that anybody may ever be."""
    own = story.step_ns.values()
    factors = [action.factor for action in story.tape.actions if isinstance(action, tapes.Slow)]
    slowest_ns = max(story.step_ns.get(name, min(own)) for name in core)
    return slowest_ns, round(min(own) * min([1.0, *factors]))


def longest_stop_ns(tape: tapes.Tape) -> int:
    """How long the syncer stands still at most: so much later its timers may fire."""
    longest_ns, stopped_ns = 0, None
    for action in (*tape.actions, tapes.Continue(at_ns=tape.end_ns, target=tapes.SYNCER)):
        if action.target == tapes.SYNCER and not isinstance(action, tapes.Fill | tapes.Free | tapes.Jump):
            longest_ns = max(longest_ns, 0 if stopped_ns is None else action.at_ns - stopped_ns)
            stopped_ns = action.at_ns if isinstance(action, tapes.Stop) else None
    return longest_ns


def transfer_ns(story: Story) -> int | None:
    """How long a message, a body or a commit is on its way at most; None if that has no bound: the links fail, are slow
    or are damaged, or the syncer is."""
    links, costs = story.links, story.costs
    actions = story.tape.actions
    on_links = any(isinstance(action, tapes.Cut | tapes.Throttle | tapes.Delay | tapes.Corrupt) for action in actions)
    if links.loss or links.bits_per_s or on_links or any(action.target == tapes.SYNCER for action in actions):
        return None
    # What is said waits for the save under way and for the one that promises it.
    return max(costs.message_ns, costs.body_ns, costs.commit_ns) + 2 * costs.save_ns + links.jitter_ns


def exchange_ns(story: Story) -> int:
    """A pull, an upload, a commit, an announcement and a fetch."""
    costs = story.costs
    return 4 * costs.message_ns + 2 * costs.body_ns + costs.commit_ns + 4 * costs.save_ns


def everyone_gives(story: Story, core: Sequence[str]) -> bool:
    """Whether settings and speeds promise everybody a part in every fragment. Under ``fresh`` and ``drop`` they do not,
    nor if so many versions pass during a step that what it has made is too old, or its round forgotten."""
    options = story.config.protocol
    if options.participation is Participation.FRESH or options.late is Late.DROP:
        return False
    slowest_ns, fastest_ns = slowest_and_fastest_ns(story, core)
    steps = (2 * slowest_ns + exchange_ns(story)) / fastest_ns
    versions = steps / options.interval_steps + 3
    return versions <= options.staleness_max and versions * options.fragments <= options.closed_rounds_max


def progress_ns(story: Story, core: Sequence[str]) -> int:
    """How long the core may take until its goals are met.

    Everybody is back after a pause between two attempts to connect, the lease of who was there before, the end in order
    of a process that must not go on, an exchange of parameters, and donors that all fall silent. Then the clock stands
    at most ``2 * ratio + H`` of the slowest one's steps before the next round, and every round takes H/P steps to come
    due, one to be answered, an exchange, and a grace window.
    """
    options = story.config.protocol
    slowest_ns, fastest_ns = slowest_and_fastest_ns(story, core)
    slowed_ns = round(max(story.step_ns.values()) * 20)
    back_ns = 2 * BACKOFF_NS_MAX + options.lease_ns + FLUSH_NS_MAX + 4 * SUPERVISION_NS + 4 * exchange_ns(story)
    if story.config.recovery.donor:
        back_ns += (DONORS_MAX + PATIENCE_LEASES) * (options.lease_ns + 2 * slowed_ns)
    catch_up_ns = (2 * slowest_ns // fastest_ns + 2 + options.interval_steps) * slowest_ns
    grace_ns = round(min(options.grace_cap_steps, options.grace_factor * options.overlap_steps) * slowed_ns)
    due_ns = -(-options.interval_steps * slowest_ns // options.fragments) + slowest_ns
    round_ns = due_ns + 2 * slowest_ns + exchange_ns(story) + grace_ns
    healing_ns = 0
    if story.diverges:  # It is refused until it is shut out, and comes back.
        healing_ns = (options.strikes_max + 2) * round_ns + round(2 * options.quarantine_s_max * SECOND_NS) + back_ns
    return healing_ns + back_ns + catch_up_ns + ROTATIONS * options.fragments * round_ns


def ending_ns(story: Story, longest_step_ns: int) -> int:
    """How long a run may take to end: learners finish their steps, and one last round of each fragment is merged."""
    options = story.config.protocol
    last_round_ns = story.costs.commit_ns + 4 * story.costs.message_ns
    return 2 * options.lease_ns + 2 * longest_step_ns + (options.fragments + 3) * last_round_ns + SECOND_NS
