"""The settings of a training run, from a YAML file, then environment variables, then flags.

Some settings have an environment variable with a familiar name (`LEARNING_RATE`). A flag gives the dotted name
(`--set optimizer.learning_rate=1e-5`).
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from gumshoe.artifacts.storage import NotFoundError, open_uri, split_uri
from gumshoe.corpus import CORPORA
from gumshoe.environments.registry import NamedEnvironment
from gumshoe.errors import UsageError, describe_validation_error
from gumshoe.inference.policy import MAX_TEMPERATURE, Sampling
from gumshoe.installation import install_command
from gumshoe.rewards.combination import Combination
from gumshoe.rewards.reward import RewardSettings
from gumshoe.rollouts.episode import EpisodeLimits
from gumshoe.terminal import err, printable
from gumshoe.training.algorithms.lookup import AlgorithmChoice, NamedAlgorithm

CONFIGS = Path(__file__).parent / "configs"
"""Configurations that come with Gumshoe; the file name without `.yaml` is the name."""
Mode = Literal["masked", "rollout", "simple"]
Distribution = Literal["ddp", "fsdp2", "zero3"]


@dataclass(frozen=True, slots=True)
class EnvVar:
    """An environment variable that a field is also read from."""

    name: str


class Section(BaseModel):
    """A section of the settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, protected_namespaces=())


class ModelSettings(Section):
    """The base model."""

    name: Annotated[str, EnvVar("MODEL_NAME")] = Field(
        "Qwen/Qwen2.5-7B-Instruct", description="base model: a directory, a name on the Hugging Face Hub, or `tiny`"
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="data type of the base model's weights; auto: bfloat16 on a GPU, float32 on a CPU"
    )
    quantization: Literal["none", "nf4"] = Field(
        "none", description="quantization of the base model's weights; nf4 is QLoRA"
    )
    max_context: int = Field(8192, ge=64, description="maximum number of tokens of an episode")
    gradient_checkpointing: bool = Field(True, description="recompute activations in the backward pass to save memory")
    check_memory: bool = Field(True, description="reject a run that does not fit into memory (see `gumshoe plan`)")


class LoraSettings(Section):
    """The adapter (LoRA, https://arxiv.org/abs/2106.09685)."""

    rank: int = Field(16, ge=1, le=512, description="rank of the LoRA matrices")
    alpha: int = Field(32, ge=1, description="scale of the adapter: its output is multiplied by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout probability in the adapter during training")
    target_modules: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="modules of the base model that get LoRA matrices",
    )
    start: Path | None = Field(
        None,
        description="directory of an adapter to start from, e.g. one made by `gumshoe warm-start`, with the same "
        "rank, alpha and target modules; if unset, start from the base model",
    )


class WarmStartSettings(Section):
    """Supervised fine-tuning on correct episodes (`gumshoe warm-start`)."""

    epochs: float = Field(2.0, gt=0, description="number of passes over the episodes")
    learning_rate: float = Field(
        1e-4,
        gt=0,
        description="peak learning rate of AdamW, after a linear warmup of 5 % of the steps; it then decays linearly "
        "to 0",
    )
    batch_size: int = Field(
        8,
        ge=1,
        description="episodes per optimizer step (all of them if there are fewer); a device takes at most "
        "optimizer.per_device_train_batch_size at once",
    )


class DataSettings(Section):
    """The scenarios for training and validation."""

    train_size: Annotated[int | None, EnvVar("TRAIN_DATASET_SIZE")] = Field(
        None, ge=1, description="maximum number of scenarios of the split `train`; all if unset"
    )
    eval_size: Annotated[int | None, EnvVar("EVAL_DATASET_SIZE")] = Field(
        None, ge=1, description="maximum number of scenarios of the split `validation`; all if unset"
    )
    seed: Annotated[int, EnvVar("SEED")] = Field(
        42, description="random seed of the adapter's initial weights, the order of scenarios, and every episode"
    )


class RolloutSettings(Section):
    """Rollouts: how episodes are run, and which groups are trained on."""

    engine: Literal["vllm", "transformers"] = Field(
        "vllm", description="what runs the rollouts: vLLM servers, or transformers in the trainer's own process"
    )
    servers: tuple[str, ...] = Field(
        (), description="addresses of vLLM servers that already run; if empty, num_servers are started"
    )
    num_servers: int = Field(
        1, ge=1, description="number of vLLM servers to start, each with a copy of the model (data parallel)"
    )
    handover: str | None = Field(
        None,
        description="file:// or s3:// URI, used by this run only, through which servers on other machines get each "
        "step's adapter; a `gumshoe adapter-loader` runs beside each server, and each IP address of a "
        "server's host name counts as one server",
    )
    num_generations: Annotated[int, EnvVar("NUM_GENERATIONS")] = Field(
        4, ge=2, description="episodes per scenario (group size)"
    )
    groups_per_step: int | None = Field(
        None,
        ge=1,
        description="groups per optimizer step; must match the batch size and gradient accumulation; derived from "
        "them if unset",
    )
    max_turns: Annotated[int, EnvVar("MAX_TURNS")] = Field(10, ge=1, description="maximum number of turns per episode")
    max_tokens: Annotated[int, EnvVar("MAX_TOKENS")] = Field(512, ge=8, description="maximum number of tokens per turn")
    temperature: Annotated[float, EnvVar("TEMPERATURE")] = Field(
        1.0,
        gt=0,
        le=MAX_TEMPERATURE,
        description="sampling temperature, also used to compute log-probabilities in training",
    )
    min_group_std: Annotated[float, EnvVar("MIN_GROUP_STD")] = Field(
        0.01,
        ge=0,
        description="drop groups whose rewards have a smaller standard deviation: they carry no learning signal",
    )
    draws: int = Field(
        3,
        ge=1,
        description="maximum number of times that scenarios are sampled to fill a step with useful groups (dynamic "
        "sampling of DAPO, https://arxiv.org/abs/2503.14476)",
    )
    concurrency: int = Field(64, ge=1, description="maximum number of concurrent episodes per server")
    least_ratio: float = Field(
        0.9,
        ge=0,
        le=1,
        description="warn if the mean importance ratio of trainer to sampler (each token at most 1) is lower than this",
    )
    most_difference: float = Field(
        0.1,
        gt=0,
        description="drop a group as off-policy if the log-probabilities of trainer and sampler differ by more than "
        "this in one of its episodes (mean absolute difference, in nats per token)",
    )
    gpu_memory: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of a GPU's memory for each vLLM server; if unset, the servers on a GPU share 0.9 of it, or"
        " 0.45 if a trainer uses it too",
    )


class RewardsSettings(Section):
    """The rewards of episodes."""

    functions: tuple[RewardSettings, ...] = Field(
        (RewardSettings(name="rubric"),), min_length=1, description="reward functions by name, with their arguments"
    )
    combine: Combination = Field(
        "uniform", description="how the rewards of several functions are combined: see gumshoe.rewards.combination"
    )
    weights: dict[str, float] = Field(
        default_factory=dict, description="weight of each reward function, if they are combined by weights"
    )


class OptimizerSettings(Section):
    """The optimizer, the batch, and the algorithm."""

    learning_rate: Annotated[float, EnvVar("LEARNING_RATE")] = Field(
        1e-5, ge=0, description="learning rate of AdamW, after the warmup"
    )
    max_steps: Annotated[int, EnvVar("MAX_STEPS")] = Field(
        -1, ge=-1, description="number of optimizer steps; -1: as many as num_train_epochs takes"
    )
    num_train_epochs: Annotated[float, EnvVar("NUM_TRAIN_EPOCHS")] = Field(
        1.0, gt=0, description="number of passes over the scenarios"
    )
    per_device_train_batch_size: Annotated[int, EnvVar("PER_DEVICE_TRAIN_BATCH_SIZE")] = Field(
        4, ge=1, description="episodes per device in one forward and backward pass"
    )
    gradient_accumulation_steps: Annotated[int, EnvVar("GRADIENT_ACCUMULATION_STEPS")] = Field(
        4, ge=1, description="passes per optimizer step"
    )
    processes: int = Field(
        1, ge=1, description="number of trainer processes on all machines together, one per GPU (data parallel)"
    )
    distribution: Distribution = Field(
        "ddp",
        description="how several trainers hold the weights: ddp: each has the whole model; fsdp2 (PyTorch FSDP) and "
        "zero3 (DeepSpeed, https://arxiv.org/abs/1910.02054): each has a shard of all weights, and layers"
        " are gathered one by one",
    )
    warmup_steps: Annotated[int, EnvVar("WARMUP_STEPS")] = Field(
        0, ge=0, description="steps of linear warmup of the learning rate"
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="learning rate schedule after the warmup"
    )
    weight_decay: float = Field(0.0, ge=0, description="weight decay of AdamW")
    max_grad_norm: Annotated[float, EnvVar("MAX_GRAD_NORM")] = Field(
        1.0, ge=0, description="maximum norm of the gradient (gradient clipping); 0: no limit"
    )
    beta: Annotated[float, EnvVar("BETA")] = Field(
        0.01,
        ge=0,
        description="weight of the KL divergence from the base model (GRPO, https://arxiv.org/abs/2402.03300; "
        "unbiased estimate, https://arxiv.org/abs/2512.02556)",
    )
    algorithm: NamedAlgorithm = Field(
        AlgorithmChoice(name="dapo"),
        description="algorithm (advantages and loss): grpo, dapo, bnpo, dr_grpo, gspo, cispo, sapo, rloo, turn_level,"
        " or your own as package.module:Class; with settings e.g. {dapo: {epsilon: 0.1}}",
    )
    num_iterations: int = Field(1, ge=1, description="optimizer steps per batch of episodes (mu of GRPO)")

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, values: Any) -> Any:
        """Accept the names that earlier versions used instead of `algorithm`."""
        return _with_algorithm(values) if isinstance(values, dict) and OLD_ALGORITHM & set(values) else values


OLD_ALGORITHM = frozenset({"loss_type", "importance", "scale_advantages", "epsilon", "epsilon_high"})
"""Names of optimizer settings that `algorithm` replaces."""
_OLD_DEFAULTS = {"scale_advantages": "group", "epsilon": 0.2, "epsilon_high": 0.28}


def _with_algorithm(values: dict[str, Any]) -> dict[str, Any]:
    """Return optimizer settings with `algorithm` in place of the names in `OLD_ALGORITHM`."""
    old = {name: values[name] for name in OLD_ALGORITHM & set(values)}
    before = AlgorithmChoice.parse(values.get("algorithm", "dapo"))
    name = "gspo" if old.get("importance") == "sequence" else old.get("loss_type", before.name)
    settings = dict(before.settings) if name == before.name else {}
    settings |= {
        key.removesuffix("_advantages"): value
        for key, value in old.items()
        if key in _OLD_DEFAULTS and value != _OLD_DEFAULTS[key]
    }
    if name == "dr_grpo" and name != before.name:
        settings.setdefault("scale", "group")  # the former default of all loss types
    rest = {key: value for key, value in values.items() if key not in OLD_ALGORITHM}
    return {**rest, "algorithm": {"name": name, "settings": settings}}


class EvalDuringTrainingSettings(Section):
    """Evaluations on the split `validation` during training, and early stopping."""

    eval_steps: Annotated[int, EnvVar("EVAL_STEPS")] = Field(
        20, ge=1, description="optimizer steps between evaluations"
    )
    target_accuracy: Annotated[float | None, EnvVar("TARGET_ACCURACY")] = Field(
        None, gt=0, le=1, description="stop early once an evaluation reaches this accuracy"
    )
    patience: Annotated[int | None, EnvVar("PATIENCE")] = Field(
        None, ge=1, description="stop early after this many evaluations in a row without an improvement"
    )
    baseline: Annotated[bool, EnvVar("RUN_BASELINE_EVAL")] = Field(
        True, description="also evaluate before the first step"
    )
    judge: str | dict[str, Any] = Field(
        "heuristic", description="judge that decides which answers are correct, as in `gumshoe evaluate --judge`"
    )


class OutputSettings(Section):
    """The files and metrics that a run writes."""

    directory: Annotated[Path | None, EnvVar("OUTPUT_DIR")] = Field(
        None, description="directory for the run's files; outputs/grpo_<mode> if unset"
    )
    save_steps: Annotated[int, EnvVar("SAVE_STEPS")] = Field(
        10, ge=1, description="optimizer steps between checkpoints"
    )
    save_total_limit: Annotated[int, EnvVar("SAVE_TOTAL_LIMIT")] = Field(
        3, ge=1, description="number of checkpoints to keep"
    )
    checkpoints: str | None = Field(
        None,
        description="file:// or s3:// URI, used by this run only, to which checkpoints are uploaded, and from which "
        "--resume continues the run if its directory does not exist",
    )
    verbose: Annotated[bool, EnvVar("VERBOSE")] = Field(False, description="print the advantages of each group by turn")
    report_to: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = Field(
        ("tensorboard",), description="trackers that receive metrics, beside metrics.jsonl"
    )
    metrics_port: Annotated[int | None, EnvVar("METRICS_PORT")] = Field(
        None, ge=1, le=65535, description="port that serves the latest metrics to Prometheus at /metrics; off if unset"
    )
    stall_seconds: float = Field(1800, gt=0, description="exit with status 75 after this many seconds without progress")


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
        "settings e.g. {documents: {reasoning: true}}; if unset, it follows from the index",
    )
    model: ModelSettings = Field(default_factory=ModelSettings)
    lora: LoraSettings = Field(default_factory=LoraSettings)
    warm_start: WarmStartSettings = Field(default_factory=WarmStartSettings)
    data: DataSettings = Field(default_factory=DataSettings)
    rollouts: RolloutSettings = Field(default_factory=RolloutSettings)
    rewards: RewardsSettings = Field(default_factory=RewardsSettings)
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    evaluation: EvalDuringTrainingSettings = Field(default_factory=EvalDuringTrainingSettings)
    output: OutputSettings = Field(default_factory=OutputSettings)

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
    def servers(self) -> int:
        """Number of vLLM servers that the run starts."""
        rollouts = self.rollouts
        is_served = rollouts.engine == "vllm" and self.mode != "simple" and not rollouts.servers
        return rollouts.num_servers if is_served else 0

    @property
    def groups(self) -> int:
        """Number of groups per optimizer step, over all processes."""
        optimizer = self.optimizer
        episodes = optimizer.per_device_train_batch_size * optimizer.gradient_accumulation_steps
        return episodes // self.rollouts.num_generations * optimizer.processes


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """Settings, with the source of each value."""

    settings: TrainSettings
    origins: Mapping[str, str]
    """The source of each value that is not a default, by dotted name."""

    def as_yaml(self) -> str:
        """Return the settings as a configuration file, with a comment that describes each and names its source."""
        return "\n".join(_describe(self.settings, self.origins, "")) + "\n"


def resolve(config: str | None, flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> ResolvedSettings:
    """Return the settings of a run.

    `config` is a name from `CONFIGS`, a path, or a `file://` or `s3://` URI. `flags` maps dotted names to values.
    Values that are strings are parsed as YAML.

    Raises:
        UsageError: a value is invalid; the message names it and its source.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    layers = [
        (_read_config(config), config or ""),
        ({name: (environ[env], f"${env}") for name, env in list_env_vars() if env in environ}, ""),
        ({name: (value, "flag") for name, value in flags.items()}, ""),
    ]
    for layer, where in layers:
        for name, given in layer.items():
            value, origin = given if isinstance(given, tuple) else (given, where)
            _set_value(values, name, _parse_value(value, name, origin) if isinstance(value, str) else value)
            origins[name] = origin
    _warn_about_old_names(origins)
    try:
        return ResolvedSettings(TrainSettings.model_validate(values), origins)
    except ValidationError as error:
        places = [".".join(str(part) for part in each["loc"]) for each in error.errors()]
        found = {origin for name, origin in origins.items() if any(place.startswith(name) for place in places)}
        where = f" (from {', '.join(sorted(found))})" if found else ""
        are_unknown = any(each["type"] == "extra_forbidden" for each in error.errors())
        raise UsageError(
            "settings.unknown-name" if are_unknown else "settings.invalid-value",
            f"invalid settings: {describe_validation_error(error)}{where}",
        ) from None


def _warn_about_old_names(names: Iterable[str]) -> None:
    old = sorted({f"optimizer.{name}" for name in OLD_ALGORITHM} & set(names))
    if "rewards.by_turn" in names:
        old.append("rewards.by_turn")
    if old:
        text = f"{', '.join(old)} will be removed; use optimizer.algorithm, e.g. {{dapo: {{epsilon: 0.1}}}}"
        err.print(f"[bold yellow]warning:[/] {printable(text)}", soft_wrap=True)


def list_env_vars() -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the environment variable of each field that has one."""
    for name, field in _walk_fields(TrainSettings, ""):
        yield from ((name, each.name) for each in field.metadata if isinstance(each, EnvVar))


def _walk_fields(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _walk_fields(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _read_config(config: str | None) -> dict[str, Any]:
    """Return the values of a configuration file, by dotted name."""
    if not config:
        return {}
    own = CONFIGS / f"{config}.yaml"
    try:
        if own.parent == CONFIGS and own.is_file():
            text = own.read_text(encoding="utf-8")
        else:
            with open_uri(config) as file:
                text = file.read().decode()
        read = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, NotFoundError) as error:
        names = ", ".join(sorted(each.stem for each in CONFIGS.glob("*.yaml")))
        raise UsageError(
            "settings.config-unreadable", f"cannot read {config}: {error}; give a YAML file, or one of {names}"
        ) from None
    except yaml.YAMLError as error:
        raise UsageError("settings.config-not-yaml", f"{config} is not YAML: {' '.join(str(error).split())}") from None
    if read is None:
        return {}
    if not isinstance(read, dict):
        raise UsageError(
            "settings.config-not-a-mapping",
            f"{config} is not a mapping of settings; write them as `optimizer: {{learning_rate: 1e-5}}`",
        )
    known = {name for name, _ in _walk_fields(TrainSettings, "")}
    return dict(_flatten(read, known, ""))


def _flatten(read: Mapping[str, Any], known: set[str], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in read.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name not in known:
            yield from _flatten(value, known, f"{name}.")
        else:
            yield name, value


def find_differences(one: TrainSettings, other: TrainSettings) -> list[str]:
    """Return the dotted names of the fields that differ between two settings."""
    return [name for name, _ in _walk_fields(TrainSettings, "") if _get_value(one, name) != _get_value(other, name)]


def _get_value(settings: BaseModel, name: str) -> Any:
    return reduce(getattr, name.split("."), settings)


def _parse_value(text: str, name: str, origin: str) -> Any:
    """Parse a value given as text; empty text and `null` mean None."""
    if name in ("model.name", "lora.start", "output.directory") and text not in ("", "null"):
        return text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UsageError(
            "settings.value-not-yaml", f"{name} must be a value in YAML, got {text!r} (from {origin})"
        ) from None
    return value


def _set_value(values: dict[str, Any], name: str, value: Any) -> None:
    *sections, last = name.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[last] = value


def _describe(section: BaseModel, origins: Mapping[str, str], prefix: str) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield f"{indent}{name}:"
            yield from _describe(value, origins, f"{prefix}{name}.")
            continue
        plain = section.model_dump(mode="json", include={name})[name]
        written = yaml.safe_dump(plain, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
        origin = origins.get(f"{prefix}{name}", "default")
        notes = [origin, *(each.name for each in field.metadata if isinstance(each, EnvVar)), field.description]
        yield f"{indent}{name}: {written}  # {'; '.join(filter(None, notes))}"


def check_settings(settings: TrainSettings, scenarios: int) -> None:
    """Check the settings of a run with this number of training scenarios, before anything is loaded.

    Raises:
        UsageError: the run cannot work; the message says what to change.
    """
    _raise_all(_find_errors(settings, scenarios))


def check_warm_start(settings: TrainSettings) -> None:
    """Check the settings of a warm start, before anything is loaded.

    Raises:
        UsageError: the warm start cannot work; the message says what to change.
    """
    _raise_all(_find_training_errors(settings, ()))


def check_devices(settings: TrainSettings, gpus: int) -> None:
    """Check that sharded weights have GPUs.

    Raises:
        UsageError: weights are sharded, but there is no GPU.
    """
    if settings.is_sharded and not gpus:
        raise UsageError(
            "settings.sharded-without-gpu",
            f"optimizer.distribution {settings.optimizer.distribution} requires GPUs: without one, each trainer would "
            "keep the whole model; set it to ddp",
        )


def _raise_all(found: Iterator[UsageError]) -> None:
    """Raise one error for all errors found, with the code of the first."""
    if faults := list(found):
        raise UsageError(faults[0].code, "; ".join(each.message for each in faults))


def _find_errors(settings: TrainSettings, scenarios: int) -> Iterator[UsageError]:
    rollouts, optimizer = settings.rollouts, settings.optimizer
    generations, device = rollouts.num_generations, optimizer.per_device_train_batch_size
    episodes = device * optimizer.gradient_accumulation_steps
    if episodes % generations:
        yield UsageError(
            "settings.batch-splits-groups",
            f"optimizer.per_device_train_batch_size {device} times gradient_accumulation_steps "
            f"{optimizer.gradient_accumulation_steps} must be a multiple of rollouts.num_generations {generations}",
        )
    elif rollouts.groups_per_step is not None and rollouts.groups_per_step != settings.groups:
        yield UsageError(
            "settings.other-groups-per-step",
            f"rollouts.groups_per_step is {rollouts.groups_per_step}, but a step of {episodes * optimizer.processes} "
            f"episodes has {settings.groups} groups of {generations}; set optimizer.gradient_accumulation_steps to "
            f"{max(1, rollouts.groups_per_step * generations // (device * optimizer.processes))}, or unset "
            "groups_per_step",
        )
    elif scenarios < settings.groups:
        yield UsageError(
            "settings.too-few-scenarios",
            f"a step needs {settings.groups} scenarios, but the split train has {scenarios}; give more, or lower "
            "optimizer.gradient_accumulation_steps",
        )
    if not optimizer.max_steps:
        yield UsageError("settings.no-steps", "optimizer.max_steps must be >= 1, or -1 for whole epochs, got 0")
    if settings.model.quantization != "none" and rollouts.engine == "vllm" and settings.mode != "simple":
        yield UsageError(
            "settings.quantized-with-vllm",
            f"rollouts.engine vllm does not support model.quantization {settings.model.quantization}; set "
            "rollouts.engine to transformers, or model.quantization to none",
        )
    yield from _find_training_errors(settings, settings.output.report_to)
    if settings.is_sharded and (settings.mode == "simple" or rollouts.engine != "vllm"):
        yield UsageError(
            "settings.sharded-without-vllm",
            f"optimizer.distribution {optimizer.distribution} requires vLLM for sampling, as no trainer has the whole "
            "model; set rollouts.engine to vllm (and mode to masked or rollout), or optimizer.distribution to ddp",
        )
    if rollouts.servers and rollouts.num_servers > 1:
        yield UsageError(
            "settings.servers-given-twice",
            f"rollouts.num_servers {rollouts.num_servers} cannot be combined with rollouts.servers; unset one of them",
        )
    if rollouts.num_servers > 1 and (rollouts.engine != "vllm" or settings.mode == "simple"):
        yield UsageError(
            "settings.num-servers-without-vllm",
            f"rollouts.num_servers {rollouts.num_servers} requires rollouts.engine vllm and a mode other than simple; "
            "unset it, or set rollouts.engine to vllm",
        )
    if rollouts.servers and rollouts.engine != "vllm":
        yield UsageError(
            "settings.servers-without-vllm",
            f"rollouts.servers requires rollouts.engine vllm, got {rollouts.engine}; set it to vllm, or unset "
            "rollouts.servers",
        )
    yield from _find_handover_errors(settings)
    yield from _find_algorithm_errors(settings)
    names = [each.name for each in settings.rewards.functions]
    yield from _find_weight_errors(settings.rewards.combine, names, settings.rewards.weights)


def _find_algorithm_errors(settings: TrainSettings) -> Iterator[UsageError]:
    """Find settings of the algorithm that do not exist, have no effect, or do not divide by `num_iterations`."""
    optimizer, choice = settings.optimizer, settings.optimizer.algorithm
    try:
        algorithm = choice.load()
    except UsageError as error:
        yield UsageError(error.code, f"optimizer.algorithm: {error}")
        return
    if settings.mode == "simple" and algorithm.trl_arguments() is None:
        yield UsageError(
            "settings.algorithm-in-simple-mode",
            f"optimizer.algorithm {choice.name} requires mode masked or rollout, got simple; use e.g. grpo or dapo",
        )
    iterations = optimizer.num_iterations
    if iterations == 1 and algorithm.equal_if_used_once:
        yield UsageError(
            "settings.algorithm-without-effect",
            f"optimizer.algorithm {choice.name} is the same as {algorithm.equal_if_used_once} with "
            f"optimizer.num_iterations 1; set num_iterations to 2 or more, or use {algorithm.equal_if_used_once}",
        )
    elif iterations == 1 and (idle := sorted(algorithm.settings_for_reuse & set(choice.settings))):
        yield UsageError(
            "settings.clip-without-effect",
            f"{', '.join(idle)} of optimizer.algorithm {choice.name} has no effect with optimizer.num_iterations 1, "
            "where old and new policy are the same; set num_iterations to 2 or more, or remove it",
        )
    steps = {
        "optimizer.max_steps": max(0, optimizer.max_steps),
        "output.save_steps": settings.output.save_steps,
        "evaluation.eval_steps": settings.evaluation.eval_steps,
    }
    if uneven := [f"{name} {value}" for name, value in steps.items() if value % iterations]:
        yield UsageError(
            "settings.steps-split-iterations",
            f"must be a multiple of optimizer.num_iterations {iterations}: {', '.join(uneven)}",
        )


def _find_training_errors(settings: TrainSettings, needed: Sequence[str]) -> Iterator[UsageError]:
    """Find errors that concern GRPO and warm starts alike; `needed` are packages that must be installed."""
    if settings.model.quantization != "none" and find_spec("bitsandbytes") is None:
        yield UsageError(
            "settings.package-missing",
            f"model.quantization {settings.model.quantization} requires bitsandbytes, which is not installed: pip "
            "install 'gumshoe-agents[qlora]', or set it to none",
        )
    for package in needed:
        if find_spec(package) is None:
            yield UsageError(
                "settings.package-missing",
                f"output.report_to requires {package}, which is not installed: {install_command(package)}; or remove "
                "it from output.report_to",
            )
    yield from _find_distribution_errors(settings)
    if int(os.environ.get("PARALLELISM_CONFIG_CP_SIZE") or 1) > 1:
        yield UsageError(
            "settings.context-parallelism",
            f"context parallelism is not supported: PARALLELISM_CONFIG_CP_SIZE is "
            f"{os.environ['PARALLELISM_CONFIG_CP_SIZE']}; unset it, and save memory with model.gradient_checkpointing "
            "or model.max_context",
        )
    if "lm_head" in settings.lora.target_modules:
        yield UsageError(
            "settings.lm-head-not-trained",
            "lora.target_modules cannot contain lm_head, which would never be trained; remove it",
        )


def _find_handover_errors(settings: TrainSettings) -> Iterator[UsageError]:
    rollouts = settings.rollouts
    if rollouts.handover is None:
        return
    try:
        split_uri(rollouts.handover)
    except UsageError as error:
        yield UsageError(error.code, f"rollouts.handover: {error}")
    if not rollouts.servers:
        yield UsageError(
            "settings.handover-without-servers",
            f"rollouts.handover {rollouts.handover} requires rollouts.servers; set their addresses, or unset it",
        )
    if settings.mode == "simple":
        yield UsageError(
            "settings.handover-in-simple-mode",
            f"rollouts.handover {rollouts.handover} has no use in mode simple, which has no episodes; unset it",
        )
    for server in rollouts.servers:
        parts = urlsplit(server)
        if parts.scheme != "http" or not parts.hostname:
            yield UsageError(
                "settings.handover-server-address",
                f"rollouts.servers must be http://HOST:PORT with rollouts.handover, got {server}",
            )


def _find_distribution_errors(settings: TrainSettings) -> Iterator[UsageError]:
    distribution = settings.optimizer.distribution
    if distribution == "ddp":
        return
    if settings.optimizer.processes == 1:
        yield UsageError(
            "settings.sharded-on-one-process",
            f"optimizer.distribution {distribution} requires several trainers, but optimizer.processes is 1; raise it, "
            "or set optimizer.distribution to ddp",
        )
    if settings.model.quantization != "none":
        yield UsageError(
            "settings.sharded-quantized",
            f"optimizer.distribution {distribution} cannot be combined with model.quantization "
            f"{settings.model.quantization}; set optimizer.distribution to ddp, or model.quantization to none",
        )
    if distribution == "zero3" and find_spec("deepspeed") is None:
        yield UsageError(
            "settings.package-missing",
            f"optimizer.distribution zero3 requires deepspeed, which is not installed: {install_command('deepspeed')}; "
            "or set it to fsdp2",
        )


def _find_weight_errors(combine: str, names: Sequence[str], weights: Mapping[str, float]) -> Iterator[UsageError]:
    from gumshoe.rewards.combination import check_combination

    try:
        check_combination(combine, names, weights)
    except UsageError as error:
        yield error
