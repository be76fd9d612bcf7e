"""The commands `gumshoe train`, `warm-start`, `plan` and `adapter`."""
