"""Questions with known answers: load them, check them against an index, and split them without leaks."""
