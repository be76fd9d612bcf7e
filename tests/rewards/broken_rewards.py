"""A custom module whose import fails."""

BROKEN = 1 / 0
