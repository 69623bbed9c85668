"""The errors of the protocol, by owner. A peer's error costs that peer its connection and never the syncer.

::

    UnlockstepError
    ├── UsageError            the user can mend it: one sentence with the field, the value and the fix
    │   ├── ConfigError       ... in the configuration
    │   └── Unanswered        ... or time mends it: nobody answers at an address
    ├── LocalProtocolError    we broke the protocol: a bug here, please report it
    └── RemoteProtocolError   the other side broke it: refuse, count, go on
"""

from __future__ import annotations


class UnlockstepError(Exception):
    """Base of every error this package raises on purpose."""


class UsageError(UnlockstepError):
    """Something the user can mend. Its text is one sentence: field, value, fix."""


class ConfigError(UsageError):
    """A configuration that cannot run."""


class Unanswered(UsageError):
    """No syncer answers at an address: it is a wrong one, or there is none just now, or no way to it."""


class LocalProtocolError(UnlockstepError):
    """This side did something the protocol does not allow: a bug in unlockstep or in the code that drives it."""


class RemoteProtocolError(UnlockstepError):
    """The other side sent something the protocol does not allow."""
