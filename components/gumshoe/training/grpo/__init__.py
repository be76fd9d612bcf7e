"""GRPO: the training loop, the trainer, and the rollouts of each step."""
