"""What ``unlockstep doctor`` makes of what it has found: a sentence for each fact, how bad it is, and what to do.

Decides what is well, what is worth a warning and what keeps a run from working. Pure: facts come in as records and
numbers. Does not find anything out (``machine``, ``link_check``, ``link_rates``) and prints nothing (``cli.doctor``).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from enum import Enum

import msgspec

from unlockstep.core.words import counted, scaled
from unlockstep.net.bulk.streams import worth
from unlockstep.net.wire.interfaces import Interface, much_faster
from unlockstep.net.wire.names import Address, is_other_name

CLOCK_OFFSET_S_MAX = 1.0
"""More is worth a warning: certificates and logs of two machines no longer fit together."""

CERTIFICATE_DAYS_MIN = 14
"""Fewer are worth a warning."""

SPREAD_MAX = 4.0
"""Slowest of the round trips over the fastest: more, and the link has queues or losses."""


class State(Enum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    state: State
    finding: str
    fix: str = ""
    """What to do; empty if nothing."""


def ok(name: str, finding: str) -> Finding:
    return Finding(name, State.OK, finding)


def warn(name: str, finding: str, fix: str) -> Finding:
    return Finding(name, State.WARN, finding, fix)


def fail(name: str, finding: str, fix: str) -> Finding:
    return Finding(name, State.FAIL, finding, fix)


# ------------------------------------------------------------------------------------------- the way there


class Door(Enum):
    """What becomes of an attempt to connect."""

    OPEN = "open"
    REFUSED = "refused"
    SILENT = "silent"
    """Nothing comes back: a firewall that drops, or nobody has the address."""
    UNREACHABLE = "unreachable"
    """Something on the way says that it cannot be reached."""


class Attempt(msgspec.Struct, frozen=True):
    """One attempt to connect to one address."""

    address: str
    door: Door
    seconds: float
    detail: str = ""
    local_address: str = ""
    interface: str = ""
    mbit_per_s: int | None = None


def names(host: str, addresses: Sequence[Address], seconds: float) -> Finding:
    """What a name means here (C48)."""
    if not addresses:
        return fail(
            "names",
            f"{host} is not known on this machine",
            "check its spelling and /etc/resolv.conf, or give the address",
        )
    if addresses[0].is_unspecified:
        return fail(
            "names",
            f"{host} means all addresses of a machine, and is none to connect to",
            "give the address that the syncer prints when it starts, or has with --advertise",
        )
    listed = ", ".join(str(each) for each in addresses)
    if is_other_name(host) and all(each.is_loopback for each in addresses):
        return warn(
            "names",
            f"{host} means {listed} here, which is this machine itself",
            "if the syncer is on another machine, give its address, or mend the line in /etc/hosts",
        )
    if seconds > 1:
        return warn(
            "names",
            f"{host} is {listed}, which took {seconds:.1f} s to find out",
            "a name server that answers late delays every new connection: mend /etc/resolv.conf, or give the address",
        )
    return ok("names", listed if listed == host else f"{host} is {listed}")


def port(host: str, number: int, attempts: Sequence[Attempt]) -> Finding:
    """Whether anybody can be connected to."""
    reached = [each for each in attempts if each.door is Door.OPEN]
    deaf = [each for each in attempts if each.door is not Door.OPEN]
    if reached and not deaf:
        return ok("port", f"{number} is open at {reached[0].address}: connected in {milliseconds(reached[0].seconds)}")
    if reached:
        return warn(
            "port",
            f"{number} is open at {reached[0].address}, but {deaf[0].address}, which {host} also means, is "
            f"{deaf[0].door.value}",
            "new connections may first try that one: take it out of the name, or have the syncer listen there, too",
        )
    worst = attempts[0]
    where = f"{worst.address} port {number}"
    if worst.door is Door.REFUSED:
        return fail(
            "port",
            f"{where} refuses connections: the machine is there, and nothing listens on this port",
            "start the syncer, check its port, and that it listens on an address that others reach (--listen)",
        )
    if worst.door is Door.SILENT:
        return fail(
            "port",
            f"{where} does not answer for {worst.seconds:.1f} s: a firewall drops what is sent, or nobody has this "
            "address",
            f"let TCP port {number} in at the syncer's firewall, and its cloud's; check the address",
        )
    return fail(
        "port",
        f"{where} cannot be reached ({worst.detail})",
        "check the network of this machine, its routes and VPN, and the address",
    )


def way(attempt: Attempt, known: Sequence[Interface] = ()) -> Finding:
    """Which interface is used, and whether this machine has a far faster one (C48)."""
    speed = "" if attempt.mbit_per_s is None else f", {attempt.mbit_per_s} Mbit/s"
    interface = f" on {attempt.interface}{speed}" if attempt.interface else ""
    about = f"from {attempt.local_address}{interface}"
    faster = much_faster(attempt.mbit_per_s, known)
    if faster is not None:
        return warn(
            "way",
            f"{about}, but {faster.name} has {faster.mbit_per_s} Mbit/s",
            f"if the syncer can be reached over {faster.name}, give its address there, or have it --advertise that one",
        )
    return ok("way", about)


# ------------------------------------------------------------------------------------------- who answers


class Spoken(Enum):
    """What is spoken at the other end, as far as one question shows."""

    HTTP = "http"
    PLAIN_ON_TLS = "plain on tls"
    """Plain HTTP, where TLS was expected."""
    TLS_ON_PLAIN = "tls on plain"
    """TLS, where plain HTTP was expected."""
    UNTRUSTED = "untrusted"
    """TLS, with a certificate that does not convince."""
    TLS_FAILED = "tls failed"
    NOTHING = "nothing"
    """It accepts connections and says nothing."""
    HUNG_UP = "hung up"
    OTHER = "other"
    """Something that is no HTTP."""


class Certificate(msgspec.Struct, frozen=True):
    """What a peer shows of itself."""

    issuer: str
    names: tuple[str, ...] = ()
    ends_s: float | None = None
    """Seconds since 1970."""


class Answer(msgspec.Struct, frozen=True):
    """What came of the first question, ``GET /v1``."""

    spoken: Spoken
    status: int = 0
    sentence: str = ""
    """Of a refusal; or the beginning of what was said, or an error's own text."""
    server: str = ""
    """What it calls itself (``Server``)."""
    tls_version: str = ""
    cipher: str = ""
    certificate: Certificate | None = None
    verify_code: int = 0
    """OpenSSL's ``X509_V_ERR_...``."""


_EXPIRED, _NOT_YET_VALID = 10, 9
_OTHER_NAME = (62, 64)


def spoken(url: str, answer: Answer, reply_s: float) -> Finding | None:
    """What is wrong with what is spoken there; None: it is HTTP, as expected."""
    host = url.partition("//")[2]
    match answer.spoken:
        case Spoken.HTTP | Spoken.UNTRUSTED:
            return None
        case Spoken.PLAIN_ON_TLS:
            return fail(
                "tls", f"{host} speaks plain HTTP, and TLS was expected", f"write http://{host}, or give the syncer TLS"
            )
        case Spoken.TLS_ON_PLAIN:
            return fail("tls", f"{host} speaks TLS, and plain HTTP was expected", f"write https://{host}")
        case Spoken.TLS_FAILED:
            if "certificate required" in answer.sentence:
                return fail("tls", f"{host} asks for a certificate", "give --cert and --key, signed by its authority")
            return fail(
                "tls",
                f"no TLS connection to {host} ({answer.sentence})",
                "check that both ends speak TLS 1.2 or newer, and what the syncer's audit.jsonl says of it",
            )
        case Spoken.NOTHING:
            return fail(
                "answer",
                f"{host} accepts connections and says nothing for {reply_s:g} s",
                "the syncer is frozen (SIGSTOP, swap), something else listens there, or a proxy has lost it",
            )
        case Spoken.HUNG_UP:
            return fail(
                "answer",
                f"{host} accepts connections and hangs up without a word",
                "if it asks for clients' certificates (--client-ca), give --cert and --key"
                if url.startswith("https")
                else "if it speaks TLS, write https://; if a proxy is in between, check what is behind it",
            )
        case Spoken.OTHER:
            return fail(
                "answer",
                f"what answers at {host} does not speak HTTP: it says {answer.sentence!r}",
                "check address and port",
            )


def tls(url: str, answer: Answer, now_s: float, is_local: bool) -> Finding | None:
    """Whether the connection is private, and with whom; None: it could not be seen.

    Args:
        url: of the syncer.
        answer: to the first question.
        now_s: seconds since 1970.
        is_local: nobody else's machine is on the way.
    """
    host = url.partition("//")[2]
    if answer.spoken is Spoken.UNTRUSTED:
        return _untrusted(host, answer)
    if answer.spoken is not Spoken.HTTP:
        return None
    if not url.startswith("https"):
        if is_local:
            return ok("tls", "none: what is said stays on this machine")
        return warn(
            "tls",
            "none: everybody on the way can read and change what is said",
            "start the syncer with --secrets (made by `unlockstep certs make`), and write https://",
        )
    about = f"{answer.tls_version} with {answer.cipher}"
    if answer.certificate is None or answer.certificate.ends_s is None:
        return ok("tls", about)
    days = (answer.certificate.ends_s - now_s) / 86_400
    about += f"; certificate of {answer.certificate.issuer}, {counted(days, 'day')} left"
    if days < CERTIFICATE_DAYS_MIN:
        return warn("tls", about, "have it renewed soon: `unlockstep certs renew` on the machine that has its ca.key")
    return ok("tls", about)


def _untrusted(host: str, answer: Answer) -> Finding:
    shown = answer.certificate
    if answer.verify_code == _EXPIRED:
        return fail(
            "tls",
            f"the certificate of {host} has expired",
            "have it renewed (`unlockstep certs renew`), or set this machine's clock right",
        )
    if answer.verify_code == _NOT_YET_VALID:
        return fail("tls", f"the certificate of {host} is not valid yet", "set the clock of this machine right")
    if answer.verify_code in _OTHER_NAME:
        held = f" (it has {', '.join(shown.names)})" if shown is not None and shown.names else ""
        return fail(
            "tls",
            f"the certificate of {host} is for another name{held}",
            "use a name that it has, or make one with this name (`unlockstep certs make --host`)",
        )
    by = f" (it is of {shown.issuer})" if shown is not None else ""
    return fail(
        "tls",
        f"the certificate of {host} was made by an authority that is not trusted here{by}: {answer.sentence}",
        "give the ca.pem of that syncer with --ca, or UNLOCKSTEP_CA",
    )


def who(url: str, answer: Answer, is_syncer: bool) -> Finding | None:
    """Whether a syncer answers, and lets us in; None: it could not be asked."""
    if answer.spoken is not Spoken.HTTP:
        return None
    if answer.status == 401:
        return fail("token", answer.sentence, "give the token with --token-file, or in UNLOCKSTEP_TOKEN")
    if answer.status == 403:
        return fail("token", answer.sentence, "ask for a token of another role")
    if answer.status == 421 and answer.sentence:
        return fail("answer", answer.sentence, "use a name that it answers to")
    if answer.status == 429 and answer.sentence:
        return fail("answer", answer.sentence, "wait for a minute, and look who else asks from this address")
    if answer.status == 503 and answer.sentence:
        return warn(
            "answer", answer.sentence, "give both addresses, with a comma between them: the one that leads is used"
        )
    if answer.status != 200 or not is_syncer:
        server = f" ({answer.server})" if answer.server else ""
        said = answer.sentence or f"status {answer.status}"
        return fail(
            "answer",
            f"what answers at {url} is not an unlockstep syncer{server}: {said}",
            "check address and port; if a proxy is in between, check what it passes on, and to where",
        )
    return None


def versions(own: str, own_protocol: int, other: str, other_protocol: int) -> Finding:
    """Whether both ends understand each other."""
    if own_protocol != other_protocol:
        return fail(
            "versions",
            f"the syncer is unlockstep {other} (protocol {other_protocol}), this is {own} (protocol {own_protocol})",
            "install the same version on both",
        )
    if own != other:
        return warn(
            "versions",
            f"the syncer is unlockstep {other}, this is {own}; they speak the same protocol ({own_protocol})",
            "install the same version on both when you can",
        )
    return ok("versions", f"unlockstep {own}, protocol {own_protocol}, at both ends")


def token(role: str, is_shown: bool) -> Finding:
    """What we may do."""
    if role in ("learner", "evaluator", "admin"):
        shown = "the token" if is_shown else "whoever connects"
        return ok("token", f"{shown} has the role {role}")
    return warn("token", f"the token has the role {role}: it may look, and not take part", "ask for one of a learner")


# ------------------------------------------------------------------------------------------- how good the link is


def round_trips(samples_s: Sequence[float]) -> Finding:
    """Of small requests on one connection."""
    median_s, slow_s = statistics.median(samples_s), _slow(samples_s)
    median, fastest, slow = (milliseconds(each) for each in (median_s, min(samples_s), slow_s))
    about = f"median {median}, fastest {fastest}, slow ones {slow} ({len(samples_s)} requests)"
    if slow_s > SPREAD_MAX * min(samples_s) and slow_s - min(samples_s) > 0.05:
        return warn(
            "round trip",
            about,
            "packets are lost or wait in queues: other traffic, wireless, or a line that is overloaded",
        )
    return ok("round trip", about)


def _slow(samples_s: Sequence[float]) -> float:
    """What one of ten exceeds."""
    return sorted(samples_s)[min(len(samples_s) - 1, int(0.9 * len(samples_s)))]


class ClockSample(msgspec.Struct, frozen=True):
    """One question for the time: seconds since 1970, by the clock of who has looked at it."""

    asked_s: float
    told_s: float
    heard_s: float

    @property
    def round_trip_s(self) -> float:
        return self.heard_s - self.asked_s

    @property
    def offset_s(self) -> float:
        """How far the other clock is ahead, give or take half the round trip (as NTP has it)."""
        return self.told_s - (self.asked_s + self.heard_s) / 2


def clock(samples: Sequence[ClockSample]) -> Finding:
    """How far the clocks are apart, from the question that was answered fastest."""
    best = min(samples, key=lambda sample: sample.round_trip_s)
    doubt_s = max(best.round_trip_s, 0.0) / 2
    ahead = "ahead of" if best.offset_s >= 0 else "behind"
    about = f"the syncer's is {milliseconds(abs(best.offset_s))} {ahead} this one (within {milliseconds(doubt_s)})"
    if abs(best.offset_s) - doubt_s > CLOCK_OFFSET_S_MAX:
        return warn(
            "clock",
            about,
            "have both machines set by NTP (timedatectl set-ntp true): certificates and logs go by the clock",
        )
    return ok("clock", about)


class Rates(msgspec.Struct, frozen=True):
    """Bytes per second of one direction, by the number of streams."""

    by_streams: dict[int, float]

    @property
    def best(self) -> float:
        """With so many streams as pay."""
        return self.by_streams[self.streams]

    @property
    def streams(self) -> int:
        """The fewest that none of the greater numbers pays beside, as bulk transfers have it (``streams``)."""
        numbers = self.by_streams
        return min(number for number in numbers if not any(self._pays(number, more) for more in numbers))

    def _pays(self, fewer: int, more: int) -> bool:
        return more > fewer and self.by_streams[more] >= worth(fewer, more) * self.by_streams[fewer]


def rate(way: str, rates: Rates, round_trip_s: float, window_bytes: int | None) -> Finding:
    """What passes, and what one connection is limited by.

    Args:
        way: ``up`` or ``down``.
        rates: as measured.
        round_trip_s: of the link.
        window_bytes: the most the system lets one connection have under way; None: not known.
    """
    one = rates.by_streams[min(rates.by_streams)]
    about = f"{_rate(one)} in one stream"
    if rates.streams > 1:
        about += f", {_rate(rates.best)} in {rates.streams}"
    if window_bytes is not None and round_trip_s > 0 and rates.streams > 1:
        limit = window_bytes / round_trip_s
        if one > 0.5 * limit:
            about += f"; this machine's buffers limit one stream to {_rate(limit)}"
    return ok(f"rate {way}", about)


# ------------------------------------------------------------------------------------------- words


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def duration(seconds: float) -> str:
    return milliseconds(seconds) if seconds < 1 else f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def _rate(bytes_per_s: float) -> str:
    return f"{scaled(bytes_per_s, 'B/s')} ({scaled(8 * bytes_per_s, 'bit/s')})"
