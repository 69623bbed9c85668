"""The syncer's clients: a learner's and an observer's end of the wire."""
