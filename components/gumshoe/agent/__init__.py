"""What happens between a question and a trajectory: environments, policies, episodes, and many of them at once."""

import os

os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # tokenizers do not need the torch that it misses
