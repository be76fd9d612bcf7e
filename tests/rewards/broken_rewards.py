"""A module of somebody's that fails while it is imported."""

BROKEN = 1 / 0
