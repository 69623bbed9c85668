"""What a result file holds: every trial as it was asked for, and what came of it.

Decides the records, and how a file of them is read and written. Does not decide how a trial is carried out (``trial``)
or how the run log of one becomes numbers (``scores``). Who shows results reads them with this file alone: it loads no
torch. A file that was written once stays readable: a field that is new has a default.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from unlockstep.core import status
from unlockstep.core.status import LedgerStatus


class Failures(msgspec.Struct, frozen=True):
    """Every learner's process dies again and again, the learners evenly staggered; the next one starts from nothing."""

    every_steps: int
    """From one death of a learner to its next, in steps of a learner that is not slowed down."""
    down_steps: int
    """From a death to the start of the next process."""


class Visits(msgspec.Struct, frozen=True):
    """Extra learners that are there for part of the time, all of them at every visit, one after the other."""

    learners: int
    at_steps: tuple[int, ...]
    """When the first of them comes, in steps of a learner that is not slowed down, from the start of the run."""
    steps: int
    """How long each stays, from the start of its process to its being told to go."""
    stagger_steps: int
    """From one learner's coming to the next one's, and so from one's going to the next one's."""
    in_order: bool = True
    """They leave when told to. False: they are killed without a word."""

    @property
    def learner_steps(self) -> int:
        """Steps of all of them together, if none of the time is lost."""
        return self.learners * len(self.at_steps) * self.steps

    @property
    def end_steps(self) -> int:
        """When the last of them has gone."""
        return max(self.at_steps) + self.steps + (self.learners - 1) * self.stagger_steps


class NarrowLinks(msgspec.Struct, frozen=True):
    """The last so many learners are behind links of their own, all the time."""

    learners: int
    mbit_per_s: float
    """Each way, shared by the bodies on it."""


class Storm(msgspec.Struct, frozen=True):
    """What happens to a simulated fleet (``sim.fleet``), to be lived through: its seconds are those of the run."""

    chips: int
    learners: int
    """1 for data-parallel training."""
    goodput: float
    """What is expected of it (``sim.goodput``), for the length of the schedule."""


class Trial(msgspec.Struct, frozen=True):
    """What is tried."""

    name: str
    settings: tuple[str, ...]
    """What differs from the default configuration, as ``--set`` takes it."""
    tokens: int
    """Trained by all learners together. Number of steps and end of the schedule follow from it."""
    alone: bool = False
    """No protocol: one model, plain AdamW. Data-parallel training is this with the batch of all learners together."""
    failures: Failures | None = None
    visits: Visits | None = None
    """Beside ``local.learners``, which are there all the time."""
    curve_points: int = 4
    """Evaluations, evenly spread over the tokens; the last one is the end."""
    storm: Storm | None = None
    """With ``alone``: elastic data-parallel training, whose batch is that of the chips that are there."""
    picture: tuple[float, float] | None = None
    """From when to when all that happens is kept, virtual seconds."""
    narrow: NarrowLinks | None = None


class RingScore(msgspec.Struct, frozen=True, kw_only=True):
    """How the protocol went."""

    rounds: int
    rounds_per_fragment: tuple[int, ...]
    participants: float
    """Mean over closed rounds."""
    live: float
    """Learners alive, mean over closed rounds."""
    staleness: float
    """Versions a contribution was behind, mean."""
    staleness_max: int
    steps_per_contribution: float
    deaths: int
    time_s: float = 0.0
    """Virtual, until ``Trial.tokens`` were trained."""
    ideal_s: float = 0.0
    """The same, if everybody trained all the time that it is there: a formula, of nothing that was measured."""
    ledger: LedgerStatus
    open_steps: float = 0.0
    """How long a round was open, mean, in steps of a learner that is not slowed down."""
    idle: float = 0.0
    """Share of the learners' time, from the first step of each to its last, in which it took none."""
    lockstep_idle: float = 0.0
    """The same if each of these steps had waited for the slowest learner's: computed from the steps as they were."""
    fragment_elements: tuple[int, ...] = ()
    contribution_norm: float = 0.0
    """Norm of a learner's outer gradient of one fragment, mean over the second half of the commits."""
    merged_norm: float = 0.0
    """... and of the merged one."""
    norm_ratio: float = 0.0
    """Merged over the mean of those it was merged of, mean over the same commits."""


class FleetScore(msgspec.Struct, frozen=True):
    """A run through what happens to a fleet, against what the simulator says of the same history."""

    goodput: float
    """As ``report.goodput`` has it: until the last step of the run. Of one model alone: steps taken over possible ones,
    each as wide as it was."""
    simulated: float
    """Goodput of the same stretch of the same history."""
    time_s: float
    """Length of that stretch."""
    failures: int
    """In all of the fleet, until the run was over."""


class RoundSpan(msgspec.Struct, frozen=True):
    """A round in a picture, virtual seconds."""

    fragment: int
    opened_s: float
    quorum_s: float
    closed_s: float
    participants: tuple[str, ...]


class Picture(msgspec.Struct, frozen=True):
    """All that happened in a stretch of a run."""

    steps: dict[str, tuple[tuple[float, float], ...]]
    """Learner to its inner steps: (begin, end), virtual seconds."""
    rounds: tuple[RoundSpan, ...]


class Score(msgspec.Struct, frozen=True):
    """What came out. Losses are those of the validation text, nats per byte."""

    trial: Trial
    seed: int
    tokens: int
    """Trained by all learners together."""
    steps: int
    """Inner steps of the fastest learner."""
    loss: float
    curve: tuple[tuple[int, float], ...]
    """(tokens, loss) along the way."""
    seconds: float
    """Wall time of the trial."""
    ring: RingScore | None = None
    """None without a protocol."""
    others: tuple[status.Score, ...] = ()
    """What else the final model is asked: the labels of images."""
    curve_s: tuple[float, ...] = ()
    """When each point of the curve was reached, virtual seconds."""
    fleet: FleetScore | None = None
    picture: Picture | None = None


class Sheet(msgspec.Struct, frozen=True):
    """A result file: what was measured, and all that is needed to measure it again."""

    command: str
    commit: str
    python: str
    torch: str
    scores: tuple[Score, ...]

    def of(self, name: str) -> list[Score]:
        """Scores of one trial, one a seed."""
        return [score for score in self.scores if score.trial.name == name]

    @property
    def names(self) -> list[str]:
        """Of the trials, each once."""
        return list(dict.fromkeys(score.trial.name for score in self.scores))


def read(file: Path) -> Sheet:
    """A result file. Raises ``msgspec.DecodeError`` if it is none."""
    return msgspec.json.decode(file.read_bytes(), type=Sheet)


def write(file: Path, sheet: Sheet) -> None:
    """Keep a result file in the place of the one that was there."""
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(sheet), indent=1) + b"\n")
