"""Which M, H, P, K and codec suit given chips, failures, model and links; what that yields, and what else would cost.

The rule, from what is known so far:

1. A setting is *feasible* when one round (request, upload, merge, download) fits into the tau = 2 steps it overlaps
   with, on the learner's link and on its M-th part of the syncer's link, and a merge is over before the next begins.
2. For each M of the question (``powers_of_two`` where nobody names any): the smallest H that is feasible, from 24 (the
   paper's) upwards; at that H the first codec of ``CODECS`` that is. P = H, one fragment a step, as long as the model
   has that many tensors.
3. Of the M that are feasible: the smallest whose goodput is within ``NEAR_POINTS`` of the best, since every learner
   more makes the batch of each smaller.
4. K = 1 with the grace window on: a quorum above 1 lets a failure stop the rounds, and grace takes in all who are only
   a little late (paper, Table 5).

Decides this rule and the sentences. Goodput comes from ``goodput``, traffic from ``bandwidth``. Does not know how well
the model learns: the reasons quote what others have measured, and say how firm that is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from unlockstep.core.errors import ConfigError, UsageError
from unlockstep.core.formats import Codec
from unlockstep.sim.bandwidth import (
    COUNT_MAX,
    GBIT_MAX,
    GBIT_MIN,
    PARAMS_MAX,
    STEP_S_MAX,
    STEP_S_MIN,
    Exchange,
    Workload,
    require_within,
)
from unlockstep.sim.fleet import Fleet
from unlockstep.sim.goodput import FAILURES, Estimate, estimate

INTERVALS = (24, 32, 48, 64, 96, 128, 192, 256)
"""H to try. 24 is the paper's, 100 Streaming DiLoCo's; beyond that only DiLoCo, which waits, is published, with 500."""

CODECS = (
    (Codec.BFLOAT16, Codec.FLOAT32),
    (Codec.BFLOAT16, Codec.BFLOAT16),
)
"""(upload, download) to try, the most exact first: the default of a run, then half of its download."""

TOKENS_MAX = 10**15

LEARNERS_MAX = 16
"""Largest M to consider where none is asked for; the paper goes up to it."""

OVERLAP_STEPS = 2
QUORUM = 1
NEAR_POINTS = 1.0

MERGE_ELEMENTS_PER_CORE_S = 1.4e9
"""Elements of contributions that one core merges in a second (``benchmarks/merge.py``: 8 of 16 Mi in 46 ms on two)."""

ROUND_TRIPS = 2.5
"""Messages one after the other in a round, in round trips: asked, uploaded, told, fetched."""


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What there is to train with."""

    fleet: Fleet
    """Chips and how they fail. Its ``learners`` and ``elastic`` do not count: M is below, and rigid is compared."""
    learners: tuple[int, ...]
    """M to choose among, ascending."""
    params: float
    """Parameters of the model."""
    step_s: float
    """Seconds of an inner step of the whole fleet's batch, cut among the learners."""
    link_gbit: float
    """Gbit/s each way between a learner's site and the syncer's."""
    syncer_gbit: float | None = None
    """Gbit/s each way of all links of the syncer together; None: as much as is needed, which the answer states."""
    syncer_cores: int = 16
    round_trip_s: float = 0.05
    tensors: int = 256
    """Into how many fragments the model can be cut."""
    tokens_per_step: int = 0
    """Tokens of one inner step of all learners; 0: unknown."""

    def __post_init__(self) -> None:
        require_within("params", self.params, 1, PARAMS_MAX)
        require_within("step_s", self.step_s, STEP_S_MIN, STEP_S_MAX)
        require_within("link_gbit", self.link_gbit, GBIT_MIN, GBIT_MAX)
        if self.syncer_gbit is not None:
            require_within("syncer_gbit", self.syncer_gbit, GBIT_MIN, GBIT_MAX)
        require_within("round_trip_s", self.round_trip_s, 0, STEP_S_MAX)
        for name in ("syncer_cores", "tensors"):
            require_within(name, getattr(self, name), 1, COUNT_MAX)
        if not self.learners or list(self.learners) != sorted(set(self.learners)):
            raise ConfigError(f"learners is {self.learners!r:.40}; name at least one M, each once, in ascending order")
        for count in self.learners:
            if not 2 <= count <= COUNT_MAX:
                raise ConfigError(f"learners is {count!r:.40}; choose 2 or more: data-parallel is compared anyway")
        require_within("tokens_per_step", self.tokens_per_step, 0, TOKENS_MAX)

    def rate_gbit(self, learners: int) -> float:
        """Gbit/s each way that one of M learners has when all of them talk to the syncer."""
        return self.link_gbit if self.syncer_gbit is None else min(self.link_gbit, self.syncer_gbit / learners)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A way to run the protocol, and its traffic in Gbit/s."""

    learners: int
    """M"""
    interval_steps: int
    """H"""
    fragments: int
    """P"""
    overlap_steps: int
    """tau"""
    quorum: int
    """K"""
    upload: str
    download: str
    round_s: float
    """What one round takes on these links, without the grace window."""
    budget_s: float
    """tau steps: what it may take."""
    merge_s: float
    """Part of ``round_s`` that the syncer computes."""
    learner_mean_up: float
    learner_mean_down: float
    learner_peak: float
    """Each way: the slowest link on which a round still fits."""
    syncer_mean_in: float
    syncer_mean_out: float
    syncer_peak: float


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One M, with the setting it needs (None: no setting is feasible) and what it yields."""

    learners: int
    goodput: Estimate
    setting: Setting | None


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """Another way to train on the same chips."""

    what: str
    goodput: float
    """Share of the chips' time, failures counted, links not."""
    utilisation: float
    """Share of that left on these links."""
    needed_gbit: float
    """Each way per site for 95 % of its pace; infinite if no link is enough."""
    remark: str

    @property
    def outcome(self) -> float:
        """Goodput with links counted."""
        return self.goodput * self.utilisation


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    setting: Setting
    goodput: Estimate
    tokens_per_day: float | None
    choices: tuple[Choice, ...]
    alternatives: tuple[Alternative, ...]
    reasons: tuple[str, ...]
    toml: str
    """The setting as lines of a run's configuration."""


def powers_of_two(fleet: Fleet, most: int = LEARNERS_MAX) -> tuple[int, ...]:
    """M to choose among where none is given: from 2 to ``most``, with at least one slice for each learner.

    Raises:
        ConfigError: ``most`` is below 2. UsageError: fewer than two slices.
    """
    require_within("learners_max", most, 2, COUNT_MAX)
    slices = fleet.chips // fleet.slice_chips
    counts = tuple(2**power for power in range(1, 30) if 2**power <= min(slices, most))
    if not counts:
        raise UsageError(
            f"chips is {fleet.chips} and slice_chips is {fleet.slice_chips}, too few for two learners of one slice "
            "each; add chips or make slices smaller"
        )
    return counts


def advise(question: Question, *, failures: int = FAILURES, seed: int = 0) -> Advice:
    """Answer by the rule of this module.

    Args:
        question: chips, failures, model, links.
        failures: to simulate for each M.
        seed: of the simulation.

    Raises:
        UsageError: no feasible setting: the sentence names the link or the syncer.
        ConfigError: fewer slices than learners.
    """
    fleet, counts = question.fleet, question.learners
    fleets = [_changed(fleet, learners=count, elastic=True) for count in (*counts, 1)]
    *decoupled, elastic, rigid = estimate(
        [*fleets, _changed(fleet, learners=1, elastic=False)], failures=failures, seed=seed
    )
    settings = {count: _setting(question, count) for count in counts}
    choices = tuple(
        Choice(learners=count, goodput=found, setting=settings[count])
        for count, found in zip(counts, decoupled, strict=True)
    )
    chosen, setting = _choose(question, choices)
    goodput = chosen.goodput.goodput.value
    tokens = question.tokens_per_step
    return Advice(
        setting=setting,
        goodput=chosen.goodput,
        tokens_per_day=goodput * tokens * 86_400 / question.step_s if tokens else None,
        choices=choices,
        alternatives=_alternatives(question, chosen, setting, elastic, rigid),
        reasons=_reasons(question, choices, chosen, setting),
        toml=_toml(setting),
    )


# --------------------------------------------------------------------------------------------------------- the rule


def _setting(question: Question, learners: int) -> Setting | None:
    """The first feasible setting for M learners."""
    rate = question.rate_gbit(learners)
    for interval in INTERVALS:
        for upload, download in CODECS:
            exchange, merge_s = _exchange(question, learners, interval, upload, download)
            if merge_s <= exchange.period_s and rate >= exchange.peak_gbit:
                return Setting(
                    learners=learners,
                    interval_steps=interval,
                    fragments=min(interval, question.tensors),
                    overlap_steps=OVERLAP_STEPS,
                    quorum=QUORUM,
                    upload=upload.value,
                    download=download.value,
                    round_s=exchange.exchange_s(rate),
                    budget_s=exchange.window_s,
                    merge_s=merge_s,
                    learner_mean_up=exchange.mean_up_gbit,
                    learner_mean_down=exchange.mean_down_gbit,
                    learner_peak=exchange.peak_gbit,
                    syncer_mean_in=learners * exchange.mean_up_gbit,
                    syncer_mean_out=learners * exchange.mean_down_gbit,
                    syncer_peak=learners * exchange.peak_gbit,
                )
    return None


def _exchange(
    question: Question, learners: int, interval: int, upload: Codec, download: Codec
) -> tuple[Exchange, float]:
    """The round of such a setting, and how long its merge takes, seconds."""
    fragments = min(interval, question.tensors)
    merge_s = learners * question.params / fragments / (question.syncer_cores * MERGE_ELEMENTS_PER_CORE_S)
    workload = Workload(
        params=question.params,
        step_s=question.step_s,
        learners=learners,
        interval_steps=interval,
        fragments=fragments,
        overlap_steps=OVERLAP_STEPS,
        merge_s=merge_s + ROUND_TRIPS * question.round_trip_s,
    )
    return workload.decoupled(upload, download), merge_s


def _choose(question: Question, choices: Sequence[Choice]) -> tuple[Choice, Setting]:
    feasible = [(choice, choice.setting) for choice in choices if choice.setting is not None]
    if not feasible:
        raise UsageError(_infeasible(question, choices[0].learners))
    best = max(choice.goodput.goodput.value for choice, _ in feasible)
    return next(pair for pair in feasible if 100 * (best - pair[0].goodput.goodput.value) <= NEAR_POINTS)


def _infeasible(question: Question, learners: int) -> str:
    """Why not even the fewest learners can be served, and by what."""
    exchange, merge_s = _exchange(question, learners, INTERVALS[-1], *CODECS[-1])
    most = f"even with {learners} learners and every fragment merged only every {INTERVALS[-1]} steps"
    if merge_s > exchange.period_s:
        return (
            f"syncer_cores is {question.syncer_cores}; {most} a merge takes {merge_s:.3g} s and the next one is due "
            f"after {exchange.period_s:.3g} s: give the syncer more cores"
        )
    if exchange.fixed_s >= exchange.window_s:
        return (
            f"step_s is {question.step_s:g}; {most} a round takes {exchange.fixed_s:.3g} s on any link and must be "
            f"over in {exchange.window_s:.3g} s: make steps longer (a larger batch) or the round trip shorter"
        )
    needed = exchange.peak_gbit
    name, value, times = "link_gbit", question.link_gbit, 1
    if question.syncer_gbit is not None and question.link_gbit >= needed:
        name, value, times = "syncer_gbit", question.syncer_gbit, learners
    return f"{name} is {value:g}; {most} it must be at least {times * needed:.3g}: a faster link or longer steps"


# ---------------------------------------------------------------------------------------------------- what else


def _alternatives(
    question: Question, chosen: Choice, setting: Setting, elastic: Estimate, rigid: Estimate
) -> tuple[Alternative, ...]:
    """Data-parallel over the same sites, and the formats of the future."""
    workload = Workload(params=question.params, step_s=question.step_s, learners=setting.learners)
    gradients = workload.data_parallel(Codec.BFLOAT16)
    rate = question.link_gbit
    rows = [
        Alternative(
            what=what,
            goodput=found.goodput.value,
            utilisation=gradients.utilisation(rate),
            needed_gbit=gradients.needed_gbit(0.95),
            remark=f"bfloat16 gradients over {setting.learners} sites",
        )
        for what, found in (("data-parallel, elastic", elastic), ("data-parallel, rigid", rigid))
    ]
    rate = question.rate_gbit(setting.learners)
    remarks = {
        Codec.INT8: "its effect on the model has not been measured here",
        Codec.INT4: "the paper, by one reader: validation loss +0.09 %, text the same, vision 2 points worse",
    }
    for form, remark in remarks.items():
        exchange, _ = _exchange(question, setting.learners, INTERVALS[0], form, form)
        rows.append(
            Alternative(
                what=f"M = {setting.learners}, H = {INTERVALS[0]}, {form.value} both ways",
                goodput=chosen.goodput.goodput.value,
                utilisation=exchange.utilisation(rate),
                needed_gbit=exchange.needed_gbit(0.95),
                remark=remark,
            )
        )
    return tuple(rows)


# ---------------------------------------------------------------------------------------------------- the sentences


def _reasons(question: Question, choices: Sequence[Choice], chosen: Choice, setting: Setting) -> tuple[str, ...]:
    return (
        _why_learners(question, choices, chosen),
        _why_interval(question, setting),
        f"P = {setting.fragments}: "
        + (
            "one fragment a step, so the traffic is even"
            if setting.fragments == setting.interval_steps
            else f"the model has {question.tensors} tensors, and a fragment is at least one of them"
        )
        + "; a tensor larger than its share makes one fragment larger, and its round longer, than counted here.",
        f"K = {setting.quorum}, grace window on: any learner alone keeps the model moving, and those a little late are "
        "waited for (the paper: at 18 % + 10 % speed spread as good as waiting for all, and no time lost).",
        _why_codec(setting),
        f"A round takes {setting.round_s:.3g} s of the {setting.budget_s:.3g} s it may take, {setting.merge_s:.2g} s "
        f"of them the merge, shared evenly by {question.syncer_cores} cores. A slower round stops nobody: rounds slip, "
        "and H grows in effect.",
    )


def _why_learners(question: Question, choices: Sequence[Choice], chosen: Choice) -> str:
    goodputs = ", ".join(f"{choice.learners}: {100 * choice.goodput.goodput.value:.1f} %" for choice in choices)
    if len(choices) == 1:
        text = f"M = {chosen.learners}: no other was to be considered"
    else:
        text = (
            f"M = {chosen.learners}: the fewest learners within {NEAR_POINTS:g} point of the best goodput ({goodputs})"
        )
    refused = [str(choice.learners) for choice in choices if choice.setting is None]
    if refused:
        text += f", of those the links and the syncer can serve (not {', '.join(refused)})"
    if question.tokens_per_step:
        text += f"; each then trains {question.tokens_per_step / chosen.learners:,.0f} tokens a step"
    if chosen.learners > 8:
        text += (
            "; by one reader's copy of the paper's Table 11 text quality is best at M = 8 (55.4) and lower at 16 "
            "(53.4), so try both before a long run"
        )
    return text + "."


def _why_interval(question: Question, setting: Setting) -> str:
    first = INTERVALS[0]
    if setting.interval_steps == first:
        return f"H = {first}: the paper's value, and a round fits into tau = {setting.overlap_steps} steps at it."
    exchange, merge_s = _exchange(question, setting.learners, first, *CODECS[-1])
    rate = question.rate_gbit(setting.learners)
    if exchange.fixed_s >= exchange.window_s or merge_s > exchange.period_s:
        cause = f"at H = {first} merging alone takes {merge_s:.3g} s of a step of {question.step_s:g} s"
    else:
        cause = f"H = {first} needs {exchange.peak_gbit:.3g} Gbit/s per learner and there are {rate:.3g}"
    return (
        f"H = {setting.interval_steps}: {cause}; the longer learners go without hearing of each other, the more they "
        "drift apart (published: 24 for Decoupled, 100 for Streaming DiLoCo, 500 for DiLoCo)."
    )


def _why_codec(setting: Setting) -> str:
    text = f"Upload {setting.upload}, download {setting.download}: "
    if setting.download == Codec.FLOAT32.value:
        return text + "the default, which sends committed values without rounding, and the link carries it."
    return text + "the link does not carry committed values in float32 at this H; rounded to bfloat16 it does."


def _toml(setting: Setting) -> str:
    return (
        f"[protocol]\n"
        f"fragments = {setting.fragments}\n"
        f"interval_steps = {setting.interval_steps}\n"
        f"overlap_steps = {setting.overlap_steps}\n"
        f"quorum = {setting.quorum}\n"
        f"\n[codec]\n"
        f'upload = "{setting.upload}"\n'
        f'download = "{setting.download}"\n'
    )


def _changed(fleet: Fleet, *, learners: int, elastic: bool) -> Fleet:
    """The same chips used otherwise; only a rigid job keeps spares."""
    spares = 0 if elastic else fleet.spares
    return msgspec.structs.replace(fleet, learners=learners, elastic=elastic, spares=spares)
