"""Evaluate policies, compare them with paired statistics, and gate on the result."""
