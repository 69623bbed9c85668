"""Cores and learners that are broken on purpose, each in one place: a swarm that does not find them out finds nothing.

Decides what is broken, and by which rules that may be noticed. Each canary is a production core, or production arrays
at either end, with one part exchanged for another that does the same but for the fault it is named after.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from unlockstep.config import RunConfig
from unlockstep.core.actions import Commit, Save, SyncerAction
from unlockstep.core.codec_choice import UploadCodecs
from unlockstep.core.data_book import DataBook, Grant, Returned
from unlockstep.core.deeds_heard import DeedsHeard
from unlockstep.core.donation import Donations
from unlockstep.core.errors import UsageError
from unlockstep.core.going_back import GoingBack
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.layout import Layout
from unlockstep.core.leasing import Leasing
from unlockstep.core.ledger import Ledger
from unlockstep.core.membership import Member, Membership
from unlockstep.core.messages import (
    Committed,
    HandedOver,
    Recorded,
    Settled,
    Undelivered,
    UploadMeasured,
    VersionNotice,
)
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.outbox import Outbox
from unlockstep.core.rounds import Rounds
from unlockstep.core.saved import SavedMember
from unlockstep.core.schedule import Schedule
from unlockstep.core.sync_round import RoundMemory, SyncRound
from unlockstep.core.syncer import SyncerCore
from unlockstep.learners.backend import Backend, FloatArray
from unlockstep.learners.state_body import Donated
from unlockstep.loop import Contribution
from unlockstep.sim.cargo import ArrayCargo, ArrayCodecs, ArrayFreight, Cargo, Codecs, Freight, Parcel, SavedArrays
from unlockstep.sim.syncer_host import MakeCore, production_core


@dataclass(frozen=True, slots=True)
class Canary:
    """One fault."""

    about: str
    rules: tuple[str, ...]
    """Any of these is the right one to notice it."""
    make_core: MakeCore = production_core
    freight: Freight | None = None


def canary(name: str) -> Canary:
    """The canary of this name. Raises UsageError if there is none."""
    if name not in CANARIES:
        raise UsageError(f"canary is {name!r}, which does not exist: choose one of {', '.join(CANARIES)}")
    return CANARIES[name]


def _core(
    rounds: type[Rounds] = Rounds,
    members: type[Membership] = Membership,
    ledger: type[Ledger] = Ledger,
    book: type[DataBook] = DataBook,
    outbox: type[Outbox] = Outbox,
    adjust: Callable[[Rounds, ProtocolOptions], None] = lambda rounds, options: None,
    taken: Callable[[ProtocolOptions], ProtocolOptions] = lambda options: options,
) -> MakeCore:
    """A production core with parts of it exchanged.

    Args:
        rounds, members, ledger, book, outbox: what these parts are.
        adjust: exchanges a part within the rounds.
        taken: the options that the rounds are given.
    """

    def make(config: RunConfig, run_id: str) -> SyncerCore:
        core = production_core(config, run_id)
        options = config.protocol
        core._members, core._ledger = members(options, config.codec.uploads[-1]), ledger(options.fragments)
        core._outbox = outbox()
        core._rounds = rounds(taken(options), core._members, core._ledger, core._tally, core._outbox)
        core._deeds_heard = DeedsHeard(core._rounds, core._ledger, core._outbox)
        core._leasing = Leasing(config.data.dealing, core._outbox, book)
        core.donations = Donations(options, core._members, core._outbox)
        core._going_back = GoingBack(config.rollback, core._rounds, core._members, core._tally, core._outbox)
        core._reactions[Recorded] = core._going_back.recorded
        uploads = UploadCodecs(config.codec.uploads, options, core._members, lambda: core._layout, core._outbox)
        core._reactions[UploadMeasured] = uploads.measured
        adjust(core._rounds, options)
        return core

    return make


# ------------------------------------------------------------------------------------------------ rounds


class _Hasty(Rounds):
    """The quorum is taken to be in with one contribution less."""

    def _note_quorum(self, collecting: SyncRound, now_ns: int) -> None:
        if collecting.quorum_at_ns is None and len(collecting.contributions) + 1 >= self._options.quorum:
            collecting.quorum_at_ns = now_ns


class _Deaf(Rounds):
    """No grace window ends by itself: rounds are looked at when a message comes."""

    def next_deadline_ns(self) -> int:
        return NEVER_NS


class _Forgetful(RoundMemory):
    """What has been entered is not remembered."""

    def has(self, round: int, learner: str, process: int, tokens: int) -> bool:
        return False


class _Credulous(Membership):
    """An earlier start of a learner is believed to be the present one."""

    def current(self, learner: str, incarnation: int) -> Member | None:
        member = self.get(learner)
        return member if member is not None and member.is_present else None


class _Reusing(Membership):
    """A new process may get the number of the one before."""

    def join(self, learner: str, now_ns: int) -> Member:
        member = super().join(learner, now_ns)
        member.incarnation = member.process_since = max(1, member.incarnation - 1)
        return member


class _Undying(Membership):
    """No lease ever ends."""

    def expired(self, now_ns: int) -> list[Member]:
        return []

    def next_expiry_ns(self) -> int:
        return NEVER_NS


class _Lenient(Membership):
    """Who is shut out may come back when half of the time has gone by."""

    def quarantine(self, member: Member, now_ns: int) -> int:
        pause_ns = super().quarantine(member, now_ns)
        if pause_ns != NEVER_NS:
            member.out_until_ns -= pause_ns // 2
        return pause_ns


class _CountsLateAsLost(Ledger):
    """What is merged late is entered as lost too."""

    def merged(self, learner: str, fragment: int, tokens: int, late: bool) -> None:
        super().merged(learner, fragment, tokens, late)
        if late:
            self.account(learner).lost[fragment] += tokens


class _Aliasing(Schedule):
    """Fragment p is due at steps with ``t mod H = floor(p * H / P)``: when the clock jumps over them, never."""

    def __init__(self, fragment_count: int, interval_steps: int) -> None:
        super().__init__(fragment_count, interval_steps)
        self._last_clock = -1

    def _fragment_at(self, clock: int) -> int | None:
        phase = clock % self._interval_steps
        for fragment in range(self._fragment_count):
            if phase == fragment * self._interval_steps // self._fragment_count:
                return fragment
        return None

    def is_due(self, clock: int) -> bool:
        fragment = self._fragment_at(clock)
        if clock == self._last_clock or clock < self._interval_steps or fragment is None:
            return False
        self.next_round += (fragment - self.next_round) % self._fragment_count
        return True

    def open(self, clock: int) -> int:
        self._last_clock = clock
        return super().open(clock)


class _Skipping(Schedule):
    """Every fifth round is left out."""

    def open(self, clock: int) -> int:
        self.next_round += self.next_round % 5 == 4
        return super().open(clock)


# ------------------------------------------------------------------------------------------------ another life


class _Rash(Outbox):
    """What is said does not wait until it is saved."""

    def take_actions(self) -> list[SyncerAction]:
        return sorted(super().take_actions(), key=lambda action: isinstance(action, Save))


class _Unrepentant(RoundMemory):
    """What has been entered once stays entered, though it was not merged when the syncer died."""

    def forget(self, round: int, learner: str, process: int, tokens: int) -> None:
        pass


class _Incurious(Rounds):
    """Nobody is asked to hand over once more what is gone."""

    def review(
        self, member: Member, unsettled: tuple[HandedOver, ...]
    ) -> tuple[tuple[HandedOver, ...], tuple[Settled, ...]]:
        return (), super().review(member, unsettled)[1]


class _Aloof(Rounds):
    """A learner that could not deliver something says so in vain."""

    def enter_undelivered(self, member: Member, lost: Undelivered, now_ns: int) -> None:
        pass


class _Estranged(Membership):
    """Who was a member is not known any more."""

    def restore(self, members: tuple[SavedMember, ...], clock: int, now_ns: int) -> None:
        super().restore((), clock, now_ns)


class _Empty(Schedule):
    """The rounds are counted from the first one again."""

    def restore(self, next_round: int, due: int) -> None:
        pass


def _keep_entered(rounds: Rounds, options: ProtocolOptions) -> None:
    rounds._memory = _Unrepentant(options.rounds_remembered_max)


def _count_anew(rounds: Rounds, options: ProtocolOptions) -> None:
    rounds._schedule = _Empty(options.fragments, options.interval_steps)


def _forget(rounds: Rounds, options: ProtocolOptions) -> None:
    rounds._memory = _Forgetful(options.rounds_remembered_max)


def _alias(rounds: Rounds, options: ProtocolOptions) -> None:
    rounds._schedule = _Aliasing(options.fragments, options.interval_steps)


def _skip(rounds: Rounds, options: ProtocolOptions) -> None:
    rounds._schedule = _Skipping(options.fragments, options.interval_steps)


def _patient(options: ProtocolOptions) -> ProtocolOptions:
    return msgspec.structs.replace(options, staleness_max=2**20)


# ------------------------------------------------------------------------------------------------ data


class StingyBook(DataBook):
    """Of what a process that goes has not reached, the first place is forgotten."""

    def ended(self, learner: str, process: int) -> None:
        before = list(self._waiting)
        super().ended(learner, process)
        for index, returned in enumerate(self._waiting):
            if returned not in before and returned.grant.size > 1:
                shorter = returned.grant.beyond(returned.grant.at + 1)
                self._waiting[index] = Returned(returned.learner, returned.process, shorter)


class TrustingBook(DataBook):
    """What a process says it has trained is taken for reached."""

    def trained(self, learner: str, process: int, position: int, samples: int) -> None:
        super().trained(learner, process, position, samples)
        self._pass(learner, process, position)


class GivingBook(DataBook):
    """What is given back to a process that was silent may still be granted to others."""

    def came_back(self, learner: str, process: int, position: int, samples: int) -> tuple[Grant, ...]:
        waiting = list(self._waiting)
        given = super().came_back(learner, process, position, samples)
        self._waiting = waiting
        return given


class UngratefulBook(DataBook):
    """What a learner holds that leaves in order is never granted to anybody again."""

    def left(self, learner: str, process: int, position: int) -> None:
        self._holdings.pop(learner, None)


class HurriedBook(DataBook):
    """The next epoch begins one place too early."""

    def _next_range(self) -> tuple[int, int, int]:
        epoch, start, stop = super()._next_range()
        return epoch, start, max(start + 1, stop - (stop == self._sequences))


# ------------------------------------------------------------------------------------------------ arrays


class _WithoutMomentum(ArrayFreight):
    """The outer optimizer is the one without momentum."""

    def cargo(self, layout: Layout, config: RunConfig, executor: Executor | None, saved: Any = None) -> Cargo:
        outer = msgspec.structs.replace(config.outer, optimizer="sgd")
        return super().cargo(layout, msgspec.structs.replace(config, outer=outer), executor, saved)


class _Even(ArrayCargo):
    """Whoever contributes counts as much as any other, however much it has trained."""

    def commit(self, commit: Commit) -> Committed:
        weight = 1 / len(commit.shares)
        shares = tuple(msgspec.structs.replace(share, weight=weight) for share in commit.shares)
        return super().commit(msgspec.structs.replace(commit, shares=shares))


class _Mislaying(ArrayCargo):
    """Asked for a version, it gives the one before, if it still has that."""

    def body(self, notice: VersionNotice) -> Parcel | None:
        before = self.storehouse.body(notice.fragment, notice.version - 1)
        return super().body(notice) if before is None else Parcel(before[0], len(before[0]), notice.digest)


class _AtRest(ArrayCargo):
    """In another life of the syncer the outer optimizer begins without momentum."""

    def __init__(
        self, layout: Layout, config: RunConfig, executor: Executor | None = None, saved: SavedArrays | None = None
    ) -> None:
        if saved is not None:
            kept, norms = saved
            still = {p: replace(each, outer_state=np.zeros_like(each.outer_state)) for p, each in kept.items()}
            saved = still, norms
        super().__init__(layout, config, executor, saved)


class _Unmoved(ArrayCodecs):
    """A learner hands over what it has trained since its first hand-over, again and again."""

    def __init__(self, layout: Layout, config: RunConfig) -> None:
        super().__init__(layout, config)
        self._anchors: dict[int, FloatArray] = {}

    def pack(self, made: Contribution) -> Parcel:
        return super().pack(replace(made, anchor=self._anchors.setdefault(made.fragment, made.anchor)))


class _Torn(ArrayCodecs):
    """A learner hands over the copy made for the hand-over before, with the counters of now."""

    def __init__(self, layout: Layout, config: RunConfig) -> None:
        super().__init__(layout, config)
        self._copies: dict[int, FloatArray] = {}

    def pack(self, made: Contribution) -> Parcel:
        before = self._copies.get(made.fragment, made.local)
        self._copies[made.fragment] = made.local
        return super().pack(replace(made, local=before))


class _TornState(ArrayCodecs):
    """A learner gives away parameters of earlier hand-overs with the optimizer and the versions of now."""

    def __init__(self, layout: Layout, config: RunConfig) -> None:
        super().__init__(layout, config)
        self._copies: dict[int, FloatArray] = {}

    def pack(self, made: Contribution) -> Parcel:
        self._copies[made.fragment] = made.local
        return super().pack(made)

    def pack_state(self, donated: Donated) -> Parcel:
        fragments = tuple(self._copies.get(index, values) for index, values in enumerate(donated.fragments))
        return super().pack_state(msgspec.structs.replace(donated, fragments=fragments))


class _Claiming(ArrayCodecs):
    """A learner takes what its donor has trained for its own: it measures from the version instead."""

    def __init__(self, layout: Layout, config: RunConfig) -> None:
        super().__init__(layout, config)
        self._versions: dict[int, FloatArray] = {}
        self._claims: dict[int, FloatArray] = {}

    def unpack(self, notice: VersionNotice, parcel: Parcel) -> FloatArray | None:
        values = super().unpack(notice, parcel)
        if values is not None:
            self._versions[notice.fragment] = values
        return values

    def unpack_state(self, digest: str, parcel: Parcel) -> Donated | None:
        self._claims = dict(self._versions)
        return super().unpack_state(digest, parcel)

    def pack(self, made: Contribution) -> Parcel:
        return super().pack(replace(made, anchor=self._claims.pop(made.fragment, made.anchor)))


class _Careless(ArrayCodecs):
    """What rounding has taken is not handed over with the next contribution."""

    def pack(self, made: Contribution) -> Parcel:
        self._encoder._fragments.pop(made.fragment, None)
        return super().pack(made)


class _Repeating(ArrayCodecs):
    """A contribution that is handed over once more is made anew, with what rounding has taken since."""

    def pack(self, made: Contribution) -> Parcel:
        self._encoder.forget(HandedOver(made.round, made.fragment, made.tokens))
        return super().pack(made)


class _Clinging(ArrayCodecs):
    """What rounding has taken is handed over although all progress is void."""

    def pack(self, made: Contribution) -> Parcel:
        return super().pack(replace(made, loads=0))


class _Freight(ArrayFreight):
    def __init__(self, cargo: type[ArrayCargo] = ArrayCargo, codecs: type[ArrayCodecs] = ArrayCodecs) -> None:
        self._cargo = cargo
        self._codecs = codecs

    def codecs(self, layout: Layout, config: RunConfig, backend: Backend) -> Codecs:
        return self._codecs(layout, config)

    def cargo(self, layout: Layout, config: RunConfig, executor: Executor | None, saved: Any = None) -> Cargo:
        return self._cargo(layout, config, executor, saved)


CANARIES: dict[str, Canary] = {
    "quorum_off_by_one": Canary("rounds close one contribution too early", ("quorum",), _core(_Hasty)),
    "double_count": Canary(
        "an upload that arrives twice counts twice",
        ("contributions", "merged twice", "tokens"),
        _core(adjust=_forget),
    ),
    "lost_timer": Canary("no window ends by itself", ("window", "progress", "end"), _core(_Deaf)),
    "stale_incarnation": Canary(
        "an earlier start of a learner is heard",
        ("incarnations", "tokens", "contributions", "leases", "progress", "adopting"),
        _core(members=_Credulous),
    ),
    "stale_base": Canary("progress on any old version counts", ("staleness",), _core(taken=_patient)),
    "incarnation_reused": Canary("two processes bear one number", ("incarnations",), _core(members=_Reusing)),
    "endless_lease": Canary(
        "a silent learner is never given up", ("leases", "progress", "adopting", "end"), _core(members=_Undying)
    ),
    "short_quarantine": Canary("who is shut out is let in too early", ("strikes",), _core(members=_Lenient)),
    "late_lost": Canary("tokens merged late are entered as lost too", ("tokens",), _core(ledger=_CountsLateAsLost)),
    "aliased_fragment": Canary(
        "a fragment is due at certain steps only", ("opening", "rotation", "progress"), _core(adjust=_alias)
    ),
    "skipped_fragment": Canary("every fifth round is left out", ("rotation",), _core(adjust=_skip)),
    "returned_too_little": Canary("a place is lost with its learner", ("data",), _core(book=StingyBook)),
    "reported_is_reached": Canary("what was trained and is in no version counts", ("data",), _core(book=TrustingBook)),
    "given_back_twice": Canary("what is given back is granted to others too", ("data",), _core(book=GivingBook)),
    "left_for_good": Canary("what a leaver holds is not granted anew", ("data",), _core(book=UngratefulBook)),
    "epoch_too_early": Canary("the last place of an epoch is left out", ("data",), _core(book=HurriedBook)),
    "forgotten_momentum": Canary("the outer step has no momentum", ("merged value",), freight=_WithoutMomentum()),
    "even_weights": Canary("contributions are not weighed", ("merged value",), freight=_Freight(_Even)),
    "wrong_body": Canary("learners get the version before", ("fetched body",), freight=_Freight(_Mislaying)),
    "unmoved_anchor": Canary(
        "learners hand over again what they had handed over", ("handed over",), freight=_Freight(codecs=_Unmoved)
    ),
    "torn_pair": Canary(
        "learners hand over an old copy with new counters", ("handed over",), freight=_Freight(codecs=_Torn)
    ),
    "torn_state": Canary(
        "a donor's parameters and its optimizer are of two moments",
        ("given state",),
        freight=_Freight(codecs=_TornState),
    ),
    "claimed_progress": Canary(
        "a new process takes its donor's progress for its own", ("handed over",), freight=_Freight(codecs=_Claiming)
    ),
    "lost_in_rounding": Canary(
        "what rounding has taken is never handed over", ("handed over",), freight=_Freight(codecs=_Careless)
    ),
    "rounded_anew": Canary(
        "a contribution that is handed over once more has other numbers",
        ("handed over",),
        freight=_Freight(codecs=_Repeating),
    ),
    "rounding_of_the_void": Canary(
        "what rounding has taken outlives the progress it was taken from",
        ("handed over",),
        freight=_Freight(codecs=_Clinging),
    ),
    "rash_promise": Canary(
        "messages go out before what they promise is saved", ("promise", "durability"), _core(outbox=_Rash)
    ),
    "unrepentant": Canary(
        "what was not merged when the syncer died counts as entered", ("promise", "astray"), _core(adjust=_keep_entered)
    ),
    "incurious": Canary("what is gone with the syncer is not asked for again", ("astray",), _core(_Incurious)),
    "aloof": Canary("what could not be delivered is entered nowhere", ("astray",), _core(_Aloof)),
    "estranged": Canary("members are forgotten with the syncer", ("incarnations",), _core(members=_Estranged)),
    "rounds_anew": Canary("rounds are counted anew with the syncer", ("rotation",), _core(adjust=_count_anew)),
    "at_rest": Canary("momentum is lost with the syncer", ("merged value",), freight=_Freight(_AtRest)),
}
"""By name."""
