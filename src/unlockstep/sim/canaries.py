"""Cores and learners that are broken on purpose, each in one place: a swarm that does not find them out finds nothing.

Decides what is broken, and by which rules that may be noticed. Each canary is a production core, or production arrays
at either end, with one part exchanged for another that does the same but for the fault it is named after.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import msgspec

from unlockstep.config import RunConfig
from unlockstep.core.actions import Commit
from unlockstep.core.errors import UsageError
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.layout import Layout
from unlockstep.core.ledger import Ledger
from unlockstep.core.membership import Member, Membership
from unlockstep.core.messages import Committed, VersionNotice
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.rounds import Rounds
from unlockstep.core.schedule import Schedule
from unlockstep.core.sync_round import RoundMemory, SyncRound
from unlockstep.core.syncer import SyncerCore
from unlockstep.learners.backend import Backend, FloatArray
from unlockstep.loop import Contribution
from unlockstep.sim.cargo import ArrayCargo, ArrayCodecs, ArrayFreight, Cargo, Codecs, Freight, Parcel
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
    adjust: Callable[[Rounds, ProtocolOptions], None] = lambda rounds, options: None,
    taken: Callable[[ProtocolOptions], ProtocolOptions] = lambda options: options,
) -> MakeCore:
    """A production core with parts of it exchanged.

    Args:
        rounds, members, ledger: what these parts are.
        adjust: exchanges a part within the rounds.
        taken: the options that the rounds are given.
    """

    def make(config: RunConfig, run_id: str) -> SyncerCore:
        core = production_core(config, run_id)
        options = config.protocol
        core._members, core._ledger = members(options), ledger(options.fragments)
        core._rounds = rounds(taken(options), core._members, core._ledger, core._tally, core._outbox)
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


def _forget(rounds: Rounds, options: ProtocolOptions) -> None:
    rounds._memory = _Forgetful(options.rounds_remembered_max)


def _alias(rounds: Rounds, options: ProtocolOptions) -> None:
    rounds._schedule = _Aliasing(options.fragments, options.interval_steps)


def _skip(rounds: Rounds, options: ProtocolOptions) -> None:
    rounds._schedule = _Skipping(options.fragments, options.interval_steps)


def _patient(options: ProtocolOptions) -> ProtocolOptions:
    return msgspec.structs.replace(options, staleness_max=2**20)


# ------------------------------------------------------------------------------------------------ arrays


class _WithoutMomentum(ArrayFreight):
    """The outer optimizer is the one without momentum."""

    def cargo(self, layout: Layout, config: RunConfig, executor: Executor | None) -> Cargo:
        outer = msgspec.structs.replace(config.outer, optimizer="sgd")
        return super().cargo(layout, msgspec.structs.replace(config, outer=outer), executor)


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
        return super().body(notice) if before is None else Parcel(before[0], notice.digest, len(before[0]))


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


class _Freight(ArrayFreight):
    def __init__(self, cargo: type[ArrayCargo] = ArrayCargo, codecs: type[ArrayCodecs] = ArrayCodecs) -> None:
        self._cargo = cargo
        self._codecs = codecs

    def codecs(self, layout: Layout, config: RunConfig, backend: Backend) -> Codecs:
        return self._codecs(layout, config)

    def cargo(self, layout: Layout, config: RunConfig, executor: Executor | None) -> Cargo:
        return self._cargo(layout, config, executor)


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
    "late_lost": Canary("tokens merged late are entered as lost too", ("tokens",), _core(ledger=_CountsLateAsLost)),
    "aliased_fragment": Canary(
        "a fragment is due at certain steps only", ("opening", "rotation", "progress"), _core(adjust=_alias)
    ),
    "skipped_fragment": Canary("every fifth round is left out", ("rotation",), _core(adjust=_skip)),
    "forgotten_momentum": Canary("the outer step has no momentum", ("merged value",), freight=_WithoutMomentum()),
    "even_weights": Canary("contributions are not weighed", ("merged value",), freight=_Freight(_Even)),
    "wrong_body": Canary("learners get the version before", ("fetched body",), freight=_Freight(_Mislaying)),
    "unmoved_anchor": Canary(
        "learners hand over again what they had handed over", ("handed over",), freight=_Freight(codecs=_Unmoved)
    ),
    "torn_pair": Canary(
        "learners hand over an old copy with new counters", ("handed over",), freight=_Freight(codecs=_Torn)
    ),
}
"""By name."""
