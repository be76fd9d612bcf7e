"""Rule-based judge: compare values, names and words without a model."""
