"""Bytes that training and sampling take, part by part, from a model's shape and the settings: arithmetic alone.

What a layer keeps for its gradient is counted tensor by tensor, in the manner of https://arxiv.org/abs/2205.05198
(there for GPT, with dropout and without LoRA), for decoders as Llama and Qwen2 are, with the attention that
`transformers` takes (`sdpa`) on episodes of unequal lengths. `tests/training/test_memory_plan.py` compares it with
what was measured.
"""

from dataclasses import dataclass

from gumshoe.training.models.model_shape import ModelShape
from gumshoe.training.settings import TrainSettings

GIB = 2**30
NF4 = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""Bytes of a weight in nf4: 4 bits, with a constant of 8 bits for 64 of them and of 32 bits for 256 of those, which is
0.127 bits a weight (https://arxiv.org/abs/2305.14314, section 3)."""
TILE = (4096, 32768)
"""Tokens and vocabulary of the piece of logits that TRL works on at a time (trl.kernels.chunked_logprob)."""
_CONTEXT = round(0.6 * GIB)  # of CUDA and its libraries, for each process; an assumption
_SLACK = 0.05  # of what comes and goes, lost between blocks of torch's allocator on a GPU; an assumption
_PROCESS = round(0.7 * GIB)  # python with torch and what training imports, on a CPU; measured as `baseline`
_SERVER = round(0.9 * GIB)  # vLLM without weights and cache, on a CPU; an assumption
_GRAPHS = round(1.0 * GIB)  # vLLM's CUDA graphs; an assumption
_SAMPLED = (
    24  # bytes that sampling takes for each entry of the vocabulary and request: logits, sorted, and probabilities
)
READ_AT_ONCE = 1024
"""Tokens that a turn adds to an episode; an assumption."""
_SLOTS = 2  # adapters that vLLM has room for (ServerOptions.max_loras)


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One use of memory."""

    name: str
    bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model works."""

    on_gpu: bool
    dtype: int
    """Bytes of a number."""

    @classmethod
    def of(cls, settings: TrainSettings, *, on_gpu: bool) -> "Place":
        """As `gumshoe.training.models.lora_model.dtype_of` has it."""
        auto = 2 if on_gpu else 4
        return cls(on_gpu, {"float32": 4, "bfloat16": 2}.get(settings.model.dtype, auto))


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of a trainer."""

    episodes: int
    context: int
    """Tokens that each is padded to."""
    scored: int
    """Tokens of an episode that count."""

    @property
    def tokens(self) -> int:
        return self.episodes * self.context


def weights_bytes(shape: ModelShape, settings: TrainSettings, place: Place) -> int:
    """Of the base model. nf4 is for the layers' linear weights; embeddings, norms and biases stay as they are."""
    if settings.model.quantization == "none":
        return shape.parameters * place.dtype
    return round(shape.quantizable * NF4) + (shape.parameters - shape.quantizable) * place.dtype


def adapter_dtype(settings: TrainSettings) -> int:
    """Bytes of an adapter's number: `peft` makes it float32, and TRL bfloat16 on quantized weights."""
    return 4 if settings.model.quantization == "none" else 2


def trainer_parts(shape: ModelShape, settings: TrainSettings, place: Place, work: Pass) -> list[MemoryPart]:
    """What one trainer has in memory where that is most."""
    lora, optimizer = settings.lora, settings.optimizer
    adapter = shape.adapter_parameters(lora.rank, lora.target_modules)
    size = adapter * adapter_dtype(settings)
    kind = "nf4, double quantization" if settings.model.quantization == "nf4" else f"{8 * place.dtype} bits"
    kept, pieces = training_pass(shape, settings, place, work)
    loss = pieces.loss >= pieces.layer + pieces.after
    coming = [
        MemoryPart("activations", kept + (0 if loss else pieces.layer), _of_activations(settings, work)),
        MemoryPart(
            "logits and loss", pieces.loss if loss else pieces.after, f"vocabulary of {shape.vocabulary:,}, in pieces"
        ),
    ]
    if settings.rollouts.engine == "transformers" or settings.mode == "simple":
        sampling = in_process_sampling(shape, settings, place, work.context)
        a_pass, episodes = (sum(each.bytes for each in parts) for parts in (coming, sampling))
        coming = (  # they take turns
            [*sampling, MemoryPart("training pass", 0, f"{a_pass / GIB:,.2f} GiB in place of episodes")]
            if episodes > a_pass
            else [*coming, MemoryPart("episodes", 0, f"{episodes / GIB:,.2f} GiB in place of a pass")]
        )
    slack = round(_SLACK * sum(each.bytes for each in coming)) if place.on_gpu else 0
    return [
        _base(shape, settings, place, f"{shape.parameters:,} parameters, {kind}"),
        MemoryPart("adapter", size, f"{adapter:,} parameters, {8 * adapter_dtype(settings)} bits"),
        MemoryPart("gradients", size * (2 if optimizer.processes > 1 else 1), "of the adapter"),
        MemoryPart("optimizer", 2 * size, "two moments of each parameter (AdamW)"),
        *coming,
        MemoryPart(
            "framework",
            (_CONTEXT if place.on_gpu else _PROCESS) + slack,
            f"assumed: CUDA {_CONTEXT / GIB:.1f} GiB, {_SLACK:.0%} lost between blocks" if place.on_gpu else "assumed",
        ),
    ]


def _base(shape: ModelShape, settings: TrainSettings, place: Place, note: str) -> MemoryPart:
    """The base model's weights: where they are shared out, this trainer's, and one layer's that are put together.

    Gradients and moments of the adapter are shared out too, which is left aside: they are small.
    """
    whole = weights_bytes(shape, settings, place)
    if not settings.is_sharded:
        return MemoryPart("weights", whole, note)
    in_layers = sum(each.weights for each in shape.linears) * place.dtype
    embeddings = whole - in_layers
    gathered = max(2 * in_layers // shape.layers, embeddings)  # the layer that works, and the next
    share = whole // settings.optimizer.processes
    return MemoryPart(
        "weights", share + gathered, f"{note}; one of {settings.optimizer.processes} shares, and what is at work"
    )


def _of_activations(settings: TrainSettings, work: Pass) -> str:
    how = "recomputed" if settings.model.gradient_checkpointing else "kept"
    return f"{work.episodes} episodes of {work.context:,} tokens, {how}"


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a pass takes beyond what it keeps, at its two peaks."""

    loss: int
    """When the loss goes back, with every layer's activations there."""
    layer: int
    """When the last layer does."""
    after: int
    """What the loss leaves for that."""


def training_pass(shape: ModelShape, settings: TrainSettings, place: Place, work: Pass) -> tuple[int, Pieces]:
    """Bytes that a pass keeps from its forward to its backward half, and those that come and go.

    Where activations are recomputed, each layer keeps what it was given, and one layer at a time the rest.
    """
    dtype, tokens, hidden = place.dtype, work.tokens, shape.hidden
    in_layer = tokens * layer_activations(shape, settings, place, work.context)
    mask = work.episodes * work.context**2  # which tokens see which, a byte each
    end = tokens * hidden * (4 + dtype)  # the last norm, and what the loss is made from
    recomputed = settings.model.gradient_checkpointing
    kept = mask + end + shape.layers * (tokens * hidden * dtype if recomputed else in_layer)
    if _casts(settings, place):
        kept += 2 * shape.adapter_parameters(settings.lora.rank, settings.lora.target_modules)  # as it is multiplied
    working = tokens * _layer_works(shape, settings, place) + _unpacked(shape, settings)
    layer = working + (in_layer if recomputed else 0)
    after = tokens * hidden * dtype
    loss = _own_loss(shape, work) if _by_ourselves(settings, place) else _loss_in_tiles(shape, place, tokens)
    return kept, Pieces(loss, layer, after)


def _by_ourselves(settings: TrainSettings, place: Place) -> bool:
    """Whether log-probabilities are those of `completion_logprobs`, and not TRL's (`AgentTrainer`)."""
    return not place.on_gpu and not settings.model.gradient_checkpointing and settings.optimizer.processes == 1


def _casts(settings: TrainSettings, place: Place) -> bool:
    """Whether torch casts an adapter of 32 bits to the model's 16 where they are multiplied (autocast)."""
    return place.dtype == 2 and adapter_dtype(settings) == 4 and not _by_ourselves(settings, place)


def layer_activations(shape: ModelShape, settings: TrainSettings, place: Place, context: int) -> int:
    """Bytes of a token that one layer keeps for its gradient.

    Two norms keep their input in float32; attention its queries, keys and values (of every head, since `sdpa` repeats
    keys where there is a mask), its result, a float32 for each head, and the mask as numbers; the feed-forward part
    what it multiplies. A module with an adapter keeps its input, and what came of the first matrix: the input itself
    where adapter and model have the same kind of numbers, which modules share, and else a copy for each, in the numbers
    that are multiplied (16 bits where torch casts by itself, which it does not in `completion_logprobs`).
    """
    dtype, hidden, wide, inner = place.dtype, shape.hidden, shape.attention, shape.intermediate
    norms = 2 * 4 * hidden
    attention = dtype * 4 * wide + 4 * shape.heads + dtype * context
    feed_forward = dtype * 3 * inner
    inputs = ({"q_proj", "k_proj", "v_proj"}, hidden), ({"o_proj"}, wide), ({"gate_proj", "up_proj"}, hidden)
    targets, same = set(settings.lora.target_modules), dtype == adapter_dtype(settings)
    copy = 2 if _casts(settings, place) else adapter_dtype(settings)
    adapters = copy * settings.lora.rank * len(targets)
    for names, width in (*inputs, ({"down_proj"}, inner)):
        found = len(names & targets)
        if same:
            adapters += dtype * width * (found > 0 and names != {"o_proj"})  # whose input is attention's result
        else:
            adapters += copy * width * found
    return norms + attention + feed_forward + adapters


def _layer_works(shape: ModelShape, settings: TrainSettings, place: Place) -> int:
    """Bytes of a token while the gradient goes back through a layer: those of the feed-forward part, the widest.

    Gradients of what `down_proj` was given, by the model's way and by the adapter's, and their sum, less the input that
    is done with; where the adapter has other numbers, one of them in float32.
    """
    dtype = place.dtype
    same = dtype == adapter_dtype(settings)
    return (2 * dtype if same else 6) * shape.intermediate + (4 + 2 * dtype) * shape.hidden


def _unpacked(shape: ModelShape, settings: TrainSettings) -> int:
    """The largest weight of nf4 as it is multiplied with: 16 bits a number."""
    if settings.model.quantization == "none":
        return 0
    return max((each.inputs * each.outputs for each in shape.linears), default=0) * 2


def _loss_in_tiles(shape: ModelShape, place: Place, tokens: int) -> int:
    """Of TRL's loss, which makes logits tile by tile, forwards and backwards (trl.kernels.chunked_logprob).

    A copy of what it is made from, its gradient in float32 and in the model's numbers, and a tile; without Triton (so
    on a CPU) seven more of it in float32, and a byte.
    """
    rows, columns = min(tokens, TILE[0]), min(shape.vocabulary, TILE[1])
    whole = tokens * shape.hidden * (2 * place.dtype + 4)
    if place.on_gpu:
        return whole + rows * TILE[1] * place.dtype
    return whole + rows * columns * (place.dtype + 7 * 4 + 1)


def _own_loss(shape: ModelShape, work: Pass) -> int:
    """Of `completion_logprobs` on a CPU: logits of what counts alone, their log-probabilities, and entropies."""
    return work.episodes * work.scored * shape.vocabulary * 4 * 4


def in_process_sampling(shape: ModelShape, settings: TrainSettings, place: Place, context: int) -> list[MemoryPart]:
    """Of episodes in the trainer's own process (`rollouts.engine: transformers`), which take turns with its passes.

    Keys and values are there twice while a batch gives them back to its conversations.
    """
    at_once = settings.rollouts.concurrency  # an evaluation has as many, however few a step has
    if settings.mode == "simple":  # TRL samples a whole step
        at_once = settings.groups * settings.rollouts.num_generations
    new = min(context, READ_AT_ONCE)
    dtype = place.dtype
    reading = new * (3 * shape.intermediate + 4 * shape.hidden) * dtype + 2 * context * shape.attention * dtype
    return [
        MemoryPart(
            "episodes' keys and values", 2 * at_once * kv_bytes(shape, dtype, context), f"{at_once} episodes at once"
        ),
        MemoryPart("episodes' reading", at_once * (reading + 3 * 4 * shape.vocabulary) + _unpacked(shape, settings)),
    ]


def kv_bytes(shape: ModelShape, dtype: int, context: int) -> int:
    """Of an episode of so many tokens."""
    return shape.kv_tokens(context) * shape.kv_numbers * dtype


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """A vLLM server's share of one GPU, or what it takes of a machine without one."""

    parts: tuple[MemoryPart, ...]
    """Without keys and values."""
    room: int
    """Bytes left for keys and values; of several GPUs, on each."""
    tokens: int
    """That they are enough for."""
    at_best: int
    """The same if nothing but weights and adapters was there."""


def server_memory(
    shape: ModelShape,
    place: Place,
    memory: int,
    gpus: int,
    *,
    batch: tuple[int, int],
    rank: int,
) -> ServerMemory:
    """What vLLM takes of `memory` bytes on each of so many GPUs, and how many tokens it can hold.

    `batch` is how many tokens and how many requests it takes at once, and `rank` what its adapters have room for.
    """
    tokens, requests = batch
    slots = sum(rank * (each.inputs + each.outputs) * each.count for each in shape.linears)
    slots += rank * (shape.hidden + shape.vocabulary)
    own = MemoryPart("weights", shape.parameters * place.dtype // gpus, f"{8 * place.dtype} bits")
    adapters = MemoryPart("adapters", _SLOTS * slots * place.dtype // gpus, f"{_SLOTS} slots of rank {rank}")
    if place.on_gpu:
        reading = tokens * (3 * shape.intermediate // gpus + 4 * shape.hidden) * place.dtype
        peak = max(reading, requests * shape.vocabulary * _SAMPLED)
        parts: tuple[MemoryPart, ...] = (
            own,
            adapters,
            MemoryPart("activations", peak, f"{tokens:,} tokens or {requests:,} requests at once; in part assumed"),
            MemoryPart("CUDA graphs", _GRAPHS, "assumed"),
            MemoryPart("framework", _CONTEXT, "assumed"),
        )
        room, free = memory - sum(each.bytes for each in parts), memory - own.bytes - adapters.bytes
    else:  # where it is told what to take for these alone
        parts, room, free = (own, adapters, MemoryPart("framework", _SERVER, "assumed")), memory, memory
    of_token = max(1, kv_bytes(shape, place.dtype, 1) // min(gpus, shape.kv_heads))
    return ServerMemory(parts, max(0, room), max(0, room) // of_token, max(0, free) // of_token)
