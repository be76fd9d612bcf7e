"""What the pipeline's steps do to train an adapter."""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gumshoe.artifacts.storage import open_uri
from gumshoe.scenarios.scenario import SCENARIOS
from gumshoe.training.launch.supervisor import train
from gumshoe.training.plots import write_plots
from gumshoe.training.records import read_records
from gumshoe.training.run_spec import BEST, FINAL, METADATA, METRICS, SHAPE, Metadata
from gumshoe.training.settings import resolve


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """A training, as a step is asked for it."""

    index: Path
    scenarios: Path
    """The directory that has them."""
    base_model: str
    config: str
    settings: Mapping[str, Any]
    checkpoints: str
    """The URI that they go to, of this run alone."""
    start: Path | None = None
    """The adapter to begin at; an empty directory is none."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A run that is at its end."""

    directory: Path
    """All that it left on this machine."""
    adapter: Path
    """The directory of the best adapter; the last, where none was measured."""
    plots: Path
    facts: dict[str, Any]
    numbers: dict[str, float]


def run_sft(
    index: Path,
    scenarios: Path,
    base_model: str,
    config: str,
    settings: Mapping[str, Any],
    demonstrations: str,
    judge: str,
    directory: Path,
) -> dict[str, float]:
    """Train an adapter on demonstrations, where there are some; what there is to tell of that.

    Where the directory has what an earlier try left there, it goes on from that.

    Raises:
        UsageError: they cannot be had, or nothing can be learned from them.
        UnavailableError: the judge gave no verdict, or it was asked to end.
    """
    if not demonstrations:
        (directory / "none").touch()  # Kubeflow does not keep empty directories
        return {}
    from gumshoe.training.sft.warm_start import start_warm

    flags = {**settings, "model.name": base_model, "evaluation.judge": judge}
    with tempfile.TemporaryDirectory(prefix="gumshoe-warm-start-") as scratch:
        file = Path(scratch, demonstrations.rpartition("/")[2])
        with open_uri(demonstrations) as found, file.open("wb") as copy:
            shutil.copyfileobj(found, copy)
        known = resolve(config, flags).settings
        report = start_warm(known, index, str(scenarios / SCENARIOS), file, directory, resume=True)
    return {name: float(value) for name, value in report.model_dump().items()}


def train_adapter(asked: TrainRequest) -> TrainResult:
    """Train in a directory of its own; a run that left checkpoints in the store goes on from there.

    Raises:
        UsageError: it cannot be carried out as it was put.
        UnavailableError: it is to be run again, and goes on then.
    """
    return result_of(run_training(asked))


def run_training(asked: TrainRequest) -> Path:
    """The directory in which it trained, as `trained`; of several nodes, that of this one.

    Raises:
        UsageError, UnavailableError: as `trained`.
    """
    flags = {**asked.settings, "model.name": asked.base_model, "output.checkpoints": asked.checkpoints}
    flags["output.directory"] = tempfile.mkdtemp(prefix="gumshoe-train-")
    if asked.start is not None and (asked.start / SHAPE).exists():
        flags["lora.start"] = str(asked.start)
    known = resolve(asked.config, flags).settings
    return train(known, asked.index, str(asked.scenarios / SCENARIOS), resume=True, replace_run=False)


def result_of(directory: Path) -> TrainResult:
    """What a run that is at its end left in its directory."""
    adapter = directory / (BEST if (directory / BEST).exists() else FINAL)
    metadata = Metadata.model_validate_json((adapter / METADATA).read_bytes())
    facts = {
        "base_model": metadata.settings.model.name,
        "step": metadata.step,
        "run": metadata.run,
        "searched": metadata.searched,
    }
    numbers = {
        f"{event} {name}": float(value)
        for event, record in metadata.metrics.items()
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    # Drawn from the records, which are all that the store has of a run that was at its end before.
    page = write_plots(read_records(directory / METRICS), directory, f"Run {metadata.run}")
    return TrainResult(directory, adapter, page, facts, numbers)
