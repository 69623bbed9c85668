"""What must hold of every place that reads what somebody else has written, whatever the bytes: it is what it should be,
or it is refused with the error for that, and nothing else happens.

Each ``Reader`` has samples that are sound, to be spoilt. Used by ``tests/properties/test_hostile_laws.py``, with a few
hundred spoilt samples each, and by ``fuzz/fuzz.py``, which looks for new ones as long as it is let.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import fsspec
import msgspec
import numpy as np

from support.core_builders import join
from support.stores import Leader, small_layout
from unlockstep import config as run_config
from unlockstep.config import RunConfig
from unlockstep.core.codec import Codec, FragmentCodec
from unlockstep.core.deeds import Moment
from unlockstep.core.errors import ConfigError, RemoteProtocolError, UsageError
from unlockstep.core.messages import (
    Evaluation,
    Heartbeat,
    Leave,
    Progress,
    Published,
    Pull,
    VersionNotice,
    decode_learner_message,
    decode_syncer_message,
    encode,
)
from unlockstep.keeper import take_up
from unlockstep.learners.backend import State, TensorBits
from unlockstep.learners.state_body import Donated, decode_state, encode_state
from unlockstep.net.access.roles import Role
from unlockstep.net.access.tokens import Entry, read_tokens, token_digest
from unlockstep.net.wire import api, ranges
from unlockstep.store.fragment_files import Damaged, FragmentFile, fragment_file, read_fragment_file
from unlockstep.store.place import Place, open_place
from unlockstep.store.run_store import RunStore

LAYOUT = small_layout()


@dataclass(frozen=True)
class Reader:
    """One place that reads what somebody else has written."""

    read: Callable[[bytes], object]
    """Raises whatever is not allowed to come out of it."""
    samples: Sequence[bytes]


# ------------------------------------------------------------------------------------------------- the wire


def read_messages(data: bytes) -> None:
    """Control messages, both ways: what was understood can be said again, and means the same."""
    for decode in (decode_learner_message, decode_syncer_message):
        with suppress(RemoteProtocolError):
            said = encode(decode(data))
            assert encode(decode(said)) == said


def messages() -> list[bytes]:
    progress = Progress("a", 1, 3, 3, 30, 1000, 1.0, (1, 1), (10, 10), (0, 0))
    notice = VersionNotice(0, 1, "00" * 32)
    said = join("a"), Heartbeat("a", 1), progress, Leave("a", 1, (1, 2)), Evaluation("e", 3, 1.0, 0.5, (0, 1))
    return [encode(message) for message in (*said, Pull(1, 0), Published(notice, 3))]


def read_fields(data: bytes) -> None:
    """Header fields of bodies and their parts."""
    field = data.decode("latin-1")
    for parse in (
        api.parse_content_digest,
        api.parse_chunks_digest,
        ranges.BodyDigest.parse,
        ranges.parse_content_range,
        lambda text: ranges.parse_range(text, 1000),
    ):
        with suppress(RemoteProtocolError, ranges.Unsatisfiable):
            parse(field)


FIELDS = [
    b"sha-256=:" + b"A" * 43 + b"=:",
    b"00" * 32 + b".1048576",
    b"bytes 0-9/100",
    b"bytes */100",
    b"bytes=5-",
    b"bytes=-7",
]


def read_bodies(data: bytes) -> None:
    """Bodies of fragments in every format: as many numbers as the fragment has, or refused."""
    for codec in Codec:
        of = FragmentCodec(LAYOUT, 0, codec)
        with suppress(RemoteProtocolError):
            assert of.decode(data).shape == (of.size,)


def bodies() -> list[bytes]:
    codecs = [FragmentCodec(LAYOUT, 0, codec) for codec in Codec]
    return [bytes(codec.encode(np.ones(codec.size, np.float32))) for codec in codecs]


def read_states(data: bytes) -> None:
    """What one learner gives to another."""
    with suppress(RemoteProtocolError):
        found = decode_state(memoryview(data), LAYOUT)
        assert [values.size for values in found.fragments] == [LAYOUT.fragment_size(p) for p in range(2)]


def states() -> list[bytes]:
    fragments = tuple(np.ones(LAYOUT.fragment_size(p), np.float32) for p in range(2))
    notices = tuple(VersionNotice(p, 1, "00" * 32) for p in range(2))
    inner = State({"exp_avg": TensorBits("float32", (2,), np.zeros(8, np.uint8))}, {"step": 3})
    return [bytes(encode_state(Donated(notices, 7, fragments, inner, Moment("donor", 1, 9, 4)), LAYOUT))]


def read_settings(data: bytes) -> None:
    """What a learner takes from a syncer."""
    with suppress(ConfigError):
        config = run_config.loads(data.decode("utf-8", errors="replace"))
        assert run_config.loads(run_config.dumps(config)) == config


# ------------------------------------------------------------------------------------------------- files


def read_token_table(data: bytes) -> None:
    """A file of tokens."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.toml"
        path.write_bytes(data)
        path.chmod(0o600)
        with suppress(UsageError):
            assert all(len(entry.sha256) == 64 and isinstance(entry, Entry) for entry in read_tokens(path).values())


def token_tables() -> list[bytes]:
    entry = f'role = "learner"\nsha256 = "{token_digest("x")}"\n'
    more = f'[tokens.b]\nrole = "{Role.ADMIN.value}"\nsha256 = "{token_digest("y")}"\nexpires = 2030-01-01T00:00:00Z\n'
    return [f"[tokens.a]\n{entry}{more}".encode()]


def read_fragment_bytes(data: bytes) -> None:
    """A file of a fragment that is, to the bit, what its record says, and may still be none."""
    place, name = _empty_place(), "fragments/000/0000000001-000000000000.safetensors"
    place.write(name, [data])
    with suppress(Damaged):
        file = FragmentFile(0, 1, "d", name, len(data), hashlib.sha256(data).hexdigest())
        values, state = read_fragment_file(place, file)
        assert values.nbytes + state.nbytes <= len(data)


def fragment_bytes() -> list[bytes]:
    values = np.ones(LAYOUT.fragment_size(0), np.float32)
    return [b"".join(fragment_file(LAYOUT, 0, 1, "d", values, state)[1]) for state in (values, values[:0])]


def read_records(data: bytes) -> None:
    """The newest record of a store, sealed like a sound one: it is used, passed over, or a sentence says why not; and
    nothing outside of the store is read, written or deleted."""
    place = _Fenced(_empty_place())
    store = RunStore(place)
    leader = Leader(store, LAYOUT)
    leader.commit()
    leader.commit()
    seal = msgspec.json.encode({"sha256": hashlib.sha256(data).hexdigest(), "writer": "w"})
    place.create("records/0000000003.json", seal + b"\n" + data)
    with suppress(UsageError):
        loaded = RunStore(place).load()
        assert loaded is not None and loaded.record.number in (1, 2, 3)
    with suppress(UsageError):
        take_up(RunStore(place), "run", "config")
    follower = RunStore(place, records_kept=1)
    with suppress(UsageError):
        follower.load()
        follower.prune()
        follower.sweep()


def records() -> list[bytes]:
    place = _empty_place()
    leader = Leader(RunStore(place), LAYOUT)
    for _ in range(3):
        leader.commit()
    return [place.read("records/0000000003.json").partition(b"\n")[2]]


def read_layouts(data: bytes) -> None:
    """The layout of a store."""
    place = _empty_place()
    place.write("layout.json", [data])
    with suppress(UsageError):
        RunStore(place).read_layout()


def layouts() -> list[bytes]:
    place = _empty_place()
    RunStore(place).write_layout(LAYOUT)
    return [place.read("layout.json")]


class _Fenced:
    """A place that nothing may leave."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def __getattr__(self, call: str) -> Callable[..., object]:
        def within(name: str, *rest: object) -> object:
            assert not name.startswith("/") and ".." not in name.split("/") and "\0" not in name, name
            return getattr(self._place, call)(name, *rest)

        return within


def _empty_place() -> Place:
    fsspec.filesystem("memory").store.clear()
    return open_place("memory://hostile")


READERS: dict[str, Reader] = {
    "messages": Reader(read_messages, messages()),
    "fields": Reader(read_fields, FIELDS),
    "bodies": Reader(read_bodies, bodies()),
    "states": Reader(read_states, states()),
    "settings": Reader(read_settings, [run_config.dumps(RunConfig()).encode()]),
    "tokens": Reader(read_token_table, token_tables()),
    "fragments": Reader(read_fragment_bytes, fragment_bytes()),
    "records": Reader(read_records, records()),
    "layouts": Reader(read_layouts, layouts()),
}
