"""Rewards: numbers for what an episode did."""
