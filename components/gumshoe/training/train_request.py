"""The request that goes from a command or a pipeline step to the supervisor, through a store if on other nodes."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from gumshoe.artifacts.manifest import content_digest, describe_files, find_artifact_files
from gumshoe.artifacts.store import Store
from gumshoe.corpus import SCENARIOS_FILE
from gumshoe.rollouts.agent_code import digest_code
from gumshoe.training.run_spec import ADAPTER_CONFIG
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sources import resolve

_RESULTS = "results"
_INDEX, _SCENARIOS, _START = "inputs/index", "inputs/scenarios", "inputs/start"


class TrainRequest(BaseModel):
    """A request to train an adapter.

    Inputs are paths on this machine; after `publish`, they are references in the store of the run's checkpoints.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: str
    """Directory of an index."""
    scenarios: str
    """A file of scenarios, or a source as for `gumshoe scenarios load`."""
    config: str = ""
    """Settings: a name that comes with Gumshoe, a path, or a URI; empty for the defaults."""
    settings: dict[str, Any] = {}
    """More settings, by dotted name."""
    start: str = ""
    """The adapter to start from; empty for none."""
    agent_code: str = ""
    """Digest of the agent's code, after `publish`; empty without an agent, or if its code is not known."""
    resolved: str = ""
    """Digest of all settings, those of the file `config` too, after `publish`."""

    @classmethod
    def of_step(
        cls,
        index: Path,
        scenarios: Path,
        base_model: str,
        config: str,
        settings: Mapping[str, Any],
        checkpoints: str,
        start: Path | None,
    ) -> "TrainRequest":
        """Return the request of a pipeline step, whose inputs are directories; an empty `start` is ignored."""
        return cls(
            index=str(index),
            scenarios=str(scenarios / SCENARIOS_FILE),
            config=config,
            settings={**settings, "model.name": base_model, "output.checkpoints": checkpoints},
            start=str(start) if start is not None and (start / ADAPTER_CONFIG).exists() else "",
        )

    @property
    def checkpoints(self) -> str:
        """The URI of the run's checkpoints.

        Raises:
            KeyError: the request names none.
        """
        return str(self.settings["output.checkpoints"])

    def with_settings(self, settings: Mapping[str, Any]) -> "TrainRequest":
        """Return this request with more settings, by dotted name."""
        return self.model_copy(update={"settings": {**self.settings, **settings}})

    def resolve(self) -> TrainSettings:
        """Return all settings of the run.

        Raises:
            UsageError: a value is invalid.
        """
        own = {"lora.start": self.start} if self.start else {}
        return resolve(self.config, {**self.settings, **own}).settings

    def publish(self) -> "TrainRequest":
        """Publish the inputs to the store, unless they are there already, and return the request with references.

        Raises:
            StorageError, UnavailableError: the store failed.
        """
        store = Store(self.checkpoints)
        inputs = {
            "index": _publish(store, _INDEX, Path(self.index)),
            "scenarios": _publish(store, _SCENARIOS, Path(self.scenarios).parent),
        }
        if self.start:
            inputs["start"] = _publish(store, _START, Path(self.start))
        settings = self.model_copy(update={"start": ""}).resolve()  # whose path says nothing about its content
        inputs["resolved"] = hashlib.sha256(settings.model_dump_json().encode()).hexdigest()
        if settings.agent:
            inputs["agent_code"] = digest_code(settings.agent) or ""
        return self.model_copy(update=inputs)

    def fetch(self, directory: Path) -> "TrainRequest":
        """Fetch the inputs of a published request, and return the request with their paths on this machine.

        Raises:
            StorageError, UnavailableError, CorruptArtifactError: an input cannot be fetched.
        """
        store = Store(self.checkpoints)

        def fetch(reference: str) -> Path:
            return store.fetch(reference, directory / Path(reference).parent.name).directory

        inputs = {"index": str(fetch(self.index)), "scenarios": str(fetch(self.scenarios) / SCENARIOS_FILE)}
        if self.start:
            inputs["start"] = str(fetch(self.start))
        return self.model_copy(update=inputs)

    @property
    def result(self) -> str:
        """The reference of the result in the store: the same for the same request."""
        text = self.model_dump_json(exclude=None if self.agent_code else {"agent_code"})
        return f"{_RESULTS}/{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _publish(store: Store, kind: str, directory: Path) -> str:
    """Publish a directory under a version that comes from its content, and return the reference."""
    version = content_digest(describe_files(find_artifact_files(directory)))[:16]
    return store.publish(directory, kind, version, latest=False).manifest.reference
