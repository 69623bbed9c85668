"""What a syncer has said must stay true when it dies: what every learner of a world has heard, held against the log.

Decides what a learner may rely on: versions it was told of, that what it was told is settled has been entered, and that
it is told, in the end, of everything it has handed over. Does not decide how the syncer keeps its word (``promises``),
nor what the values are (``shadow``, ``ward``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from unlockstep.checkers.history import History
from unlockstep.core.events import ContributionRefused, Event
from unlockstep.core.messages import GoneBack, HandedOver, Published, Settled, SyncerMessage, VersionNotice, Welcome
from unlockstep.core.reasons import RefusalReason
from unlockstep.sim.learner_host import LearnerProcess
from unlockstep.sim.ward import Ward


class Promised:
    """Everything learners have heard.

    Args:
        ward: told of every word that was not kept.
        history: what the log has told so far.
        is_durable: whether nothing that was published may be lost with the syncer.
    """

    def __init__(self, ward: Ward, history: History, is_durable: bool) -> None:
        self._ward = ward
        self._history = history
        self._is_durable = is_durable
        self._newest: dict[int, int] = {}
        """By fragment: the newest version that anybody has been told of."""
        self._settled: defaultdict[LearnerProcess, set[HandedOver]] = defaultdict(set)
        """What processes have been told is settled."""
        self._came_too_late: set[tuple[str, int, int]] = set()
        """Learner, round and tokens of what arrived after the run had ended: perhaps nobody hears of it."""

    def see(self, event: Event) -> None:
        """The log goes on."""
        if isinstance(event, ContributionRefused) and event.reason is RefusalReason.RUN_FINISHED:
            self._came_too_late.add((event.learner, event.round, event.tokens))

    def hear(self, process: LearnerProcess, message: SyncerMessage) -> None:
        """A learner's process is told something."""
        match message:
            case Published():
                self._note(message.notice)
            case GoneBack():
                for notice in message.notices:
                    self._note(notice)
            case Welcome():
                for notice in message.versions:
                    self._note(notice)
            case Settled():
                self._settle(process, message)

    def _note(self, notice: VersionNotice) -> None:
        is_saved = self._history.is_seeded and notice.version <= self._history.versions[notice.fragment]
        if self._is_durable and not is_saved:
            text = f"version {notice.version} of fragment {notice.fragment} is published, but not saved"
            self._ward.complain("promise", text)
        self._newest[notice.fragment] = max(notice.version, self._newest.get(notice.fragment, -1))

    def _settle(self, process: LearnerProcess, settled: Settled) -> None:
        made = HandedOver(settled.round, settled.fragment, settled.tokens)
        self._settled[process].add(made)
        is_said_to_be_here = settled.refusal in (None, RefusalReason.DUPLICATE)
        is_kept = made not in process.undeliverable.ever  # else the learner itself has said that it is not there
        is_to_be_found = self._is_durable and is_said_to_be_here and is_kept and self._remembers(process, made)
        if is_to_be_found and not self._history.knows(process.name, made.round, made.tokens):
            self._complain("promise", process, made, "is settled, it is told, but that is not saved")

    def _remembers(self, process: LearnerProcess, made: HandedOver) -> bool:
        """Whether the log tells what has become of it: not for ever, nor of an earlier process of the name."""
        known = self._history.learners.get(process.name)
        is_present = known is not None and known.process_since <= process.loop.incarnation
        return is_present and self._history.remembers(made.round)

    def look_at_new_life(self, notices: Collection[VersionNotice]) -> None:
        """The syncer has just been started again, with these versions."""
        kept = {notice.fragment: notice.version for notice in notices}
        for fragment, version in self._newest.items():
            if self._is_durable and version > kept.get(fragment, -1):
                text = f"version {version} of fragment {fragment} was published; the syncer is started again with"
                self._ward.complain("durability", f"{text} {kept.get(fragment, 'none')}")

    def look_for_astray(self, process: LearnerProcess, given: Collection[HandedOver]) -> None:
        """The run is over, and no body that a process has handed over is on its way any more.

        Each is entered, or the process has been told what became of it. Else the end has dropped it, and only if the
        syncer could not know: the body came after the end, or that it never would was not yet said, or not yet read.
        """
        for made in given:
            came_too_late = (process.name, made.round, made.tokens) in self._came_too_late
            is_dropped = came_too_late or made in process.undeliverable.unknown
            is_told = made in self._settled[process]
            is_known = self._history.knows(process.name, made.round, made.tokens)
            if not (is_dropped or is_told or is_known) and self._remembers(process, made):
                self._complain("astray", process, made, "has not been entered, and nobody has asked for it again")

    def _complain(self, rule: str, process: LearnerProcess, made: HandedOver, what: str) -> None:
        text = f"what {process.name} handed over of fragment {made.fragment} for round {made.round} {what}"
        self._ward.complain(rule, text)
