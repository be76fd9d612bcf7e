"""The judge that needs no model: compare values, names and words by rules."""
