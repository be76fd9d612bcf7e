"""Generate synthetic mail and documents with questions, for experiments, tests and training without real mail."""
