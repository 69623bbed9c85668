"""The syncer as a web service, and the learner's and the observer's way to it."""
