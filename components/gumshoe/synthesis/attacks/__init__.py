"""Attack messages: mail that tries to make an agent do what its sender wants, and how to tell if it did."""
