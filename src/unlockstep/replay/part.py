"""One process of a learner, done once more: its steps, and between them its deeds, in the order in which it did them.

Decides how far the process is, and that whatever it reported of itself comes out again. Does not decide how far it is
followed (``script``), nor what is made of what it hands over (``stage``).
"""

from __future__ import annotations

import math
from typing import Protocol

from unlockstep.config import RunConfig
from unlockstep.core.chunks import Float32
from unlockstep.core.course import Course
from unlockstep.core.data_book import Grant
from unlockstep.core.deeds import (
    AdoptionNotice,
    CheckpointTaken,
    DataTaken,
    Deed,
    HandOverNotice,
    Moment,
    Source,
    StateTaken,
)
from unlockstep.core.feedback import Encoder
from unlockstep.core.layout import Layout
from unlockstep.holdings import Holdings
from unlockstep.learners.backend import State
from unlockstep.loop import Contribution
from unlockstep.replay.divergence import Diverged, Divergence, Unfollowable
from unlockstep.replay.performer import Performer
from unlockstep.replay.script import Capture, Place, Process


class Given(Protocol):
    """What others have, and a process takes (``stage.Stage``)."""

    def version(self, fragment: int, version: int, digest: str) -> Float32:
        """A committed value as a learner gets it, to be written into one model."""
        ...

    def donated(self, moment: Moment) -> tuple[tuple[Float32, ...], State]:
        """Fragments and inner optimizer of another process, as of then."""
        ...

    def memory(self, moment: Moment) -> object:
        """A checkpoint of then."""
        ...

    def take(self, part: Part, contribution: Contribution, deed: HandOverNotice, encoder: Encoder) -> None:
        """A process hands over."""
        ...

    def keep(self, capture: Capture, part: Part) -> None:
        """Somebody will want its state of now."""
        ...

    def stepped(self) -> None:
        """An inner step is done."""
        ...


class Part:
    """A process being followed.

    Args:
        process: what it did.
        performer: what it trains, bound to ``layout``.
        unheard: steps that the same program had taken before it was this process, and that nobody heard of.
        layout: how the model is cut.
        config: of the run.
        given: what it takes from others.
        run_id: of the run.
    """

    def __init__(
        self,
        process: Process,
        performer: Performer,
        unheard: int,
        layout: Layout,
        config: RunConfig,
        given: Given,
        run_id: str,
    ) -> None:
        self.process = process
        self.performer = performer
        self._given = given
        self._run_id = run_id
        self._programme = process.programme()
        self._done = 0
        """Of the programme."""
        self.deeds = 0
        self.steps = 0
        self._tokens = 0
        self._clock = 0
        self._holdings = Holdings(layout, self.performer, config.adoption.mode, config.adoption.blend_alpha)
        self._encoder = Encoder(layout, feedback=config.codec.upload_feedback, rounding=config.codec.upload_rounding)
        self._donated: tuple[Float32, ...] = ()
        self._course = Course(2**53, "", config.inner.batch_size * config.inner.accumulation)
        self._course.hold(process.course(), exhausted=True)
        self._odd = {deed.steps: deed.parts for deed in process.deeds.values() if isinstance(deed, DataTaken)}
        for _ in range(unheard):  # Nothing is left of them but where the data and the random state are.
            if process.grants:
                performer.feed((Grant(0, 0, 0, self._course.step_sequences),))
            performer.inner_step(0)
        if process.began is not None and process.began.after_steps:
            performer.reset_optimizer()
        if process.seeds:
            for fragment in range(layout.fragment_count):
                self._holdings.seed(fragment)

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.process.key.learner}.{self.process.key.first}"

    @property
    def is_done(self) -> bool:
        """Nobody needs more of it."""
        return self._done == len(self._programme) and self.steps >= self.process.until.steps

    def values(self) -> tuple[Float32, ...]:
        """Of the model, by fragment."""
        return self._holdings.values()

    # ------------------------------------------------------------------------------------------- going on

    def go_to(self, place: Place) -> None:
        """Do everything up to there. Raises Diverged."""
        while self._done < len(self._programme):
            act = self._programme[self._done]
            number, steps = _place(act)
            if (number, steps) > place:
                break
            self._step_to(max(steps, self.steps))
            self._done += 1
            if isinstance(act, Capture):
                self._given.keep(act, self)
            else:
                self.deeds = act.number
                self._do(act)
        self._step_to(max(place.steps, self.steps))

    def _step_to(self, steps: int) -> None:
        while self.steps < steps:
            if self.steps == 0 and self.process.began is not None:
                self._clock = self.process.began.clock
            if self.process.grants:
                self.performer.feed(self._odd.get(self.steps + 1) or self._course.ahead(self._course.step_sequences))
            stats = self.performer.inner_step(self._clock)
            self.steps += 1
            self._clock += 1
            self._tokens += stats.tokens
            if self.process.grants:
                self._pass(self.steps)
            self._compare(self.steps, stats.loss)
            self._given.stepped()

    def _pass(self, step: int) -> None:
        """The step has taken its data."""
        odd = self._odd.get(step)
        if odd is None:
            self._course.take(self._course.step_sequences)
        elif odd:
            rest = [grant for grant in self._course.grants if grant.end > odd[-1].end]
            self._course.hold([grant.beyond(odd[-1].end) for grant in rest], exhausted=True)

    def _compare(self, step: int, loss: float) -> None:
        reported = self.process.losses.get(step, math.nan)
        if math.isnan(reported) or reported == loss:  # NaN, too, is what a step is reported with whose loss is past.
            return
        raise Diverged(
            Divergence(
                learner=self.process.key.learner,
                incarnation=self.process.key.first,
                step=step,
                sentence=f"the loss of step {step} of {self.name} was {reported!r} and is {loss!r}{self.doubts()}",
            )
        )

    def doubts(self) -> str:
        """What nobody heard of this process, for the end of a sentence."""
        following = self._programme[self._done : self._done + 1]
        until = max((_place(act)[0] for act in following), default=self.deeds)
        missing = self.process.missing(until)
        if not missing:
            return ""
        return (
            f"; {self.name} ended before the syncer had heard of all that it did (deed {missing[0]} of {until} is "
            "missing), as one does that dies before it has found a syncer again, and what nobody heard of cannot be "
            "repeated"
        )

    # ------------------------------------------------------------------------------------------- deeds

    def _do(self, deed: Deed) -> None:
        match deed:
            case AdoptionNotice():
                self._adopt(deed)
            case HandOverNotice():
                self._hand_over(deed)
            case StateTaken(of=moment):
                self._donated, inner = self._given.donated(moment)
                self.performer.load_inner_state(inner)
            case CheckpointTaken(of=of, keeps_inner=keeps_inner):
                is_own = of.learner == self.process.key.learner
                memory = self._given.memory(of)
                self.performer.recall(memory, is_own=is_own, keeps_inner=keeps_inner)

    def _adopt(self, notice: AdoptionNotice) -> None:
        match notice.source:
            case Source.DONATED:
                self._holdings.load(notice.fragment, self._donated[notice.fragment].copy())
                return
            case Source.LOST:
                raise Unfollowable(
                    f"{self.name} adopted version {notice.version} of fragment {notice.fragment} after its step "
                    f"{notice.steps}, which the syncer lost when it died and no log holds: from there on this process "
                    'cannot be followed (with durability.mode = "commit" nothing is lost)'
                )
        new = self._given.version(notice.fragment, notice.version, notice.digest)
        if notice.source is Source.LOADED:
            self._holdings.load(notice.fragment, new)
        else:
            self._holdings.adopt(notice.fragment, new)
        self._clock = notice.clock

    def _hand_over(self, deed: HandOverNotice) -> None:
        if deed.tokens != self._tokens:
            raise Diverged(
                Divergence(
                    learner=self.process.key.learner,
                    incarnation=self.process.key.first,
                    step=deed.steps,
                    round=deed.round,
                    fragment=deed.fragment,
                    sentence=f"{self.name} had trained {deed.tokens} tokens when it handed over for round {deed.round}"
                    f", and has now trained {self._tokens}{self.doubts()}",
                )
            )
        self._holdings.copy(deed.fragment)
        out = self._holdings.hand_over(deed.fragment)
        contribution = Contribution(
            run_id=self._run_id,
            learner=self.process.key.learner,
            incarnation=self.process.key.first,
            round=deed.round,
            fragment=deed.fragment,
            base_version=0,
            c_steps=0,
            c_tokens=0,
            tokens=deed.tokens,
            anchor=out.anchor,
            local=out.local,
            loads=out.loads,
            codec=deed.codec,
            steps=deed.steps,
            deed=deed.number,
        )
        self._given.take(self, contribution, deed, self._encoder)


def _place(act: Deed | Capture) -> Place:
    if isinstance(act, Capture):
        return Place(act.moment.deeds, act.moment.steps)
    return Place(act.number, act.steps)
