"""Reward functions, judges, and ways to combine rewards and to choose among samples."""
