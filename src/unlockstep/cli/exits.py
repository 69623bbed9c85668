"""How a process of ours ends: every exit code there is, and in order within five seconds when asked to.

Decides exit codes, which signals ask a process to end, and that it is gone in time even if what it is doing is not.
Does not decide what ending in order means for a syncer, a learner or an evaluator.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from unlockstep.core.errors import UnlockstepError
from unlockstep.orphans import wake_at_parents_end

DONE = 0
"""It did what it was asked to."""
FAILED = 1
"""The run, or this process's part in it, has failed; stderr says why in one sentence."""
USAGE = 2
"""Something the user can mend: an argument, a setting, a file, an address."""
UNANSWERED = 3
"""No syncer answers at the address: the user can mend it, or it passes."""
CRASH = 10
"""A simulated run raised an error."""
SAFETY = 11
"""In a simulated run something happened that must never happen."""
LIVENESS = 12
"""In a simulated run something did not happen that should have."""
OUT_OF_RESOURCES = 13
"""A simulated run took too long to tell: it has neither passed nor failed."""
BUG = 70
"""An error nobody expected; the traceback is on stderr. Please report it."""
SIGNALLED = 128
"""Plus the signal's number: it was asked to end before it was done, and did so in order. 143: SIGTERM; 129: SIGHUP."""
INTERRUPTED = SIGNALLED + signal.SIGINT
"""130: Ctrl-C."""

ENDING_S_MAX = 4.5
"""From the first signal until the process ends as it is."""

AGAIN_S = 0.5
"""A signal that comes sooner after the first is the same request: ``timeout`` and others that pass signals on send them
to a process and to its group."""

PARENT_LOOK_S = 0.5
"""How often a process looks whether its parent is alive."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RunFailed(UnlockstepError):
    """Exit code ``FAILED``; the text is the sentence."""


class StopRequest:
    """Whether somebody has asked this process to end. ``asked`` is set in a thread of its own, never in a signal."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.signal: int | None = None
        """Which signal it was; SIGTERM also stands for the death of the parent."""
        self._then: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def then(self, call: Callable[[], object]) -> None:
        """Call this, from another thread, when the request comes; at once if it has come."""
        with self._lock:
            if not self.asked.is_set():
                self._then.append(call)
                return
        call()

    @property
    def exit_code(self) -> int:
        """What a process ends with that did nothing wrong."""
        return DONE if self.signal is None else SIGNALLED + self.signal

    def _ask(self, number: int) -> None:
        self.signal = number
        with self._lock:
            self.asked.set()
        for call in self._then:
            call()


@contextmanager
def stop_request(
    parent_pid: int | None = None, ending_s: float | None = None, on_hangup: Callable[[], object] | None = None
) -> Iterator[StopRequest]:
    """SIGINT, SIGTERM and the death of the parent become a request while the block runs.

    A second signal ends the process at once, if it does not come in the same moment (``AGAIN_S``), and so does the time
    when ``ending_s`` is over. To be called in the main thread.

    Args:
        parent_pid: the process this one must not outlive; None: none.
        ending_s: from the first signal until the process ends as it is; None: ``ENDING_S_MAX``.
        on_hangup: called at SIGHUP, from another thread, and then the process ends as it is; None: SIGHUP does what it
            does. Where it is ignored (``nohup``) it stays so.
    """
    request = StopRequest()
    if parent_pid is not None:
        wake_at_parents_end()  # Who stands still does not look.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # The handlers do nothing: the pipe is written to in any case, even while the main thread is in a long C call.
    numbers = list(_SIGNALS)
    if on_hangup is not None and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = [signal.signal(number, lambda *_: None) for number in numbers]
    woken_before = signal.set_wakeup_fd(writer)
    watcher = threading.Thread(
        target=_watch, args=(request, reader, parent_pid, ending_s, on_hangup), name="unlockstep-stop", daemon=True
    )
    watcher.start()
    try:
        yield request
    finally:
        signal.set_wakeup_fd(woken_before)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        os.close(writer)
        watcher.join()
        os.close(reader)


def _watch(
    request: StopRequest,
    reader: int,
    parent_pid: int | None,
    ending_s: float | None,
    on_hangup: Callable[[], object] | None,
) -> None:
    """Wait for a signal's number in the pipe, until its other end is closed."""
    asked_s, until_s = 0.0, float("inf")
    while True:
        pause_s = until_s - time.monotonic()
        if parent_pid is not None:
            pause_s = min(pause_s, PARENT_LOOK_S)
        ready, _, _ = select.select([reader], [], [], None if pause_s == float("inf") else max(0.0, pause_s))
        number: int = signal.SIGTERM
        if ready:
            written = os.read(reader, 1)
            if not written:
                return
            number = written[0]
            if number == signal.SIGHUP and on_hangup is not None:
                on_hangup()
                os._exit(SIGNALLED + number)
            if number not in _SIGNALS:
                continue
        elif not request.asked.is_set() and (parent_pid is None or os.getppid() == parent_pid):
            continue
        if not request.asked.is_set():
            asked_s = time.monotonic()
            until_s = asked_s + (ENDING_S_MAX if ending_s is None else ending_s)
            request._ask(number)
        elif (ready and time.monotonic() - asked_s >= AGAIN_S) or time.monotonic() >= until_s:
            os._exit(SIGNALLED + (request.signal or number))
