"""What a training run needs and what there is: memory by part and GPU, what to change, and where the time goes."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, product
from typing import Any

import yaml

from gumshoe.errors import UsageError
from gumshoe.inference.vllm_server import lora_rank_slot
from gumshoe.terminal import err, printable
from gumshoe.training.models.model_shape import ModelShape, read_shape
from gumshoe.training.planning.gpu_allocation import GpuAllocation, allocate_gpus, available_memory, memory_of_gpus
from gumshoe.training.planning.memory_estimate import (
    GIB,
    MemoryPart,
    Pass,
    Place,
    ServerMemory,
    kv_bytes,
    server_memory,
    trainer_parts,
    weights_bytes,
)
from gumshoe.training.settings import TrainSettings, differences

GB = 10**9
EPISODE_TOKENS = 4096
"""Of an ordinary episode, unless told; an assumption."""
SAMPLED_SHARE = 0.1
"""Of an episode's tokens, unless told; with the tiny policy on invented mail it is a tenth."""
_SIMPLE_PROMPT = 1024  # tokens of instructions, tools and question, where nothing else is in an episode; an assumption
_CPU_CACHE = 1  # GiB that a server without a GPU has for keys and values, as vllm_server starts it
_USUAL = 2048  # tokens of an episode on a machine without a GPU; an assumption
_OVER, _NEAR = 1.15, 0.95  # of what there is: refused, and warned of
_SHARES = (0.45, 0.4, 0.35, 0.5, 0.3, 0.55, 0.6, 0.65, 0.7)  # of a GPU's memory, for vLLM, in the order tried
_SHORTEST = 1024  # tokens of context that are suggested at least
_TRAINING, _READING, _DECODING = 0.35, 0.5, 0.6  # share of a GPU's peak that is reached; assumptions
_LAYER_SECONDS = 1e-3  # of one layer and token in the trainer's own process, however few episodes; an assumption


@dataclass(frozen=True, slots=True)
class Gpu:
    """A kind of GPU, as its maker's data sheet has it."""

    memory: float
    """10^9 bytes."""
    flops: float
    """10^12 a second, bfloat16, dense."""
    bandwidth: float
    """10^9 bytes a second."""


GPUS = {  # NVIDIA's data sheets; where one tells only of sparse matrices, half of that
    "a10": Gpu(24, 125, 600),
    "a100": Gpu(80, 312, 2039),
    "a100-40gb": Gpu(40, 312, 1555),
    "b200": Gpu(180, 2250, 8000),
    "h100": Gpu(80, 989, 3350),
    "h100-pcie": Gpu(80, 756, 2000),
    "h200": Gpu(141, 989, 4800),
    "l4": Gpu(24, 121, 300),
    "l40s": Gpu(48, 362, 864),
    "rtx3090": Gpu(24, 71, 936),
    "rtx4090": Gpu(24, 165, 1008),
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run has."""

    gpus: int
    memory: int
    """Bytes of each GPU; of the machine where there is none."""
    kind: str | None = None
    """One of GPUS, where known."""
    count: int = 1
    """Machines like it that share the trainers."""

    def described(self) -> str:
        if not self.gpus:
            return f"a machine without a GPU, with {self.memory / GB:,.1f} GB"
        kind = f" ({self.kind})" if self.kind else ""
        kind += f" on each of {self.count} machines" if self.count > 1 else ""
        return f"{self.gpus} GPU{'s' * (self.gpus > 1)} of {self.memory / GB:,.0f} GB{kind}"


@dataclass(frozen=True, slots=True)
class Device:
    """What is on one GPU, or in the machine where there is none."""

    name: str
    memory: int
    """Bytes."""
    parts: tuple[tuple[str, MemoryPart], ...]
    """With whose they are."""

    @property
    def needed(self) -> int:
        return sum(part.bytes for _, part in self.parts)

    @property
    def largest(self) -> tuple[str, MemoryPart]:
        return max(self.parts, key=lambda each: each[1].bytes)


@dataclass(frozen=True, slots=True)
class Time:
    """Of one step, in seconds. Rough: what is reached of a GPU's peak is assumed."""

    rollouts: float
    training: float
    episode_tokens: int
    sampled_tokens: int
    assumptions: str

    @property
    def share(self) -> float:
        """Of rollouts."""
        return self.rollouts / (self.rollouts + self.training)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A run on a machine."""

    settings: TrainSettings
    machine: Machine
    devices: tuple[Device, ...]
    kv_token: int
    """Bytes that one token takes in the cache of keys and values, of all layers and GPUs."""
    kv_tokens: int | None
    """That each server has room for; None without one."""
    kv_at_best: int | None
    """The same if vLLM took nothing but weights and adapters."""
    context: int
    """Tokens of the episodes that memory is counted for."""
    notes: tuple[str, ...] = ()
    time: Time | None = None

    @property
    def worst(self) -> Device:
        """Where it is tightest."""
        return max(self.devices, key=lambda each: each.needed / each.memory)

    @property
    def asked_at_once(self) -> int:
        """Episodes that are asked for at once."""
        return max(1, self.settings.servers) * self.settings.rollouts.concurrency

    @property
    def at_once(self) -> int:
        """Episodes as long as any that there is room for at once."""
        if self.kv_tokens is None:
            return self.asked_at_once
        return min(self.asked_at_once, self.settings.servers * (self.kv_tokens // self.context))

    @property
    def lacks_cache(self) -> bool:
        """Whether the server has no room for a single episode: it does not start then."""
        return self.kv_tokens is not None and self.kv_tokens < self.context

    @property
    def fits(self) -> bool:
        return self.worst.needed <= self.worst.memory and not self.lacks_cache

    def what_lacks(self) -> str:
        """Why it does not fit."""
        if self.lacks_cache and self.worst.needed <= self.worst.memory:
            return (
                f"vLLM's share has room for the keys and values of {self.kv_tokens:,} tokens, but an episode may have "
                f"{self.context:,}"
            )
        worst = self.worst
        owner, part = worst.largest
        return (
            f"{worst.name} would need {worst.needed / GB:,.1f} GB of {worst.memory / GB:,.1f}, most of all "
            f"{part.bytes / GB:,.1f} GB for the {owner}'s {part.name}"
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
    """What a run needs on a machine, with episodes as long as `model.max_context` unless `context` says otherwise.

    Raises:
        UsageError: there are fewer GPUs than trainers.
    """
    place = Place.of(settings, on_gpu=machine.gpus > 0)
    episodes = settings.mode != "simple"
    longest = context or settings.model.max_context
    if not episodes:
        longest = min(longest, _SIMPLE_PROMPT + settings.rollouts.max_tokens)
    trainers = settings.optimizer.processes // machine.count
    shares = allocate_gpus([str(each) for each in range(machine.gpus)], trainers, settings.servers)
    turns = settings.rollouts.max_turns if episodes else 1
    scored = min(longest, turns * settings.rollouts.max_tokens)
    work = Pass(settings.optimizer.per_device_train_batch_size, longest, scored)
    parts = trainer_parts(shape, settings, place, work)
    devices, found = _devices(shape, settings, machine, place, shares, parts)
    made = MemoryPlan(
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
    if kind is None or not episodes or not made.fits:
        return made
    tokens = episode_tokens or min(longest, EPISODE_TOKENS)
    return replace(made, time=_time(made, shape, kind, tokens, sampled_tokens or max(1, round(SAMPLED_SHARE * tokens))))


def _devices(
    shape: ModelShape,
    settings: TrainSettings,
    machine: Machine,
    place: Place,
    shares: GpuAllocation,
    trainer: Sequence[MemoryPart],
) -> tuple[tuple[Device, ...], ServerMemory | None]:
    rank = lora_rank_slot(settings.lora.rank)
    own = tuple(("trainer", part) for part in trainer)
    found: ServerMemory | None = None
    if not machine.gpus:
        every = [each for _ in range(settings.optimizer.processes // machine.count) for each in own]
        cache = round(float(os.environ.get("VLLM_CPU_KVCACHE_SPACE") or _CPU_CACHE) * GIB)
        if not settings.servers:
            return (Device("the machine", machine.memory, tuple(every)),), None
        found = server_memory(shape, place, cache, 1, batch=(0, 0), rank=rank)
        every += [
            ("vLLM", each) for each in (*found.parts, MemoryPart("keys and values", found.room))
        ] * settings.servers
        return (Device("the machine", machine.memory, tuple(every)),), found
    served: list[tuple[str, MemoryPart]] = []
    if settings.servers:
        share = settings.rollouts.gpu_memory or shares.memory
        given = int(machine.memory * share)
        found = server_memory(shape, place, given, len(shares.servers[0]), batch=_batch(machine), rank=rank)
        note = f"what is left of {share:g} of the GPU; {found.tokens:,} tokens"
        served = [("vLLM", each) for each in (*found.parts, MemoryPart("keys and values", found.room, note))]
    return tuple(
        Device(
            f"GPU {each}",
            machine.memory,
            (*(own if each in shares.trainers else ()), *served * sum(each in server for server in shares.servers)),
        )
        for each in sorted({*shares.trainers, *chain(*shares.servers)}, key=int)
    ), found


def _batch(machine: Machine) -> tuple[int, int]:
    """Tokens and requests that vLLM takes at once, unless told (vllm.engine.arg_utils, get_batch_defaults)."""
    if machine.memory >= 160 * GIB:
        return 16384, 1024
    return (8192, 1024) if machine.memory >= 70 * GIB and "a100" not in (machine.kind or "") else (2048, 256)


def _notes(shape: ModelShape, settings: TrainSettings) -> Iterator[str]:
    if not shape.adapter_parameters(settings.lora.rank, settings.lora.target_modules):
        names = ", ".join(sorted({each.name for each in shape.linears}))
        yield f"no module of the model is one of lora.target_modules; it has {names}"
    left_out = shape.left_out()
    if left_out:
        yield f"not counted, or not exactly: {'; '.join(left_out)}"
    if shape.longest is not None and settings.model.max_context > shape.longest:
        yield f"model.max_context is more than the {shape.longest:,} tokens that the model reads"
    if settings.rollouts.servers:
        yield "rollouts.servers run elsewhere, and are not counted"


def _time(made: MemoryPlan, shape: ModelShape, gpu: Gpu, tokens: int, sampled: int) -> Time:
    """Of one step, at what is assumed to be reached of the GPU's peak.

    A token costs 2 operations for each parameter that it is multiplied by, and 4 for each number of attention and token
    before it (https://arxiv.org/abs/2001.08361, section 2.1). Training goes forwards once for the probabilities as they
    were and once for those of the base model (where `beta` is not 0), forwards again with a gradient, and backwards: as
    much as forwards, since the base model's weights have no gradient; and forwards once more where activations are
    recomputed. Each sampled token has all weights, and the keys and values before it, read from memory once for all
    episodes at once.
    """
    settings, machine = made.settings, made.machine
    optimizer, rollouts = settings.optimizer, settings.rollouts
    place = Place.of(settings, on_gpu=True)
    shares = allocate_gpus(
        [str(each) for each in range(machine.gpus)], optimizer.processes // machine.count, settings.servers
    )
    episodes = settings.groups * rollouts.num_generations
    forward = 2 * shape.multiplied * tokens + 2 * shape.layers * shape.attention * tokens**2  # half of all pairs
    passes = 3 + (optimizer.beta > 0) + settings.model.gradient_checkpointing
    peak = gpu.flops * 1e12
    training = episodes * forward * passes / (peak * _TRAINING) / optimizer.processes
    samplers = max(1, len({*chain(*shares.servers)}))
    kv_half = kv_bytes(shape, place.dtype, max(1, tokens // 2))
    copies = max(1, settings.servers)
    at_once = min(made.asked_at_once, episodes)
    if made.kv_tokens is not None:
        at_once = max(1, min(at_once, copies * (made.kv_tokens // tokens)))
    read = (
        (copies * weights_bytes(shape, settings, place) + at_once * kv_half)
        / (gpu.bandwidth * 1e9 * _DECODING)
        / samplers
    )
    if rollouts.engine == "transformers":
        read = max(read, shape.layers * _LAYER_SECONDS)
    rolling = episodes * forward / (peak * _READING) / samplers + episodes / at_once * sampled * read
    return Time(
        rolling,
        training,
        tokens,
        sampled,
        f"episodes of {tokens:,} tokens, {sampled:,} of them sampled; {_TRAINING:.0%} of {gpu.flops:g} TFLOPS in "
        f"training and {_READING:.0%} in reading, {_DECODING:.0%} of {gpu.bandwidth:g} GB/s in sampling; without tools "
        "and judges",
    )


def suggest_changes(made: MemoryPlan, shape: ModelShape) -> MemoryPlan | None:
    """The plan that fits with the least changed, or None where none does.

    Tried in this order, the last changed least: vLLM's share; the trainer's passes, the same step in more of them;
    recomputing activations; the model in nf4, with episodes in the trainer's process, fewer of them at once; and a
    shorter context.
    """
    settings = made.settings
    for context, quantization, recompute, divisor, share in product(
        _halves(settings.model.max_context, _SHORTEST),
        dict.fromkeys([settings.model.quantization, *(["nf4"] if _may_quantize(settings) else [])]),
        dict.fromkeys([settings.model.gradient_checkpointing, True]),
        _divisors(settings.optimizer.per_device_train_batch_size),
        [settings.rollouts.gpu_memory, *(_SHARES if made.kv_tokens is not None else ())],
    ):
        if quantization == "nf4" and share != settings.rollouts.gpu_memory:
            continue  # there is no server then
        changed = _changed(settings, context, quantization, recompute, divisor, share)
        for concurrency in (
            _halves(changed.rollouts.concurrency, 1) if changed.rollouts.engine == "transformers" else [0]
        ):
            fewer = {"concurrency": concurrency} if concurrency else {}
            tried = changed.model_copy(update={"rollouts": changed.rollouts.model_copy(update=fewer)})
            found = make_plan(tried, shape, made.machine)
            if found.fits:
                return found
    return None


def _may_quantize(settings: TrainSettings) -> bool:
    rollouts = settings.rollouts
    several = rollouts.num_servers > 1 or settings.optimizer.distribution != "ddp"  # which need vLLM
    return not rollouts.servers and not several and settings.model.dtype != "float32"


def _halves(most: int, least: int) -> list[int]:
    found = [most]
    while found[-1] // 2 >= least:
        found.append(found[-1] // 2)
    return found


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _changed(
    settings: TrainSettings, context: int, quantization: Any, recompute: bool, divisor: int, share: float | None
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


def changes(before: TrainSettings, after: TrainSettings) -> dict[str, Any]:
    """The settings in which one differs from the other, by dotted name."""
    return {name: reduce(getattr, name.split("."), after) for name in differences(before, after)}


def as_config(settings: TrainSettings) -> str:
    """What of the settings is not as it is by default, as `gumshoe train --config` takes it."""
    dumped, written = settings.model_dump(mode="json"), dict[str, Any]()
    for name in differences(TrainSettings(), settings):
        *sections, last = name.split(".")
        reduce(lambda level, each: level.setdefault(each, {}), sections, written)[last] = reduce(
            lambda level, each: level[each], name.split("."), dumped
        )
    return str(yaml.safe_dump(written, sort_keys=False, default_flow_style=None))


def this_machine(gpus: int, count: int = 1) -> Machine | None:
    """This machine, of whose GPUs so many may be used, as one of `count` that share a run; None where it does not say
    how much memory it has.

    Raises:
        UsageError: its GPUs do not answer.
    """
    memory = min(memory_of_gpus(), default=0) if gpus else available_memory()
    return Machine(gpus, memory, count=count) if memory else None


def check_memory(settings: TrainSettings, machine: Machine | None) -> None:
    """Refuse a run that is clearly too large for a machine, and warn of one that is nearly.

    On GPUs, episodes are as long as they may be; on a machine without one, which is for trying things out and has other
    uses for its memory, as long as is usual.

    Raises:
        UsageError: it is too large.
    """
    if machine is None:
        return
    try:
        shape = read_shape(settings.model.name)
    except UsageError as error:  # whose shape is another than what is known here
        err.print(
            f"[bold yellow]warning:[/] memory is not checked: {printable(error.message_with_code)}", soft_wrap=True
        )
        return
    context = None if machine.gpus else min(settings.model.max_context, _USUAL)
    made = make_plan(settings, shape, machine, context=context)
    worst = made.worst
    over = worst.needed / worst.memory
    if over <= _NEAR and not made.lacks_cache:
        return
    said = f"{made.what_lacks()} (gumshoe plan)"
    if over <= _OVER and (made.kv_at_best is None or made.kv_at_best >= made.context):
        err.print(f"[bold yellow]warning:[/] memory is scarce: {printable(said)}", soft_wrap=True)
        return
    found = suggest_changes(made, shape)
    what = (
        f"set {', '.join(f'{name}={value}' for name, value in changes(settings, found.settings).items())}"
        if found
        else "use a smaller model, or a machine with more memory"
    )
    raise UsageError(
        "planning.does-not-fit", f"the run does not fit: {said}; {what}, or skip this check: model.check_memory=false"
    )
