"""Sample from models: vLLM servers and their clients, models in this process, and the reaper of child processes."""

import os

os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # tokenizers do not need the torch that it misses
