"""What both ends of the wire agree on: addresses and records, deadlines, ranges of bytes, names of machines."""
