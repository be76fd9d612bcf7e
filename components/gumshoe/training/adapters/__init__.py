"""LoRA adapters on disk: create, inspect and merge."""
