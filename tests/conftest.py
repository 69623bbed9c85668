"""How the tests run: property tests draw the same examples every time, so red is red again on any machine.

To look for new failures: ``pytest --hypothesis-profile=explore tests/properties``. What it finds becomes an explicit
example of the test that found it.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile("repeatable")
