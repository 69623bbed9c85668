"""How fast a fragment of 256 MB travels on loopback, up and down: our way against bare sockets and gRPC.

    python benchmarks/transport.py --repeats 9
    python benchmarks/transport.py --plain --only ours asyncio --streams 4

*unlockstep* is a whole syncer (``SyncerService``) in one process and the bulk client in another: hashed at both ends on
the way up and by the receiver on the way down, answered when the syncer has seen that all values are finite. The others
move the same bytes into memory that is ready for them and check nothing, but for those that are *hashed* as ours are.
Contenders take turns; figures are medians. ``both`` is twice the size over the time for both ways. ``CPU`` is what a
gigabyte costs at both ends together, seconds, mean of up and down: with n cores nothing moves faster than n / CPU. What
else runs on the machine falsifies all but that.

gRPC needs ``pip install unlockstep[bench]``.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import functools
import itertools
import json
import multiprocessing
import os
import socket
import ssl
import statistics
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MEGABYTE = 10**6
PIECE = 1024 * 1024
UP, DOWN = b"U", b"D"


@dataclass(frozen=True)
class Certificate:
    """Files that both ends of every contender use."""

    chain: Path
    key: Path
    authority: Path

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain, self.key)
        return context

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))


def make_certificate(folder: Path) -> Certificate:
    from unlockstep.certificates import issue, new_authority

    now = datetime.datetime.now(datetime.UTC)
    authority = new_authority("benchmark", now)
    issued = issue(authority, "syncer", ("127.0.0.1",), now, 1)
    made = Certificate(folder / "chain.pem", folder / "key.pem", folder / "ca.pem")
    for path, content in ((made.chain, issued.cert), (made.key, issued.key), (made.authority, authority.cert)):
        path.touch(0o600)
        path.write_bytes(content)
    return made


class Contender(ABC):
    """One way to move bytes. ``serve`` runs in a process of its own, the rest in the main one."""

    name: str

    def __init__(self, size: int, certificate: Certificate | None) -> None:
        self.size = size
        self.certificate = certificate
        self.process: multiprocessing.process.BaseProcess
        """In which it serves."""

    @abstractmethod
    def serve(self, listening: Callable[[int], None]) -> None:
        """For ever; told the port."""

    @abstractmethod
    def connect(self, port: int) -> None: ...

    @abstractmethod
    def up(self, body: memoryview) -> float:
        """Seconds until the other end has said that all is there."""

    @abstractmethod
    def down(self, into: memoryview) -> float: ...

    @abstractmethod
    def close(self) -> None: ...


# ------------------------------------------------------------------------------------------------- ours


class Ours(Contender):
    """A syncer, and its bulk client."""

    name = "unlockstep"

    def _layout(self) -> Any:
        from unlockstep.core.layout import LayoutMethod, Role, TensorSpec, build_layout

        tensor = TensorSpec(name="weight", shape=(self.size // 4,), dtype="float32", role=Role.PARAMETER)
        return build_layout([tensor], 1, LayoutMethod.BALANCED)

    def _config(self) -> Any:
        from unlockstep.config import CodecSection, RunConfig, RunSection
        from unlockstep.core.codec import Codec
        from unlockstep.core.options import ProtocolOptions

        return RunConfig(
            run=RunSection(name="bench", steps=10**6),
            protocol=ProtocolOptions(fragments=1, interval_steps=4, lease_s=3600.0, strikes_max=10**6),
            codec=CodecSection(upload=Codec.FLOAT32, download=Codec.FLOAT32),
        )

    def serve(self, listening: Callable[[int], None]) -> None:
        from unlockstep.cli.memory import give_back_arrays

        give_back_arrays()  # As `unlockstep syncer` does.
        asyncio.run(self._serve(listening))

    async def _serve(self, listening: Callable[[int], None]) -> None:
        from unlockstep.core.syncer import SyncerCore
        from unlockstep.net.access.audit import Audit
        from unlockstep.net.access.gate import Gate
        from unlockstep.net.access.security import ServerSecurity
        from unlockstep.net.syncer.service import SyncerService
        from unlockstep.net.wire.listening import Endpoint
        from unlockstep.runlog import Header, RunLogWriter

        config, certificate = self._config(), self.certificate
        security = ServerSecurity() if certificate is None else ServerSecurity(certificate.chain, certificate.key)
        core = SyncerCore("bench", config.protocol, config.run.steps, 0, "id")
        with (
            tempfile.TemporaryDirectory() as folder,
            RunLogWriter(Path(folder) / "run.jsonl", Header(run="bench", config_digest="")) as log,
        ):
            service = SyncerService(config, core, log, gate=Gate(security, Audit()))
            async with service.listening(Endpoint("127.0.0.1", 0, scheme=security.scheme)) as url:
                listening(int(url.rpartition(":")[2]))
                await asyncio.Event().wait()

    def connect(self, port: int) -> None:
        from unlockstep.core.codec import Codec, FragmentCodec, body_digest
        from unlockstep.net.access.security import NO_SECURITY, ClientSecurity
        from unlockstep.net.bulk.client import Bulk

        security = NO_SECURITY if self.certificate is None else ClientSecurity(self.certificate.authority)
        scheme = "http" if self.certificate is None else "https"
        self._url = f"{scheme}://127.0.0.1:{port}"
        self._layout_here = self._layout()
        self._codec = FragmentCodec(self._layout_here, 0, Codec.FLOAT32)
        asyncio.run(self._join())
        self._bulk = Bulk(self._url, security, streams=self.streams)
        body = self._codec.encode(np.zeros(self.size // 4, np.float32))
        self._digest = body_digest(body)
        query = {"run_id": "id", "learner": "l0", "incarnation": "1"}
        answer = self._bulk.upload("/v1/runs/bench/fragments/0/versions/0", query, body)
        assert answer.status == 201, answer
        self._numbers = itertools.count(1)
        self._sent = self._codec.encode(np.random.default_rng(0).standard_normal(self.size // 4, np.float32))

    streams = 2

    async def _join(self) -> None:
        import aiohttp

        from unlockstep.core.ids import PROTOCOL_VERSION
        from unlockstep.core.messages import Join, encode

        layout = self._layout_here
        async with aiohttp.ClientSession() as session:
            tls = self.certificate.client() if self.certificate else True
            async with session.ws_connect(self._url + "/v1/runs/bench/control", ssl=tls) as socket:
                await socket.send_bytes(encode(Join("l0", 0, PROTOCOL_VERSION, layout.digest, layout.specs(), "id")))
                await socket.receive_bytes()

    def up(self, body: memoryview) -> float:
        number = next(self._numbers)
        query = {"fragment": 0, "base_version": 0, "codec": "float32", "run_id": "id"}
        query |= {"c_steps": 1, "c_tokens": 1, "tokens": number}
        path = f"/v1/runs/bench/rounds/{10**6 + number}/contributions/l0.1"
        start = time.perf_counter()
        answer = self._bulk.upload(path, {name: str(value) for name, value in query.items()}, self._sent)
        assert answer.status == 202, answer
        return time.perf_counter() - start

    def down(self, into: memoryview) -> float:
        size = self._codec.body_size
        if not hasattr(self, "_into"):
            self._into = np.zeros(size, np.uint8).data
        start = time.perf_counter()
        self._bulk.download("/v1/runs/bench/fragments/0/versions/0", size, self._digest, self._into)
        return time.perf_counter() - start

    def close(self) -> None:
        self._bulk.close()


# ------------------------------------------------------------------------------------------------- bare sockets


class OnALoop(Contender):
    """What asyncio's contenders share: a connection for each way, in a loop of their own."""

    @abstractmethod
    async def _serve(self, listening: Callable[[int], None]) -> None: ...

    @abstractmethod
    async def _move(self, what: bytes, body: memoryview, into: memoryview) -> float: ...

    def serve(self, listening: Callable[[int], None]) -> None:
        asyncio.run(self._serve(listening))

    def connect(self, port: int) -> None:
        self._port = port
        self._runner = asyncio.Runner()

    def up(self, body: memoryview) -> float:
        return self._runner.run(self._move(UP, body, np.zeros(1, np.uint8).data))

    def down(self, into: memoryview) -> float:
        return self._runner.run(self._move(DOWN, np.zeros(0, np.uint8).data, into))

    def close(self) -> None:
        self._runner.close()


class Receiver(asyncio.BufferedProtocol):
    """Bytes straight to where they belong; writes at the speed of the other end."""

    def __init__(
        self, into: memoryview, done: Callable[[], None], first: Callable[[bytes], None] | None, hashed: Any = None
    ) -> None:
        self._into = into
        self._hashed = hashed
        self._done = done
        self._first = first
        self._filled = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._head = bytearray(1)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def get_buffer(self, sizehint: int) -> memoryview | bytearray:
        return self._into[self._filled :] if self._first is None and self._filled < len(self._into) else self._head

    def buffer_updated(self, nbytes: int) -> None:
        if self._first is not None:
            first, self._first = self._first, None
            first(bytes(self._head))
            return
        assert self._filled < len(self._into), "more than was asked for"
        if self._hashed is not None:
            self._hashed.update(self._into[self._filled : self._filled + nbytes])
        self._filled += nbytes
        if self._filled == len(self._into):
            self._done()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def write(self, body: memoryview, hashed: Any = None) -> None:
        for start in range(0, len(body), PIECE):
            if hashed is not None:
                hashed.update(body[start : start + PIECE])
            self.transport.write(body[start : start + PIECE])
            await self._writable.wait()


def _hasher(hashes: bool) -> Any:
    from unlockstep.core.digests import hasher

    return hasher() if hashes else None


class Asyncio(OnALoop):
    """A protocol of asyncio's, as close to the socket as it gets.

    Args:
        hashes: whether what is sent up and what has come is hashed, as we do.
    """

    name = "asyncio BufferedProtocol"

    def __init__(self, size: int, certificate: Certificate | None, hashes: bool = False) -> None:
        super().__init__(size, certificate)
        self.name += ", hashed" * hashes
        self._hashes = hashes

    async def _serve(self, listening: Callable[[int], None]) -> None:
        body, into = np.ones(self.size, np.uint8).data, np.zeros(self.size, np.uint8).data
        tasks = set[asyncio.Task[None]]()

        def make() -> Receiver:
            def first(what: bytes) -> None:
                if what == DOWN:
                    tasks.add(asyncio.create_task(receiver.write(body)))

            receiver = Receiver(into, lambda: receiver.transport.write(b"."), first, _hasher(self._hashes))
            return receiver

        context = None if self.certificate is None else self.certificate.server()
        server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0, ssl=context)
        listening(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    async def _move(self, what: bytes, body: memoryview, into: memoryview) -> float:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        context = None if self.certificate is None else self.certificate.client()
        transport, receiver = await loop.create_connection(
            lambda: Receiver(into, done.set, None, _hasher(self._hashes)), "127.0.0.1", self._port, ssl=context
        )
        start = time.perf_counter()
        transport.write(what)
        await receiver.write(body, _hasher(self._hashes))
        await done.wait()
        took = time.perf_counter() - start
        transport.close()
        await asyncio.sleep(0)
        return took


class Streams(OnALoop):
    """asyncio's streams."""

    name = "asyncio streams"

    async def _serve(self, listening: Callable[[int], None]) -> None:
        body, into = np.ones(self.size, np.uint8).data, np.zeros(self.size, np.uint8).data

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if await reader.readexactly(1) == DOWN:
                await _write(writer, body)
            else:
                await _read(reader, into)
                writer.write(b".")
                await writer.drain()
            writer.close()

        context = None if self.certificate is None else self.certificate.server()
        server = await asyncio.start_server(talk, "127.0.0.1", 0, limit=PIECE, ssl=context)
        listening(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    async def _move(self, what: bytes, body: memoryview, into: memoryview) -> float:
        context = None if self.certificate is None else self.certificate.client()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=PIECE, ssl=context)
        start = time.perf_counter()
        writer.write(what)
        await _write(writer, body)
        await _read(reader, into)
        took = time.perf_counter() - start
        writer.close()
        return took


async def _write(writer: asyncio.StreamWriter, body: memoryview) -> None:
    for start in range(0, len(body), PIECE):
        writer.write(body[start : start + PIECE])
        await writer.drain()


async def _read(reader: asyncio.StreamReader, into: memoryview) -> None:
    filled = 0
    while filled < len(into):
        piece = await reader.read(PIECE)
        assert piece, "cut short"
        into[filled : filled + len(piece)] = piece
        filled += len(piece)


class Blocking(Contender):
    """A socket and nothing else."""

    name = "blocking socket"

    def serve(self, listening: Callable[[int], None]) -> None:
        body, into = np.ones(self.size, np.uint8).data, np.zeros(self.size, np.uint8).data
        context = None if self.certificate is None else self.certificate.server()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listening(listener.getsockname()[1])
            while True:
                accepted, _ = listener.accept()
                with accepted if context is None else context.wrap_socket(accepted, server_side=True) as connection:
                    if connection.recv(1) == DOWN:
                        connection.sendall(body)
                    else:
                        _receive(connection, into)
                        connection.sendall(b".")

    def connect(self, port: int) -> None:
        self._port = port

    def up(self, body: memoryview) -> float:
        return self._move(UP, body, np.zeros(1, np.uint8).data)

    def down(self, into: memoryview) -> float:
        return self._move(DOWN, np.zeros(0, np.uint8).data, into)

    def _move(self, what: bytes, body: memoryview, into: memoryview) -> float:
        plain = socket.create_connection(("127.0.0.1", self._port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = None if self.certificate is None else self.certificate.client()
        with plain if context is None else context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            start = time.perf_counter()
            connection.sendall(what)
            connection.sendall(body)
            _receive(connection, into)
            return time.perf_counter() - start

    def close(self) -> None:
        """There is a connection for each way."""


def _receive(connection: socket.socket, into: memoryview) -> None:
    filled = 0
    while filled < len(into):
        count = connection.recv_into(into[filled : filled + PIECE])
        assert count, "cut short"
        filled += count


# ------------------------------------------------------------------------------------------------- gRPC


class Grpc(Contender):
    """Messages of a megabyte in a stream; nothing is parsed.

    Args:
        hashes: whether what is sent and what has come is hashed, as we do.
    """

    def __init__(self, size: int, certificate: Certificate | None, hashes: bool = False) -> None:
        super().__init__(size, certificate)
        self.name = "gRPC" + ", hashed" * hashes
        self._hashes = hashes

    _OPTIONS = (("grpc.max_receive_message_length", 64 * PIECE), ("grpc.max_send_message_length", 64 * PIECE))

    def serve(self, listening: Callable[[int], None]) -> None:
        import grpc

        body, into = np.ones(self.size, np.uint8).tobytes(), np.zeros(self.size, np.uint8).data

        def up(messages: Iterator[bytes], _: object) -> bytes:
            filled, hashed = 0, _hasher(self._hashes)
            for message in messages:
                into[filled : filled + len(message)] = message
                filled += len(message)
                if hashed is not None:
                    hashed.update(message)
            return b"." if hashed is None else hashed.digest()

        def down(_: bytes, __: object) -> Iterator[bytes]:
            for start in range(0, len(body), PIECE):
                yield body[start : start + PIECE]

        methods = {
            "Up": grpc.stream_unary_rpc_method_handler(up),
            "Down": grpc.unary_stream_rpc_method_handler(down),
        }
        server = grpc.server(ThreadPoolExecutor(2), options=self._OPTIONS)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Bench", methods),))
        if self.certificate is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            pair = (self.certificate.key.read_bytes(), self.certificate.chain.read_bytes())
            port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        server.start()
        listening(port)
        server.wait_for_termination()

    def connect(self, port: int) -> None:
        import grpc

        address = f"127.0.0.1:{port}"
        if self.certificate is None:
            self._channel = grpc.insecure_channel(address, options=self._OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(self.certificate.authority.read_bytes())
            self._channel = grpc.secure_channel(address, credentials, options=self._OPTIONS)
        self._up = self._channel.stream_unary("/bench.Bench/Up")
        self._down = self._channel.unary_stream("/bench.Bench/Down")

    def up(self, body: memoryview) -> float:
        start, hashed = time.perf_counter(), _hasher(self._hashes)

        def messages() -> Iterator[bytes]:
            for at in range(0, len(body), PIECE):
                if hashed is not None:
                    hashed.update(body[at : at + PIECE])
                yield bytes(body[at : at + PIECE])

        answer = self._up(messages())
        assert hashed is None or answer == hashed.digest()
        return time.perf_counter() - start

    def down(self, into: memoryview) -> float:
        start, filled, hashed = time.perf_counter(), 0, _hasher(self._hashes)
        for message in self._down(b""):
            into[filled : filled + len(message)] = message
            filled += len(message)
            if hashed is not None:
                hashed.update(message)
        return time.perf_counter() - start

    def close(self) -> None:
        self._channel.close()


# ------------------------------------------------------------------------------------------------- the table

CONTENDERS: dict[str, Callable[[int, Certificate | None], Contender]] = {
    "ours": Ours,
    "asyncio": Asyncio,
    "asyncio-hashed": functools.partial(Asyncio, hashes=True),
    "streams": Streams,
    "blocking": Blocking,
    "grpc": Grpc,
    "grpc-hashed": functools.partial(Grpc, hashes=True),
}


def _serve(contender: Contender, pipe: Any) -> None:
    contender.serve(pipe.send)


@contextmanager
def running(contender: Contender) -> Iterator[Contender]:
    """Its other end in a process, ours connected to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(contender, theirs), daemon=True)
    process.start()
    theirs.close()
    contender.process = process
    try:
        contender.connect(ours.recv())
        yield contender
        contender.close()
    finally:
        process.terminate()
        process.join()


@dataclass
class Row:
    """One line of the table."""

    name: str
    is_tls: bool
    up: float
    down: float
    both: float
    cpu: float


def cpu_s(process: multiprocessing.process.BaseProcess) -> float:
    """What a child has used of processors, user and system; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(contenders: list[Contender], size: int, repeats: int) -> list[Row]:
    """Each in turn, over and over; the first time does not count."""
    body, into = np.ones(size, np.uint8).data, np.zeros(size, np.uint8).data
    times: dict[int, list[tuple[float, float]]] = {number: [] for number in range(len(contenders))}
    cpu = dict.fromkeys(times, 0.0)
    for repeat in range(repeats + 1):
        for number, contender in enumerate(contenders):
            before_s = cpu_s(contender.process) + time.process_time()
            took = contender.up(body), contender.down(into)
            if repeat:
                times[number].append(took)
                cpu[number] += cpu_s(contender.process) + time.process_time() - before_s
    rows = []
    for number, contender in enumerate(contenders):
        up, down = zip(*times[number], strict=True)
        both = [a + b for a, b in times[number]]
        rates = [statistics.median(size / 1e9 / seconds for seconds in column) for column in (up, down, both)]
        spent = cpu[number] / (2 * repeats * size / 1e9)
        rows.append(Row(contender.name, contender.certificate is not None, rates[0], rates[1], 2 * rates[2], spent))
    return rows


def show(rows: list[Row]) -> None:
    print(f"{'GB/s':<28}{'':<6}{'up':>8}{'down':>8}{'both':>8}{'CPU':>8}{'of asyncio':>12}{'x gRPC':>9}")
    for row in rows:
        peers = {peer.name: peer.both for peer in rows if peer.is_tls == row.is_tls}
        ratios = [f"{row.both / peers[name]:.2f}" if name in peers else "" for name in (Asyncio.name, "gRPC")]
        rates = "".join(f"{figure:>8.2f}" for figure in (row.up, row.down, row.both, row.cpu))
        print(f"{row.name:<28}{'TLS' if row.is_tls else '':<6}{rates}{ratios[0]:>12}{ratios[1]:>9}")


def main() -> None:
    parser = argparse.ArgumentParser(description="A fragment up and down on loopback, against bare sockets and gRPC.")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--plain", action="store_true", help="without the rows for TLS")
    parser.add_argument("--streams", type=int, default=2, help="of ours")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    size = arguments.megabytes * MEGABYTE // 4 * 4
    Ours.streams = arguments.streams
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        certificates = [None] if arguments.plain else [None, make_certificate(Path(folder))]
        for certificate in certificates:
            with ExitStack() as stack:
                made = [CONTENDERS[name](size, certificate) for name in arguments.only]
                rows += measure([stack.enter_context(running(each)) for each in made], size, arguments.repeats)
    if arguments.json:
        print(json.dumps([vars(row) for row in rows]))
    else:
        show(rows)


if __name__ == "__main__":
    main()
