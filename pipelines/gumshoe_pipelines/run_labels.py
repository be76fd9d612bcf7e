"""Labels of the pods and TrainJobs of a run."""

PROJECT_LABEL, RUN_LABEL, STEP_LABEL = "gumshoe.dev/project", "gumshoe.dev/run", "gumshoe.dev/step"
"""Labels of pods. `gumshoe pipeline submit` replaces the compiled values of project and run."""


def get_project_name(store: str) -> str:
    """Return the name of a project: the last part of its store's URI."""
    return store.rstrip("/").rpartition("/")[2]
