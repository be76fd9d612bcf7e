"""The specification of a run and the layout of its directory; nothing here loads a model."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gumshoe.artifacts.base_models import resolve_base_model
from gumshoe.corpus import CORPORA
from gumshoe.environments.recorded import has_environment, read_environment
from gumshoe.environments.registry import EnvFactory, open_env
from gumshoe.errors import UsageError
from gumshoe.evaluation.proof.proof_models import PROOF, PROOF_PAGE
from gumshoe.inference.policy_names import TINY, is_tiny
from gumshoe.rollouts.chat_format.chat_settings import CHAT_SETTINGS, resolve_chat_settings
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import ScenarioSet, Split
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.training.settings import TrainSettings, find_differences
from gumshoe.training.settings_sections import ALL_LINEAR, LoraSettings

SPEC = "run.json"
METADATA = "metadata.json"
"""File in the directory of each adapter and checkpoint. It is written last: without it, they do not count."""
BASELINE = "baseline.json"
"""The rewards of the base model on the split `validation`, by scenario."""
SERVED = "served.json"
"""The adapters that the run's servers must load after a restart."""
METRICS = "metrics.jsonl"
EPISODES, ATTEMPTS = "episodes.jsonl", "attempts.jsonl"
"""Evidence for the proof of the run, beside `METRICS`: its scored episodes, and when it started and ended."""
SERVER_LOG = "vllm.log"
STALLED = "stalled.txt"
PROGRESS = "progress.json"
PLOTS, PAGE = "plots", "plots.html"
TIMELINE = "timeline.json"
TENSORBOARD = "runs"
ADAPTERS = "adapters"
"""The adapters for the servers, one directory per step."""
BEST, FINAL = "best_model", "final"
BEST_BEFORE = f".{BEST}.before"
"""The best adapter at the last checkpoint, while there is a better one after it."""
CHECKPOINT = "checkpoint-"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Files of `peft` in the directory of each adapter."""
REFERENCE = "reference.safetensors"
"""File of a checkpoint: weights of the adapter that the run began with, if they are the reference of the KL term."""
WARM_START_STATE = ".warm-start"
"""Subdirectory of the output of an unfinished warm start, with everything that it has done so far."""
VERDICTS = "verdicts.jsonl"
"""File there with the judge's verdicts on the episodes."""
_SAME_BASE = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` in `ADAPTER_CONFIG` that leave the weights of the base model as they are."""
RUN_FILES = {
    f"{FINAL}/": "Adapter after the last step.",
    f"{BEST}/": "Adapter with the best evaluation on the split `validation`.",
    f"{CHECKPOINT}N/": "Checkpoint after step N: an adapter with the state of the optimizer. `--resume` continues from "
    "the newest complete one.",
    METRICS: "One JSON object per line, for each step and each evaluation.",
    EPISODES: "One JSON object per line for each scored episode: its policy, rewards, failed attempts and the "
    "comparison of the sampler's probabilities with the trainer's. Evidence for the proof.",
    ATTEMPTS: "One JSON object per line for each start, step and end of the run, from which its hours are counted. "
    "Nothing is ever removed from it.",
    PROOF: "What the run claims about itself, with the digests of the files that show it. `gumshoe verify` checks it.",
    PROOF_PAGE: "The proof as a page.",
    PAGE: "The curves, as one page that loads nothing else.",
    f"{PLOTS}/": "The curves and the timeline, as PNG files.",
    TIMELINE: "What the trainer and the groups did in the newest ten steps. https://ui.perfetto.dev opens it.",
    f"{TENSORBOARD}/": "The curves, for TensorBoard.",
    PROGRESS: "What the run is doing now, for `gumshoe watch`: phase, step and newest episodes. Replaced every second.",
    SPEC: "Input of the trainers: settings, index, scenarios, ID of the run and addresses of the servers.",
    BASELINE: "Rewards before training (step 0) on the split `validation`, by scenario.",
    f"{ADAPTERS}/": "The adapters that the vLLM servers have loaded.",
    SERVED: "Names and paths of the adapters that a vLLM server loads after a restart.",
    SERVER_LOG: "Output of the vLLM server. With several servers: `vllm-1.log`, `vllm-2.log` and so on.",
    STALLED: "Written if the run stopped making progress: what it was doing, and the stacks of all threads.",
}
"""Description of each file and directory of a run."""


class RunSpec(BaseModel):
    """The input of a trainer process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: TrainSettings
    index: Path
    scenarios: str
    content: str
    """`ScenarioSet.content` of the training and validation scenarios, and `ScenarioSet.order` of the former."""
    searched: str
    """Fingerprint of the index, from the index itself."""
    run: str
    """Id of the run, part of the names of its adapters."""
    attempt: int
    """Number of this start of the run, from 1."""
    before: Lineage | None = None
    """Lineage of the adapter that the run started from."""
    urls: tuple[str, ...] = ()
    """Addresses of the vLLM servers for rollouts."""
    resume: bool = False
    agent_code: str | None = None
    """Digest of the code of the agent that runs the episodes. None without an agent, or if the code is not known."""

    @property
    def directory(self) -> Path:
        return self.settings.directory

    def adopt(self, text: str) -> "RunSpec":
        """Return the first trainer's specification, given as JSON, with the paths of this machine.

        Raises:
            UsageError: this machine was started with other settings or data.
        """
        first = RunSpec.model_validate_json(text)
        places = ("output.directory", "lora.start", "model.gradient_checkpointing")
        found = [each for each in find_differences(first.settings, self.settings) if each not in places]
        if first.before != self.before and not first.resume:
            found.append("the adapter to start from")
        if first.content != self.content:
            found.append("the scenarios")
        if first.searched != self.searched:
            found.append("the index")
        if self.has_other_agent_code(first):
            found.append("the code of the agent")
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

    def has_other_agent_code(self, other: "RunSpec") -> bool:
        """Return True if the code of the agent is known to differ from that of another specification."""
        return None not in (self.agent_code, other.agent_code) and self.agent_code != other.agent_code


class Metadata(BaseModel):
    """Facts about an adapter, stored beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_model: str
    step: int
    run: str
    seed: int
    settings: TrainSettings
    scenarios: dict[str, str]
    """`ScenarioSet.content` of the training scenarios (`learned_from`) and validation scenarios (`chosen_on`)."""
    searched: str
    """Fingerprint of the index, from the index itself."""
    versions: dict[str, str]
    accuracy: float | None = None
    """Accuracy of the last evaluation."""
    metrics: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Records of the last step and the last evaluation, by `event`."""


def load_splits(settings: TrainSettings, scenarios: str) -> tuple[ScenarioSet, ScenarioSet]:
    """Return the training and the validation scenarios, limited to the sizes in `data`.

    Raises:
        UsageError: one of the splits is empty.
    """
    every, data = load_scenarios(scenarios), settings.data
    return _take(every, "train", data.train_size, scenarios), _take(every, "validation", data.eval_size, scenarios)


def load_training_scenarios(settings: TrainSettings, scenarios: str) -> ScenarioSet:
    """Return the training scenarios, limited to the size in `data`.

    Raises:
        UsageError: the split `train` is empty.
    """
    return _take(load_scenarios(scenarios), "train", settings.data.train_size, scenarios)


def _take(every: ScenarioSet, split: Split, most: int | None, source: str) -> ScenarioSet:
    found = ScenarioSet(every.only(split).scenarios[:most])
    if not found:
        raise UsageError(
            "training.empty-split",
            f"{source} has no scenario of the split {split}; split it first with `gumshoe scenarios split`",
        )
    return found


def check_start(settings: LoraSettings) -> None:
    """Check the adapter that training starts from, if one is set.

    Raises:
        UsageError: the adapter does not exist, has another rank, alpha, number of layers or targets than the settings,
            or is not plain LoRA.

    What `all-linear` stands for depends on the model, so `load_adapter_weights` compares it.
    """
    if settings.start is None:
        return
    if (settings.start / WARM_START_STATE).exists() and not (settings.start / ADAPTER_CONFIG).exists():
        raise UsageError(
            "adapters.start-unfinished",
            f"lora.start: the warm start in {settings.start} is not finished; continue it with `gumshoe warm-start` "
            "and --resume",
        )
    try:
        shape = json.loads((settings.start / ADAPTER_CONFIG).read_bytes())
        found = {
            "rank": shape["r"],
            "alpha": shape["lora_alpha"],
            "layers": len(shape.get("layers_to_transform") or ()) or None,
            "target_modules": sorted(shape["target_modules"]),
            "target_parameters": "experts" if shape.get("target_parameters") else "none",
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            "adapters.not-an-adapter", f"lora.start: {settings.start} is not an adapter: {error}"
        ) from None
    _check_plain_lora(settings.start, shape)
    is_open = settings.target_modules == ALL_LINEAR
    wanted = {
        "rank": settings.rank,
        "alpha": settings.alpha,
        "layers": settings.layers,
        "target_modules": found["target_modules"] if is_open else sorted(settings.target_modules),
        "target_parameters": settings.target_parameters,
    }
    for name, value in found.items():
        if value != wanted[name]:
            raise UsageError(
                "adapters.other-lora-settings",
                f"lora.start has {name} {value}, but lora.{name} is {wanted[name]}; set lora.{name} to the same value",
            )


def _check_plain_lora(start: Path, shape: Mapping[str, Any]) -> None:
    """Check that the weights of an adapter mean the same in the adapter that is trained, which is plain LoRA.

    Raises:
        UsageError: they are scaled in another way, or belong to changed weights of the base model.
    """
    found = [name for name in ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern") if shape.get(name)]
    if shape.get("init_lora_weights") not in _SAME_BASE:
        found.append("init_lora_weights")
    if found:
        values = ", ".join(f"{name} {shape[name]}" for name in found)
        raise UsageError(
            "adapters.start-not-plain",
            f"lora.start: {start} is not plain LoRA with one rank and one alpha: {ADAPTER_CONFIG} has {values}; merge "
            "it into its base model with the program that made it, and set model.name to the result",
        )


def check_start_chat(settings: TrainSettings) -> None:
    """Check that the adapter to start from, or else the base model, was trained on the same kind of prompts.

    Raises:
        UsageError: it has another chat template, or other variables for it.
    """
    places = {"lora.start": settings.lora.start, "model.name": Path(base_model(settings)).expanduser()}
    recorded = ((name, each) for name, each in places.items() if each is not None and (each / CHAT_SETTINGS).exists())
    name, place = next(recorded, ("", None))
    if place is None:
        return
    known, wanted = resolve_chat_settings(None, place), settings.chat
    if (known.template, known.template_kwargs) != (wanted.template, wanted.template_kwargs):
        raise UsageError(
            "adapters.other-chat-template",
            f"{name} was trained with another chat.template or chat.template_kwargs than this run; set both to those "
            f"in {place / CHAT_SETTINGS}",
        )


def read_prior_lineage(settings: TrainSettings) -> Lineage | None:
    """Return the lineage of the adapter to start from, or else of an adapter merged into the base model, or None."""
    start = settings.lora.start
    seen = None if start is None else Lineage.read(start)
    return seen or Lineage.read(Path(base_model(settings)).expanduser())


def base_model(settings: TrainSettings) -> str:
    """Return the base model's directory, or its name on the hub."""
    return resolve_model(settings.model.name)


def resolve_model(name: str) -> str:
    """Return the directory of a model, or its name on the hub.

    `tiny` has a directory of its own. See `resolve_base_model` for other names, and for what it may raise.
    """
    return str(TINY) if name == "tiny" else resolve_base_model(name)


def open_run_env(settings: TrainSettings, index: Path) -> EnvFactory:
    """Open the environment of a run over an index.

    What the settings leave open is as in the training of the adapter or the model to start from: its environment, if
    that is a custom one, and the settings of the same environment. A built-in environment depends on the index.

    Raises:
        UsageError: the directory contains no index, or the environment does not exist.
        GumshoeError: the index is damaged.
    """
    start = next(filter(has_environment, (settings.lora.start, base_model(settings))), None)
    known = read_environment(start) if start is not None else None
    env = open_env(index, settings.environment, None if known is None or known.name in CORPORA else known)
    if known is not None and known.name == env.name:
        given = settings.environment.arguments if settings.environment else {}
        env = env.with_recorded({**known.arguments, **given})
    return env.for_tiny() if is_tiny(base_model(settings)) else env


def find_checkpoints(directory: Path) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first."""
    found = [each.parent for each in directory.glob(f"{CHECKPOINT}*/{METADATA}")]
    return sorted(found, key=step_of)


def find_best(directory: Path) -> Path | None:
    """Return the best adapter of a run up to its last checkpoint; None if it has none.

    A resumed run repeats what came later, so it is not the adapter of an evaluation after the last checkpoint.
    """
    last = max(map(step_of, find_checkpoints(directory)), default=0)
    best, before = directory / BEST, directory / BEST_BEFORE
    if (best / METADATA).exists() and json.loads((best / METADATA).read_bytes())["step"] <= last:
        return best
    return before if before.exists() else None


def step_of(checkpoint: Path) -> int:
    """Return the optimizer step after which a checkpoint was saved."""
    return int(checkpoint.name.removeprefix(CHECKPOINT))


def expired_checkpoints(found: Sequence[Path], limit: int) -> list[Path]:
    """Return the checkpoints to delete, the oldest first, so that the newest `limit` (at least 1) remain."""
    return sorted(found, key=step_of)[:-limit]
