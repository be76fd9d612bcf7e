"""An OpenAI-compatible front of a policy, so that agents of any kind can be trained, measured and served."""
