"""What a run log says, in numbers: ``accounting`` computes them, ``summary`` shows them. Decides nothing itself."""
