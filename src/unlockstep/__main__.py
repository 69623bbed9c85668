"""``python -m unlockstep`` is the ``unlockstep`` command. Decides nothing."""

from __future__ import annotations

from unlockstep.cli import main

if __name__ == "__main__":
    main()
