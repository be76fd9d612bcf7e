"""What the pipeline's steps do to train an adapter."""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gumshoe.artifacts.storage import open_uri
from gumshoe.scenarios.prepare import SCENARIOS
from gumshoe.training.plots import write_plots
from gumshoe.training.records import read_records
from gumshoe.training.settings import resolve
from gumshoe.training.spec import BEST, FINAL, METADATA, METRICS, SHAPE, Metadata
from gumshoe.training.supervisor import train


@dataclass(frozen=True, slots=True)
class Trained:
    """A run that is at its end."""

    directory: Path
    """All that it left on this machine."""
    adapter: Path
    """The directory of the best adapter; the last, where none was measured."""
    plots: Path
    facts: dict[str, Any]
    numbers: dict[str, float]


def warmed_up(
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

    Raises:
        UsageError: they cannot be had, or nothing can be learned from them.
        UnavailableError: the judge gave no verdict.
    """
    if not demonstrations:
        (directory / "none").touch()  # Kubeflow does not keep empty directories
        return {}
    from gumshoe.training.demonstrations import warm_started  # and torch, which the process of `trained` does not need

    flags = {**settings, "model.name": base_model, "evaluation.judge": judge}
    with tempfile.TemporaryDirectory(prefix="gumshoe-warm-start-") as scratch:
        file = Path(scratch, demonstrations.rpartition("/")[2])
        with open_uri(demonstrations) as found, file.open("wb") as copy:
            shutil.copyfileobj(found, copy)
        known = resolve(config, flags).settings
        report = warm_started(known, index, str(scenarios / SCENARIOS), file, directory)
    return {name: float(value) for name, value in asdict(report).items()}


def trained(
    index: Path,
    scenarios: Path,
    base_model: str,
    config: str,
    settings: Mapping[str, Any],
    checkpoints: str,
    start: Path | None = None,
) -> Trained:
    """Train in a directory of its own; a run that left checkpoints in the store goes on from there.

    It begins at the adapter in `start`, where that holds one.

    Raises:
        UsageError: it cannot be carried out as it was put.
        UnavailableError: it is to be run again, and goes on then.
    """
    flags = {**settings, "model.name": base_model, "output.checkpoints": checkpoints}
    flags["output.directory"] = tempfile.mkdtemp(prefix="gumshoe-train-")
    if start is not None and (start / SHAPE).exists():
        flags["lora.start"] = str(start)
    directory = train(
        resolve(config, flags).settings, index, str(scenarios / SCENARIOS), resume=True, replace_run=False
    )
    adapter = directory / (BEST if (directory / BEST).exists() else FINAL)
    metadata = Metadata.model_validate_json((adapter / METADATA).read_bytes())
    facts = {
        "base_model": metadata.settings.model.name,
        "step": metadata.step,
        "run": metadata.run,
        "mail": metadata.mail,
    }
    numbers = {
        f"{event} {name}": float(value)
        for event, record in metadata.metrics.items()
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    # Drawn from the records, which are all that the store has of a run that was at its end before.
    page = write_plots(read_records(directory / METRICS), directory, f"Run {metadata.run}")
    return Trained(directory, adapter, page, facts, numbers)
