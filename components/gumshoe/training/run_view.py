"""Read what a run's directory says about it, while the run writes there. Nothing is changed."""

import fcntl
import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from gumshoe.errors import UsageError
from gumshoe.training.progress_file import RunProgress, read_progress
from gumshoe.training.records import EvaluationRecord, Record, StepRecord
from gumshoe.training.run_directory import TRAININGS
from gumshoe.training.run_spec import FINAL, METADATA, METRICS, PROGRESS, SPEC, STALLED

State = Literal["running", "finished", "stopped", "ended"]
"""`ended`: a pipeline has removed the directory of its training since."""

_RECORD: TypeAdapter[StepRecord | EvaluationRecord] = TypeAdapter(Record)
_RECENT = 20  # steps that the time left is estimated from
_ALIVE = 60.0  # seconds since the last sign of a run on a file system without locks
_PIPELINE = "pipeline"  # key in the run.json of a pipeline


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, as its directory shows it now."""

    directory: Path
    state: State
    run: str
    facts: dict[str, str]
    """Model, mode, algorithm and engine."""
    steps: list[StepRecord] = field(default_factory=list)
    evaluations: list[EvaluationRecord] = field(default_factory=list)
    progress: RunProgress | None = None
    length: int | None = None
    """Number of steps of the whole run, if it is known."""
    is_stalled: bool = False

    @property
    def step(self) -> int:
        """Number of finished steps."""
        return self.steps[-1].step if self.steps else 0

    @property
    def seconds_left(self) -> float | None:
        """Estimated time until the last step, from the latest steps. None if it is not known."""
        if self.length is None or not self.steps or self.state != "running":
            return None
        recent = [each.seconds for each in self.steps[-_RECENT:]]
        return (self.length - self.step) * statistics.fmean(recent)


def read_run(directory: Path) -> RunView:
    """Read a run's directory. Lines and files that are incomplete, or of another version, are left out.

    Raises:
        UsageError: the directory contains no run.
    """
    spec = _read_json(directory / SPEC)
    settings = spec.get("settings")
    if not isinstance(settings, dict):
        raise UsageError(
            "training.no-run", f"{directory} contains no training run; name the --out directory of `gumshoe train`"
        )
    optimizer, progress = settings.get("optimizer", {}), read_progress(directory / PROGRESS)
    records = list(_read_records(directory / METRICS))
    planned = optimizer.get("max_steps", -1)
    return RunView(
        directory,
        _find_state(directory, progress),
        str(spec.get("run", "")),
        dict(_describe(settings, spec)),
        [each for each in records if isinstance(each, StepRecord)],
        [each for each in records if isinstance(each, EvaluationRecord)],
        progress,
        planned if planned > 0 else progress.steps if progress else None,
        (directory / STALLED).exists(),
    )


def find_run(directory: Path) -> Path | None:
    """Return the directory of a training run: the given one, or that of the newest training of a pipeline run in it.

    Returns None if the directory belongs to a pipeline run that does not train. While that is at work, a training that
    stopped is left out, because another attempt follows.

    Raises:
        UsageError: the directory contains neither.
    """
    spec = _read_json(directory / SPEC)
    if "settings" in spec:
        return directory
    if _PIPELINE not in spec:
        raise UsageError(
            "training.no-run",
            f"{directory} contains no training run; name the --out directory of `gumshoe train` or "
            "`gumshoe pipeline run`",
        )
    found = [each.parent for each in (directory / TRAININGS).glob(f"*/{SPEC}")]
    if is_locked(directory):
        found = [each for each in found if _find_state(each, read_progress(each / PROGRESS)) != "stopped"]
    return max(found, key=_find_start, default=None)


def _find_start(directory: Path) -> float:
    try:
        return (directory / SPEC).stat().st_mtime
    except FileNotFoundError:  # the step has removed it
        return 0.0


def _describe(settings: dict[str, Any], spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    rollouts, optimizer = settings.get("rollouts", {}), settings.get("optimizer", {})
    yield "model", str(settings.get("model", {}).get("name", "unknown"))
    yield "mode", str(settings.get("mode", "unknown"))
    yield "algorithm", str((optimizer.get("algorithm") or {}).get("name", "unknown"))
    urls = spec.get("urls") or ()
    servers = f" on {', '.join(urls)}" if urls else " in the trainer" if rollouts.get("engine") != "vllm" else ""
    yield "rollouts", f"{rollouts.get('engine', 'unknown')}{servers}"
    yield "trainers", str(optimizer.get("processes", 1))


def _read_records(path: Path) -> Iterator[StepRecord | EvaluationRecord]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            yield _RECORD.validate_json(line)
        except ValidationError:
            continue


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _find_state(directory: Path, progress: RunProgress | None) -> State:
    is_held = is_locked(directory)
    if is_held is None:
        is_held = progress is not None and time.time() - progress.updated < _ALIVE
    if is_held:
        return "running"
    return "finished" if (directory / FINAL / METADATA).exists() else "stopped"


def is_locked(directory: Path) -> bool | None:
    """Return True if a training or a pipeline run is at work in its directory; None if the file system has no locks."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # a step has removed it
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False
