"""The examination of the way to one syncer, from its name to whether the link will do: what is asked, in what order.

Decides the order, when there is no point in going on, and how long each part may take: half a minute in all. Does not
decide what is wrong (``diagnosis``), nor how it is found out (``link_check``, ``link_rates``).
"""

from __future__ import annotations

import http.client
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from unlockstep import __version__
from unlockstep import config as run_config
from unlockstep.config import RunConfig
from unlockstep.core.errors import RemoteProtocolError, UsageError
from unlockstep.core.ids import PROTOCOL_VERSION
from unlockstep.core.status import Status
from unlockstep.net.access.security import ClientSecurity
from unlockstep.net.doctor import diagnosis, link_rates, run_needs
from unlockstep.net.doctor.diagnosis import Answer, ClockSample, Door, Finding, Rates, Spoken
from unlockstep.net.doctor.link_check import Line, ask, attempt
from unlockstep.net.wire import api, names
from unlockstep.net.wire.interfaces import interfaces
from unlockstep.net.wire.names import Target
from unlockstep.net.wire.timeouts import Leases, Measured, Timeouts, derive, leases_of

ADDRESSES_MAX = 4
"""Tried, of all that a name has."""

ANSWER_S_MAX = 5.0
QUESTIONS = 21
QUESTIONS_S_MAX = 3.0
RATE_S_MAX = 8.0
"""For each direction."""

NETWORK_ERRORS = (OSError, http.client.HTTPException, RemoteProtocolError)


class Examination:
    """Of one address.

    Args:
        url: as ``api.base_urls`` gives it.
        security: what is shown and checked.
        run: name of the run; None: the one that is there.
        with_rates: whether the link is loaded to see what it carries.
        told: what is done at the moment, for whoever waits.
    """

    def __init__(
        self,
        url: str,
        security: ClientSecurity,
        run: str | None = None,
        with_rates: bool = True,
        told: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._target = Target.of(url)
        self._security = security
        self._run = run
        self._with_rates = with_rates
        self._told = told
        self._is_local = False
        self._round_trip_s: float | None = None
        self._rates: dict[str, Rates] = {}
        self._config: RunConfig | None = None
        self._status: Status | None = None

    @property
    def measured(self) -> Measured:
        """What has been measured so far."""
        rates = {way: rates.best for way, rates in self._rates.items()}
        step_s = None if self._status is None else run_needs.step_s(self._status)
        return Measured(self._round_trip_s, rates.get("up"), rates.get("down"), step_s)

    def timeouts(self, has_standby: bool) -> Timeouts:
        """The deadlines of a learner here, with the settings of the run, if they are known, and what was measured."""
        leases = Leases(has_standby=has_standby) if self._config is None else leases_of(self._config, has_standby)
        model_bytes = 0
        if self._config is not None and self._status is not None:
            model_bytes = int(sum(self._status.fragment_sizes) * self._config.codec.download.bits_per_element / 8)
        return derive(leases, self.measured, model_bytes)

    def findings(self) -> Iterator[Finding]:
        """One after the other, as they are found; the last one may be what there is no going on from."""
        try:
            if (yield from self._reach()):
                about = yield from self._meet()
                if about is not None:
                    yield from self._measure()
                    yield from self._judge_run(about)
        except UsageError as error:
            sentence, _, fix = str(error).partition("; ")
            yield diagnosis.fail("token", sentence, fix)
        except NETWORK_ERRORS as error:
            yield diagnosis.fail(
                "link",
                f"the connection broke while it was used ({error or type(error).__name__})",
                "try again; if that goes on, something in between ends connections: a proxy, a firewall, a bad line",
            )

    # ------------------------------------------------------------------------------------------- its parts

    def _reach(self) -> Generator[Finding, None, bool]:
        """Whether anybody can be connected to."""
        host, number = self._target.host, self._target.port
        self._told(f"looks {host} up")
        began_s = time.monotonic()
        addresses = names.resolve(host)[:ADDRESSES_MAX]
        yield diagnosis.names(host, addresses, time.monotonic() - began_s)
        if not addresses or addresses[0].is_unspecified:
            return False
        self._told(f"connects to port {number}")
        known = interfaces()
        with ThreadPoolExecutor(len(addresses), "unlockstep-attempt") as threads:
            attempts = list(threads.map(lambda address: attempt(address, number, known), addresses))
        yield diagnosis.port(host, number, attempts)
        reached = next((each for each in attempts if each.door is Door.OPEN), None)
        if reached is None:
            return False
        yield diagnosis.way(reached, known)
        self._is_local = ip_address(reached.local_address).is_loopback
        return True

    def _meet(self) -> Generator[Finding, None, api.About | None]:
        """Who answers; None if it is nobody to go on with."""
        url = self._target.url
        self._told("asks who is there")
        answer = ask(self._target, self._security, ANSWER_S_MAX)
        about = _about(answer)
        for found in (
            diagnosis.spoken(url, answer, ANSWER_S_MAX),
            diagnosis.tls(url, answer, time.time(), self._is_local),
            diagnosis.who(url, answer, about is not None),
        ):
            if found is not None:
                yield found
        if about is None:
            return None
        yield diagnosis.versions(__version__, PROTOCOL_VERSION, about.unlockstep, about.protocol)
        yield diagnosis.token(about.role, bool(self._security.headers(url)))
        return about if about.protocol == PROTOCOL_VERSION else None

    def _measure(self) -> Iterator[Finding]:
        """How good the link is."""
        self._told("measures the round trip")
        samples = self._ask_the_time()
        if samples:
            self._round_trip_s = statistics.median(sample.round_trip_s for sample in samples)
            yield diagnosis.round_trips([sample.round_trip_s for sample in samples])
            yield diagnosis.clock(samples)
        if not self._with_rates:
            return
        for way in ("up", "down"):
            try:
                rates = link_rates.measure(way, self._target, self._security, RATE_S_MAX, self._told)
            except NETWORK_ERRORS as error:
                yield diagnosis.warn(
                    f"rate {way}",
                    f"it could not be measured: {error or type(error).__name__}",
                    "a token of the role learner is needed, and a link that moves more than 64 KiB in 8 s",
                )
                continue
            self._rates[way] = rates
            yield diagnosis.rate(way, rates, self._round_trip_s or 0.0, window_bytes(way))

    def _ask_the_time(self) -> Sequence[ClockSample]:
        until_s = time.monotonic() + QUESTIONS_S_MAX
        samples: list[ClockSample] = []
        with Line(self._target, self._security, ANSWER_S_MAX) as line:
            line.ask_the_time()  # The first one may have to wait for something that the others find ready.
            while len(samples) < QUESTIONS and (not samples or time.monotonic() < until_s):
                sample = line.ask_the_time()
                if sample is None:
                    break
                samples.append(sample)
        return samples

    def _judge_run(self, about: api.About) -> Iterator[Finding]:
        """Whether the link will do for the run."""
        run = self._run or about.runs[0]
        if run not in about.runs:
            yield diagnosis.fail("run", f"there is no run {run!r} here, only {about.runs[0]!r}", "leave out --run")
            return
        self._told("asks for the settings of the run")
        with Line(self._target, self._security, ANSWER_S_MAX) as line:
            config_status, toml = line.get(api.config_path(run))
            status_status, state = line.get(api.status_path(run))
        if (config_status, status_status) != (200, 200):
            yield diagnosis.warn(
                "run", f"its settings are not told: status {max(config_status, status_status)}", "ask for another token"
            )
            return
        source = f"the configuration from {self._target.url}"
        self._config = run_config.loads(toml.decode(errors="replace"), source=source)
        self._status = api.read_answer(state, Status)
        yield run_needs.settings(self._config, self._status)
        if self._status.fragment_sizes and len(self._rates) == 2:
            step_s = run_needs.step_s(self._status)
            need = run_needs.need(self._config, self._status.fragment_sizes, step_s)
            yield run_needs.suffices(need, self._rates["up"].best, self._rates["down"].best, step_s is not None)


def _about(answer: Answer) -> api.About | None:
    if answer.spoken is not Spoken.HTTP or answer.status != 200:
        return None
    with suppress(RemoteProtocolError):
        return api.read_answer(answer.sentence, api.About)
    return None


def window_bytes(way: str, settings: Path = Path("/proc/sys/net/ipv4")) -> int | None:
    """The most that one connection of this machine may have under way; None: the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        largest = int((settings / ("tcp_wmem" if way == "up" else "tcp_rmem")).read_text().split()[2])
        return largest if way == "up" else largest // 2  # Half of what arrives is bookkeeping.
    return None
