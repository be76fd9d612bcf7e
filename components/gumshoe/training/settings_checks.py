"""Check the settings of a training run against its scenarios, GPUs and installed packages before it starts."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from urllib.parse import urlsplit

from gumshoe.artifacts.storage import split_uri
from gumshoe.environments.registry import validate_environment
from gumshoe.errors import UsageError
from gumshoe.installation import install_command
from gumshoe.rewards.combination import check_combination
from gumshoe.rewards.judge_registry import open_judge
from gumshoe.rewards.reward import load_reward, number_names
from gumshoe.rollouts.episode_runners import check_agent
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sections import RewardsSettings

_HANDOVER_STALENESS = 1  # steps; adapter loaders keep two adapters
_MISSING_HERE = {
    "embeddings.not-installed",
    "environments.import-failed",
    "gateway.agent-import-failed",
    "gateway.agent-not-found",
    "models.no-api-key",
    "rewards.import-failed",
    "rollouts.gateway-not-installed",
    "settings.algorithm-not-importable",
    "settings.context-parallelism",
    "settings.package-missing",
}
"""Codes of errors about keys, packages and variables of this machine. Another machine may not have them."""
_EXTRAS = ("trackio", "wandb")  # trackers that an extra of the same name installs


def check_settings(settings: TrainSettings, scenarios: int | None, *, is_here: bool = True) -> None:
    """Check the settings of a run with this number of training scenarios, before anything is loaded.

    `scenarios` is None if their number is not known yet. If the run is not on this machine (`is_here`), packages may be
    missing here.

    Raises:
        UsageError: the run cannot work; the message says what to change.
    """
    _raise_all(_find_errors(settings, scenarios), is_here)


def check_plugins(settings: TrainSettings, *, is_here: bool = True) -> None:
    """Check the names and the settings of rewards, algorithm, judge, environment and agent.

    If the run is not on this machine (`is_here`), keys, packages and modules may be missing here.

    Raises:
        UsageError: one of them does not exist, or does not accept its settings.
    """
    checks: list[Callable[[], object]] = [partial(load_reward, each) for each in settings.rewards.functions]
    checks += [settings.optimizer.algorithm.load, partial(open_judge, settings.evaluation.judge)]
    if settings.environment is not None:
        checks.append(partial(validate_environment, settings.environment))
    if settings.agent is not None:
        checks.append(partial(check_agent, settings.agent))
    for check in checks:
        try:
            check()
        except UsageError as error:
            if is_here or error.code not in _MISSING_HERE:
                raise


def check_warm_start(settings: TrainSettings, *, is_here: bool = True) -> None:
    """Check the settings of a warm start, before anything is loaded.

    If the warm start is not on this machine (`is_here`), packages may be missing here.

    Raises:
        UsageError: the warm start cannot work; the message says what to change.
    """
    _raise_all(_find_warm_start_errors(settings), is_here)


def check_pipeline_warm_start(settings: TrainSettings, *, is_here: bool = True) -> None:
    """Check the settings of the warm start of a pipeline, which trains an adapter.

    Raises:
        UsageError: as `check_warm_start`, or the warm start would train all weights.
    """
    if settings.warm_start.weights != "lora":
        raise UsageError(
            "training.full-in-pipeline",
            f"a pipeline trains an adapter, but warm_start.weights is {settings.warm_start.weights}; set it to lora, "
            "or run `gumshoe warm-start --full` before, and use the result as the base model",
        )
    check_warm_start(settings, is_here=is_here)


def check_devices(settings: TrainSettings, gpus: int, servers: int) -> None:
    """Check that sharded weights have GPUs, and that the vLLM servers of the run can use adapters on the GPUs.

    Raises:
        UsageError: weights are sharded, but there is no GPU; or vLLM would have to use adapters of 32 bits on GPUs.
    """
    if settings.is_sharded and not gpus:
        raise UsageError(
            "settings.sharded-without-gpu",
            f"optimizer.distribution {settings.optimizer.distribution} requires GPUs: without one, each trainer would "
            "keep the whole model; set it to ddp",
        )
    if gpus and servers and settings.model.dtype == "float32":
        raise UsageError(
            "settings.float32-on-gpu",
            "model.dtype is float32, but on GPUs vLLM multiplies adapters only in 16 bits; set it to bfloat16, or "
            "rollouts.engine to transformers",
        )


def _raise_all(found: Iterator[UsageError], is_here: bool) -> None:
    """Raise one error for all errors found that apply, with the code of the first."""
    if faults := [each for each in found if is_here or each.code not in _MISSING_HERE]:
        raise UsageError(faults[0].code, "; ".join(each.message for each in faults))


def _find_errors(settings: TrainSettings, scenarios: int | None) -> Iterator[UsageError]:
    rollouts, optimizer = settings.rollouts, settings.optimizer
    yield from _find_batch_errors(settings, scenarios)
    if not optimizer.max_steps:
        yield UsageError("settings.no-steps", "optimizer.max_steps must be >= 1, or -1 for whole epochs, got 0")
    if settings.model.quantization != "none" and rollouts.engine == "vllm" and settings.mode != "simple":
        yield UsageError(
            "settings.quantized-with-vllm",
            f"rollouts.engine vllm does not support model.quantization {settings.model.quantization}; set "
            "rollouts.engine to transformers, or model.quantization to none",
        )
    if settings.mode == "simple" and settings.agent is not None:
        yield UsageError(
            "settings.agent-in-simple-mode",
            f"the agent {settings.agent.word} requires mode masked or rollout, got simple, which trains on first turns "
            "without episodes; set mode to masked, or leave the agent out",
        )
    if settings.mode == "simple" and settings.data.rest_steps:
        yield UsageError(
            "settings.rest-in-simple-mode",
            f"data.rest_steps {settings.data.rest_steps} requires mode masked or rollout, got simple, which replaces "
            "no groups; set it to 0",
        )
    yield from _find_training_errors(settings, settings.output.report_to)
    if settings.is_sharded and (settings.mode == "simple" or rollouts.engine != "vllm"):
        yield UsageError(
            "settings.sharded-without-vllm",
            f"optimizer.distribution {optimizer.distribution} requires vLLM for sampling, as no trainer has the whole "
            "model; set rollouts.engine to vllm (and mode to masked or rollout), or optimizer.distribution to ddp",
        )
    if settings.chat.reasoning_history == "drop" and (settings.is_sharded or optimizer.router_loss):
        yield UsageError(
            "settings.drop-not-supported",
            "chat.reasoning_history drop splits episodes into segments, which sharded weights (optimizer.distribution) "
            "and optimizer.router_loss do not support; set it to keep",
        )
    if settings.agent is not None and optimizer.router_loss:
        yield UsageError(
            "settings.router-loss-with-agent",
            f"the agent {settings.agent.word} may rewrite its history, which splits episodes into segments, and "
            f"optimizer.router_loss {optimizer.router_loss:g} does not support these; set it to 0",
        )
    yield from _find_server_errors(settings)
    yield from _find_handover_errors(settings)
    yield from _find_lag_errors(settings)
    yield from _find_algorithm_errors(settings)
    yield from _find_weight_errors(settings.rewards)


def _find_batch_errors(settings: TrainSettings, scenarios: int | None) -> Iterator[UsageError]:
    """Find batches that do not consist of whole groups, or need more scenarios than there are."""
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
    elif scenarios is not None and scenarios < settings.groups:
        yield UsageError(
            "settings.too-few-scenarios",
            f"a step needs {settings.groups} scenarios, but the split train has {scenarios}; give more, or lower "
            "optimizer.gradient_accumulation_steps",
        )


def _find_server_errors(settings: TrainSettings) -> Iterator[UsageError]:
    """Find vLLM servers that are given twice, or that no rollout would use."""
    rollouts = settings.rollouts
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
    if rollouts.servers and (rollouts.engine != "vllm" or settings.mode == "simple"):
        yield UsageError(
            "settings.servers-without-vllm",
            f"rollouts.servers requires rollouts.engine vllm and a mode other than simple, got {rollouts.engine} and "
            f"{settings.mode}; unset rollouts.servers, or set both",
        )


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
    if settings.mode == "simple" and iterations > 1:
        yield UsageError(
            "settings.iterations-in-simple-mode",
            f"optimizer.num_iterations {iterations} requires mode masked or rollout, got simple; set it to 1",
        )
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
            install = install_command(extra=package) if package in _EXTRAS else install_command(package)
            yield UsageError(
                "settings.package-missing",
                f"output.report_to requires {package}, which is not installed: {install}; or remove it from "
                "output.report_to",
            )
    yield from _find_distribution_errors(settings)
    if int(os.environ.get("PARALLELISM_CONFIG_CP_SIZE") or 1) > 1:
        yield UsageError(
            "settings.context-parallelism",
            f"context parallelism is not supported: PARALLELISM_CONFIG_CP_SIZE is "
            f"{os.environ['PARALLELISM_CONFIG_CP_SIZE']}; unset it, and save memory with model.gradient_checkpointing "
            "or model.max_context",
        )
    if settings.lora.target_parameters != "none" and settings.lora.dropout:
        yield UsageError(
            "settings.dropout-of-parameters",
            f"lora.target_parameters {settings.lora.target_parameters} requires lora.dropout 0, got "
            f"{settings.lora.dropout:g}; set it to 0, or lora.target_parameters to none",
        )
    if settings.lora.target_parameters != "none" and settings.lora.layers is not None:
        yield UsageError(
            "settings.layers-of-parameters",
            f"lora.target_parameters {settings.lora.target_parameters} adapts the experts of all layers, but "
            f"lora.layers is {settings.lora.layers}; unset it, or set lora.target_parameters to none",
        )
    if "lm_head" in settings.lora.target_modules:
        yield UsageError(
            "settings.lm-head-not-trained",
            "lora.target_modules cannot contain lm_head, which would never be trained; remove it",
        )


def _find_warm_start_errors(settings: TrainSettings) -> Iterator[UsageError]:
    yield from _find_training_errors(settings, ())
    wanted = settings.warm_start
    if wanted.weights == "lora":
        if wanted.layers is not None:
            yield UsageError(
                "settings.layers-without-full",
                f"warm_start.layers {wanted.layers} requires warm_start.weights full (--full), got lora; unset "
                "it, or set lora.layers instead",
            )
        return
    if settings.model.quantization != "none":
        yield UsageError(
            "settings.full-quantized",
            f"warm_start.weights full cannot be combined with model.quantization {settings.model.quantization}, whose "
            "weights are not trainable; set it to none, or warm_start.weights to lora",
        )
    if settings.is_sharded:
        yield UsageError(
            "settings.full-sharded",
            f"warm_start.weights full cannot be combined with optimizer.distribution "
            f"{settings.optimizer.distribution}; set it to ddp, or warm_start.weights to lora",
        )
    if settings.lora.start is not None:
        yield UsageError(
            "settings.full-with-adapter",
            f"warm_start.weights full does not start from an adapter, but lora.start is {settings.lora.start}; merge "
            "it into its base model (`gumshoe adapter merge`), and set model.name to the result",
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
    for server in rollouts.servers:
        parts = urlsplit(server)
        if parts.scheme != "http" or not parts.hostname:
            yield UsageError(
                "settings.handover-server-address",
                f"rollouts.servers must be http://HOST:PORT with rollouts.handover, got {server}",
            )


def _find_lag_errors(settings: TrainSettings) -> Iterator[UsageError]:
    """Find settings of episodes that run ahead of training, where that is impossible or has no effect."""
    rollouts, most = settings.rollouts, settings.rollouts.max_staleness
    if rollouts.lag and (rollouts.engine != "vllm" or settings.mode == "simple"):
        yield UsageError(
            "settings.lag-without-vllm",
            f"rollouts.lag {rollouts.lag} requires rollouts.engine vllm and a mode other than simple, because the "
            "trainer's own model cannot sample while it is trained; set rollouts.lag to 0, or rollouts.engine to vllm",
        )
    if not rollouts.lag and (most or rollouts.adapter_switch == "turn"):
        name = f"max_staleness {most}" if most else "adapter_switch turn"
        yield UsageError(
            "settings.staleness-without-lag",
            f"rollouts.{name} has no effect without a lag: no episode runs while the adapter changes; set rollouts.lag "
            "to 1 or more, or unset it",
        )
    if rollouts.lag and most is not None and most < rollouts.lag:
        yield UsageError(
            "settings.staleness-below-lag",
            f"rollouts.max_staleness {most} is lower than rollouts.lag {rollouts.lag}, so that steps would wait for "
            "episodes as without the lag; raise it, or lower the lag",
        )
    if rollouts.handover is not None and settings.staleness > _HANDOVER_STALENESS:
        yield UsageError(
            "settings.staleness-with-handover",
            f"rollouts.handover allows a staleness of {_HANDOVER_STALENESS}, because each server keeps the last two "
            f"adapters, got rollouts.lag {rollouts.lag} and a staleness of {settings.staleness}; lower rollouts.lag "
            "to 1, and unset rollouts.max_staleness",
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


def _find_weight_errors(rewards: RewardsSettings) -> Iterator[UsageError]:
    try:
        check_combination(rewards.combine, number_names(each.name for each in rewards.functions), rewards.weights)
    except UsageError as error:
        yield error
