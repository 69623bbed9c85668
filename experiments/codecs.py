"""What fewer bits on the wire cost in validation loss, up and down, with and without error feedback.

Four learners of 0.25 M parameters share 524,288 tokens under the default recipe. The first line uploads and publishes
float32; in the others one thing is rounded, or both. A single run is off by up to 1 % by chance, for a change in the
last bit of one rounding leads elsewhere: what is to be compared are means over seeds, each against the first line of
its seed. A seed takes 9 minutes on one core; ``--add`` runs them one by one.

    python experiments/codecs.py --seed 0 1 2 3 4
"""

from __future__ import annotations

from collections.abc import Sequence

from outer import RECIPE, TOKENS
from sheet import conduct
from trial import Trial

EXACT = ("codec.upload=float32", "codec.download=float32")


def up(codec: str, feedback: bool = False, rounding: str = "nearest") -> tuple[str, ...]:
    """Uploads in this format."""
    return (
        f"codec.upload={codec}",
        f"codec.upload_feedback={'true' if feedback else 'false'}",
        f"codec.upload_rounding={rounding}",
    )


VARIANTS: dict[str, tuple[str, ...]] = {
    "float32": (),
    "up bfloat16": up("bfloat16"),
    "up int8": up("int8"),
    "up int8, feedback": up("int8", feedback=True),
    "up int4": up("int4"),
    "up int4, feedback": up("int4", feedback=True),
    "up int4, stochastic": up("int4", rounding="stochastic"),
    "up int4, stochastic, feedback": up("int4", feedback=True, rounding="stochastic"),
    "up int2": up("int2"),
    "up int2, feedback": up("int2", feedback=True),
    "up int2, stochastic": up("int2", rounding="stochastic"),
    "down bfloat16": ("codec.download=bfloat16",),
    "down int8": ("codec.download=int8",),
    "down int4": ("codec.download=int4",),
    "up int4, feedback; down int8": (*up("int4", feedback=True), "codec.download=int8"),
    "float32, overwrite": ("adoption.mode=overwrite",),
    "up int4, overwrite": (*up("int4"), "adoption.mode=overwrite"),
    "up int4, feedback, overwrite": (*up("int4", feedback=True), "adoption.mode=overwrite"),
    "up int2, overwrite": (*up("int2"), "adoption.mode=overwrite"),
    "up int2, feedback, overwrite": (*up("int2", feedback=True), "adoption.mode=overwrite"),
}
"""Name to what is set differently."""


def trials(quick: bool) -> Sequence[Trial]:
    tokens = TOKENS // 32 if quick else TOKENS
    return [Trial(name, (*RECIPE, *EXACT, *settings), tokens) for name, settings in VARIANTS.items()]


if __name__ == "__main__":
    conduct("codecs", __doc__, trials)
