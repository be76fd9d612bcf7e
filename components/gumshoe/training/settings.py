"""What a training run is set to: one model a concern, read from a YAML file, then the environment, then flags.

A value of the environment has the name that users of such scripts know (`LEARNING_RATE`); a flag names the concern
and the field (`--set optimizer.learning_rate=1e-5`).
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from gumshoe.artifacts.storage import NotFoundError, open_uri, split_uri
from gumshoe.environments.registry import NamedEnvironment
from gumshoe.errors import UsageError, faults_of
from gumshoe.inference.policy import HIGHEST_TEMPERATURE, Sampling
from gumshoe.rewards.combination import Way
from gumshoe.rewards.reward import RewardSettings
from gumshoe.rollouts.episode import EpisodeLimits

CONFIGS = Path(__file__).parent / "configs"
"""Settings that come with Gumshoe, by name."""
Mode = Literal["masked", "rollout", "simple"]
Distribution = Literal["ddp", "fsdp2", "zero3"]
LossType = Literal["grpo", "dr_grpo", "bnpo", "dapo", "cispo", "sapo"]


@dataclass(frozen=True, slots=True)
class Env:
    """The environment variable that a field is also read from."""

    name: str


class Section(BaseModel):
    """The settings of one concern."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, protected_namespaces=())


class ModelSettings(Section):
    """The base model."""

    name: Annotated[str, Env("MODEL_NAME")] = Field(
        "Qwen/Qwen2.5-7B-Instruct", description="a model's directory, its name on the hub, or `tiny`"
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="of the base model's weights; auto is bfloat16 on a GPU and float32 elsewhere"
    )
    quantization: Literal["none", "nf4"] = Field("none", description="of the base model's weights (QLoRA)")
    max_context: int = Field(8192, ge=64, description="most tokens of an episode")
    gradient_checkpointing: bool = Field(True, description="compute activations anew instead of keeping them")
    check_memory: bool = Field(True, description="refuse a run that takes more memory than there is (`gumshoe plan`)")


class LoraSettings(Section):
    """The adapter (LoRA, https://arxiv.org/abs/2106.09685)."""

    rank: int = Field(16, ge=1, le=512, description="inner dimension of the adapter's matrices")
    alpha: int = Field(32, ge=1, description="scale of the adapter, as alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of inputs left out while training")
    target_modules: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="modules of the base model that get one",
    )
    start: Path | None = Field(
        None,
        description="the directory of an adapter of that shape to begin at, as `gumshoe warm-start` makes one; the "
        "base model itself unless given",
    )


class WarmStartSettings(Section):
    """Of `gumshoe warm-start`, which learns from episodes that are right."""

    epochs: float = Field(2.0, gt=0, description="times that each episode is learned from")
    learning_rate: float = Field(
        1e-4, gt=0, description="AdamW's, after a twentieth of the steps; it falls to nothing from there on"
    )
    batch_size: int = Field(
        8,
        ge=1,
        description="episodes of an optimizer step, all of them where there are fewer; they go through a device in "
        "passes of at most optimizer.per_device_train_batch_size",
    )


class DataSettings(Section):
    """Which scenarios are learned from and chosen on."""

    train_size: Annotated[int | None, Env("TRAIN_DATASET_SIZE")] = Field(
        None, ge=1, description="at most so many scenarios of the split `train`; all unless given"
    )
    eval_size: Annotated[int | None, Env("EVAL_DATASET_SIZE")] = Field(
        None, ge=1, description="at most so many scenarios of the split `validation`; all unless given"
    )
    seed: Annotated[int, Env("SEED")] = Field(
        42, description="decides the adapter's first weights, the order of scenarios, and every episode's seed"
    )


class RolloutSettings(Section):
    """How episodes are run, and which groups of them are learned from."""

    engine: Literal["vllm", "transformers"] = Field("vllm", description="a vLLM server, or the trainer's own process")
    servers: tuple[str, ...] = Field(
        (), description="addresses of vLLM servers that run already; num_servers are started if none"
    )
    num_servers: int = Field(
        1, ge=1, description="vLLM servers that are started, each with the whole model (data parallel)"
    )
    handover: str | None = Field(
        None,
        description="file:// or s3:// URI, of this run alone, through which the servers get each step's adapter, by "
        "`gumshoe adapter-loader` beside each; every address of a server's name is a server then",
    )
    num_generations: Annotated[int, Env("NUM_GENERATIONS")] = Field(
        4, ge=2, description="episodes of a scenario (a group)"
    )
    groups_per_step: int | None = Field(
        None, ge=1, description="groups of an optimizer step; what the batch and its accumulation hold unless given"
    )
    max_turns: Annotated[int, Env("MAX_TURNS")] = Field(10, ge=1, description="most turns of an episode")
    max_tokens: Annotated[int, Env("MAX_TOKENS")] = Field(512, ge=8, description="most tokens of a turn")
    temperature: Annotated[float, Env("TEMPERATURE")] = Field(
        1.0, gt=0, le=HIGHEST_TEMPERATURE, description="of sampling; also in training"
    )
    min_group_std: Annotated[float, Env("MIN_GROUP_STD")] = Field(
        0.01, ge=0, description="groups whose rewards have a smaller standard deviation teach nothing and are dropped"
    )
    draws: int = Field(
        3,
        ge=1,
        description="times that scenarios are drawn for a step until it is full (DAPO, https://arxiv.org/abs/2503.14476)",
    )
    concurrency: int = Field(64, ge=1, description="episodes at once, of each server")
    least_ratio: float = Field(
        0.9, ge=0, le=1, description="a lower mean importance ratio of trainer to sampler, at most 1 each, is warned of"
    )
    most_difference: float = Field(
        0.1,
        gt=0,
        description="mean difference of an episode's log-probabilities between trainer and sampler, in nats "
        "a token, above which it is another policy's and its group is left out",
    )
    gpu_memory: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of a GPU's memory that each vLLM server takes; unless given, all of one GPU share 0.9 of "
        "it, and 0.45 of a trainer's",
    )


class RewardsSettings(Section):
    """What episodes are rewarded for."""

    functions: tuple[RewardSettings, ...] = Field(
        (RewardSettings(name="rubric"),), min_length=1, description="reward functions by name, with their arguments"
    )
    combine: Way = Field("uniform", description="how several become one (gumshoe.rewards.combination)")
    weights: dict[str, float] = Field(default_factory=dict, description="of each function, to combine by weights")
    by_turn: bool = Field(
        False,
        description="give each turn an advantage of its own, from what it did, in place of those of the functions",
    )


class OptimizerSettings(Section):
    """How weights change."""

    learning_rate: Annotated[float, Env("LEARNING_RATE")] = Field(1e-5, ge=0, description="AdamW's, after the warm-up")
    max_steps: Annotated[int, Env("MAX_STEPS")] = Field(
        -1, ge=-1, description="optimizer steps, at least 1; as many as the epochs have if -1"
    )
    num_train_epochs: Annotated[float, Env("NUM_TRAIN_EPOCHS")] = Field(
        1.0, gt=0, description="times that each scenario is learned from"
    )
    per_device_train_batch_size: Annotated[int, Env("PER_DEVICE_TRAIN_BATCH_SIZE")] = Field(
        4, ge=1, description="episodes in one pass of a device"
    )
    gradient_accumulation_steps: Annotated[int, Env("GRADIENT_ACCUMULATION_STEPS")] = Field(
        4, ge=1, description="passes of an optimizer step"
    )
    processes: int = Field(
        1, ge=1, description="trainers that share each step, one a GPU (data parallel); of all machines together"
    )
    distribution: Distribution = Field(
        "ddp",
        description="what each of several trainers has: ddp: the whole model; fsdp2 (PyTorch's fully sharded data "
        "parallel) and zero3 (DeepSpeed, https://arxiv.org/abs/1910.02054): a share of all weights, which are put "
        "together layer by layer",
    )
    warmup_steps: Annotated[int, Env("WARMUP_STEPS")] = Field(0, ge=0, description="steps until the full learning rate")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="of the learning rate after that")
    weight_decay: float = Field(0.0, ge=0, description="share of a weight, times the learning rate, lost in a step")
    max_grad_norm: Annotated[float, Env("MAX_GRAD_NORM")] = Field(
        1.0, ge=0, description="largest norm of the gradient; 0 is no limit"
    )
    beta: Annotated[float, Env("BETA")] = Field(
        0.01,
        ge=0,
        description="weight of the KL divergence from the base model (GRPO, https://arxiv.org/abs/2402.03300; "
        "without bias, as in https://arxiv.org/abs/2512.02556)",
    )
    epsilon: float = Field(
        0.2,
        gt=0,
        description="how far the ratio of new to old probability counts, downwards; both are the same as long as each "
        "episode is learned from once",
    )
    epsilon_high: float = Field(0.28, gt=0, description="and upwards (DAPO, https://arxiv.org/abs/2503.14476)")
    loss_type: LossType = Field(
        "dapo",
        description="grpo: mean over tokens, then episodes (https://arxiv.org/abs/2402.03300); dapo, bnpo: over all "
        "tokens of the step, or of the pass (https://arxiv.org/abs/2503.14476); dr_grpo: by a constant length "
        "(https://arxiv.org/abs/2503.20783); cispo: clipped weights (https://arxiv.org/abs/2506.13585); sapo: a soft "
        "gate (https://arxiv.org/abs/2511.20347)",
    )
    importance: Literal["token", "sequence"] = Field(
        "token", description="ratios by token, or one an episode (GSPO, https://arxiv.org/abs/2507.18071)"
    )
    scale_advantages: Literal["group", "batch", "none"] = Field(
        "group",
        description="what rewards are divided by: the standard deviation of the group (GRPO, "
        "https://arxiv.org/abs/2402.03300), of the step (https://arxiv.org/abs/2508.08221), or nothing (Dr. GRPO, "
        "https://arxiv.org/abs/2503.20783)",
    )

    @property
    def highest_ratio(self) -> float:
        """`epsilon_high` as TRL takes it: above 1, and for cispo the ratio itself."""
        return self.epsilon_high + (self.loss_type == "cispo")


class EvalDuringTrainingSettings(Section):
    """When the policy is measured on the split `validation`, and when that ends the run."""

    eval_steps: Annotated[int, Env("EVAL_STEPS")] = Field(20, ge=1, description="optimizer steps between evaluations")
    target_accuracy: Annotated[float | None, Env("TARGET_ACCURACY")] = Field(
        None, gt=0, le=1, description="the run ends early when it is reached"
    )
    patience: Annotated[int | None, Env("PATIENCE")] = Field(
        None, ge=1, description="the run ends early after so many evaluations without a better one"
    )
    baseline: Annotated[bool, Env("RUN_BASELINE_EVAL")] = Field(True, description="measure before the first step too")
    judge: str | dict[str, Any] = Field(
        "heuristic", description="says which answers are right, as `gumshoe evaluate --judge`"
    )


class OutputSettings(Section):
    """What a run leaves."""

    directory: Annotated[Path | None, Env("OUTPUT_DIR")] = Field(
        None, description="where; outputs/grpo_<mode> unless given"
    )
    save_steps: Annotated[int, Env("SAVE_STEPS")] = Field(10, ge=1, description="optimizer steps between checkpoints")
    save_total_limit: Annotated[int, Env("SAVE_TOTAL_LIMIT")] = Field(3, ge=1, description="checkpoints that are kept")
    checkpoints: str | None = Field(
        None,
        description="file:// or s3:// URI, of this run alone, that checkpoints are sent to as they are made, and from "
        "which --resume takes up the run where its directory is not",
    )
    verbose: Annotated[bool, Env("VERBOSE")] = Field(False, description="print each group's advantages by turn")
    report_to: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = Field(
        ("tensorboard",), description="where metrics go beside metrics.jsonl"
    )
    metrics_port: Annotated[int | None, Env("METRICS_PORT")] = Field(
        None, ge=1, le=65535, description="where Prometheus finds the last step's numbers, at /metrics; none otherwise"
    )
    stall_seconds: float = Field(1800, gt=0, description="without progress for so long, the run ends with status 75")


class TrainSettings(Section):
    """A training run."""

    mode: Mode = Field(
        "masked",
        description="masked: real episodes, learned from what the policy sampled; rollout: from injected tokens too; "
        "simple: static prompts and a heuristic reward, without an environment",
    )
    environment: NamedEnvironment | None = Field(
        None,
        description="what episodes take place in: email, documents, package.module:Class, or one with its settings, as "
        "{documents: {reasoning: true}}; as the index tells unless given",
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

    @property
    def directory(self) -> Path:
        """Where the run's files go."""
        return self.output.directory or Path("outputs") / f"grpo_{self.mode}"

    @property
    def sampling(self) -> Sampling:
        """Of training; an evaluation is greedy."""
        rollouts = self.rollouts
        return Sampling(rollouts.temperature, max_tokens=rollouts.max_tokens)

    @property
    def limits(self) -> EpisodeLimits:
        return EpisodeLimits(self.rollouts.max_turns, self.model.max_context)

    @property
    def is_sharded(self) -> bool:
        """Whether no trainer has all weights."""
        return self.optimizer.distribution != "ddp" and self.optimizer.processes > 1

    @property
    def servers(self) -> int:
        """vLLM servers that the run starts."""
        rollouts = self.rollouts
        is_served = rollouts.engine == "vllm" and self.mode != "simple" and not rollouts.servers
        return rollouts.num_servers if is_served else 0

    @property
    def groups(self) -> int:
        """Groups of an optimizer step, of all processes together."""
        optimizer = self.optimizer
        episodes = optimizer.per_device_train_batch_size * optimizer.gradient_accumulation_steps
        return episodes // self.rollouts.num_generations * optimizer.processes


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings, and where each came from."""

    settings: TrainSettings
    origins: Mapping[str, str]
    """By dotted name; what has none is a default."""

    def as_yaml(self) -> str:
        """The settings as a configuration file, with what each means and where it came from."""
        return "\n".join(_described(self.settings, self.origins, "")) + "\n"


def resolve(config: str | None, flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Resolved:
    """The settings of a run.

    `config` is a name of `CONFIGS`, a path, or a `file://` or `s3://` URI; `flags` has dotted names. Values that are
    text are read as YAML.

    Raises:
        UsageError: a value cannot be; it says which, and where it came from.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    layers = [
        (_of_file(config), config or ""),
        ({name: (environ[env], f"${env}") for name, env in env_names() if env in environ}, ""),
        ({name: (value, "flag") for name, value in flags.items()}, ""),
    ]
    for layer, where in layers:
        for name, given in layer.items():
            value, origin = given if isinstance(given, tuple) else (given, where)
            _put(values, name, _read(value, name, origin) if isinstance(value, str) else value)
            origins[name] = origin
    try:
        return Resolved(TrainSettings.model_validate(values), origins)
    except ValidationError as error:
        places = [".".join(str(part) for part in each["loc"]) for each in error.errors()]
        found = {origin for name, origin in origins.items() if any(place.startswith(name) for place in places)}
        where = f" (from {', '.join(sorted(found))})" if found else ""
        are_unknown = any(each["type"] == "extra_forbidden" for each in error.errors())
        raise UsageError(
            "settings.unknown-name" if are_unknown else "settings.invalid-value",
            f"invalid settings: {faults_of(error)}{where}",
        ) from None


def env_names() -> Iterator[tuple[str, str]]:
    """Each field's dotted name that is also read from the environment, and its name there."""
    for name, field in _fields(TrainSettings, ""):
        yield from ((name, each.name) for each in field.metadata if isinstance(each, Env))


def _fields(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _fields(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _of_file(config: str | None) -> dict[str, Any]:
    """A file's values by dotted name."""
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
    known = {name for name, _ in _fields(TrainSettings, "")}
    return dict(_flat(read, known, ""))


def _flat(read: Mapping[str, Any], known: set[str], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in read.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name not in known:
            yield from _flat(value, known, f"{name}.")
        else:
            yield name, value


def differences(one: TrainSettings, other: TrainSettings) -> list[str]:
    """The dotted names of the fields in which two settings differ."""
    return [name for name, _ in _fields(TrainSettings, "") if _value(one, name) != _value(other, name)]


def _value(settings: BaseModel, name: str) -> Any:
    return reduce(getattr, name.split("."), settings)


def _read(text: str, name: str, origin: str) -> Any:
    """A value that was written as text; empty is none, and so is null."""
    if name in ("model.name", "lora.start", "output.directory") and text not in ("", "null"):
        return text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UsageError(
            "settings.value-not-yaml", f"{name} must be a value in YAML, got {text!r} (from {origin})"
        ) from None
    return value


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    *sections, last = name.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[last] = value


def _described(section: BaseModel, origins: Mapping[str, str], prefix: str) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield f"{indent}{name}:"
            yield from _described(value, origins, f"{prefix}{name}.")
            continue
        plain = section.model_dump(mode="json", include={name})[name]
        written = yaml.safe_dump(plain, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
        origin = origins.get(f"{prefix}{name}", "default")
        notes = [origin, *(each.name for each in field.metadata if isinstance(each, Env)), field.description]
        yield f"{indent}{name}: {written}  # {'; '.join(filter(None, notes))}"


def check(settings: TrainSettings, scenarios: int) -> None:
    """Refuse what cannot work with so many scenarios, before anything is loaded.

    Raises:
        UsageError: it cannot; it says what to change.
    """
    _refuse(_faults(settings, scenarios))


def check_warm_start(settings: TrainSettings) -> None:
    """Refuse what cannot work in a warm start, before anything is loaded.

    Raises:
        UsageError: it cannot; it says what to change.
    """
    _refuse(_faults_of_learning(settings, ()))


def check_devices(settings: TrainSettings, gpus: int) -> None:
    """
    Raises:
        UsageError: weights are to be shared out where there is no GPU.
    """
    if settings.is_sharded and not gpus:
        raise UsageError(
            "settings.sharded-without-gpu",
            f"optimizer.distribution {settings.optimizer.distribution} requires GPUs: without one, each trainer would "
            "keep the whole model; set it to ddp",
        )


def _refuse(found: Iterator[UsageError]) -> None:
    """Raise one error for all that were found, with the code of the first."""
    if faults := list(found):
        raise UsageError(faults[0].code, "; ".join(each.message for each in faults))


def _faults(settings: TrainSettings, scenarios: int) -> Iterator[UsageError]:
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
    yield from _faults_of_learning(settings, settings.output.report_to)
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
    yield from _faults_of_handover(settings)
    if settings.mode == "simple" and settings.rewards.by_turn:
        yield UsageError(
            "settings.turn-rewards-in-simple-mode",
            "rewards.by_turn requires episodes, and mode simple has none; set mode to masked or rollout",
        )
    names = [each.name for each in settings.rewards.functions]
    yield from _faults_of_weights(settings.rewards.combine, names, settings.rewards.weights)


def _faults_of_learning(settings: TrainSettings, needed: Sequence[str]) -> Iterator[UsageError]:
    """Whatever is learned from; `needed` are packages beside those that the weights need."""
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
                f"output.report_to requires {package}, which is not installed: pip install {package}, or remove it "
                "from output.report_to",
            )
    yield from _faults_of_distribution(settings)
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


def _faults_of_handover(settings: TrainSettings) -> Iterator[UsageError]:
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


def _faults_of_distribution(settings: TrainSettings) -> Iterator[UsageError]:
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
            "optimizer.distribution zero3 requires deepspeed, which is not installed: pip install deepspeed, or set it "
            "to fsdp2",
        )


def _faults_of_weights(combine: str, names: Sequence[str], weights: Mapping[str, float]) -> Iterator[UsageError]:
    from gumshoe.rewards.combination import check_combination

    try:
        check_combination(combine, names, weights)
    except UsageError as error:
        yield error
