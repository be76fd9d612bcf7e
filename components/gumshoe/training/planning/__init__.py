"""Plan a run: memory, GPUs and time."""
