"""Define the settings of a training run. `settings_sources` reads them, and `settings_checks` checks them."""

import math
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator
from pydantic.fields import FieldInfo

from gumshoe.corpus import CORPORA
from gumshoe.environments.registry import NamedEnvironment
from gumshoe.errors import UsageError
from gumshoe.inference.policy import Sampling
from gumshoe.redaction import find_credentials
from gumshoe.rollouts.agent_settings import NamedAgent
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.episode import EpisodeLimits
from gumshoe.training.settings_sections import (
    CostSettings,
    DataSettings,
    EvalDuringTrainingSettings,
    LoraSettings,
    ModelSettings,
    OptimizerSettings,
    OutputSettings,
    RewardsSettings,
    RolloutSettings,
    Section,
    WarmStartSettings,
)

Mode = Literal["masked", "rollout", "simple"]
SECTIONS = (Section, ChatSettings)
"""Classes of the sections, whose fields are settings of their own."""


class TrainSettings(Section):
    """A training run."""

    mode: Mode = Field(
        "masked",
        description="masked: train on the tokens that the policy sampled in real episodes; rollout: also on the "
        "tokens of tool results; simple: static prompts and a heuristic reward, without an environment",
    )
    environment: NamedEnvironment | None = Field(
        None,
        description=f"environment of the episodes: {', '.join(CORPORA)}, or your own as package.module:Class; with "
        "settings e.g. {email: {hits: 4, handles: true}}; if unset, it is that of the adapter or model to start from, "
        "or follows from the index. It is recorded with the adapter",
    )
    agent: NamedAgent | None = Field(
        None,
        description="agent that runs the episodes, in place of Gumshoe's own loop: package.module:name, or settings, "
        "e.g. {command: [node, agent.js], deadline: 120}; see docs/guides/agents.md",
    )
    model: ModelSettings = Field(default_factory=ModelSettings)
    chat: ChatSettings = Field(default_factory=ChatSettings)
    lora: LoraSettings = Field(default_factory=LoraSettings)
    warm_start: WarmStartSettings = Field(default_factory=WarmStartSettings)
    data: DataSettings = Field(default_factory=DataSettings)
    rollouts: RolloutSettings = Field(default_factory=RolloutSettings)
    rewards: RewardsSettings = Field(default_factory=RewardsSettings)
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    evaluation: EvalDuringTrainingSettings = Field(default_factory=EvalDuringTrainingSettings)
    output: OutputSettings = Field(default_factory=OutputSettings)
    costs: CostSettings = Field(default_factory=CostSettings)

    @model_validator(mode="before")
    @classmethod
    def _read_old_by_turn(cls, values: Any) -> Any:
        """Accept `rewards.by_turn` of earlier versions: algorithm `turn_level` with the loss of the given algorithm."""
        rewards = values.get("rewards") if isinstance(values, dict) else None
        if not isinstance(rewards, dict) or "by_turn" not in rewards:
            return values
        changed = {**values, "rewards": {name: value for name, value in rewards.items() if name != "by_turn"}}
        if rewards["by_turn"]:
            optimizer = OptimizerSettings.model_validate(values.get("optimizer", {}))
            given = {name: getattr(optimizer, name) for name in optimizer.model_fields_set}
            loss, scale = optimizer.algorithm.name, optimizer.algorithm.settings
            turn_level = {"name": "turn_level", "settings": {**scale, "loss": loss}}
            changed["optimizer"] = {**given, "algorithm": turn_level}
        return changed

    @model_validator(mode="after")
    def _check_finite(self) -> "TrainSettings":
        """Refuse numbers that are not finite, also in arguments of rewards and the like: JSON has none."""
        if places := list(_find_not_finite(self.model_dump())):
            raise ValueError(f"these numbers are not finite: {', '.join(places)}; give finite ones")
        return self

    @model_validator(mode="after")
    def _check_credentials(self) -> "TrainSettings":
        """Refuse credentials: settings are stored with the run and its adapters, and shown in experiment trackers."""
        if places := find_credentials(self.model_dump(mode="json")):
            raise UsageError(
                "training.credentials-in-settings",
                f"settings contain a password or a key, which would be stored with the run: {', '.join(places)}; "
                "remove it, and set an environment variable, e.g. VLLM_API_KEY for vLLM servers, or OPENAI_API_KEY",
            )
        return self

    @property
    def directory(self) -> Path:
        """The directory for the run's files."""
        return self.output.directory or Path("outputs") / f"grpo_{self.mode}"

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters of training; evaluations are greedy."""
        rollouts = self.rollouts
        return Sampling(rollouts.temperature, max_tokens=rollouts.max_tokens)

    @property
    def limits(self) -> EpisodeLimits:
        return EpisodeLimits(self.rollouts.max_turns, self.model.max_context)

    @property
    def is_sharded(self) -> bool:
        """True if the weights are sharded, so that no trainer has all of them."""
        return self.optimizer.distribution != "ddp" and self.optimizer.processes > 1

    @property
    def has_reference_adapter(self) -> bool:
        """True if a copy of `lora.start` is kept as the reference of the KL term."""
        optimizer = self.optimizer
        return bool(optimizer.beta) and optimizer.reference == "start" and self.lora.start is not None

    @property
    def servers(self) -> int:
        """Number of vLLM servers that the run starts."""
        rollouts = self.rollouts
        is_served = rollouts.engine == "vllm" and self.mode != "simple" and not rollouts.servers
        return rollouts.num_servers if is_served else 0

    @property
    def staleness(self) -> int:
        """Maximum age of a policy when its tokens are trained on, in batches of episodes."""
        rollouts = self.rollouts
        if rollouts.max_staleness is not None or not rollouts.lag:
            return rollouts.max_staleness or 0
        return rollouts.lag + (rollouts.handover is None)

    @property
    def adapter_slots(self) -> int:
        """Number of adapters that a server of the run can use in one batch: those of all policies in use."""
        return max(2, self.staleness + 1)

    @property
    def groups(self) -> int:
        """Number of groups per optimizer step, over all processes."""
        optimizer = self.optimizer
        episodes = optimizer.per_device_train_batch_size * optimizer.gradient_accumulation_steps
        return episodes // self.rollouts.num_generations * optimizer.processes


def _find_not_finite(value: Any, place: str = "") -> Iterator[str]:
    """Yield the dotted places of infinite numbers and of those that are not a number."""
    if isinstance(value, float) and not math.isfinite(value):
        yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for name, each in items:
        yield from _find_not_finite(each, f"{place}.{name}".removeprefix("."))


def list_settings() -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the description of each setting."""
    for name, field in walk_fields():
        yield name, field.description or ""


def find_differences(one: TrainSettings, other: TrainSettings) -> list[str]:
    """Return the dotted names of the fields that differ between two settings."""
    return [name for name, _ in walk_fields() if _get_value(one, name) != _get_value(other, name)]


def walk_fields(section: type[BaseModel] = TrainSettings, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the dotted name of each setting, and its field."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, SECTIONS):
            yield from walk_fields(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _get_value(settings: BaseModel, name: str) -> Any:
    return reduce(getattr, name.split("."), settings)
