"""What failures cost: a calm run, elastic data-parallel training and eight learners through the same bad weather.

The weather is that of 1.2 million chips which fail once a year each, one somewhere every 26 s, as ``unlockstep simulate
goodput`` plays it: chips are dealt to slices of 256, a learner that loses one stands still for 22 s and goes on
narrower, and once more for 12 s when it takes the slice back in. Here the history of a fleet of eight learners is lived
through by eight small ones, a step of whose training takes 4 s of it: every learner fails every 53 steps, one of them
every seventh step. Data-parallel training is a fleet of one learner: all stand still at every failure, and then the
batch is that of the chips that are left.

All are compared at equal tokens, in three kinds of models; the one that sees has a second score, the labels of images
that nobody trained on. Contributions in fewer bits go through the same weather. In one trial processes die outright,
every 200 steps, and come back 40 steps later with nothing: that is worse than anything a fleet does.

    python experiments/failures.py --seed 0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence

from result_file import Failures, Storm
from sheet import conduct
from trial import Trial, carry_settings

from unlockstep.sim.paper_table import CHIPS

LEARNERS = 8
FEWER = 7
"""About as many as train at a time through the failures: what fewer learners come to without one."""
TOKENS = 600_000
VISION_TOKENS = 1_200_000
"""Half of them are images: with fewer, labels are still being learned."""
BATCH = 4

STORM = Storm(chips=CHIPS[3], learners=LEARNERS, goodput=0.88)
ONE_JOB = Storm(chips=CHIPS[3], learners=1, goodput=0.56)
STEP = ("virtual.step_s=4.0", "protocol.lease_s=60.0")

MODELS: dict[str, tuple[str, ...]] = {
    "dense": (),
    "experts": ("model.spec=gemma4-moe-tiny", "inner.learning_rate=4e-3"),
    "vision": ("model.spec=gemma4-vlm-tiny", "data.source=digits", "data.validation_share=0.1"),
}
"""Name to what is set differently."""

ALONE = (f"inner.batch_size={LEARNERS * BATCH}",)
"""Data-parallel training: the batch of all learners together, and the inner rate that was best for the dense model."""

CODECS: dict[str, tuple[str, ...]] = {
    "int8": ("codec.upload=int8", "codec.upload_feedback=true"),
    "int4": ("codec.upload=int4", "codec.upload_feedback=true"),
    "int4 without feedback": ("codec.upload=int4", "codec.upload_feedback=false"),
    "int2": ("codec.upload=int2", "codec.upload_feedback=true"),
    "int4 up, int8 down": ("codec.upload=int4", "codec.upload_feedback=true", "codec.download=int8"),
}
"""By default contributions travel as bfloat16, versions as float32."""


def trials(quick: bool) -> Sequence[Trial]:
    ring = (*carry_settings(LEARNERS), *STEP)
    made = []
    for name, model in MODELS.items():
        tokens = 8_000 if quick else VISION_TOKENS if name == "vision" else TOKENS
        alone = (*ring, *model, *ALONE)
        made += [
            Trial(f"{name}: data-parallel, calm", alone, tokens, alone=True),
            Trial(f"{name}: data-parallel, elastic", alone, tokens, alone=True, storm=ONE_JOB),
            Trial(f"{name}: 8 learners, calm", (*ring, *model), tokens),
            Trial(f"{name}: 8 learners, failures", (*ring, *model), tokens, storm=STORM),
            Trial(f"{name}: 7 learners, calm", (*carry_settings(FEWER), *STEP, *model), tokens),
        ]
    tokens = 8_000 if quick else TOKENS
    made += [
        Trial(f"dense: 8 learners, failures, {codec}", (*ring, *settings), tokens, storm=STORM)
        for codec, settings in CODECS.items()
    ]
    deaths = Failures(every_steps=5, down_steps=2) if quick else Failures(every_steps=200, down_steps=40)
    begun = (*carry_settings(LEARNERS), "recovery.donor=false")
    return [*made, Trial("dense: 8 learners, processes die", begun, tokens, failures=deaths)]


if __name__ == "__main__":
    conduct("failures", __doc__, trials)
