"""Implement the checks of `gumshoe doctor`, one function each. They change nothing permanently."""
