"""Train an adapter in a step of a pipeline."""

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gumshoe.artifacts.storage import open_uri
from gumshoe.corpus import SCENARIOS_FILE
from gumshoe.errors import GumshoeError
from gumshoe.evaluation.proof.held_out import copy_run_evidence
from gumshoe.evaluation.proof.proof_models import TRAINING
from gumshoe.terminal import err, printable
from gumshoe.training.launch.checkpoint_sync import CheckpointStore
from gumshoe.training.launch.supervisor import train
from gumshoe.training.plots import write_plots
from gumshoe.training.records import read_records
from gumshoe.training.run_directory import WARM_STARTS, create_run_directory
from gumshoe.training.run_spec import BEST, FINAL, METADATA, METRICS, PAGE, STALLED, Metadata
from gumshoe.training.settings_checks import check_pipeline_warm_start
from gumshoe.training.settings_sections import GOLD
from gumshoe.training.settings_sources import resolve
from gumshoe.training.train_request import TrainRequest


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The result of a finished run."""

    directory: Path
    """Directory of the run on this machine."""
    adapter: Path
    """Directory of the best adapter, or of the last one if there was no evaluation after a step."""
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
    store: str,
    code: str,
) -> dict[str, float]:
    """Train an adapter on demonstrations, and return the numbers of the report; do nothing if `demonstrations` is "".

    `demonstrations` is the URI of a file of episodes, or "gold" to make them from the scenarios and their sources.
    A warm start with the same inputs and code (`code` is the hash of it) is continued: from the directory, or else from
    the artifact store at the URI `store`. Its last checkpoint stays in the store, because the pod may be lost before
    Kubeflow has uploaded the adapter, and other runs may be at work on the same warm start.

    Raises:
        UsageError: the demonstrations cannot be read, none of them can be trained on, or the settings do not make an
            adapter.
        UnavailableError: the judge gave no verdict, the process was asked to stop, or the store failed.
    """
    if not demonstrations:
        (directory / "none").touch()  # Kubeflow does not keep empty directories
        return {}
    from gumshoe.training.sft.gold_demonstrations import start_warm_from_gold
    from gumshoe.training.sft.warm_start import digest_warm_start, start_warm

    flags = {**settings, "model.name": base_model, "evaluation.judge": judge}
    known, asked = resolve(config, flags).settings, str(scenarios / SCENARIOS_FILE)
    check_pipeline_warm_start(known)

    def open_kept(file: Path | None) -> CheckpointStore:
        # Not below the ID of the run: an argument that each run changes would keep the step from being cached.
        key = hashlib.sha256(f"{code} {digest_warm_start(known, index, asked, file)}".encode()).hexdigest()[:16]
        return CheckpointStore(f"{store}/{WARM_STARTS}{key}", 1)

    if demonstrations == GOLD:
        report = start_warm_from_gold(known, index, asked, directory, resume=True, store=open_kept(None))
    else:
        with tempfile.TemporaryDirectory(prefix="gumshoe-warm-start-") as scratch:
            file = Path(scratch, demonstrations.rpartition("/")[2])
            with open_uri(demonstrations) as found, file.open("wb") as copy:
                shutil.copyfileobj(found, copy)
            report = start_warm(known, index, asked, file, directory, resume=True, store=open_kept(file))
    return {name: float(value) for name, value in report.model_dump().items()}


def train_adapter(request: TrainRequest) -> TrainResult:
    """Train in a new directory. A run that left checkpoints in the store continues from there.

    Raises:
        UsageError: the request cannot be carried out.
        UnavailableError: the training was interrupted; the same request continues it.
    """
    return load_result(run_training(request))


def run_training(request: TrainRequest) -> Path:
    """Train as `train_adapter`, and return the run's directory; of several nodes, that of this one.

    After an error, the directory is removed if the store has what another attempt continues from. What a run without
    progress has written is printed before.

    Raises:
        UsageError, UnavailableError: as `train_adapter`.
    """
    directory = create_run_directory()
    here = {"output.directory": str(directory)}
    try:
        return train(request.with_settings(here), resume=True, replace_run=False)
    except BaseException:
        with suppress(GumshoeError, OSError):
            if (directory / STALLED).exists():
                err.print(printable((directory / STALLED).read_text(errors="replace")), soft_wrap=True)
            if CheckpointStore(request.checkpoints, 1).has_last(directory):
                shutil.rmtree(directory)
        raise


def load_result(directory: Path) -> TrainResult:
    """Read the result of a finished run from its directory, and draw its plots if the run has not."""
    adapter = directory / (BEST if (directory / BEST).exists() else FINAL)
    copy_run_evidence(directory, adapter / TRAINING)  # later steps get the adapter alone
    metadata = Metadata.model_validate_json((adapter / METADATA).read_bytes())
    facts = {
        "base_model": metadata.settings.model.name,
        "step": metadata.step,
        "run": metadata.run,
        "searched": metadata.searched,
        "agent": metadata.settings.agent.word if metadata.settings.agent else "",
    }
    numbers = {
        f"{event} {name}": float(value)
        for event, record in metadata.metrics.items()
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    page = directory / PAGE
    if not page.exists():  # the store of a run that had already finished contains its records, but not its plots
        write_plots(read_records(directory / METRICS), directory, f"Run {metadata.run}")
    return TrainResult(directory, adapter, page, facts, numbers)
