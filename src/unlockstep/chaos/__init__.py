"""Breaking real processes on purpose, as an event tape says. Decides nothing: see ``supervisor``."""
