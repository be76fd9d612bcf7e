"""Training: warm start, and the tiny policy that it makes from nothing."""
