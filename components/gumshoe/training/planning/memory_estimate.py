"""Estimate the memory of training and sampling, part by part, from a model's shape and the settings.

The activations of a layer are counted tensor by tensor, as in https://arxiv.org/abs/2205.05198 (which treats GPT with
dropout and without LoRA), for decoders such as Llama and Qwen2, with the `sdpa` attention of `transformers` on episodes
of unequal lengths. `tests/training/test_memory_plan.py` compares the estimates with measurements.
"""

import math
from dataclasses import dataclass

from gumshoe.training.models.model_shape import ModelShape
from gumshoe.training.settings import TrainSettings

GIB = 2**30
NF4 = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""Bytes per weight in nf4: 4 bits, plus 8 bits per 64 weights and 32 bits per 256 of those blocks, together 0.127 bits
per weight (double quantization, https://arxiv.org/abs/2305.14314, section 3)."""
TILE = (4096, 32768)
"""Tokens and vocabulary of the tile of logits that TRL computes at a time (trl.kernels.chunked_logprob)."""
_ADAPTER = 4  # bytes per number of an adapter, whatever the dtype of the model is
_CONTEXT = round(0.6 * GIB)  # CUDA and its libraries, per process; an assumption
_SLACK = 0.05  # share of temporary memory lost to fragmentation in torch's GPU allocator; an assumption
_PROCESS = round(0.7 * GIB)  # Python with torch and other imports, on a CPU; measured as `baseline`
_SERVER = round(0.9 * GIB)  # vLLM without weights and cache, on a CPU; an assumption
_GRAPHS = round(1.0 * GIB)  # vLLM's CUDA graphs; an assumption
_SAMPLING_BYTES = 24  # per request and entry of the vocabulary, for sampling: logits, sorted logits, probabilities
TURN_TOKENS = 1024
"""Tokens that a turn adds to an episode; an assumption."""


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One use of memory."""

    name: str
    bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class ComputeDevice:
    """The device that a model runs on, with the size of its numbers."""

    on_gpu: bool
    dtype: int
    """Bytes per number."""

    @classmethod
    def of(cls, settings: TrainSettings, *, on_gpu: bool) -> "ComputeDevice":
        """Return the device for the settings, with the dtype of `gumshoe.training.models.lora_model.dtype_of`."""
        auto = 2 if on_gpu else 4
        return cls(on_gpu, {"float32": 4, "bfloat16": 2}.get(settings.model.dtype, auto))


@dataclass(frozen=True, slots=True)
class TrainingPass:
    """The size of one forward and backward pass of a trainer."""

    episodes: int
    context: int
    """Tokens per episode, with padding."""
    scored: int
    """Tokens per episode that are trained on."""

    @property
    def tokens(self) -> int:
        return self.episodes * self.context


def weights_bytes(shape: ModelShape, settings: TrainSettings, place: ComputeDevice) -> int:
    """Return the bytes of the base model's weights. nf4 applies to linear modules only, not to embeddings or norms."""
    if settings.model.quantization == "none":
        return shape.parameters * place.dtype
    return round(shape.quantizable * NF4) + (shape.parameters - shape.quantizable) * place.dtype


def trainer_parts(
    shape: ModelShape, settings: TrainSettings, place: ComputeDevice, work: TrainingPass, context: int | None = None
) -> list[MemoryPart]:
    """Return the memory of one trainer at its peak, part by part.

    `context` is the number of tokens of an episode that is sampled, by default as in the pass.
    """
    optimizer = settings.optimizer
    adapter = shape.adapter_parameters(settings.lora)
    size = adapter * _ADAPTER
    kind = "nf4, double quantization" if settings.model.quantization == "nf4" else f"{8 * place.dtype} bits"
    kept, pieces = estimate_pass(shape, settings, place, work)
    loss = pieces.loss >= pieces.layer + pieces.after
    coming = [
        MemoryPart("activations", kept + (0 if loss else pieces.layer), _activations_note(settings, work)),
        MemoryPart(
            "logits and loss", pieces.loss if loss else pieces.after, f"vocabulary of {shape.vocabulary:,}, in tiles"
        ),
    ]
    if settings.rollouts.engine == "transformers" or settings.mode == "simple":
        sampling = sampling_parts(shape, settings, place, context or work.context, work.context)
        a_pass, episodes = (sum(each.bytes for each in parts) for parts in (coming, sampling))
        coming = (  # rollouts and passes take turns, so the larger one counts
            [*sampling, MemoryPart("training pass", 0, f"{a_pass / GIB:,.2f} GiB, not at the same time as episodes")]
            if episodes > a_pass
            else [*coming, MemoryPart("episodes", 0, f"{episodes / GIB:,.2f} GiB, not at the same time as a pass")]
        )
    slack = round(_SLACK * sum(each.bytes for each in coming)) if place.on_gpu else 0
    return [
        _weights_part(shape, settings, place, f"{shape.parameters:,} parameters, {kind}"),
        MemoryPart("adapter", size, f"{adapter:,} parameters, {8 * _ADAPTER} bits"),
        *_reference_parts(settings, place, adapter),
        MemoryPart("gradients", size * (2 if optimizer.processes > 1 else 1), "of the adapter"),
        MemoryPart("optimizer", 2 * size, "two moments per parameter (AdamW)"),
        *coming,
        MemoryPart(
            "framework",
            (_CONTEXT if place.on_gpu else _PROCESS) + slack,
            f"assumed: CUDA {_CONTEXT / GIB:.1f} GiB, {_SLACK:.0%} fragmentation" if place.on_gpu else "assumed",
        ),
    ]


def _weights_part(shape: ModelShape, settings: TrainSettings, place: ComputeDevice, note: str) -> MemoryPart:
    """Return the memory of the base model's weights; if they are sharded, one shard and the layers gathered at a time.

    Gradients and optimizer moments of the adapter are sharded too. That is ignored, because they are small.
    """
    whole = weights_bytes(shape, settings, place)
    if not settings.is_sharded:
        return MemoryPart("weights", whole, note)
    in_layers = sum(each.weights for each in (*shape.linears, *shape.experts)) * place.dtype
    embeddings = whole - in_layers
    gathered = max(2 * in_layers // shape.layers, embeddings)  # the current layer and the next
    share = whole // settings.optimizer.processes
    return MemoryPart(
        "weights", share + gathered, f"{note}; one of {settings.optimizer.processes} shards, and gathered layers"
    )


def _reference_parts(settings: TrainSettings, place: ComputeDevice, adapter: int) -> list[MemoryPart]:
    """Return the memory of the reference adapter: its weights in 32 bits, and on a CPU also the copy for checkpoints.

    On a GPU, that copy is in the memory of the machine, which is not estimated.
    """
    if not settings.has_reference_adapter:
        return []
    copies = 1 if place.on_gpu else 2
    return [MemoryPart("reference", 4 * adapter * copies, "frozen copy of lora.start, 32 bits (optimizer.reference)")]


def _activations_note(settings: TrainSettings, work: TrainingPass) -> str:
    how = "recomputed" if settings.model.recomputes else "kept"
    return f"{work.episodes} episodes of {work.context:,} tokens, {how}"


@dataclass(frozen=True, slots=True)
class PassPeaks:
    """Temporary memory of a pass at its two peaks, in bytes, beside the activations that it keeps."""

    loss: int
    """During the backward pass of the loss, when all activations exist."""
    layer: int
    """During the backward pass of the last layer."""
    after: int
    """Left over from the loss during the backward pass of the last layer."""


def estimate_pass(
    shape: ModelShape, settings: TrainSettings, place: ComputeDevice, work: TrainingPass
) -> tuple[int, PassPeaks]:
    """Return the bytes that a pass keeps from forward to backward, and the peaks of temporary memory.

    If activations are recomputed, each layer keeps only its input, and one layer at a time keeps the rest.
    """
    dtype, tokens, hidden = place.dtype, work.tokens, shape.hidden
    in_layer = tokens * layer_activations(shape, settings, place)
    # Attention mask of all layers. On a GPU only forked trees have one, and the tokens that these save take more.
    mask = work.episodes * work.context**2 * dtype if _shares_beginning(shape, settings, place) else 0
    end = tokens * hidden * (4 + dtype)  # the last norm, and the input of the loss
    recomputed = settings.model.recomputes
    layers = shape.layers if recomputed else shape.count_trained_layers(settings.lora)
    kept = mask + end + layers * (tokens * hidden * dtype if recomputed else in_layer)
    if _is_autocast(shape, settings, place):
        kept += 2 * shape.adapter_parameters(settings.lora)  # 16-bit copies
    working = tokens * _layer_backward_bytes(shape, place) + _dequantized_bytes(shape, settings)
    layer = working + (in_layer if recomputed else 0)
    after = tokens * hidden * dtype
    loss = (
        _selected_loss_bytes(shape, work)
        if _shares_beginning(shape, settings, place)
        else _tiled_loss_bytes(shape, place, tokens)
    )
    return kept, PassPeaks(loss, layer, after)


def _shares_beginning(shape: ModelShape, settings: TrainSettings, place: ComputeDevice) -> bool:
    """Return True if `AgentTrainer` uses `read_beginning`, and not TRL's fused head."""
    is_alone = not settings.model.recomputes and settings.optimizer.processes == 1
    return not place.on_gpu and is_alone and not shape.stateful


def _is_autocast(shape: ModelShape, settings: TrainSettings, place: ComputeDevice) -> bool:
    """Return True if torch casts a 32-bit adapter to the model's 16 bits in multiplications (autocast)."""
    return place.dtype == 2 and not _shares_beginning(shape, settings, place)


def layer_activations(shape: ModelShape, settings: TrainSettings, place: ComputeDevice) -> int:
    """Return the bytes per token that one layer keeps for the backward pass.

    - Two norms keep their input in float32.
    - Attention keeps queries, keys and values of all heads (`sdpa` repeats keys if there is a mask), its output, and
      one float32 per head.
    - The feed-forward part keeps the factors of its products.
    - A module with an adapter keeps its input and the output of the first LoRA matrix. If the adapter is multiplied in
      the dtype of the model, as with autocast (not used by `read_beginning`), modules share one input; else each keeps
      a copy in 32 bits.
    """
    dtype, hidden, wide, inner = place.dtype, shape.hidden, shape.attention, shape.intermediate
    norms = 2 * 4 * hidden
    attention = dtype * 4 * wide + 4 * shape.heads
    feed_forward = dtype * 3 * inner
    inputs = ({"q_proj", "k_proj", "v_proj"}, hidden), ({"o_proj"}, wide), ({"gate_proj", "up_proj"}, hidden)
    targets = {each.name for each in shape.find_targets(settings.lora)}
    copy = 2 if _is_autocast(shape, settings, place) else _ADAPTER
    same = dtype == copy
    adapters = copy * settings.lora.rank * len(targets)
    for names, width in (*inputs, ({"down_proj"}, inner)):
        found = len(names & targets)
        if same:
            adapters += dtype * width * (found > 0 and names != {"o_proj"})  # its input is the output of attention
        else:
            adapters += copy * width * found
    return norms + attention + feed_forward + adapters


def _layer_backward_bytes(shape: ModelShape, place: ComputeDevice) -> int:
    """Return the temporary bytes per token in the backward pass of a layer, at the feed-forward part, its widest.

    These are the gradients of the input of `down_proj` through the model's weights and through the adapter, which are
    summed in place, minus the input, which is freed. If the adapter has another dtype, one of them is in float32, and
    the sum is a third.
    """
    dtype = place.dtype
    same = dtype == _ADAPTER
    return (dtype if same else 6) * shape.intermediate + (4 + 2 * dtype) * shape.hidden


def _dequantized_bytes(shape: ModelShape, settings: TrainSettings) -> int:
    """Return the bytes of the largest nf4 weight after dequantization to 16 bits."""
    if settings.model.quantization == "none":
        return 0
    return max((each.inputs * each.outputs for each in shape.linears), default=0) * 2


def _tiled_loss_bytes(shape: ModelShape, place: ComputeDevice, tokens: int) -> int:
    """Return the bytes of TRL's loss, which computes logits tile by tile (trl.kernels.chunked_logprob).

    These are a copy of its input, the gradient of the input in float32 and in the model's dtype, and one tile. Without
    Triton (on a CPU), there are seven more tiles in float32, and one with a byte per logit.
    """
    rows, columns = min(tokens, TILE[0]), min(shape.vocabulary, TILE[1])
    whole = tokens * shape.hidden * (2 * place.dtype + 4)
    if place.on_gpu:
        return whole + rows * TILE[1] * place.dtype
    return whole + rows * columns * (place.dtype + 7 * 4 + 1)


def _selected_loss_bytes(shape: ModelShape, work: TrainingPass) -> int:
    """Return the bytes of the loss of `read_beginning`: logits, log-probabilities and entropies."""
    return work.episodes * work.scored * shape.vocabulary * 4 * 4


def sampling_parts(
    shape: ModelShape, settings: TrainSettings, place: ComputeDevice, context: int, first_turn: int = 0
) -> list[MemoryPart]:
    """Return the memory of episodes of `context` tokens in the trainer's own process.

    They are those of `rollouts.engine: transformers`. In the mode `simple`, a step samples all first turns at once, of
    `first_turn` tokens with the prompt, and evaluations run episodes: the larger of the two counts. Keys and values
    exist twice while a batch copies them back to its sessions.
    """
    sampled = [(settings.rollouts.concurrency, context)]  # in evaluations, even if a step has fewer episodes
    if settings.mode == "simple":
        sampled.append((settings.groups * settings.rollouts.num_generations, first_turn))
    at_once, context = max(sampled, key=math.prod)
    new = min(context, TURN_TOKENS)
    dtype = place.dtype
    reading = new * (3 * shape.intermediate + 4 * shape.hidden) * dtype + 2 * context * shape.attention * dtype
    return [
        MemoryPart(
            "episodes' keys and values", 2 * at_once * kv_bytes(shape, dtype, context), f"{at_once} episodes at once"
        ),
        MemoryPart(
            "episodes' reading", at_once * (reading + 3 * 4 * shape.vocabulary) + _dequantized_bytes(shape, settings)
        ),
    ]


def kv_bytes(shape: ModelShape, dtype: int, context: int) -> int:
    """Return the bytes of keys and values of an episode with `context` tokens."""
    return shape.kv_tokens(context) * shape.kv_numbers * dtype


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """Memory of a vLLM server on one GPU, or on a machine without GPUs."""

    parts: tuple[MemoryPart, ...]
    """All parts except keys and values."""
    room: int
    """Bytes left for keys and values on each GPU."""
    tokens: int
    """Number of tokens that fit into `room`."""
    at_best: int
    """Number of tokens that would fit if the server needed memory only for weights and adapters."""


def estimate_server_memory(
    shape: ModelShape,
    place: ComputeDevice,
    memory: int,
    gpus: int,
    *,
    batch: tuple[int, int],
    rank: int,
    adapters: int = 2,
) -> ServerMemory:
    """Estimate how vLLM divides `memory` bytes on each of its GPUs, and how many tokens its cache holds.

    `batch` is the maximum number of tokens and of requests that it processes at once, `rank` the maximum LoRA rank, and
    `adapters` the number of adapters that it holds.
    """
    tokens, requests = batch
    # vLLM divides one matrix of each module among its GPUs; the other, on the side of the hidden state, is on each. It
    # makes room for matrices of experts even if no adapter has them, and reads `gate_up_proj` as two modules.
    whole = shape.hidden * sum(each.count * (1 + each.name.startswith("gate_up")) for each in shape.experts)
    whole += shape.hidden * sum(each.count for each in shape.linears)
    divided = sum((each.inputs + each.outputs - shape.hidden) * each.count for each in (*shape.linears, *shape.experts))
    slots = rank * (whole + (divided + shape.hidden + shape.vocabulary) // gpus)
    own = MemoryPart("weights", shape.parameters * place.dtype // gpus, f"{8 * place.dtype} bits")
    loras = MemoryPart("adapters", adapters * slots * place.dtype, f"{adapters} slots of rank {rank}")
    if place.on_gpu:
        reading = tokens * (3 * shape.intermediate // gpus + 4 * shape.hidden) * place.dtype
        peak = max(reading, requests * shape.vocabulary * _SAMPLING_BYTES)
        parts: tuple[MemoryPart, ...] = (
            own,
            loras,
            MemoryPart("activations", peak, f"{tokens:,} tokens or {requests:,} requests at once; in part assumed"),
            MemoryPart("CUDA graphs", _GRAPHS, "assumed"),
            MemoryPart("framework", _CONTEXT, "assumed"),
        )
        room, free = memory - sum(each.bytes for each in parts), memory - own.bytes - loras.bytes
    else:  # `memory` is the size of the cache alone
        parts, room, free = (own, loras, MemoryPart("framework", _SERVER, "assumed")), memory, memory
    of_token = max(1, kv_bytes(shape, place.dtype, 1) // min(gpus, shape.kv_heads))
    return ServerMemory(parts, max(0, room), max(0, room) // of_token, max(0, free) // of_token)
