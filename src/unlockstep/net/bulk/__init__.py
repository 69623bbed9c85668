"""Bodies over several connections at once: a learner's or observer's side of every large transfer."""
