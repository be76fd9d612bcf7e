"""Trainings in the steps of pipelines: their directories, and how they are continued."""

import os
import tempfile
from pathlib import Path

TRAININGS = ".trainings"
"""Subdirectory of a pipeline run on this machine, with the directories of its trainings while they run."""
TRAININGS_VARIABLE = "GUMSHOE_TRAININGS"
"""Environment variable with the path of that directory. In pods, the directory for temporary files is used."""

WARM_STARTS = "runs/warm-start-"
"""Beginning of the path in a store of the checkpoints of warm starts of pipelines; a digest of the inputs follows."""
ATTEMPT_CLAIMS = "attempts"
"""Part of the path in a store, below that of a run or warm start, of an empty object per attempt."""
STEP_VARIABLE = "GUMSHOE_STEP"
"""Environment variable that is set in the processes of pipeline steps."""


def how_to_continue() -> str:
    """Return what continues an unfinished training or warm start, for messages: in a pipeline, it is the pipeline."""
    is_step = bool(os.environ.get(STEP_VARIABLE))
    return "continue by running the pipeline again" if is_step else "continue with --resume"


def create_run_directory() -> Path:
    """Create an empty directory for the training of a step, and return it."""
    return Path(tempfile.mkdtemp(prefix="gumshoe-train-", dir=os.environ.get(TRAININGS_VARIABLE)))
