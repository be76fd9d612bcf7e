"""Rollouts: chat formats, single episodes, many episodes at once, and the trajectories that they leave."""
