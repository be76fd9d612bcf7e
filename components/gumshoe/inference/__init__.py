"""Inference: vLLM servers and clients, models in this process, policy names, and the reaper of child processes."""

import os

os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it warns that torch is missing
