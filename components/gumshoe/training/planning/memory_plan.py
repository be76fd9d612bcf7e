"""Plan a training run: memory by part and GPU, settings to change if it does not fit, and the time of a step."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, product
from typing import Any

import yaml

from gumshoe.artifacts.adapter_layout import round_up_lora_rank
from gumshoe.errors import UsageError
from gumshoe.terminal import err, printable
from gumshoe.training.models.model_shape import ModelShape, read_shape
from gumshoe.training.planning.gpu_allocation import GpuAllocation, allocate_gpus, available_memory, read_gpu_memory
from gumshoe.training.planning.gpu_specs import GPUS, GpuSpec
from gumshoe.training.planning.memory_estimate import (
    GIB,
    ComputeDevice,
    MemoryPart,
    ServerMemory,
    TrainingPass,
    estimate_server_memory,
    kv_bytes,
    trainer_parts,
    weights_bytes,
)
from gumshoe.training.settings import TrainSettings, find_differences

GB = 10**9
EPISODE_TOKENS = 4096
"""Default number of tokens of an episode; an assumption."""
SAMPLED_SHARE = 0.1
"""Default share of sampled tokens in an episode; measured with the tiny policy on synthetic mail."""
_PROMPT_TOKENS = 1024  # instructions, tools and question in mode `simple`; an assumption
_CPU_CACHE = 1  # GiB for keys and values of a server without a GPU, as vllm_server starts it
_CPU_EPISODE_TOKENS = 2048  # of an episode on a machine without a GPU; an assumption
_AUTO = 0.8  # share of the available memory up to which activations are kept
_REJECT, _WARN = 1.15, 0.95  # share of the available memory above which a run is rejected, or a warning is printed
_SHARES = (0.45, 0.4, 0.35, 0.5, 0.3, 0.55, 0.6, 0.65, 0.7)  # of a GPU's memory for vLLM, in the order of suggestion
_MIN_CONTEXT = 1024  # smallest context that is suggested, in tokens
_TRAINING_EFFICIENCY, _PREFILL_EFFICIENCY, _DECODING_EFFICIENCY = 0.35, 0.5, 0.6  # of a GPU's peak; assumptions
_LAYER_SECONDS = 1e-3  # minimum per layer and sampled token in the trainer's own process; an assumption


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware of a run."""

    gpus: int
    memory: int
    """Bytes of each GPU, or of the machine if it has none."""
    kind: str | None = None
    """GPU model, a key of GPUS, if known."""
    count: int = 1
    """Number of such machines that share the trainers."""

    def describe(self) -> str:
        """Return a description for a message."""
        if not self.gpus:
            return f"a machine without a GPU, with {self.memory / GB:,.1f} GB"
        kind = f" ({self.kind})" if self.kind else ""
        kind += f" on each of {self.count} machines" if self.count > 1 else ""
        return f"{self.gpus} GPU{'s' * (self.gpus > 1)} of {self.memory / GB:,.4g} GB{kind}"


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """The memory use of one GPU, or of a machine without GPUs."""

    name: str
    memory: int
    """Bytes."""
    parts: tuple[tuple[str, MemoryPart], ...]
    """Each part with its owner, `trainer` or `vLLM`."""

    @property
    def needed(self) -> int:
        return sum(part.bytes for _, part in self.parts)

    @property
    def largest(self) -> tuple[str, MemoryPart]:
        return max(self.parts, key=lambda each: each[1].bytes)


@dataclass(frozen=True, slots=True)
class StepTime:
    """A rough estimate of the time of one step, in seconds, from assumed efficiencies."""

    rollouts: float
    training: float
    episode_tokens: int
    sampled_tokens: int
    assumptions: str

    @property
    def share(self) -> float:
        """Share of rollouts in the time of a step."""
        return self.rollouts / (self.rollouts + self.training)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of a run on a machine."""

    settings: TrainSettings
    machine: Machine
    devices: tuple[DevicePlan, ...]
    kv_token: int
    """Bytes per token of keys and values, over all layers and GPUs."""
    kv_tokens: int | None
    """Number of tokens that fit into the cache of each server; None without a server."""
    kv_at_best: int | None
    """The same if vLLM needed memory only for weights and adapters."""
    context: int
    """Length of the planned episodes, in tokens."""
    notes: tuple[str, ...] = ()
    time: StepTime | None = None

    @property
    def tightest(self) -> DevicePlan:
        """The device with the largest share of its memory in use."""
        return max(self.devices, key=lambda each: each.needed / each.memory)

    @property
    def requested_at_once(self) -> int:
        """Number of concurrent episodes by the settings."""
        return max(1, self.settings.servers) * self.settings.rollouts.concurrency

    @property
    def max_at_once(self) -> int:
        """Number of concurrent episodes of maximum length that fit into the caches."""
        if self.kv_tokens is None:
            return self.requested_at_once
        return min(self.requested_at_once, self.settings.servers * (self.kv_tokens // self.context))

    @property
    def lacks_cache(self) -> bool:
        """True if not even one episode fits into a server's cache; vLLM then does not start."""
        return self.kv_tokens is not None and self.kv_tokens < self.context

    @property
    def fits(self) -> bool:
        return self.tightest.needed <= self.tightest.memory and not self.lacks_cache

    def explain_shortage(self) -> str:
        """Return why the run does not fit."""
        if self.lacks_cache and self.tightest.needed <= self.tightest.memory:
            return (
                f"vLLM's cache has room for the keys and values of {self.kv_tokens:,} tokens, but an episode may have "
                f"{self.context:,}"
            )
        device = self.tightest
        owner, part = device.largest
        return (
            f"{device.name} has {device.memory / GB:,.1f} GB, but the run needs {device.needed / GB:,.1f} GB, of which "
            f"{part.bytes / GB:,.1f} GB for {part.name} ({owner})"
        )


def make_plan(
    settings: TrainSettings,
    shape: ModelShape,
    machine: Machine,
    *,
    episode_tokens: int | None = None,
    sampled_tokens: int | None = None,
    context: int | None = None,
) -> MemoryPlan:
    """Plan the memory of a run on a machine, with episodes of `context` tokens, by default `model.max_context`.

    Raises:
        UsageError: there are fewer GPUs than trainers.
    """
    place = ComputeDevice.of(settings, on_gpu=machine.gpus > 0)
    episodes = settings.mode != "simple"
    episode = longest = context or settings.model.max_context
    if not episodes:
        longest = min(longest, _PROMPT_TOKENS + settings.rollouts.max_tokens)
    trainers = settings.optimizer.processes // machine.count
    heads = shape.heads, shape.kv_heads
    allocation = allocate_gpus([str(each) for each in range(machine.gpus)], trainers, settings.servers, heads)
    turns = settings.rollouts.max_turns if episodes else 1
    scored = min(longest, turns * settings.rollouts.max_tokens)
    work = TrainingPass(settings.optimizer.per_device_train_batch_size, longest, scored)
    parts = trainer_parts(shape, settings, place, work, episode)
    devices, found = _devices(shape, settings, machine, place, allocation, parts)
    plan = MemoryPlan(
        settings,
        machine,
        devices,
        kv_bytes(shape, place.dtype, 1),
        found.tokens if found else None,
        found.at_best if found else None,
        longest,
        tuple(_notes(shape, settings)),
    )
    kind = GPUS.get(machine.kind or "")
    if kind is None or not episodes or not plan.fits:
        return plan
    tokens = episode_tokens or min(longest, EPISODE_TOKENS)
    return replace(
        plan, time=_estimate_time(plan, shape, kind, tokens, sampled_tokens or max(1, round(SAMPLED_SHARE * tokens)))
    )


def _devices(
    shape: ModelShape,
    settings: TrainSettings,
    machine: Machine,
    place: ComputeDevice,
    allocation: GpuAllocation,
    trainer: Sequence[MemoryPart],
) -> tuple[tuple[DevicePlan, ...], ServerMemory | None]:
    rank = round_up_lora_rank(settings.lora.rank)
    own = tuple(("trainer", part) for part in trainer)
    found: ServerMemory | None = None
    if not machine.gpus:
        every = [each for _ in range(settings.optimizer.processes // machine.count) for each in own]
        cache = round(float(os.environ.get("VLLM_CPU_KVCACHE_SPACE") or _CPU_CACHE) * GIB)
        if not settings.servers:
            return (DevicePlan("the machine", machine.memory, tuple(every)),), None
        found = estimate_server_memory(shape, place, cache, 1, batch=(0, 0), rank=rank, adapters=settings.adapter_slots)
        every += [
            ("vLLM", each) for each in (*found.parts, MemoryPart("keys and values", found.room))
        ] * settings.servers
        return (DevicePlan("the machine", machine.memory, tuple(every)),), found
    served: list[tuple[str, MemoryPart]] = []
    if settings.servers:
        share = settings.rollouts.gpu_memory or allocation.server_memory_share
        given = int(machine.memory * share)
        found = estimate_server_memory(
            shape,
            place,
            given,
            len(allocation.servers[0]),
            batch=_vllm_batch(machine),
            rank=rank,
            adapters=settings.adapter_slots,
        )
        note = f"what is left of {share:g} of the GPU; {found.tokens:,} tokens"
        served = [("vLLM", each) for each in (*found.parts, MemoryPart("keys and values", found.room, note))]
    return tuple(
        DevicePlan(
            f"GPU {each}",
            machine.memory,
            (
                *(own if each in allocation.trainers else ()),
                *served * sum(each in server for server in allocation.servers),
            ),
        )
        for each in sorted({*allocation.trainers, *chain(*allocation.servers)}, key=int)
    ), found


def _vllm_batch(machine: Machine) -> tuple[int, int]:
    """Return how many tokens and requests vLLM processes at once by default (arg_utils.get_batch_defaults of vLLM)."""
    if machine.memory >= 160 * GIB:
        return 16384, 1024
    return (8192, 1024) if machine.memory >= 70 * GIB and "a100" not in (machine.kind or "") else (2048, 256)


def _notes(shape: ModelShape, settings: TrainSettings) -> Iterator[str]:
    if not shape.adapter_parameters(settings.lora):
        names = ", ".join(sorted({each.name for each in shape.linears}))
        yield f"the model has none of the modules in lora.target_modules; it has {names}"
    if (settings.lora.layers or 0) > shape.layers:
        yield f"lora.layers is {settings.lora.layers}, but the model has {shape.layers} layers"
    left_out = shape.list_uncounted()
    if settings.lora.target_parameters == "experts":
        left_out += ("adapters of experts: the changed weights of a layer's experts, which exist during a pass",)
    if left_out:
        yield f"not counted, or not exactly: {'; '.join(left_out)}"
    if shape.longest is not None and settings.model.max_context > shape.longest:
        yield f"model.max_context is more than the {shape.longest:,} tokens that the model supports"
    if settings.rollouts.servers:
        yield "rollouts.servers are not counted, as they run elsewhere"


def _estimate_time(plan: MemoryPlan, shape: ModelShape, gpu: GpuSpec, tokens: int, sampled: int) -> StepTime:
    """Estimate the time of one step, from assumed shares of the GPU's peak performance.

    A token costs 2 operations per parameter, and 4 per dimension of attention and preceding token
    (https://arxiv.org/abs/2001.08361, section 2.1). Training has a forward pass for the old log-probabilities, one
    for those of the base model (if `beta` is not 0), one with gradient, and one more if activations are recomputed.
    The backward pass costs as much as a forward pass of the layers with an adapter, because the base model's weights
    have no gradient; if activations are recomputed, of all layers. For each sampled token, all weights are read from
    memory once for all concurrent episodes, and the keys and values of each episode.
    """
    settings, machine = plan.settings, plan.machine
    optimizer, rollouts = settings.optimizer, settings.rollouts
    place = ComputeDevice.of(settings, on_gpu=True)
    allocation = allocate_gpus(
        [str(each) for each in range(machine.gpus)],
        optimizer.processes // machine.count,
        settings.servers,
        (shape.heads, shape.kv_heads),
    )
    episodes = settings.groups * rollouts.num_generations
    forward = 2 * shape.multiplied * tokens + 2 * shape.layers * shape.attention * tokens**2  # half of all pairs
    recomputed = settings.model.recomputes
    backward = 1 if recomputed else shape.count_trained_layers(settings.lora) / shape.layers
    passes = 2 + backward + (optimizer.beta > 0) + recomputed
    peak = gpu.flops * 1e12
    training = episodes * forward * passes / (peak * _TRAINING_EFFICIENCY) / optimizer.processes
    samplers = max(1, len({*chain(*allocation.servers)}))
    kv_half = kv_bytes(shape, place.dtype, max(1, tokens // 2))
    copies = max(1, settings.servers)
    at_once = min(plan.requested_at_once, episodes)
    if plan.kv_tokens is not None:
        at_once = max(1, min(at_once, copies * (plan.kv_tokens // tokens)))
    read = (
        (copies * weights_bytes(shape, settings, place) + at_once * kv_half)
        / (gpu.bandwidth * 1e9 * _DECODING_EFFICIENCY)
        / samplers
    )
    if rollouts.engine == "transformers":
        read = max(read, shape.layers * _LAYER_SECONDS)
    rolling = episodes * forward / (peak * _PREFILL_EFFICIENCY) / samplers + episodes / at_once * sampled * read
    return StepTime(
        rolling,
        training,
        tokens,
        sampled,
        f"episodes of {tokens:,} tokens, {sampled:,} of them sampled; {_TRAINING_EFFICIENCY:.0%} of {gpu.flops:g} "
        f"TFLOPS in training and {_PREFILL_EFFICIENCY:.0%} in prefill, {_DECODING_EFFICIENCY:.0%} of "
        f"{gpu.bandwidth:g} GB/s in decoding; without tools and judges",
    )


def suggest_changes(plan: MemoryPlan, shape: ModelShape) -> MemoryPlan | None:
    """Return the first plan that fits after changes to the settings, or None if no change is enough.

    Changes are tried in this order: vLLM's share of the memory; smaller passes with more accumulation; recomputed
    activations; nf4, with rollouts in the trainer's process and fewer of them at once; a shorter context.
    """
    settings = plan.settings
    for context, quantization, recompute, divisor, share in product(
        _halves(settings.model.max_context, _MIN_CONTEXT),
        dict.fromkeys([settings.model.quantization, *(["nf4"] if _can_quantize(settings) else [])]),
        dict.fromkeys([settings.model.gradient_checkpointing, *([] if settings.model.recomputes else [True])]),
        _divisors(settings.optimizer.per_device_train_batch_size),
        [settings.rollouts.gpu_memory, *(_SHARES if plan.kv_tokens is not None else ())],
    ):
        if quantization == "nf4" and share != settings.rollouts.gpu_memory:
            continue  # with nf4, there is no server
        changed = _with_changes(settings, context, quantization, recompute, divisor, share)
        in_trainer = changed.rollouts.engine == "transformers" or changed.mode == "simple"
        for concurrency in _halves(changed.rollouts.concurrency, 1) if in_trainer else [0]:
            fewer = {"concurrency": concurrency} if concurrency else {}
            tried = changed.model_copy(update={"rollouts": changed.rollouts.model_copy(update=fewer)})
            found = make_plan(tried, shape, plan.machine)
            if found.fits:
                return found
    return None


def _can_quantize(settings: TrainSettings) -> bool:
    rollouts = settings.rollouts
    needs_vllm = rollouts.num_servers > 1 or rollouts.lag > 0 or settings.optimizer.distribution != "ddp"
    return not rollouts.servers and not needs_vllm and settings.model.dtype != "float32"


def _halves(most: int, least: int) -> list[int]:
    found = [most]
    while found[-1] // 2 >= least:
        found.append(found[-1] // 2)
    return found


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _with_changes(
    settings: TrainSettings, context: int, quantization: Any, recompute: Any, divisor: int, share: float | None
) -> TrainSettings:
    model, optimizer, rollouts = settings.model, settings.optimizer, settings.rollouts
    own: dict[str, Any] = {"engine": "transformers"} if quantization == "nf4" else {"gpu_memory": share}
    return settings.model_copy(
        update={
            "model": model.model_copy(
                update={"max_context": context, "quantization": quantization, "gradient_checkpointing": recompute}
            ),
            "optimizer": optimizer.model_copy(
                update={
                    "per_device_train_batch_size": optimizer.per_device_train_batch_size // divisor,
                    "gradient_accumulation_steps": optimizer.gradient_accumulation_steps * divisor,
                }
            ),
            "rollouts": rollouts.model_copy(update=own),
        }
    )


def changed_settings(before: TrainSettings, after: TrainSettings) -> dict[str, Any]:
    """Return the settings that differ, with their values in `after` as JSON has them, by dotted name."""
    dumped = after.model_dump(mode="json")
    names = find_differences(before, after)
    return {name: reduce(lambda level, each: level[each], name.split("."), dumped) for name in names}


def to_config(settings: TrainSettings) -> str:
    """Return the settings that are not defaults, as YAML for `gumshoe train --config`."""
    dumped, written = settings.model_dump(mode="json"), dict[str, Any]()
    for name in find_differences(TrainSettings(), settings):
        *sections, last = name.split(".")
        reduce(lambda level, each: level.setdefault(each, {}), sections, written)[last] = reduce(
            lambda level, each: level[each], name.split("."), dumped
        )
    return str(yaml.safe_dump(written, sort_keys=False, default_flow_style=None))


def inspect_machine(gpus: int, count: int = 1) -> Machine | None:
    """Return this machine with `gpus` usable GPUs, as one of `count`; None if its memory is unknown.

    Raises:
        UsageError: the memory of the GPUs cannot be read.
    """
    memory = min(read_gpu_memory(), default=0) if gpus else available_memory()
    return Machine(gpus, memory, count=count) if memory else None


def resolve_checkpointing(settings: TrainSettings, machine: Machine | None) -> TrainSettings:
    """Return settings that say if activations are recomputed.

    With `auto`, they are kept if the run then uses at most 80 % of the memory of each device that trains, as estimated,
    and recomputed if that is not known.
    """
    if settings.model.gradient_checkpointing != "auto":
        return settings

    def settle(*, recomputes: bool) -> TrainSettings:
        model = settings.model.model_copy(update={"gradient_checkpointing": recomputes})
        return settings.model_copy(update={"model": model})

    if machine is None:
        return settle(recomputes=True)
    kept = settle(recomputes=False)
    try:
        plan = make_plan(kept, read_shape(settings.model.name), machine, context=_checked_context(settings, machine))
    except UsageError:  # an unsupported architecture, or too few GPUs, which is reported later
        return settle(recomputes=True)
    trainers = [each for each in plan.devices if any(owner == "trainer" for owner, _ in each.parts)]
    is_small = plan.fits and all(each.needed <= _AUTO * each.memory for each in trainers)
    return kept if is_small else settle(recomputes=True)


def _checked_context(settings: TrainSettings, machine: Machine) -> int | None:
    """Return the length of the episodes that a run must have memory for; None for the longest that are allowed."""
    return None if machine.gpus else min(settings.model.max_context, _CPU_EPISODE_TOKENS)


def check_memory(settings: TrainSettings, machine: Machine | None) -> None:
    """Reject a run that clearly needs more memory than a machine has, and warn if it is close.

    On GPUs, episodes of maximum length are assumed. On a machine without GPUs, which is for trials, a typical length is
    assumed.

    Raises:
        UsageError: the run is too large.
    """
    if machine is None:
        return
    try:
        shape = read_shape(settings.model.name)
    except UsageError as error:  # an unsupported architecture
        err.print(
            f"[bold yellow]warning:[/] memory was not checked: {printable(error.message_with_code)}", soft_wrap=True
        )
        return
    plan = make_plan(settings, shape, machine, context=_checked_context(settings, machine))
    used = plan.tightest.needed / plan.tightest.memory
    if used <= _WARN and not plan.lacks_cache:
        return
    shortage = f"{plan.explain_shortage()} (see `gumshoe plan`)"
    if used <= _REJECT and (plan.kv_at_best is None or plan.kv_at_best >= plan.context):
        err.print(f"[bold yellow]warning:[/] memory is almost exhausted: {printable(shortage)}", soft_wrap=True)
        return
    found = suggest_changes(plan, shape)
    remedy = (
        f"set {', '.join(f'{name}={value}' for name, value in changed_settings(settings, found.settings).items())}"
        if found
        else "use a smaller model, or a machine with more memory"
    )
    raise UsageError(
        "planning.does-not-fit",
        f"the run does not fit: {shortage}; {remedy}, or skip this check: model.check_memory=false",
    )
