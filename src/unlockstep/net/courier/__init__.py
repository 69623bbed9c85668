"""Bulk work of a learner in a process of its own, which neither slows the training thread nor is starved by it."""
