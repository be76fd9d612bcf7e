"""Questions with known answers: load them, check them against a mail index, split them without leaks."""
