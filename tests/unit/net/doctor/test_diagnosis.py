"""What the doctor makes of what it is told."""

from __future__ import annotations

from ipaddress import ip_address

import msgspec
import pytest

from unlockstep.net.doctor import diagnosis
from unlockstep.net.doctor.diagnosis import (
    Answer,
    Attempt,
    Certificate,
    ClockSample,
    Door,
    Finding,
    Rates,
    Spoken,
    State,
)
from unlockstep.net.wire.interfaces import Interface

DAY_S = 86_400.0


def said(found: Finding | None) -> str:
    assert found is not None
    return f"{found.state.value}: {found.finding} -> {found.fix}"


# ------------------------------------------------------------------------------------------------- the way there


@pytest.mark.parametrize(
    ("host", "addresses", "seconds", "expected"),
    [
        ("one", "10.0.0.5", 0.0, "ok: one is 10.0.0.5 -> "),
        ("10.0.0.5", "10.0.0.5", 0.0, "ok: 10.0.0.5 -> "),
        ("localhost", "127.0.0.1 ::1", 0.0, "ok: localhost is 127.0.0.1, ::1 -> "),
        ("gpu7", "127.0.1.1", 0.0, "warn: gpu7 means 127.0.1.1 here, which is this machine itself -> if the syncer"),
        ("gpu7", "", 0.0, "fail: gpu7 is not known on this machine -> check its spelling and /etc/resolv.conf"),
        ("0.0.0.0", "0.0.0.0", 0.0, "fail: 0.0.0.0 means all addresses of a machine, and is none to connect to"),
        ("one", "10.0.0.5", 5.2, "warn: one is 10.0.0.5, which took 5.2 s to find out -> a name server"),
    ],
)
def test_a_name_is_judged_by_what_it_means_here(host: str, addresses: str, seconds: float, expected: str) -> None:
    """C48"""
    found = diagnosis.names(host, [ip_address(each) for each in addresses.split()], seconds)
    assert said(found).startswith(expected)


OPEN = Attempt("10.0.0.5", Door.OPEN, 0.012, "", "10.0.0.9", "eth0", 10_000)
REFUSED = Attempt("10.0.0.5", Door.REFUSED, 0.001, "Connection refused")
SILENT = Attempt("10.0.0.5", Door.SILENT, 3.5)
UNREACHABLE = Attempt("2001:db8::5", Door.UNREACHABLE, 0.0, "Network is unreachable")


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([OPEN], "ok: 7077 is open at 10.0.0.5: connected in 12 ms"),
        ([REFUSED], "fail: 10.0.0.5 port 7077 refuses connections: the machine is there, and nothing listens on"),
        ([SILENT], "fail: 10.0.0.5 port 7077 does not answer for 3.5 s: a firewall drops what is sent, or nobody"),
        ([UNREACHABLE], "fail: 2001:db8::5 port 7077 cannot be reached (Network is unreachable) -> check the network"),
        ([UNREACHABLE, OPEN], "warn: 7077 is open at 10.0.0.5, but 2001:db8::5, which one also means, is unreachable"),
    ],
)
def test_a_closed_port_is_told_from_one_behind_a_firewall(attempts: list[Attempt], expected: str) -> None:
    assert said(diagnosis.port("one", 7077, attempts)).startswith(expected)


def test_the_interface_that_is_used_is_named() -> None:
    assert said(diagnosis.way(OPEN)) == "ok: from 10.0.0.9 on eth0, 10000 Mbit/s -> "
    faster = Interface("ib0", (ip_address("10.1.0.9"),), 100_000)
    assert said(diagnosis.way(OPEN, [faster])).startswith(
        "warn: from 10.0.0.9 on eth0, 10000 Mbit/s, but ib0 has 100000 Mbit/s -> if the syncer can be reached over ib0"
    )
    unused = [Interface("ib0", (), 100_000), Interface("ib1", faster.addresses, None), Interface("eth1", (), 15_000)]
    assert diagnosis.way(OPEN, unused).state is State.OK
    assert said(diagnosis.way(msgspec.structs.replace(OPEN, interface=""))) == "ok: from 10.0.0.9 -> "


# ------------------------------------------------------------------------------------------------- who answers


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(Spoken.PLAIN_ON_TLS), "fail: one:1 speaks plain HTTP, and TLS was expected -> write http://one:1"),
        (Answer(Spoken.TLS_ON_PLAIN), "fail: one:1 speaks TLS, and plain HTTP was expected -> write https://one:1"),
        (Answer(Spoken.TLS_FAILED, sentence="no cipher"), "fail: no TLS connection to one:1 (no cipher)"),
        (
            Answer(Spoken.TLS_FAILED, sentence="tlsv13 alert certificate required"),
            "fail: one:1 asks for a certificate -> give --cert and --key",
        ),
        (Answer(Spoken.NOTHING), "fail: one:1 accepts connections and says nothing for 5 s -> the syncer is frozen"),
        (Answer(Spoken.HUNG_UP), "fail: one:1 accepts connections and hangs up without a word -> if it asks for"),
        (
            Answer(Spoken.OTHER, sentence="SSH-2.0"),
            "fail: what answers at one:1 does not speak HTTP: it says 'SSH-2.0'",
        ),
    ],
)
def test_what_is_spoken_there_is_told(answer: Answer, expected: str) -> None:
    assert said(diagnosis.spoken("https://one:1", answer, 5.0)).startswith(expected)


def test_whoever_hangs_up_on_plain_http_may_want_tls() -> None:
    assert "-> if it speaks TLS, write https://" in said(diagnosis.spoken("http://one:1", Answer(Spoken.HUNG_UP), 5.0))


def test_http_is_as_expected() -> None:
    assert diagnosis.spoken("http://one:1", Answer(Spoken.HTTP, 200), 5.0) is None


SHOWN = Certificate("a CA", ("one", "10.0.0.5"), 100 * DAY_S)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (10, "fail: the certificate of one:1 has expired -> have it renewed"),
        (9, "fail: the certificate of one:1 is not valid yet -> set the clock"),
        (62, "fail: the certificate of one:1 is for another name (it has one, 10.0.0.5) -> use a name that it has"),
        (64, "fail: the certificate of one:1 is for another name"),
        (
            20,
            "fail: the certificate of one:1 was made by an authority that is not trusted here (it is of a CA): why ->",
        ),
        (18, "fail: the certificate of one:1 was made by an authority that is not trusted here"),
    ],
)
def test_a_certificate_that_does_not_convince_is_told_why(code: int, expected: str) -> None:
    answer = Answer(Spoken.UNTRUSTED, sentence="why", certificate=SHOWN, verify_code=code)
    assert said(diagnosis.tls("https://one:1", answer, 0.0, is_local=False)).startswith(expected)


@pytest.mark.parametrize(
    ("now_days", "expected"),
    [
        (10, "ok: TLSv1.3 with X; certificate of a CA, 90 days left"),
        (90, "warn: TLSv1.3 with X; certificate of a CA, 10"),
    ],
)
def test_a_certificate_that_ends_soon_is_a_warning(now_days: float, expected: str) -> None:
    answer = Answer(Spoken.HTTP, 200, tls_version="TLSv1.3", cipher="X", certificate=SHOWN)
    assert said(diagnosis.tls("https://one:1", answer, now_days * DAY_S, is_local=False)).startswith(expected)


def test_without_tls_only_this_machine_is_private() -> None:
    answer = Answer(Spoken.HTTP, 200)
    assert said(diagnosis.tls("http://one:1", answer, 0.0, is_local=False)).startswith(
        "warn: none: everybody on the way"
    )
    assert said(diagnosis.tls("http://localhost:1", answer, 0.0, is_local=True)).startswith("ok: none")
    assert diagnosis.tls("http://one:1", Answer(Spoken.NOTHING), 0.0, is_local=False) is None


@pytest.mark.parametrize(
    ("answer", "is_syncer", "expected"),
    [
        (Answer(Spoken.HTTP, 401, "a token is asked for"), False, "fail: a token is asked for -> give the token"),
        (Answer(Spoken.HTTP, 403, "not for observers"), False, "fail: not for observers -> ask for a token of another"),
        (
            Answer(Spoken.HTTP, 503, "this syncer stands by"),
            False,
            "warn: this syncer stands by -> give both addresses",
        ),
        (
            Answer(Spoken.HTTP, 421, "not called 'one'"),
            False,
            "fail: not called 'one' -> use a name that it",
        ),
        (Answer(Spoken.HTTP, 429, "too many requests"), False, "fail: too many requests -> wait for a minute"),
        (
            Answer(Spoken.HTTP, 404, "", "nginx"),
            False,
            "fail: what answers at http://one:1 is not an unlockstep syncer (nginx): status 404 -> check",
        ),
        (
            Answer(Spoken.HTTP, 200, "<html>"),
            False,
            "fail: what answers at http://one:1 is not an unlockstep syncer: <h",
        ),
    ],
)
def test_who_does_not_let_us_in_is_told(answer: Answer, is_syncer: bool, expected: str) -> None:
    assert said(diagnosis.who("http://one:1", answer, is_syncer)).startswith(expected)


def test_a_syncer_needs_no_word() -> None:
    assert diagnosis.who("http://one:1", Answer(Spoken.HTTP, 200, "{}"), True) is None
    assert diagnosis.who("http://one:1", Answer(Spoken.NOTHING), False) is None


def test_versions_of_both_ends_are_compared() -> None:
    assert diagnosis.versions("1.0", 3, "1.0", 3).state is State.OK
    assert said(diagnosis.versions("1.0", 3, "1.1", 3)).startswith(
        "warn: the syncer is unlockstep 1.1, this is 1.0; they"
    )
    assert said(diagnosis.versions("1.0", 3, "2.0", 4)).startswith(
        "fail: the syncer is unlockstep 2.0 (protocol 4), this is 1.0 (protocol 3) -> install the same version on both"
    )


@pytest.mark.parametrize(("role", "state"), [("learner", State.OK), ("admin", State.OK), ("observer", State.WARN)])
def test_a_role_that_may_only_look_is_a_warning(role: str, state: State) -> None:
    assert diagnosis.token(role, is_shown=True).state is state


# ------------------------------------------------------------------------------------------------- the link


def test_round_trips_are_summed_up_and_a_wide_spread_is_a_warning() -> None:
    calm = [0.100, 0.102, 0.104, 0.101, 0.103]
    assert said(diagnosis.round_trips(calm)) == "ok: median 102 ms, fastest 100 ms, slow ones 104 ms (5 requests) -> "
    assert said(diagnosis.round_trips([0.05, 0.4, 0.4, 0.4, 0.5])).startswith("warn: median 400 ms")
    assert diagnosis.round_trips([0.0001, 0.002]).state is State.OK  # Twenty times, and two thousandths of a second.


def test_the_clock_is_judged_by_the_question_that_was_answered_fastest() -> None:
    slow, fast = ClockSample(100.0, 107.0, 104.0), ClockSample(200.0, 200.06, 200.1)
    assert (slow.offset_s, slow.round_trip_s) == (5.0, 4.0)
    assert said(diagnosis.clock([slow, fast])) == "ok: the syncer's is 10 ms ahead of this one (within 50 ms) -> "
    late = ClockSample(200.0, 198.0, 200.1)
    assert said(diagnosis.clock([late])).startswith(
        "warn: the syncer's is 2.05 s behind this one (within 50 ms) -> have"
    )
    assert diagnosis.clock([ClockSample(100.0, 103.0, 104.0)]).state is State.OK  # Within its doubt.


def test_the_fewest_streams_that_bring_the_most_are_named() -> None:
    rates = Rates({1: 1e6, 2: 2e6, 4: 4e6, 8: 4.2e6})
    assert (rates.best, rates.streams) == (4e6, 4)
    assert said(diagnosis.rate("up", rates, 0.1, None)) == (
        "ok: 1 MB/s (8 Mbit/s) in one stream, 4 MB/s (32 Mbit/s) in 4 -> "
    )
    assert Rates({1: 1e6, 2: 0.9e6, 4: 3e6}).streams == 4  # Two brought less than one, by chance.
    limited = said(diagnosis.rate("up", rates, 0.1, 120_000))
    assert "this machine's buffers limit one stream to 1.2 MB/s (9.6 Mbit/s)" in limited
    assert said(diagnosis.rate("down", Rates({1: 2.5e9, 2: 2.4e9}), 0.0, 120_000)) == (
        "ok: 2.5 GB/s (20 Gbit/s) in one stream -> "
    )
