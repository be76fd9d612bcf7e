"""Batched sampling for `TransformersPolicy`: one turn of every conversation, each with its own random generator.

The keys and values of each conversation are cached between turns, so that the model processes new tokens only.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from gumshoe.inference.policy import Sampling

_MIN_PREFIX = 32  # tokens of a shared prefix that is worth caching
_GROUPED_ATTENTION = "gumshoe_sharing"  # name of `_attend`, registered below


@dataclass(frozen=True, slots=True)
class PastKeyValues:
    """Cached keys and values of a prompt's first tokens."""

    ids: list[int]
    """[tokens]"""
    layers: list[tuple[torch.Tensor, torch.Tensor]]
    """Keys and values of each layer, [heads, tokens, dimensions] each."""


@dataclass(slots=True)
class PendingTurn:
    """A turn to sample: its prompt, its settings, and the tokens sampled so far."""

    prompt: list[int]
    """[tokens]"""
    sampling: Sampling
    stop_ids: tuple[int, ...]
    seed: int
    past: PastKeyValues | None
    """Cached keys and values of the earlier turns, if any; after sampling, those of this turn too."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens whose keys and values are cached."""
        past = self.past
        fits = past and len(past.ids) < len(self.prompt) and self.prompt[: len(past.ids)] == past.ids
        return len(past.ids) if past and fits else 0

    def add_token(self, token: int, logprob: float) -> None:
        """Add a sampled token."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        if token in self.stop_ids:
            self.finish = "stop"
        elif len(self.ids) >= self.sampling.max_tokens:
            self.finish = "length"


def use_flash_attention() -> None:
    """Keep PyTorch from cuDNN's attention, for 16-bit models on GPUs: it compiles a plan for each new shape (20 ms)."""
    torch.backends.cuda.enable_cudnn_sdp(False)


@torch.inference_mode()
def compute_shared_prefix(model: Any, prompts: Sequence[list[int]]) -> PastKeyValues | None:
    """Return cached keys and values of the prompts' common prefix, or None if it is too short to be worth it.

    The prefix leaves out at least one token of each prompt [tokens], as input for its own turn.
    """
    first, last = min(prompts), max(prompts)  # the common prefix of these two is that of all
    shortest = min(map(len, prompts)) - 1
    common = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), shortest)
    ids = first[: min(common, shortest)]
    if len(ids) < _MIN_PREFIX:
        return None
    cache = DynamicCache()
    model(input_ids=torch.tensor([ids], device=model.device), past_key_values=cache, use_cache=True, logits_to_keep=1)
    layers: list[Any] = cache.layers
    return PastKeyValues(ids, [(layer.keys[0], layer.values[0]) for layer in layers])


@torch.inference_mode()
def sample_turns(model: Any, turns: Sequence[PendingTurn], is_stopped: Callable[[], bool] = lambda: False) -> None:
    """Sample every turn to its end, in batches of similar prompt length.

    `stopped` is called before each token. If it returns True, the turns stay unfinished.
    """
    with _use_grouped_attention(model.config):
        for batch in _batch_by_length(turns):
            _sample_batch(model, batch, is_stopped)


@contextmanager
def _use_grouped_attention(config: Any) -> Iterator[None]:
    """Use `_attend` in the block: it does not copy the keys for each head, as `transformers` does."""
    before = config._attn_implementation
    if before == "sdpa":
        config._attn_implementation = _GROUPED_ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **more: Any
) -> tuple[torch.Tensor, None]:
    """Compute grouped-query attention without copying keys and values for each head.

    Has the interface of `transformers`: `query` is [batch, heads, new, dimensions]; `key` and `value` have fewer heads.
    """
    batch, heads, new, width = query.shape
    if new > 1 or heads == key.shape[1] or more.get("position_bias") is not None:
        attended: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, **more)
        return attended
    grouped = query.view(batch, key.shape[1], -1, width)
    result = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, mask, scale=more.get("scaling"))
    return result.reshape(batch, 1, heads, width), None


AttentionInterface.register(_GROUPED_ATTENTION, _attend)
AttentionMaskInterface.register(_GROUPED_ATTENTION, sdpa_mask)


def _batch_by_length(turns: Sequence[PendingTurn]) -> Iterator[list[PendingTurn]]:
    """Yield batches in which no prompt is more than twice as long as another. All are padded to the longest."""
    batch: list[PendingTurn] = []
    for turn in sorted(turns, key=lambda turn: len(turn.prompt)):
        if batch and len(turn.prompt) > 2 * len(batch[0].prompt):
            yield batch
            batch = []
        batch.append(turn)
    yield batch


def _sample_batch(model: Any, turns: list[PendingTurn], is_stopped: Callable[[], bool]) -> None:
    """Sample turns as one batch. Finished turns are removed from the batch once they are half of it."""
    active = list(turns)
    generators = [torch.Generator().manual_seed(turn.seed) for turn in turns]
    ids, mask, layers = _prepare_batch(model, active)
    cache = DynamicCache()
    cache.layers = list(layers)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    while not is_stopped():
        logits = model(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            position_ids=positions.to(model.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        _sample_next_tokens(active, generators, logits[:, -1].float().cpu())
        unfinished = [row for row, turn in enumerate(active) if not turn.finish]
        if len(unfinished) <= len(active) // 2:
            for row in set(range(len(active))) - set(unfinished):
                past = [layer.get_row(row, mask[row].bool()) for layer in layers]
                ids_in_cache = [*active[row].prompt, *active[row].ids[:-1]]  # the last token was not processed
                active[row].past = PastKeyValues(ids_in_cache, past)
            if not unfinished:
                return
            for layer in layers:
                layer.keep_rows(unfinished)
            active, generators = [active[row] for row in unfinished], [generators[row] for row in unfinished]
            mask, positions = mask[unfinished], positions[unfinished]
        ids = torch.tensor([turn.ids[-1:] for turn in active])
        mask = torch.cat([mask, torch.tensor([[int(not turn.finish)] for turn in active])], dim=-1)
        positions = positions[:, -1:] + 1


def _prepare_batch(
    model: Any, turns: list[PendingTurn]
) -> tuple[torch.Tensor, torch.Tensor, list["_PreallocatedLayer"]]:
    """Return the new token ids [batch, new], the mask [batch, past + new], and cache layers with the past.

    Ids and mask are padded on the left.
    """
    known = [turn.cached_tokens for turn in turns]
    width = max(known)
    longest = max(len(turn.prompt) - count for turn, count in zip(turns, known, strict=True))
    ids = torch.zeros(len(turns), longest, dtype=torch.long)
    mask = torch.zeros(len(turns), width + longest, dtype=torch.long)
    for row, (turn, count) in enumerate(zip(turns, known, strict=True)):
        new = turn.prompt[count:]
        ids[row, longest - len(new) :] = torch.tensor(new)
        mask[row, width - count : width] = 1
        mask[row, width + longest - len(new) :] = 1
    room = width + longest + max(turn.sampling.max_tokens for turn in turns)
    pasts = [turn.past if count else None for turn, count in zip(turns, known, strict=True)]
    count = model.config.get_text_config().num_hidden_layers
    by_layer = [[past.layers[each] if past else None for past in pasts] for each in range(count)]
    return ids, mask, [_PreallocatedLayer(room, width, each) for each in by_layer]


class _PreallocatedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Cache layer that is allocated once and filled in place. The base class copies everything for each token."""

    def __init__(self, room: int, width: int, pasts: list[tuple[torch.Tensor, torch.Tensor] | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._room, self._filled, self._pasts = room, width, pasts

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate [batch, heads, room, dimensions] and copy in the past, padded on the left."""
        super().lazy_initialization(key_states, value_states)
        self._whole = []
        for which, states in enumerate((key_states, value_states)):
            whole = states.new_zeros(*states.shape[:2], self._room, states.shape[-1])
            for row, past in enumerate(self._pasts):
                if past is not None:
                    whole[row, :, self._filled - past[which].shape[1] : self._filled] = past[which]
            self._whole.append(whole)
        self._pasts = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the newest tokens, and return all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self._filled = self._filled, self._filled + key_states.shape[-2]
        for whole, states in zip(self._whole, (key_states, value_states), strict=True):
            whole[:, :, start : self._filled] = states
        keys, values = (whole[:, :, : self._filled] for whole in self._whole)
        return keys, values

    def get_row(self, row: int, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values [heads, tokens, dimensions] of one row, for the columns [filled] that are True."""
        columns = columns.to(self._whole[0].device)
        keys, values = (whole[row, :, : self._filled][:, columns] for whole in self._whole)
        return keys, values

    def keep_rows(self, rows: list[int]) -> None:
        """Remove all other rows."""
        self._whole = [whole[rows] for whole in self._whole]

    def get_seq_length(self) -> int:
        """Return the number of cached tokens."""
        return self._filled


def _sample_next_tokens(turns: list[PendingTurn], generators: list[torch.Generator], logits: torch.Tensor) -> None:
    """Sample one more token for each unfinished turn from logits [batch, vocabulary]."""
    for sampling in {turn.sampling for turn in turns}:
        rows = [row for row, turn in enumerate(turns) if turn.sampling == sampling and not turn.finish]
        if not rows:
            continue
        chosen = logits[rows]
        if sampling.repetition_penalty != 1:
            for each, row in zip(chosen, rows, strict=True):
                _apply_repetition_penalty(each, {*turns[row].prompt, *turns[row].ids}, sampling.repetition_penalty)
        draws = torch.stack([torch.rand((), generator=generators[row], dtype=torch.float64) for row in rows])
        tokens, logprobs = _sample_tokens(chosen, sampling, draws)
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            turns[row].add_token(token, logprob)


def _apply_repetition_penalty(logits: torch.Tensor, seen: set[int], penalty: float) -> None:
    """Make tokens that were seen less likely, in logits [vocabulary]."""
    rows = torch.tensor(sorted(seen))
    logits[rows] = torch.where(logits[rows] > 0, logits[rows] / penalty, logits[rows] * penalty)


def _sample_tokens(logits: torch.Tensor, sampling: Sampling, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a token for each row of logits [rows, vocabulary], and its log-probability [rows].

    Log-probabilities are of the distribution that was sampled from. `draws` [rows] are uniform from 0 to 1. The order
    is vLLM's: temperature, min-p, top-k, top-p
    (https://docs.vllm.ai/en/latest/api/vllm/v1/sample/sampler.html).
    """
    if sampling.temperature == 0:
        tokens = logits.argmax(-1)
        return tokens, torch.log_softmax(logits, dim=-1).gather(-1, tokens[:, None])[:, 0]
    logits = logits / sampling.temperature
    if sampling.min_p > 0:
        probabilities = torch.softmax(logits, dim=-1)
        least = sampling.min_p * probabilities.max(-1, keepdim=True).values
        logits = logits.masked_fill(probabilities < least, -torch.inf)
    if 0 < sampling.top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < torch.topk(logits, sampling.top_k).values[:, -1:], -torch.inf)
    if sampling.top_p < 1:
        ordered, order = torch.sort(logits, descending=True)
        shares = torch.softmax(ordered, dim=-1)
        excluded = shares.cumsum(-1) - shares >= sampling.top_p
        logits = logits.masked_fill(torch.zeros_like(excluded).scatter(-1, order, excluded), -torch.inf)
    logprobs = torch.log_softmax(logits, dim=-1)
    cumulative = logprobs.double().exp().cumsum(-1)
    tokens = torch.searchsorted(cumulative, (draws * cumulative[:, -1])[:, None], right=True)
    return tokens[:, 0], logprobs.gather(-1, tokens)[:, 0]
