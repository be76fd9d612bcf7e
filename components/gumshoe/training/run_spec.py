"""What a run is told, and what it leaves where: all that can be said of it without loading a model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gumshoe.environments.registry import EnvFactory, open_env
from gumshoe.errors import UsageError
from gumshoe.inference.policy_names import TINY, is_tiny
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import ScenarioSet, Split
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.training.settings import LoraSettings, TrainSettings, differences

SPEC = "run.json"
METADATA = "metadata.json"
"""In the directory of each adapter and checkpoint: it is written last, and without it they do not count."""
BASELINE = "baseline.json"
"""The base model's rewards on the split `validation`, by scenario."""
SERVED = "served.json"
"""The adapter that the run's server must have, for whoever starts that again."""
METRICS = "metrics.jsonl"
SERVER_LOG = "vllm.log"
STALLED = "stalled.txt"
PLOTS, PAGE = "plots", "plots.html"
TENSORBOARD = "runs"
ADAPTERS = "adapters"
"""What servers are given, one directory a step."""
BEST, FINAL = "best_model", "final"
CHECKPOINT = "checkpoint-"
SHAPE, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""In the directory of each adapter, as `peft` writes them."""
WARMING = ".warm-start"
"""In the directory of an adapter to be, while a warm start is not at its end: all that this has done so far."""


class RunSpec(BaseModel):
    """All that a trainer's process is told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: TrainSettings
    index: Path
    scenarios: str
    content: str
    """`ScenarioSet.content` of what is learned from, and chosen on."""
    searched: str
    """What the index was built from, as it says itself."""
    run: str
    """Names the run in the names of its adapters."""
    attempt: int
    """How often the run was begun, from 1."""
    before: Lineage | None = None
    """What the adapter that the run began at had seen."""
    urls: tuple[str, ...] = ()
    """Of the vLLM servers that sample."""
    resume: bool = False

    @property
    def directory(self) -> Path:
        return self.settings.directory

    def joined(self, said: str) -> "RunSpec":
        """What the first of several trainers says, for this one: all of it but for where this machine has its files.

        Raises:
            UsageError: it was given other settings, or has something else to learn from.
        """
        first = RunSpec.model_validate_json(said)
        places = ("output.directory", "lora.start")
        found = [each for each in differences(first.settings, self.settings) if each not in places]
        if first.before != self.before and not first.resume:
            found.append("the adapter to begin at")
        if first.content != self.content:
            found.append("the scenarios")
        if first.searched != self.searched:
            found.append("the index")
        if found:
            raise UsageError(
                "training.nodes-differ",
                f"this machine was started with another run than the first one: they differ in {', '.join(found)}; "
                "start all machines with the same settings and data",
            )
        own = {
            "output": first.settings.output.model_copy(update={"directory": self.directory}),
            "lora": first.settings.lora.model_copy(update={"start": self.settings.lora.start}),
        }
        places_here = {"index": self.index, "scenarios": self.scenarios}
        return first.model_copy(update={**places_here, "settings": first.settings.model_copy(update=own)})


class Metadata(BaseModel):
    """What an adapter is, beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_model: str
    step: int
    run: str
    seed: int
    settings: TrainSettings
    scenarios: dict[str, str]
    """`ScenarioSet.content` of what was learned from, and chosen on."""
    searched: str
    """What the index was built from, as it says itself."""
    versions: dict[str, str]
    accuracy: float | None = None
    """The last evaluation's."""
    metrics: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """The last step's record, and the last evaluation's, by `event`."""


def train_split(settings: TrainSettings, scenarios: str) -> tuple[ScenarioSet, ScenarioSet]:
    """What is learned from, and chosen on.

    Raises:
        UsageError: there is none of it.
    """
    every = load_scenarios(scenarios)

    def part(split: Split, most: int | None) -> ScenarioSet:
        found = ScenarioSet(every.only(split).scenarios[:most])
        if not found:
            raise UsageError(
                "training.empty-split",
                f"{scenarios} has no scenario of the split {split}; split it first with `gumshoe scenarios split`",
            )
        return found

    return part("train", settings.data.train_size), part("validation", settings.data.eval_size)


def check_start(settings: LoraSettings) -> None:
    """
    Raises:
        UsageError: training is to begin at an adapter that is not there, or is of another shape than this one.
    """
    if settings.start is None:
        return
    if (settings.start / WARMING).exists() and not (settings.start / SHAPE).exists():
        raise UsageError(
            "adapters.start-unfinished",
            f"lora.start: the warm start in {settings.start} is not finished; continue it with `gumshoe warm-start` "
            "and --resume",
        )
    try:
        shape = json.loads((settings.start / SHAPE).read_bytes())
        found = {"rank": shape["r"], "alpha": shape["lora_alpha"], "target_modules": sorted(shape["target_modules"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            "adapters.not-an-adapter", f"lora.start: {settings.start} is not an adapter: {error}"
        ) from None
    wanted = {"rank": settings.rank, "alpha": settings.alpha, "target_modules": sorted(settings.target_modules)}
    for name, value in found.items():
        if value != wanted[name]:
            raise UsageError(
                "adapters.other-lora-settings",
                f"lora.start has {name} {value}, but lora.{name} is {wanted[name]}; set lora.{name} to the same value",
            )


def lineage_before(settings: TrainSettings) -> Lineage | None:
    """What the adapter that training begins at has seen; or what was merged into the base model."""
    start = settings.lora.start
    seen = None if start is None else Lineage.read(start)
    return seen or Lineage.read(Path(base_model(settings)).expanduser())


def base_model(settings: TrainSettings) -> str:
    """Where the base model is: a directory, or its name on the hub."""
    return place_of(settings.model.name)


def place_of(name: str) -> str:
    """Where a model of that name is: a directory, or its name on the hub."""
    return str(TINY) if name == "tiny" else name


def world_of(settings: TrainSettings, index: Path) -> EnvFactory:
    """The index, and the environments over it that episodes take place in.

    Raises:
        UsageError: it holds none, or there is no such environment.
        GumshoeError: the index is damaged.
    """
    world = open_env(index, settings.environment)
    return world.for_tiny() if is_tiny(base_model(settings)) else world


def checkpoints(directory: Path) -> list[Path]:
    """Those of a run that are whole, the oldest first."""
    found = [each.parent for each in directory.glob(f"{CHECKPOINT}*/{METADATA}")]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """After how many steps a checkpoint was saved."""
    return int(checkpoint.name.removeprefix(CHECKPOINT))


def expired_checkpoints(found: Sequence[Path], limit: int) -> list[Path]:
    """Return the checkpoints to delete, the oldest first, so that the newest `limit` (at least 1) remain."""
    return sorted(found, key=step_of)[:-limit]
