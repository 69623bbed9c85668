"""What learners say they have done with their arrays, as the syncer takes it: into the run log, each deed once.

Decides what is news. Does not decide what becomes of a learner's counts (``ledger``), nor what is a deed (``deeds``).
"""

from __future__ import annotations

from unlockstep.core.deeds import AdoptionNotice, Source
from unlockstep.core.events import FragmentAdopted, LearnerDid, TokensOverwritten
from unlockstep.core.ledger import Ledger
from unlockstep.core.membership import Member
from unlockstep.core.messages import Progress
from unlockstep.core.outbox import Outbox
from unlockstep.core.rounds import Rounds


class DeedsHeard:
    """Of one run.

    Args:
        rounds, ledger, outbox: of the run.
    """

    def __init__(self, rounds: Rounds, ledger: Ledger, outbox: Outbox) -> None:
        self._rounds = rounds
        self._ledger = ledger
        self._outbox = outbox

    def take(self, member: Member, progress: Progress, now_ns: int) -> None:
        """A report, before its step is counted."""
        for lost in progress.undelivered:
            self._rounds.enter_undelivered(member, lost, now_ns)
        who = (member.learner, member.incarnation)
        for fragment, tokens in member.count_overwritten(progress.overwritten):
            self._ledger.overwritten(member.learner, fragment, tokens)
            self._outbox.log(TokensOverwritten(now_ns, *who, fragment, tokens))
        for deed in progress.deeds:
            if deed.number <= member.deeds:
                continue
            member.deeds = deed.number
            if isinstance(deed, AdoptionNotice) and deed.source is not Source.LOST:
                if deed.fetch_ns > 0 and progress.steps > 0:
                    self._rounds.averages.fetch.add(deed.fetch_ns)
                self._outbox.log(
                    FragmentAdopted(
                        now_ns,
                        *who,
                        fragment=deed.fragment,
                        version=deed.version,
                        digest=deed.digest,
                        source=deed.source,
                        clock=deed.clock,
                        steps=deed.steps,
                        deed=deed.number,
                    )
                )
            else:
                self._outbox.log(LearnerDid(now_ns, *who, deed))
