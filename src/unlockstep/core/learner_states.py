"""In which state a learner is, by which moves it gets to another, and what it knows of one fragment.

Decides which moves there are. When one is made is decided in ``learner`` and ``recovery``.
"""

from __future__ import annotations

from enum import Enum

from unlockstep.core.messages import Fetched, VersionNotice


class LearnerState(Enum):
    JOINING = "joining"
    SEEDING = "seeding"
    LOADING = "loading"
    TRAINING = "training"
    FINISHING = "finishing"
    LEAVING = "leaving"
    DONE = "done"


class LearnerMove(Enum):
    WELCOME = "welcome"
    WELCOME_SEED = "welcome_seed"
    LOADED = "loaded"
    RESUME = "resume"
    FINISH = "finish"
    GO_ON = "go_on"
    RELOAD = "reload"
    BEGIN_ANEW = "begin_anew"
    LEAVE = "leave"
    STOP = "stop"


MOVES: dict[LearnerState, dict[LearnerMove, LearnerState]] = {
    LearnerState.JOINING: {
        LearnerMove.WELCOME: LearnerState.LOADING,
        LearnerMove.WELCOME_SEED: LearnerState.SEEDING,
        LearnerMove.RESUME: LearnerState.TRAINING,
        LearnerMove.STOP: LearnerState.DONE,
    },
    LearnerState.SEEDING: {
        LearnerMove.WELCOME: LearnerState.LOADING,
        LearnerMove.WELCOME_SEED: LearnerState.SEEDING,
        LearnerMove.LOADED: LearnerState.TRAINING,
        LearnerMove.STOP: LearnerState.DONE,
    },
    LearnerState.LOADING: {
        LearnerMove.BEGIN_ANEW: LearnerState.JOINING,
        LearnerMove.WELCOME: LearnerState.LOADING,
        LearnerMove.WELCOME_SEED: LearnerState.SEEDING,
        LearnerMove.LOADED: LearnerState.TRAINING,
        LearnerMove.STOP: LearnerState.DONE,
    },
    LearnerState.TRAINING: {
        LearnerMove.WELCOME: LearnerState.TRAINING,
        LearnerMove.RELOAD: LearnerState.LOADING,
        LearnerMove.BEGIN_ANEW: LearnerState.JOINING,
        LearnerMove.LEAVE: LearnerState.LEAVING,
        LearnerMove.FINISH: LearnerState.FINISHING,
        LearnerMove.STOP: LearnerState.DONE,
    },
    LearnerState.FINISHING: {
        LearnerMove.WELCOME: LearnerState.FINISHING,
        LearnerMove.GO_ON: LearnerState.TRAINING,
        LearnerMove.BEGIN_ANEW: LearnerState.JOINING,
        LearnerMove.STOP: LearnerState.DONE,
    },
    LearnerState.LEAVING: {
        LearnerMove.WELCOME: LearnerState.LEAVING,
        LearnerMove.STOP: LearnerState.DONE,
    },
    LearnerState.DONE: {},
}


class FragmentState:
    """What a learner knows of one fragment."""

    def __init__(self) -> None:
        self.version = -1
        """The version adopted; -1 before the first."""
        self.life = 0
        """The life of the syncer in which it was adopted."""
        self.digest = ""
        """Of that version; empty if this process cannot know it."""
        self.is_seeded = False
        """While this learner seeds: the run has taken what it has brought."""
        self.c_steps = 0
        self.c_tokens = 0
        self.overwritten = 0
        """Tokens that adoptions have discarded so far."""
        self.is_shared = False
        """Progress made since the last adoption has been handed over at least once."""
        self.notice: VersionNotice | None = None
        """The newest version announced."""
        self.notice_clock = 0
        """The syncer's clock in that announcement."""
        self.announced_ns = 0
        self.fetching: int | None = None
        """The version being fetched."""
        self.fetching_steps = 0
        """Steps of the process when that began."""
        self.fetching_clock = 0
        self.fetching_since_ns = 0
        self.arrived: Fetched | None = None
        """A fetched version that waits for a step boundary."""
        self.arrived_clock = 0
        self.fetch_ns = 0
        self.handed_over_steps = 0
        """Steps of the process when it was handed over last."""
        self.has_snapshot = False
        """The host holds a copy as of the last step boundary."""

    @property
    def newest(self) -> int:
        """The newest version known of."""
        return self.version if self.notice is None else max(self.version, self.notice.version)

    @property
    def versions_behind(self) -> int:
        """How many versions older than the newest the adopted one is."""
        return self.newest - self.version

    @property
    def is_void(self) -> bool:
        """The run has gone back behind the version adopted."""
        return self.notice is not None and 0 <= self.version < self.notice.void_below
