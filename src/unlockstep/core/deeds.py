"""What a process does with its arrays beside its inner steps: said once to the syncer, and logged, so that a run can be
replayed.

Decides the vocabulary. When a deed is done is decided in ``learner``, ``hand_overs`` and ``recovery``; that each is
said until it is heard, in ``diary``.

All deeds of a process have numbers, from 1, in the order in which they took effect; each says after how many inner
steps. So a deed is known by its process and its number, and what the model was at any moment follows from the deeds up
to then and the steps between them (``replay``).
"""

from __future__ import annotations

from enum import Enum

import msgspec

from unlockstep.core.data_book import Grant
from unlockstep.core.formats import Codec


class Source(Enum):
    """How a version came into a model."""

    ADOPTED = "adopted"
    """Between two inner steps, in the configured way."""
    LOADED = "loaded"
    """In place of whatever was there: a process begins, or the run has gone back."""
    DONATED = "donated"
    """With another learner's state: the model holds that one's progress on it, too."""
    LOST = "lost"
    """Adopted or loaded before the syncer died and forgot it: a version of this number is another one now."""


class Moment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step boundary of one process, to the deed."""

    learner: str
    incarnation: int
    """Any one of the process."""
    steps: int
    """Inner steps that it had taken."""
    deeds: int
    """Number of its last deed."""


class _Deed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True, tag_field="deed"):
    number: int = 0
    """0 until it is noted."""
    steps: int = 0
    """Inner steps of the process when it took effect."""


class AdoptionNotice(_Deed, frozen=True):
    """A committed version is in the model."""

    fragment: int
    version: int
    digest: str
    fetch_ns: int
    """From the announcement of the version to its body being here."""
    clock: int = 0
    """The process's, since."""
    source: Source = Source.ADOPTED


class HandOverNotice(_Deed, frozen=True):
    """A fragment was handed over: what was trained of it until then belongs to this contribution."""

    round: int
    fragment: int
    tokens: int
    """Trained by the process until then."""
    codec: Codec


class Began(_Deed, frozen=True):
    """The first inner step of the process is done: all before was getting ready."""

    clock: int
    """At which it was taken."""
    steps_before: int
    """Steps of earlier processes under its name, by what the syncer said: where the data goes on."""
    after: int = 0
    """The same program was another process before, with this incarnation, until it was shut out; 0: it was none."""
    after_steps: int = 0
    """Inner steps it had taken by then, the last one for nothing. Its data and its random state went on from there."""


class StateTaken(_Deed, frozen=True):
    """The inner optimizer's state is another learner's, as of that moment; so are fragments that are ``DONATED``."""

    of: Moment


class CheckpointTaken(_Deed, frozen=True):
    """A checkpoint was loaded, which was written at that moment."""

    of: Moment
    keeps_inner: bool
    """The inner optimizer has a donor's state, and keeps it."""


class DataTaken(_Deed, frozen=True):
    """The step that ends here was trained on these places of the corpus, and not, as any other, on the next full batch
    of the process's course."""

    parts: tuple[Grant, ...]


Deed = AdoptionNotice | HandOverNotice | Began | StateTaken | CheckpointTaken | DataTaken
