"""Whatever trains: the interface (``backend``), its tests (``conformance``), what passes them (``torch_*``, ``toy``).

Exports nothing, so that a process without torch can import the parts that do not need it.
"""
