"""Laws of control messages: every message survives the wire, and whatever else comes is refused without harm."""

from __future__ import annotations

import contextlib
import typing
from enum import Enum
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from support.core_builders import join
from support.syncer_stage import SyncerStage, running
from unlockstep.checkers import check
from unlockstep.core.deeds import AdoptionNotice
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.messages import (
    Heartbeat,
    LearnerMessage,
    Leave,
    Progress,
    SyncerMessage,
    Undelivered,
    decode_learner_message,
    decode_syncer_message,
    encode,
)

INTEGERS = st.integers(-(2**63), 2**64 - 1)
"""Whatever msgpack can carry."""


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Anything of this type, as the decoder would let it pass."""
    if typing.get_origin(kind) is dict:
        return st.dictionaries(*(values(each) for each in typing.get_args(kind)), max_size=3)
    if typing.get_origin(kind) is tuple:
        return st.lists(values(typing.get_args(kind)[0]), max_size=3).map(tuple)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return structs(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    if typing.get_args(kind):
        return st.one_of(*(values(each) for each in typing.get_args(kind)))
    simple = {
        int: INTEGERS | st.integers(-1, 3),
        str: st.sampled_from(["a", "b"]) | st.text(max_size=5),
        bool: st.booleans(),
        float: st.floats(allow_nan=False),
        type(None): st.none(),
    }
    return simple[kind]


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: values(hints[name]) for name in kind.__struct_fields__})


learner_messages = st.one_of(*(structs(kind) for kind in typing.get_args(LearnerMessage)))
syncer_messages = st.one_of(*(structs(kind) for kind in typing.get_args(SyncerMessage)))


@given(learner_messages)
def test_what_a_learner_says_survives_the_wire(message: LearnerMessage) -> None:
    assert decode_learner_message(encode(message)) == message


@given(syncer_messages)
def test_what_the_syncer_says_survives_the_wire(message: SyncerMessage) -> None:
    assert decode_syncer_message(encode(message)) == message


@given(st.binary(max_size=200))
@example(b"")
@example(b"\xc1")
def test_arbitrary_bytes_are_a_message_or_refused(data: bytes) -> None:
    for decode in (decode_learner_message, decode_syncer_message):
        with contextlib.suppress(RemoteProtocolError):
            decode(data)


@given(message=learner_messages, position=st.integers(0, 10**6), value=st.integers(0, 255))
def test_a_damaged_message_is_a_message_or_refused(message: LearnerMessage, position: int, value: int) -> None:
    data = bytearray(encode(message))
    data[position % len(data)] = value
    with contextlib.suppress(RemoteProtocolError):
        decode_learner_message(bytes(data))


def shown(stage: SyncerStage) -> object:
    """All that a message without effect must leave as it is."""
    return stage.core.status(stage.now_ns), stage.core.next_deadline_ns(), stage.core.state


counts = st.integers(-1, 40) | st.just(2**53) | INTEGERS
pairs = st.tuples(counts, counts)
senders = {"learner": st.sampled_from("ab"), "incarnation": st.sampled_from([1, 1, 1, 2])}
small = st.integers(-1, 3)
nonsense = st.one_of(
    st.builds(
        Progress,
        **senders,
        clock=counts,
        steps=counts,
        tokens=counts,
        step_ns=counts,
        loss=st.floats(),
        c_steps=pairs,
        c_tokens=pairs,
        overwritten=pairs,
        deeds=st.lists(st.builds(AdoptionNotice, small, small, st.just("00"), counts), max_size=2).map(tuple),
        undelivered=st.lists(st.builds(Undelivered, small, small, counts), max_size=2).map(tuple),
        last=st.booleans(),
    ),
    st.builds(Leave, **senders, tokens_dropped=pairs),
    st.builds(Heartbeat, **senders),
    st.builds(join, st.sampled_from("abc"), st.integers(-1, 3)),
    learner_messages,
)
"""Messages of the right shape, mostly, with contents that no honest learner would send."""


@given(st.lists(nonsense, max_size=8))
def test_whatever_learners_say_the_syncer_carries_on(said: list[LearnerMessage]) -> None:
    """A well-formed message may be nonsense. Either it has an effect the rules allow, or it has none at all."""
    stage = running("a", "b")
    for message in said:
        before = shown(stage)
        try:
            stage.tell(message)
        except RemoteProtocolError:
            assert shown(stage) == before
            assert stage.core.take_events() == []
            assert stage.core.take_actions() == []
    stage.join("honest")
    stage.wait(10**12)
    assert check(stage.events, stage.options, rules={"rotation", "rounds"}) == []
    assert stage.core.next_deadline_ns() > stage.now_ns


@given(st.lists(nonsense, max_size=4))
def test_whatever_strangers_say_to_a_run_without_parameters_it_can_still_begin(said: list[LearnerMessage]) -> None:
    stage = SyncerStage()
    for message in said:
        with contextlib.suppress(RemoteProtocolError):
            stage.tell(message)
    stage.wait(10**11)
    stage.join("honest")
    stage.seed("honest")
    stage.report("honest")
    stage.step("honest", clock=stage.core.status(stage.now_ns).clock)
    assert stage.core.status(stage.now_ns).state == "running"
