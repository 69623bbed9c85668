"""The protocol and its numbers, free of IO: no sockets, clocks, threads, randomness or logging."""
