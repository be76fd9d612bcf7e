"""Token-exact conversations: how a model's chat template writes turns, reasoning, calls and results."""
