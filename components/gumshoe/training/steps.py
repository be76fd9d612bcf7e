"""What the pipeline's step does to train an adapter."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from gumshoe.scenarios.prepare import SCENARIOS
from gumshoe.training.plots import write_plots
from gumshoe.training.records import read_records
from gumshoe.training.settings import resolve
from gumshoe.training.spec import BEST, FINAL, METADATA, METRICS, Metadata
from gumshoe.training.supervisor import train


@dataclass(frozen=True, slots=True)
class Trained:
    """A run that is at its end."""

    adapter: Path
    """The directory of the best adapter; the last, where none was measured."""
    plots: Path
    facts: dict[str, Any]
    numbers: dict[str, float]


def trained(
    index: Path, scenarios: Path, base_model: str, config: str, settings: Mapping[str, Any], checkpoints: str
) -> Trained:
    """Train in a directory of its own; a run that left checkpoints in the store goes on from there.

    Raises:
        UsageError: it cannot be carried out as it was put.
        UnavailableError: it is to be run again, and goes on then.
    """
    flags = {**settings, "model.name": base_model, "output.checkpoints": checkpoints}
    flags["output.directory"] = mkdtemp(prefix="gumshoe-train-")
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
    return Trained(adapter, page, facts, numbers)
