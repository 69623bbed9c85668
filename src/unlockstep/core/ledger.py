"""What became of every token: an account per learner and fragment that must balance to zero.

Decides the classes and the arithmetic. Does not decide what happens to a contribution; it is told by ``rounds`` and
``syncer``.

A token trains every fragment, and each fragment may fare differently, so tokens are counted per fragment::

    trained = merged + merged late + refused + overwritten + dropped + lost + in flight

*Trained* is what learners report. *In flight* is what was accepted and is not merged yet, and the rest: trained, and in
no other class. So the two sides agree by arithmetic. What shows that something was counted twice is a class below zero,
and that it was not counted at all, a rest that does not go away; when the run ends it is entered as dropped.
"""

from __future__ import annotations

from collections import Counter

from unlockstep.core.reasons import RefusalReason
from unlockstep.core.saved import SavedAccount, SavedLedger
from unlockstep.core.status import LedgerStatus


class Account:
    """One learner's tokens, by fragment."""

    def __init__(self, fragment_count: int) -> None:
        self.trained = 0
        self.merged = [0] * fragment_count
        self.merged_late = [0] * fragment_count
        self.refused = [0] * fragment_count
        self.overwritten = [0] * fragment_count
        self.dropped = [0] * fragment_count
        self.lost = [0] * fragment_count
        self.is_closed = False
        self.lost_last = [0] * fragment_count
        """Of ``lost``: what the latest death took."""
        self.ended_last = [0] * fragment_count
        """Of ``dropped``: what the end of the run took."""
        self.pending = [0] * fragment_count
        """Handed over, accepted, and not merged yet."""

    def settled(self, fragment: int) -> int:
        """Tokens whose fate is known for good."""
        return (
            self.merged[fragment]
            + self.merged_late[fragment]
            + self.refused[fragment]
            + self.overwritten[fragment]
            + self.dropped[fragment]
            + self.lost[fragment]
        )

    def unsettled(self, fragment: int) -> int:
        """Trained and neither settled nor pending: still with the learner, or on its way."""
        return self.trained - self.settled(fragment) - self.pending[fragment]

    def saved(self, learner: str) -> SavedAccount:
        """What outlives the syncer's process."""
        return SavedAccount(
            learner=learner,
            trained=self.trained,
            merged=tuple(self.merged),
            merged_late=tuple(self.merged_late),
            refused=tuple(self.refused),
            overwritten=tuple(self.overwritten),
            dropped=tuple(self.dropped),
            lost=tuple(self.lost),
            lost_last=tuple(self.lost_last),
            ended_last=tuple(self.ended_last),
            pending=tuple(self.pending),
            is_closed=self.is_closed,
        )

    def restore(self, saved: SavedAccount) -> None:
        """Be what was saved."""
        self.trained, self.is_closed = saved.trained, saved.is_closed
        for name in saved.__struct_fields__:
            if isinstance(value := getattr(saved, name), tuple):
                setattr(self, name, list(value))


class Ledger:
    """All accounts of a run."""

    def __init__(self, fragment_count: int) -> None:
        self._fragment_count = fragment_count
        self._accounts: dict[str, Account] = {}
        self._refused: Counter[RefusalReason] = Counter()
        self.refusals: Counter[RefusalReason] = Counter()
        """Contributions refused, by reason (whether or not their tokens are counted)."""

    @property
    def trained_total(self) -> int:
        """Tokens trained by all learners."""
        return sum(account.trained for account in self._accounts.values())

    def account(self, learner: str) -> Account:
        account = self._accounts.get(learner)
        if account is None:
            account = self._accounts[learner] = Account(self._fragment_count)
        return account

    def trained(self, learner: str, tokens: int) -> None:
        """The learner has trained this many tokens in all, over all its incarnations."""
        account = self.account(learner)
        more = max(0, tokens - account.trained)
        account.trained += more
        if account.is_closed:  # An upload of a dead process says what its last report did not.
            for fragment in range(self._fragment_count):
                account.lost[fragment] += more
                account.lost_last[fragment] += more

    def accepted(self, learner: str, fragment: int, tokens: int) -> None:
        self.account(learner).pending[fragment] += tokens

    def merged(self, learner: str, fragment: int, tokens: int, late: bool) -> None:
        account = self.account(learner)
        account.pending[fragment] -= tokens
        (account.merged_late if late else account.merged)[fragment] += tokens

    def abandoned(self, learner: str, fragment: int, tokens: int, reason: RefusalReason) -> None:
        """A contribution that had been accepted is refused after all."""
        self.account(learner).pending[fragment] -= tokens
        self.refused(learner, fragment, tokens, reason)

    def refused(self, learner: str, fragment: int, tokens: int, reason: RefusalReason) -> None:
        self.account(learner).refused[fragment] += tokens
        self._refused[reason] += tokens

    def refused_after_death(self, learner: str, fragment: int, tokens: int, reason: RefusalReason) -> None:
        """A contribution of a dead process arrives and is refused: its tokens were entered as lost."""
        account = self.account(learner)
        account.lost[fragment] -= tokens
        account.lost_last[fragment] -= tokens
        self.refused(learner, fragment, tokens, reason)

    def overwritten(self, learner: str, fragment: int, tokens: int) -> None:
        self.account(learner).overwritten[fragment] += tokens

    def undelivered(self, learner: str, fragment: int, tokens: int) -> None:
        """Handed over by the learner, but it could not be delivered."""
        self.account(learner).dropped[fragment] += tokens

    def left(self, learner: str, tokens_dropped: tuple[int, ...]) -> None:
        """The learner goes in order and says what it had not handed over."""
        account = self.account(learner)
        for fragment, tokens in enumerate(tokens_dropped):
            account.dropped[fragment] += tokens

    def finish(self, held: dict[str, tuple[int, ...]]) -> int:
        """The run is over: what a learner still holds, or has on its way, will not be merged.

        Args:
            held: by learner, the tokens per fragment it says it has not handed over.

        Returns:
            By how many tokens, summed over fragments, the books and what learners say differ: contributions that were
            under way. 0 where nothing was cut off, or something was counted twice or not at all.
        """
        difference = 0
        for learner, account in self._accounts.items():
            if account.is_closed:
                continue
            says = held.get(learner, (0,) * self._fragment_count)
            for fragment in range(self._fragment_count):
                unsettled = account.unsettled(fragment)
                difference += abs(unsettled - says[fragment])
                account.dropped[fragment] += unsettled
                account.ended_last[fragment] = unsettled
            account.is_closed = True
        return difference

    def goes_with_the_syncer(self, learner: str) -> None:
        """The learner had left, and the syncer has died: what it had on its way then, nobody will bring again."""
        if not self.is_closed(learner):
            self.died(learner)

    def go_on(self, learner: str) -> None:
        """The run had come to its end, and another life of the syncer takes it up: what the learner holds, it holds."""
        account = self.account(learner)
        for fragment, tokens in enumerate(account.ended_last):
            account.dropped[fragment] -= tokens
        account.ended_last = [0] * self._fragment_count
        self.came_back(learner)

    def died(self, learner: str) -> None:
        """The learner is gone without a word: all that is neither settled nor pending is lost with it."""
        account = self.account(learner)
        account.is_closed = True
        account.lost_last = [account.unsettled(fragment) for fragment in range(self._fragment_count)]
        for fragment, tokens in enumerate(account.lost_last):
            account.lost[fragment] += tokens

    def came_back(self, learner: str) -> None:
        """The learner was not dead, only silent: what had been entered as lost is still with it."""
        account = self.account(learner)
        for fragment, tokens in enumerate(account.lost_last):
            account.lost[fragment] -= tokens
        account.lost_last = [0] * self._fragment_count
        account.is_closed = False

    def opened(self, learner: str) -> None:
        """A new process has joined under the name: what an earlier one had under way can no longer be told apart."""
        account = self.account(learner)
        for fragment in range(self._fragment_count):
            account.lost[fragment] += account.unsettled(fragment)
        account.lost_last = [0] * self._fragment_count
        account.ended_last = [0] * self._fragment_count
        account.is_closed = False

    def voided(self, learner: str, fragment: int, tokens: int, may_return: bool) -> None:
        """A contribution that was pending is gone with the syncer's life. The process that has made it hands it over
        again, unless another one has its name: then it is lost. If it was only silent, it comes back and has it."""
        account = self.account(learner)
        account.pending[fragment] -= tokens
        if not may_return or account.is_closed:
            account.lost[fragment] += tokens
        if may_return and account.is_closed:
            account.lost_last[fragment] += tokens

    def saved(self) -> SavedLedger:
        """What outlives the syncer's process."""
        return SavedLedger(
            accounts=tuple(self._accounts[learner].saved(learner) for learner in sorted(self._accounts)),
            refused={reason.value: tokens for reason, tokens in sorted(self._refused.items(), key=_by_name)},
            refusals={reason.value: count for reason, count in sorted(self.refusals.items(), key=_by_name)},
        )

    def restore(self, saved: SavedLedger) -> None:
        """Go on from what was saved."""
        for account in saved.accounts:
            self.account(account.learner).restore(account)
        self._refused.update({RefusalReason(reason): tokens for reason, tokens in saved.refused.items()})
        self.refusals.update({RefusalReason(reason): count for reason, count in saved.refusals.items()})

    def is_closed(self, learner: str) -> bool:
        """Whether all of the learner's tokens are entered, the unsettled ones as lost."""
        return self.account(learner).is_closed

    def status(self) -> LedgerStatus:
        """The classes summed over learners, as means over fragments."""

        def mean(tokens: int) -> float:
            return tokens / self._fragment_count

        accounts = list(self._accounts.values())
        return LedgerStatus(
            trained=float(self.trained_total),
            merged=mean(sum(sum(account.merged) for account in accounts)),
            merged_late=mean(sum(sum(account.merged_late) for account in accounts)),
            refused={reason.value: mean(tokens) for reason, tokens in sorted(self._refused.items(), key=_by_name)},
            overwritten=mean(sum(sum(account.overwritten) for account in accounts)),
            dropped=mean(sum(sum(account.dropped) for account in accounts)),
            lost=mean(sum(sum(account.lost) for account in accounts)),
            in_flight=mean(sum(a.pending[p] + a.unsettled(p) for a in accounts for p in range(self._fragment_count))),
        )


def _by_name(item: tuple[RefusalReason, int]) -> str:
    return item[0].value
