"""What a decoded message must look like before it has any effect: as many counts as fragments, fragments that exist,
counts that can be added up.

Decides shapes and ranges. Whether a message is true, or comes at the right time, is for whoever reacts to it.
"""

from __future__ import annotations

from collections.abc import Iterable

from unlockstep.core.data_book import Grant
from unlockstep.core.deeds import AdoptionNotice, Began, CheckpointTaken, DataTaken, Deed, HandOverNotice, StateTaken
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.messages import (
    Evaluation,
    Farewell,
    GoneBack,
    Granted,
    Join,
    Leave,
    Progress,
    Published,
    Pull,
    Settled,
    StateDeclined,
    StateReady,
    StateWanted,
    SyncerInput,
    VersionNotice,
    Welcome,
)

COUNT_MAX = 2**53
"""Sums of these fit 64 bits, and every reader of JSON sees them exactly."""

NEWS_MAX = 4096
"""Adoptions, or contributions, that one message may speak of: more than there can be, and soon gone through."""

SCORES_MAX = 16
"""Of one evaluation."""

ABOUT_MAX = 16
"""What a process may say of itself."""

WORD_LENGTH_MAX = 128
"""Of what is written into the run log as it comes."""


def check_shape(message: SyncerInput, fragment_count: int) -> None:
    """Raises RemoteProtocolError if what a learner or evaluator says does not fit a run with this many fragments."""
    match message:
        case Join():
            _data(message, message.position, message.samples)
            _counts(message, (message.sequences, message.life))
            _few(message, "unsettled", message.unsettled)
            _short(message, message.data_digest, message.layout_digest, message.run_id)
            _few(message, "about", tuple(message.about), ABOUT_MAX)
            _short(message, *message.about, *message.about.values())
            for kept in message.unsettled:
                _fragment(message, kept.fragment, fragment_count)
                _counts(message, (kept.round, kept.tokens))
        case Progress():
            _per_fragment(message, "c_steps", message.c_steps, fragment_count)
            _per_fragment(message, "c_tokens", message.c_tokens, fragment_count)
            _per_fragment(message, "overwritten", message.overwritten, fragment_count)
            _counts(message, (message.clock, message.steps, message.tokens, message.step_ns))
            _data(message, message.position, message.samples)
            _counts(message, (message.unsettled,))
            _few(message, "deeds", message.deeds)
            _few(message, "undelivered", message.undelivered)
            for deed in message.deeds:
                _counts(message, (deed.number, deed.steps))
                _deed(message, deed, fragment_count)
            for lost in message.undelivered:
                _fragment(message, lost.fragment, fragment_count)
                _counts(message, (lost.round, lost.c_tokens, lost.tokens))
        case StateWanted():
            _counts(message, (message.failed,))
        case StateDeclined():
            _counts(message, (message.ticket,))
        case Leave():
            _per_fragment(message, "tokens_dropped", message.tokens_dropped, fragment_count)
        case Evaluation():
            _per_fragment(message, "versions", message.versions, fragment_count)
            _counts(message, (message.clock,))
            _few(message, "scores", message.scores, SCORES_MAX)
            _short(message, *(score.name for score in message.scores))


def check_syncer_shape(message: object, fragment_count: int) -> None:
    """Raises RemoteProtocolError if what a syncer says does not fit a model with this many fragments."""
    match message:
        case Welcome():
            _notices(message, message.versions, fragment_count)
            _counts(message, (message.incarnation, message.clock, message.lease_ns, message.steps_before, message.life))
            _grants(message, message.grants)
            if message.versions_kept:
                _per_fragment(message, "versions_kept", message.versions_kept, fragment_count)
            for wanted in message.wanted:
                _fragment(message, wanted.fragment, fragment_count)
        case Pull():
            _pull(message, message, fragment_count)
        case Farewell():
            for pull in message.pulls:
                _pull(message, pull, fragment_count)
        case Published():
            _notices(message, (message.notice,), fragment_count)
            _counts(message, (message.clock,))
        case GoneBack():
            _notices(message, message.notices, fragment_count)
            _counts(message, (message.clock,))
        case Settled():
            _fragment(message, message.fragment, fragment_count)
            _counts(message, (message.round, message.tokens))
        case Granted():
            _grants(message, message.grants)
        case StateReady():
            _counts(message, (message.ticket, message.size_bytes))


def _notices(message: object, notices: Iterable[VersionNotice], fragment_count: int) -> None:
    for notice in notices:
        _fragment(message, notice.fragment, fragment_count)
        _counts(message, (notice.version, notice.void_below))


def _pull(message: object, pull: Pull, fragment_count: int) -> None:
    _fragment(message, pull.fragment, fragment_count)
    _counts(message, (pull.round,))


def _grants(message: object, grants: Iterable[Grant]) -> None:
    for grant in grants:
        _counts(message, (grant.at, grant.epoch, grant.start, grant.stop - grant.start))


def _deed(message: object, deed: Deed, fragment_count: int) -> None:
    match deed:
        case AdoptionNotice():
            _short(message, deed.digest)
            _fragment(message, deed.fragment, fragment_count)
            _counts(message, (deed.version, deed.fetch_ns, deed.clock))
        case HandOverNotice():
            _fragment(message, deed.fragment, fragment_count)
            _counts(message, (deed.round, deed.tokens))
        case Began():
            _counts(message, (deed.clock, deed.steps_before, deed.after, deed.after_steps))
        case StateTaken(of=of) | CheckpointTaken(of=of):
            _short(message, of.learner)
            _counts(message, (of.incarnation, of.steps, of.deeds))
        case DataTaken():
            _few(message, "parts", deed.parts)
            _grants(message, deed.parts)


def _few(message: object, name: str, entries: tuple[object, ...], most: int = NEWS_MAX) -> None:
    if len(entries) > most:
        raise RemoteProtocolError(f"{type(message).__name__}.{name} has {len(entries)} entries, {most} at most")


def _short(message: object, *words: str) -> None:
    for word in words:
        if len(word) > WORD_LENGTH_MAX:
            raise RemoteProtocolError(f"{type(message).__name__} has a digest or name of {len(word)} characters")


def _per_fragment(message: object, name: str, counts: tuple[int, ...], fragment_count: int) -> None:
    if len(counts) != fragment_count:
        raise RemoteProtocolError(
            f"{type(message).__name__}.{name} has {len(counts)} entries for {fragment_count} fragments"
        )
    _counts(message, counts)


def _data(message: object, position: int, samples: int) -> None:
    _counts(message, (position, samples))
    if samples > position:
        raise RemoteProtocolError(
            f"{type(message).__name__} speaks of {samples} samples trained up to position {position}"
        )


def _fragment(message: object, fragment: int, fragment_count: int) -> None:
    if not 0 <= fragment < fragment_count:
        raise RemoteProtocolError(f"{type(message).__name__} speaks of fragment {fragment} of {fragment_count}")


def _counts(message: object, counts: Iterable[int]) -> None:
    for count in counts:
        if not 0 <= count <= COUNT_MAX:
            raise RemoteProtocolError(f"{type(message).__name__} counts {count}, which is not from 0 to 2**53")
