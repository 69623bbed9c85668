"""Laws of the window: for any history it closes once, in time, and never reopens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from support.core_builders import options
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.window import MovingAverage, decide, grace_ns

times_ns = st.integers(0, 10**12)
counts = st.integers(0, 40)
gammas = st.floats(0, 0.999)
caps = st.floats(0, 10)


@given(step_ns=times_ns, quorum_ns=times_ns, sync_ns=times_ns, gamma=gammas, cap=caps, tau=st.integers(0, 10))
def test_grace_lies_between_nothing_and_the_cap(
    step_ns: int, quorum_ns: int, sync_ns: int, gamma: float, cap: float, tau: int
) -> None:
    protocol = options(grace_factor=gamma, grace_cap_steps=cap, overlap_steps=tau)
    grace = grace_ns(protocol, step_ns, quorum_ns, sync_ns)
    assert 0 <= grace <= cap * step_ns
    slack_ns = tau * step_ns - quorum_ns - sync_ns
    assert grace <= max(0.0, gamma * slack_ns)


@given(step_ns=times_ns, quorum_ns=times_ns, sync_ns=times_ns, more_ns=times_ns)
def test_the_more_time_quorum_and_commit_take_the_shorter_the_grace(
    step_ns: int, quorum_ns: int, sync_ns: int, more_ns: int
) -> None:
    grace = grace_ns(options(), step_ns, quorum_ns, sync_ns)
    assert grace_ns(options(), step_ns, quorum_ns + more_ns, sync_ns) <= grace
    assert grace_ns(options(), step_ns, quorum_ns, sync_ns + more_ns) <= grace


@given(
    quorum=st.integers(1, 8),
    quorum_at_ns=st.none() | times_ns,
    contributed=counts,
    awaited=counts,
    live=counts,
    grace=times_ns,
    delays_ns=st.lists(times_ns, min_size=2, max_size=6),
)
def test_over_time_the_decision_turns_once_and_only_with_a_quorum(
    quorum: int,
    quorum_at_ns: int | None,
    contributed: int,
    awaited: int,
    live: int,
    grace: int,
    delays_ns: list[int],
) -> None:
    since_ns = quorum_at_ns or 0
    decisions = [
        decide(
            options(quorum=quorum),
            now_ns=since_ns + delay_ns,
            quorum_at_ns=quorum_at_ns,
            contributed=contributed,
            awaited=awaited,
            live=live,
            grace_ns=grace,
        )
        for delay_ns in sorted(delays_ns)
    ]
    closes = [decision.close for decision in decisions]
    assert closes == sorted(closes)
    if quorum_at_ns is None:
        assert not any(closes)
        assert {decision.until_ns for decision in decisions} == {NEVER_NS}
    for decision, delay_ns in zip(decisions, sorted(delays_ns), strict=True):
        if quorum_at_ns is not None:
            assert decision.close or (delay_ns < grace and decision.until_ns == quorum_at_ns + grace)
            assert decision.close or awaited > 0


@given(
    events=st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["contribution", "departure"])), max_size=12),
    live=st.integers(1, 8),
    quorum=st.integers(1, 4),
    grace=st.integers(0, 100),
)
def test_a_round_never_reopens_and_is_never_open_after_quorum_and_grace(
    events: list[tuple[int, str]], live: int, quorum: int, grace: int
) -> None:
    """Learners contribute or leave one after the other; the decision is taken anew after each and at its deadline."""
    now_ns, contributed, awaited, quorum_at_ns = 0, 0, live, None
    closed_at_ns: int | None = None
    for delay_ns, kind in [*events, (10**6, "silence")]:
        while True:
            decision = decide(
                options(quorum=quorum),
                now_ns=now_ns,
                quorum_at_ns=quorum_at_ns,
                contributed=contributed,
                awaited=awaited,
                live=contributed + awaited,
                grace_ns=grace,
            )
            assert decision.close or closed_at_ns is None, "reopened"
            if decision.close and closed_at_ns is None:
                closed_at_ns = now_ns
            if decision.close or decision.until_ns > now_ns + delay_ns:
                break
            now_ns = decision.until_ns
        now_ns += delay_ns
        if awaited:
            awaited -= 1
            contributed += kind == "contribution"
        if quorum_at_ns is None and contributed >= quorum:
            quorum_at_ns = now_ns
    if quorum_at_ns is not None and quorum_at_ns < now_ns:
        assert closed_at_ns is not None and quorum_at_ns <= closed_at_ns <= quorum_at_ns + grace


@given(samples=st.lists(times_ns, min_size=1), weight=st.floats(0.01, 1))
def test_an_average_stays_within_its_samples(samples: list[int], weight: float) -> None:
    average = MovingAverage(weight)
    for sample_ns in samples:
        average.add(sample_ns)
    assert min(samples) - 1 <= average.value_ns <= max(samples) + 1
