"""Define the sections of the settings of a training run, from the base model to the files that it writes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gumshoe.inference.policy import MAX_TEMPERATURE
from gumshoe.rewards.combination import Combination
from gumshoe.rewards.reward import RewardSettings
from gumshoe.training.algorithms.lookup import AlgorithmChoice, NamedAlgorithm
from gumshoe.training.settings_old_names import replace_old_algorithm

Distribution = Literal["ddp", "fsdp2", "zero3"]
Difficulty = Literal["easy", "normal", "hard"]
DIFFICULTIES: tuple[Difficulty, ...] = get_args(Difficulty)
GOLD = "gold"
"""Name of the demonstrations that are made from scenarios and their sources, and of the policy in them."""
ALL_LINEAR: Literal["all-linear"] = "all-linear"
"""Value of `lora.target_modules`: all linear modules of the layers, except those of `find_default_targets`."""


@dataclass(frozen=True, slots=True)
class EnvVar:
    """An environment variable that a field is also read from."""

    name: str


class Section(BaseModel):
    """A section of the settings."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True, protected_namespaces=()
    )


class ModelSettings(Section):
    """The base model."""

    name: Annotated[str, EnvVar("MODEL_NAME")] = Field(
        "Qwen/Qwen2.5-7B-Instruct",
        description="base model: a directory, a name on the Hugging Face Hub, `tiny`, `smollm2-135m`, or `gguf:FILE`",
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="data type of the base model's weights; auto: bfloat16 on a GPU, float32 on a CPU"
    )
    quantization: Literal["none", "nf4"] = Field(
        "none", description="quantization of the base model's weights; nf4 is QLoRA"
    )
    max_context: int = Field(8192, ge=64, description="maximum number of tokens of an episode")
    gradient_checkpointing: bool | Literal["auto"] = Field(
        "auto",
        description="recompute activations in the backward pass, which takes longer and saves memory; auto: only if "
        "the run would not fit without it, by the estimate of `gumshoe plan`, and always in warm starts",
    )
    check_memory: bool = Field(True, description="reject a run that does not fit into memory (see `gumshoe plan`)")

    @property
    def recomputes(self) -> bool:
        """True if activations are recomputed; `auto`, before it is resolved, counts as True."""
        return self.gradient_checkpointing is not False


class LoraSettings(Section):
    """The adapter (LoRA, https://arxiv.org/abs/2106.09685)."""

    rank: int = Field(16, ge=1, le=512, description="rank of the LoRA matrices")
    alpha: int = Field(32, ge=1, description="scale of the adapter: its output is multiplied by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout probability in the adapter during training")
    target_modules: Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        ALL_LINEAR,
        description="modules of the base model that get LoRA matrices: names of linear modules, or all-linear, which "
        "leaves out embeddings, lm_head, routers of experts, and modules of Mamba whose adapter would have no effect",
    )
    target_parameters: Literal["none", "experts"] = Field(
        "none",
        description="parameters outside modules that get LoRA matrices; experts: the weights of all experts of a "
        "mixture, if they are one parameter per layer; requires dropout 0",
    )
    layers: int | None = Field(
        None,
        ge=1,
        description="number of layers that get LoRA matrices, counted from the top; all if unset. Without "
        "`model.gradient_checkpointing`, nothing is computed for the others in the backward pass",
    )
    start: Path | None = Field(
        None,
        description="directory of an adapter to start from, e.g. one made by `gumshoe warm-start`, with the same "
        "rank, alpha, layers and target modules; if unset, start from the base model",
    )


class GoldSettings(Section):
    """Demonstrations that are made from scenarios and their sources, without a model (`--from-gold`)."""

    episodes: int = Field(1, ge=1, description="maximum number of episodes per scenario, each with other keywords")
    failed_searches: float = Field(
        0.25,
        ge=0,
        le=1,
        description="share of episodes that begin with a search that lists no source, if words of the question make "
        "one; it is not trained on, but the search after it is",
    )
    other_reads: float = Field(
        0.2,
        ge=0,
        le=1,
        description="share of episodes that read another hit before the source, with reads source; this is not trained "
        "on",
    )
    reads: Literal["source", "in-order", "all"] = Field(
        "source",
        description="hits that are read: source: the source at once, wherever it is listed; in-order: those from the "
        "first hit to the source, if there are enough turns: the policy learns to read on until it has the answer; "
        "all: all hits, if there are enough turns: the policy learns to compare them before it answers",
    )
    later_hits: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of scenarios with an episode whose search lists the source below its first hit, if a likely "
        "search does: the policy learns to choose a hit, not to read the first one",
    )
    unknown: float = Field(
        1.0,
        ge=0,
        le=1,
        description="share of the scenarios without a source in the index that get an episode, which searches in vain "
        'and ends with "I don\'t know"',
    )
    answers: Literal["reference", "span"] = Field(
        "reference",
        description="final answer: reference: as the scenario has it; span: its shortest part that stands in the "
        "source, if that is an answer",
    )
    difficulty: Difficulty = Field(
        "hard",
        description="most difficult scenarios that get episodes: easy: one search for words of the question lists the "
        "source as its first or second hit; normal: further down, or after several searches; hard: only a search for "
        "words that the policy has not seen lists it, and this search is not trained on",
    )


_LEARNING_RATES = {"lora": 1e-4, "full": 3e-4}  # of warm starts


class WarmStartSettings(Section):
    """Supervised fine-tuning on correct episodes (`gumshoe warm-start`)."""

    weights: Literal["lora", "full"] = Field(
        "lora",
        description="weights to train: lora: those of an adapter; full: those of the model itself, which is saved as a "
        "base model of its own",
    )
    layers: int | None = Field(
        None,
        ge=1,
        description="number of layers to train, counted from the top, together with the final norm, with weights full; "
        "all weights if unset",
    )
    epochs: float = Field(2.0, gt=0, description="number of passes over the episodes")
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="peak learning rate of AdamW, after a linear warmup of 5 % of the steps; it then decays linearly "
        "to 0; if unset, 1e-4 for weights lora and 3e-4 for full",
    )
    batch_size: int = Field(
        8,
        ge=1,
        description="episodes per optimizer step (all of them if there are fewer); a device takes at most "
        "optimizer.per_device_train_batch_size at once",
    )
    gold: GoldSettings = Field(default_factory=GoldSettings)

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate, or its default for the weights to train."""
        return self.learning_rate or _LEARNING_RATES[self.weights]


class DataSettings(Section):
    """The scenarios for training and validation."""

    train_size: Annotated[int | None, EnvVar("TRAIN_DATASET_SIZE")] = Field(
        None,
        ge=1,
        description="maximum number of scenarios of the split `train`, from the start of the file; all if unset",
    )
    eval_size: Annotated[int | None, EnvVar("EVAL_DATASET_SIZE")] = Field(
        None,
        ge=1,
        description="maximum number of scenarios of the split `validation`, from the start of the file; all if unset",
    )
    order: Literal["shuffled", "given"] = Field(
        "shuffled",
        description="order of the training scenarios in the first epoch: shuffled, or given: as in the file, e.g. from "
        "easy to hard (`gumshoe scenarios sort`); later epochs are shuffled",
    )
    rest_steps: int = Field(
        0,
        ge=0,
        description="number of steps for which a scenario is used only if there are not enough others, after a group "
        "of it was flat, i.e. always or never solved. This saves rollouts, but such scenarios are seen less often. Not "
        "in mode simple",
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
        description="drop groups whose rewards have a smaller standard deviation: they carry no learning signal. In "
        "mode simple, only groups with equal rewards have none",
    )
    segments: Literal["share", "last", "weigh"] = Field(
        "share",
        description="what an episode that was split into segments trains on: share: all of them with the advantage of "
        "the episode; last: only the last one; weigh: all of them, with the advantage divided by their number",
    )
    mask_truncated: bool = Field(
        False,
        description="do not train on episodes whose last turn was cut off (ending truncated or context full), though "
        "their rewards count for their group",
    )
    draws: int = Field(
        3,
        ge=1,
        description="maximum number of scenarios per group of a step. A group that is flat or dropped is replaced at "
        "once by another scenario (dynamic sampling of DAPO, https://arxiv.org/abs/2503.14476). No effect in mode "
        "simple",
    )
    concurrency: int = Field(64, ge=1, description="maximum number of concurrent episodes per server")
    lag: int = Field(
        0,
        ge=0,
        le=16,
        description="number of steps (batches of episodes) whose episodes run while an earlier one is trained on. 0: "
        "rollouts and training take turns; 1: they overlap, and episodes are sampled by a policy that is one step "
        "older, which importance weights correct",
    )
    max_staleness: int | None = Field(
        None,
        ge=0,
        le=32,
        description="maximum number of steps that the trainer may have learned from since the oldest policy of a group "
        "was published. A step waits for groups that would exceed it; other slow groups are trained on later. If "
        "unset, lag + 1; lag with rollouts.handover; 0 without a lag",
    )
    adapter_switch: Literal["episode", "turn"] = Field(
        "episode",
        description="when episodes change to the adapter of the next step, with a lag: episode: new ones begin with "
        "it, and running ones keep theirs; turn: running ones change to it for their next turn",
    )
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
        "this in one of its episodes (mean absolute difference, in nats per token); with a lag, this times 1 + the "
        "number of steps between the two",
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
        4, ge=1, description="episodes per device in one forward and backward pass; more if they share tokens"
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
        description="weight of the KL divergence from the reference (GRPO, https://arxiv.org/abs/2402.03300; "
        "unbiased estimate, https://arxiv.org/abs/2512.02556)",
    )
    reference: Literal["start", "base"] = Field(
        "start",
        description="reference of the KL divergence: start: the adapter as the run began, i.e. lora.start; base: the "
        "base model; the same if lora.start is unset",
    )
    algorithm: NamedAlgorithm = Field(
        AlgorithmChoice(name="dapo"),
        description="algorithm (advantages and loss): grpo, dapo, bnpo, dr_grpo, gspo, cispo, sapo, rloo, turn_level,"
        " or your own as package.module:Class; with settings e.g. {dapo: {epsilon: 0.1}}",
    )
    num_iterations: int = Field(1, ge=1, description="optimizer steps per batch of episodes (mu of GRPO)")
    router_loss: float = Field(
        0.0,
        ge=0,
        description="weight of the loss that balances the experts of a mixture, https://arxiv.org/abs/2101.03961; "
        "0: it is not computed",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, values: Any) -> Any:
        """Accept the names that earlier versions used instead of `algorithm`."""
        return replace_old_algorithm(values) if isinstance(values, dict) else values


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


class CostSettings(Section):
    """Prices for the proof of the run, which counts its hours of GPU and CPU."""

    gpu_hour: float | None = Field(None, ge=0, description="price of one GPU for an hour; no costs if unset")
    cpu_hour: float | None = Field(None, ge=0, description="price of one processor for an hour; not counted if unset")
    currency: str = Field("USD", min_length=1, max_length=8, description="currency of the prices")
    server_gpus: int = Field(
        0, ge=0, description="number of GPUs of rollouts.servers, which the run does not start and cannot count"
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
    report_to: tuple[Literal["tensorboard", "trackio", "wandb", "mlflow"], ...] = Field(
        ("tensorboard",), description="trackers that receive metrics, beside metrics.jsonl"
    )
    metrics_port: Annotated[int | None, EnvVar("METRICS_PORT")] = Field(
        None, ge=1, le=65535, description="port that serves the latest metrics to Prometheus at /metrics; off if unset"
    )
    stall_seconds: float = Field(1800, gt=0, description="exit with status 75 after this many seconds without progress")
