"""The protocol under virtual time: no sockets, no waiting, the same history every time."""
