"""Directories of the trainings of pipeline steps."""

import os
import tempfile
from pathlib import Path

TRAININGS = ".trainings"
"""Subdirectory of a pipeline run on this machine, with the directories of its trainings while they run."""
TRAININGS_VARIABLE = "GUMSHOE_TRAININGS"
"""Environment variable with the path of that directory. In pods, the directory for temporary files is used."""


def create_run_directory() -> Path:
    """Create an empty directory for the training of a step, and return it."""
    return Path(tempfile.mkdtemp(prefix="gumshoe-train-", dir=os.environ.get(TRAININGS_VARIABLE)))
