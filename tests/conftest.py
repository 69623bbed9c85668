"""How the tests run: property tests draw the same examples every time, so red is red again on any machine. Ctrl-C does
what it does at a terminal, also where the tests are started by something that ignores it, which processes inherit.

To look for new failures: ``pytest --hypothesis-profile=explore tests/properties``. What it finds becomes an explicit
example of the test that found it.
"""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile("repeatable")

signal.signal(signal.SIGINT, signal.default_int_handler)
