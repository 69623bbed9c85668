"""Carries out a script: processes of learners, the syncer's arrays, and what goes from one to the other.

Decides the order: commit by commit, as the log has them, and for each commit every contributor first, as far as its
contribution; what that needs of others has been committed before. Decides what is kept, and until when: versions until
they are in every model that takes them, states of processes until they are loaded. Does not decide what happened
(``script``), nor what a process does with it (``part``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from unlockstep.config import RunConfig
from unlockstep.core import actions
from unlockstep.core.chunks import Float32
from unlockstep.core.codec import fragment_codecs
from unlockstep.core.deeds import CheckpointTaken, HandOverNotice, Moment
from unlockstep.core.events import ContributionAccepted, Merged, RolledBack, RunSeeded, SyncerResumed
from unlockstep.core.feedback import Encoder
from unlockstep.core.layout import Layout, LayoutMethod, build_layout
from unlockstep.core.messages import VersionNotice
from unlockstep.core.weights import contribution_weight, normalised
from unlockstep.learners.backend import State
from unlockstep.loop import Contribution
from unlockstep.replay.divergence import Diverged, Divergence
from unlockstep.replay.part import Part
from unlockstep.replay.performer import Performer
from unlockstep.replay.script import Capture, Commit, Place, Process, ProcessKey, Script, takers, versions_used
from unlockstep.storehouse import Inspection, Kept, Storehouse

Taken = TypeVar("Taken")

Cast = Callable[[Process], Performer]
"""A process of a learner -> what it trained, as it was when it began."""

OnStep = Callable[[int, int], None]
"""Inner steps done, commits done."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it."""

    divergence: Divergence | None
    """The first difference; None: everything came out as it was."""
    commits: int
    steps: int
    kept: dict[int, Kept]
    """The last version of every fragment."""
    layout: Layout | None


def replay(
    script: Script,
    config: RunConfig,
    cast: Cast,
    *,
    executor: Executor | None = None,
    on_step: OnStep = lambda steps, commits: None,
) -> Replayed:
    """Do it all once more, up to the first difference.

    Args:
        script: what happened (``read_script``).
        config: of the run.
        cast: makes what its processes trained.
        executor: threads lent to the merge; the bits do not depend on their number.
        on_step: is told how far it is.

    Raises:
        UsageError: a performer cannot do what its process did.
    """
    stage = Stage(script, config, cast, executor, on_step)
    divergence = None
    try:
        stage.play()
    except Diverged as diverged:
        divergence = diverged.divergence
    kept = {} if stage.storehouse is None else stage.storehouse.kept()
    return Replayed(divergence, stage.commits, stage.steps, kept, stage.layout)


class Stage:
    """One replay (``part.Given``)."""

    def __init__(
        self, script: Script, config: RunConfig, cast: Cast, executor: Executor | None, on_step: OnStep
    ) -> None:
        self.storehouse: Storehouse | None = None
        self.layout: Layout | None = None
        self.commits = self.steps = 0
        self._script = script
        self._config = config
        self._cast = cast
        self._executor = executor
        self._on_step = on_step
        self._parts: dict[ProcessKey, Part] = {}
        self._uses = versions_used(script)
        self._values: dict[tuple[int, int], Float32] = {}
        """Versions that are still to be written into models, as learners decode them."""
        self._digests: dict[tuple[int, int], str] = {}
        self._earlier = {
            (fragment, version): None
            for chapter in script.chapters
            if isinstance(chapter, RolledBack)
            for fragment, version in enumerate(chapter.of)
        }
        """Versions that the run goes back to."""
        self._kept_earlier: dict[tuple[int, int], Kept] = {}
        self._wanted: dict[Merged, ContributionAccepted] = {
            Merged(each.learner, maker.first, each.round, each.tokens): each
            for chapter in script.chapters
            if isinstance(chapter, Commit)
            for each, maker in zip(chapter.merged, chapter.makers, strict=True)
        }
        self._made: dict[Merged, Inspection] = {}
        """Handed over, and to be merged by a later commit."""
        self._states: dict[Moment, tuple[tuple[Float32, ...], State]] = {}
        self._memories: dict[Moment, object] = {}
        self._takers = takers(script)
        """How often each of them will still be taken."""
        self._succeeded = {
            script.process_of(process.key.learner, process.began.after).key
            for process in script.processes.values()
            if process.began is not None and process.began.after
        }
        """Processes whose programs went on as others."""
        codec = config.codec
        self._encodes_all = codec.upload_feedback and any(each.is_integer for each in codec.uploads)

    def play(self) -> None:
        """Everything. Raises Diverged at the first difference."""
        for chapter in self._script.chapters:
            match chapter:
                case RunSeeded():
                    self._seed()
                case Commit():
                    self._commit(chapter)
                    self.commits += 1
                    self._on_step(self.steps, self.commits)
                case SyncerResumed():
                    self._resume(chapter)
                case RolledBack():
                    self._go_back(chapter)

    # ------------------------------------------------------------------------------------------- the syncer

    def _seed(self) -> None:
        assert self._script.seeder is not None, "a run that is seeded has a seeder"
        part = self._part(self._script.seeder)
        assert self.layout is not None, "whoever plays a part knows the layout"
        self.storehouse = Storehouse(self.layout, self._config, self._executor)
        for fragment, values in enumerate(part.values()):
            self._note(self.storehouse.seed(fragment, values))

    @property
    def _store(self) -> Storehouse:
        assert self.storehouse is not None, "the script seeds before anything else"
        return self.storehouse

    def _commit(self, commit: Commit) -> None:
        event = commit.event
        for accepted, maker in zip(commit.merged, commit.makers, strict=True):
            key = Merged(accepted.learner, maker.first, accepted.round, accepted.tokens)
            if key not in self._made:
                self._go_to(maker, Place(accepted.deed, accepted.steps))
        by_learner: dict[str, list[tuple[int, ContributionAccepted]]] = {}
        for accepted, maker in zip(commit.merged, commit.makers, strict=True):
            made = self._made.pop(Merged(accepted.learner, maker.first, accepted.round, accepted.tokens))
            payload = self._store.hold(event.fragment, made)
            by_learner.setdefault(accepted.learner, []).append((payload, accepted))
        shares = tuple(
            actions.Share(
                learner,
                event.weights[learner],
                tuple(payload for payload, _ in mine),
                tuple(accepted.base_version for _, accepted in mine),
            )
            for learner, mine in by_learner.items()
            if learner in event.weights
        )
        for learner, mine in by_learner.items():
            for payload, _ in mine if learner not in event.weights else ():
                self._store.release(payload)
        follows = _weights(by_learner)
        if follows != event.weights:
            raise self._differs(commit, f"its weights {event.weights} do not follow from what was trained ({follows})")
        asked = actions.Commit(event.round, event.fragment, event.version, shares)
        if self._store.newest_version(event.fragment) != event.version - 1:
            raise self._differs(commit, "the log goes on from another version than the replay has come to")
        prepared = self._store.prepare(asked)
        if prepared.version.digest != event.digest:
            raise self._differs(commit, "what goes into it has the norms it had; some numbers in it are others")
        self._note(self._store.publish(asked, prepared))

    def _differs(self, commit: Commit, why: str) -> Diverged:
        event = commit.event
        return Diverged(
            Divergence(
                round=event.round,
                fragment=event.fragment,
                version=event.version,
                sentence=f"version {event.version} of fragment {event.fragment} (round {event.round}, merged of "
                f"{', '.join(sorted(event.weights))}) is not what the run committed: {why}",
            )
        )

    def _resume(self, resumed: SyncerResumed) -> None:
        """What the syncer's next life does not have, is not here either."""
        if not resumed.versions:
            return
        kept = self._store.kept()
        versions = tuple(kept[fragment].version for fragment in sorted(kept))
        if versions != resumed.versions:
            raise Diverged(
                Divergence(
                    sentence=f"the syncer went on from versions {list(resumed.versions)} and the replay has come to "
                    f"{list(versions)}: the log does not hold all of the run"
                )
            )
        norms = self._store.norms
        self.storehouse = Storehouse(self._store.layout, self._config, self._executor)
        self.storehouse.restore(kept, norms)

    def _go_back(self, back: RolledBack) -> None:
        kept = {fragment: self._kept_earlier[fragment, version] for fragment, version in enumerate(back.of)}
        notices = self._store.publish_earlier(self._store.prepare_earlier(kept), self._store.norms)
        for notice, digest in zip(notices, back.digests, strict=True):
            if notice.digest != digest:
                raise Diverged(
                    Divergence(
                        fragment=notice.fragment,
                        version=notice.version,
                        sentence=f"the run went back to record {back.record}, and fragment {notice.fragment} is not "
                        "what that held",
                    )
                )
            self._note(notice)

    def _note(self, notice: VersionNotice) -> None:
        """A version is there: keep it for whoever will need it."""
        key = notice.fragment, notice.version
        if self._uses.get(key):
            body = self._store.body(*key)
            assert body is not None, "it has just been published"
            self._values[key] = fragment_codecs(self._store.layout, self._config.codec.download)[key[0]].decode(body[0])
            self._digests[key] = notice.digest
        if key in self._earlier:
            self._kept_earlier[key] = self._store.kept()[notice.fragment]

    # ------------------------------------------------------------------------------------------- processes

    def _part(self, key: ProcessKey) -> Part:
        """The process, as far as it has been followed; it begins if it has not."""
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = self._begin(self._script.processes[key])
        return part

    def _begin(self, process: Process) -> Part:
        began, before = process.began, None
        if began is not None and began.after:
            before = self._part(self._script.process_of(process.key.learner, began.after).key)
            before.go_to(before.process.until)
        performer = self._new_performer(process) if before is None else before.performer
        assert self.layout is not None, "whoever has a performer knows the layout"
        unheard = 0 if began is None else began.after_steps - (0 if before is None else before.steps)
        return Part(process, performer, unheard, self.layout, self._config, self, self._script.run_id)

    def _new_performer(self, process: Process) -> Performer:
        performer, protocol = self._cast(process), self._config.protocol
        if self.layout is None:
            self.layout = build_layout(performer.tensors(), protocol.fragments, LayoutMethod(protocol.layout))
        performer.bind(self.layout)
        steps_before = max(self._steps_before(process), default=0)
        if steps_before:
            performer.seek(steps_before)
        return performer

    def _steps_before(self, process: Process) -> Iterator[int]:
        """Where the data goes on, by what the syncer has said and by a checkpoint of the learner's own."""
        if process.began is not None:
            yield process.began.steps_before
        for deed in process.deeds.values():
            if isinstance(deed, CheckpointTaken) and deed.of.learner == process.key.learner:
                of = self._script.process_at(deed.of).began
                yield deed.of.steps + (0 if of is None else of.steps_before)

    def stepped(self) -> None:
        """See ``part.Given``."""
        self.steps += 1
        self._on_step(self.steps, self.commits)

    def version(self, fragment: int, version: int, digest: str) -> Float32:
        """See ``part.Given``. Raises Diverged."""
        key = fragment, version
        values = self._values.get(key)
        if values is None or self._digests[key] != digest:
            raise Diverged(
                Divergence(
                    fragment=fragment,
                    version=version,
                    sentence=f"a learner adopted version {version} of fragment {fragment} "
                    + ("before it was committed" if values is None else "with another digest than the replay's"),
                )
            )
        self._uses[key] -= 1
        if self._uses[key] == 0:
            del self._values[key], self._digests[key]
        return values

    def take(self, part: Part, contribution: Contribution, deed: HandOverNotice, encoder: Encoder) -> None:
        """See ``part.Given``. Encoded is what is merged, and what leaves something for the next."""
        key = Merged(contribution.learner, contribution.incarnation, contribution.round, contribution.tokens)
        accepted = self._wanted.get(key)
        if accepted is None and not self._encodes_all:
            return
        body = encoder.encode(contribution, deed.codec, contribution.anchor, contribution.local)
        if accepted is None:
            return
        counts = accepted.c_steps, accepted.c_tokens
        made = self._store.inspect(accepted.fragment, body, None, accepted.codec, *counts, math.inf)
        if made.defect is not None or made.norm != accepted.norm:
            raise Diverged(
                Divergence(
                    learner=accepted.learner,
                    incarnation=part.process.key.first,
                    step=accepted.steps,
                    round=accepted.round,
                    fragment=accepted.fragment,
                    sentence=f"what {part.name} handed over for round {accepted.round} (fragment {accepted.fragment}, "
                    f"after its step {accepted.steps}) had the norm {accepted.norm!r} and has {made.norm!r}"
                    f"{part.doubts()}",
                )
            )
        self._made[key] = made

    def keep(self, capture: Capture, part: Part) -> None:
        """See ``part.Given``."""
        if capture.whole:
            self._memories[capture.moment] = part.performer.remember()
        else:
            self._states[capture.moment] = part.values(), part.performer.inner_state()

    def donated(self, moment: Moment) -> tuple[tuple[Float32, ...], State]:
        """See ``part.Given``."""
        return self._taken(moment, False, self._states)

    def memory(self, moment: Moment) -> object:
        """See ``part.Given``."""
        return self._taken(moment, True, self._memories)

    def _taken(self, moment: Moment, whole: bool, kept: dict[Moment, Taken]) -> Taken:
        """What was kept, no longer than somebody needs it."""
        if moment not in kept:
            self._go_to(self._script.process_at(moment).key, Place(moment.deeds, moment.steps))
        self._takers[moment, whole] -= 1
        return kept[moment] if self._takers[moment, whole] else kept.pop(moment)

    def _go_to(self, key: ProcessKey, place: Place) -> None:
        part = self._part(key)
        part.go_to(place)
        if part.is_done and key not in self._succeeded:
            del self._parts[key]


def _weights(by_learner: dict[str, list[tuple[int, ContributionAccepted]]]) -> dict[str, float]:
    """What follows from the counts."""
    own = {
        learner: contribution_weight(sum(a.c_tokens for _, a in mine), sum(a.c_steps for _, a in mine))
        for learner, mine in by_learner.items()
    }
    counting = [learner for learner in sorted(own) if own[learner] > 0]
    return dict(zip(counting, normalised([own[learner] for learner in counting]), strict=True))
