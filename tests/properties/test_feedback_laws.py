"""Error feedback adds up: whatever is handed over, in whatever formats, no progress is lost in rounding."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from unlockstep.core.codec import FragmentCodec
from unlockstep.core.feedback import Encoder
from unlockstep.core.formats import Codec, Rounding
from unlockstep.core.layout import LayoutMethod, Role, TensorSpec, build_layout
from unlockstep.loop import Contribution

SIZE = 70
LAYOUT = build_layout([TensorSpec("w", (SIZE,), "float32", Role.PARAMETER)], 1, LayoutMethod.BALANCED)
CODECS = {codec: FragmentCodec(LAYOUT, 0, codec) for codec in Codec}
DELTAS = arrays(np.float32, SIZE, elements=st.floats(-1, 1, width=32))
FORMATS = st.lists(st.tuples(DELTAS, st.sampled_from(Codec), st.booleans()), min_size=1, max_size=12)
ROUNDING = 2.0**-23
"""Of one sum in float32, as a share of its largest term."""


def contribution(number: int, delta: np.ndarray) -> Contribution:
    zeros = np.zeros(SIZE, np.float32)
    return Contribution(
        run_id="id", learner="a", incarnation=1, round=number, fragment=0, base_version=0, c_steps=1, c_tokens=1,
        tokens=number, anchor=delta, local=zeros,
    )  # fmt: skip


@given(FORMATS, st.sampled_from(Rounding))
def test_the_sum_of_what_was_sent_is_the_sum_of_what_was_made_less_what_was_lost_last(
    story: list[tuple[np.ndarray, Codec, bool]], rounding: Rounding
) -> None:
    """The sum telescopes. A bfloat16 leaves nothing behind: what it rounds is off by at most 2**-8, and gone. Some
    contributions are handed over twice in between."""
    encoder = Encoder(LAYOUT, feedback=True, rounding=rounding)
    meant, sent, gone, largest = np.zeros(SIZE), np.zeros(SIZE), np.zeros(SIZE), 0.0
    for number, (delta, codec, again) in enumerate(story):
        left = meant - sent
        body = encoder.encode(contribution(number, delta), codec, delta)
        if again:
            assert encoder.encode(contribution(number, delta), codec, delta) == body
        decoded = CODECS[codec].decode(body).astype(np.float64)
        meant, sent = meant + delta, sent + decoded
        largest = max(largest, float(np.abs(left + delta).max()))
        if codec is Codec.BFLOAT16:
            gone += np.abs(left + delta) * 2.0**-8 + 2.0**-133
        tolerance = gone + len(story) * ROUNDING * largest
        assert (np.abs(left + delta - decoded) <= _error_max(codec, rounding, left + delta) + tolerance).all()
    if story[-1][1] in (Codec.FLOAT32, Codec.BFLOAT16):
        assert (np.abs(meant - sent) <= tolerance).all()


def _error_max(codec: Codec, rounding: Rounding, meant: np.ndarray) -> float:
    """A step of the largest element; none where nothing is rounded to integers."""
    if not codec.is_integer:
        return 0.0
    codes = 2 ** (codec.bits - 1) - (rounding is Rounding.STOCHASTIC)
    return float(np.abs(meant).max()) / codes * (1 + 2.0**-7) + 2.0**-126
