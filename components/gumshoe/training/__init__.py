"""Training: settings, GRPO, supervised warm starts, the processes of a run, adapters, models and planning."""
