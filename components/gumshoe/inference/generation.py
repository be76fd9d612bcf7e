"""Sampling for `TransformersPolicy`: one turn of every conversation at once, each with random numbers of its own.

A conversation's keys and values are kept from turn to turn, so that only what is new goes through the model.
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

_WORTH = 32  # tokens that a beginning has at least
_SHARING = "gumshoe_sharing"  # attention in which heads that share keys ask together


@dataclass(frozen=True, slots=True)
class Past:
    """What a conversation's earlier turns, or what it begins with, left in the model."""

    ids: list[int]
    """[tokens]"""
    layers: list[tuple[torch.Tensor, torch.Tensor]]
    """Keys and values, [heads, tokens, dimensions] each."""


@dataclass(slots=True)
class PendingTurn:
    """A turn: what it continues, and what is sampled."""

    prompt: list[int]
    """[tokens]"""
    sampling: Sampling
    stop_ids: tuple[int, ...]
    seed: int
    past: Past | None
    """What came before it left, if that went through the model; afterwards, what this one leaves."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None

    @property
    def known(self) -> int:
        """How many tokens of the prompt are in the past."""
        past = self.past
        fits = past and len(past.ids) < len(self.prompt) and self.prompt[: len(past.ids)] == past.ids
        return len(past.ids) if past and fits else 0

    def take(self, token: int, logprob: float) -> None:
        """Add a sampled token."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        if token in self.stop_ids:
            self.finish = "stop"
        elif len(self.ids) >= self.sampling.max_tokens:
            self.finish = "length"


@torch.inference_mode()
def shared_prefix(model: Any, prompts: Sequence[list[int]]) -> Past | None:
    """What prompts [tokens] begin with alike, once through the model; None where that is too little to be worth it.

    At least one token of each is left for its own turn.
    """
    first, last = min(prompts), max(prompts)  # what these two begin with alike, all do
    shortest = min(map(len, prompts)) - 1
    alike = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), shortest)
    ids = first[: min(alike, shortest)]
    if len(ids) < _WORTH:
        return None
    cache = DynamicCache()
    model(input_ids=torch.tensor([ids], device=model.device), past_key_values=cache, use_cache=True, logits_to_keep=1)
    layers: list[Any] = cache.layers
    return Past(ids, [(layer.keys[0], layer.values[0]) for layer in layers])


@torch.inference_mode()
def sample_turns(model: Any, turns: Sequence[PendingTurn], stopped: Callable[[], bool] = lambda: False) -> None:
    """Continue every turn to its end, those of like lengths together.

    `stopped` is asked before each token; where it says so, turns are left unfinished.
    """
    with _heads_sharing(model.config):
        for batch in _alike(turns):
            _sample_together(model, batch, stopped)


@contextmanager
def _heads_sharing(config: Any) -> Iterator[None]:
    """Meanwhile heads that share keys ask together for one new token: `transformers` copies the keys for each head."""
    before = config._attn_implementation
    if before == "sdpa":
        config._attn_implementation = _SHARING
    try:
        yield
    finally:
        config._attn_implementation = before


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **more: Any
) -> tuple[torch.Tensor, None]:
    """Attention as `transformers` has it: query [batch, heads, new, dimensions], keys and values of fewer heads."""
    batch, heads, new, width = query.shape
    if new > 1 or heads == key.shape[1] or more.get("position_bias") is not None:
        attended: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, **more)
        return attended
    asked = query.view(batch, key.shape[1], -1, width)
    found = torch.nn.functional.scaled_dot_product_attention(asked, key, value, mask, scale=more.get("scaling"))
    return found.reshape(batch, 1, heads, width), None


AttentionInterface.register(_SHARING, _attend)
AttentionMaskInterface.register(_SHARING, sdpa_mask)


def _alike(turns: Sequence[PendingTurn]) -> Iterator[list[PendingTurn]]:
    """Batches in which no prompt is more than twice as long as another: all are padded to the longest."""
    batch: list[PendingTurn] = []
    for turn in sorted(turns, key=lambda turn: len(turn.prompt)):
        if batch and len(turn.prompt) > 2 * len(batch[0].prompt):
            yield batch
            batch = []
        batch.append(turn)
    yield batch


def _sample_together(model: Any, turns: list[PendingTurn], stopped: Callable[[], bool]) -> None:
    """Continue turns as one batch. Those that have ended leave it when they are half of it."""
    going = list(turns)
    dice = [torch.Generator().manual_seed(turn.seed) for turn in turns]
    ids, mask, layers = _begun(model, going)
    cache = DynamicCache()
    cache.layers = list(layers)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    while not stopped():
        logits = model(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            position_ids=positions.to(model.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        _choose(going, dice, logits[:, -1].float().cpu())
        kept = [row for row, turn in enumerate(going) if not turn.finish]
        if len(kept) <= len(going) // 2:
            for row in set(range(len(going))) - set(kept):
                past = [layer.row(row, mask[row].bool()) for layer in layers]
                going[row].past = Past([*going[row].prompt, *going[row].ids[:-1]], past)  # the last was never read
            if not kept:
                return
            for layer in layers:
                layer.keep(kept)
            going, dice = [going[row] for row in kept], [dice[row] for row in kept]
            mask, positions = mask[kept], positions[kept]
        ids = torch.tensor([turn.ids[-1:] for turn in going])
        mask = torch.cat([mask, torch.tensor([[int(not turn.finish)] for turn in going])], dim=-1)
        positions = positions[:, -1:] + 1


def _begun(model: Any, turns: list[PendingTurn]) -> tuple[torch.Tensor, torch.Tensor, list["_Layer"]]:
    """What is new [batch, new], the mask [batch, past + new], both padded on the left, and layers with the pasts."""
    known = [turn.known for turn in turns]
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
    kept = [[past.layers[each] if past else None for past in pasts] for each in range(count)]
    return ids, mask, [_Layer(room, width, each) for each in kept]


class _Layer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A layer that grows in place, where the base class copies all that there is for each token."""

    def __init__(self, room: int, width: int, pasts: list[tuple[torch.Tensor, torch.Tensor] | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._room, self._filled, self._pasts = room, width, pasts

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Make room [batch, heads, room, dimensions], the pasts at the end of what is filled from the start."""
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
        """Add the newest tokens: all that there is now."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self._filled = self._filled, self._filled + key_states.shape[-2]
        for whole, states in zip(self._whole, (key_states, value_states), strict=True):
            whole[:, :, start : self._filled] = states
        keys, values = (whole[:, :, : self._filled] for whole in self._whole)
        return keys, values

    def row(self, row: int, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [heads, tokens, dimensions] of one row, where `columns` [filled] says that a token is."""
        columns = columns.to(self._whole[0].device)
        keys, values = (whole[row, :, : self._filled][:, columns] for whole in self._whole)
        return keys, values

    def keep(self, rows: list[int]) -> None:
        """Leave out all other rows."""
        self._whole = [whole[rows] for whole in self._whole]

    def get_seq_length(self) -> int:
        """Tokens that there are."""
        return self._filled


def _choose(turns: list[PendingTurn], dice: list[torch.Generator], logits: torch.Tensor) -> None:
    """Sample one more token for each turn that has not ended, from logits [batch, vocabulary]."""
    for sampling in {turn.sampling for turn in turns}:
        rows = [row for row, turn in enumerate(turns) if turn.sampling == sampling and not turn.finish]
        if not rows:
            continue
        chosen = logits[rows]
        if sampling.repetition_penalty != 1:
            for each, row in zip(chosen, rows, strict=True):
                _penalize(each, {*turns[row].prompt, *turns[row].ids}, sampling.repetition_penalty)
        draws = torch.stack([torch.rand((), generator=dice[row], dtype=torch.float64) for row in rows])
        tokens, logprobs = _sample(chosen, sampling, draws)
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            turns[row].take(token, logprob)


def _penalize(logits: torch.Tensor, seen: set[int], penalty: float) -> None:
    """Make tokens [vocabulary] that were seen less likely."""
    rows = torch.tensor(sorted(seen))
    logits[rows] = torch.where(logits[rows] > 0, logits[rows] / penalty, logits[rows] * penalty)


def _sample(logits: torch.Tensor, sampling: Sampling, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for each row of logits [rows, vocabulary], and its log-probability in what it was sampled from, [rows].

    `draws` [rows] are uniform from 0 to 1. The order is vLLM's: temperature, min-p, top-k, top-p
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
        beyond = shares.cumsum(-1) - shares >= sampling.top_p
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
    logprobs = torch.log_softmax(logits, dim=-1)
    below = logprobs.double().exp().cumsum(-1)
    tokens = torch.searchsorted(below, (draws * below[:, -1])[:, None], right=True)
    return tokens[:, 0], logprobs.gather(-1, tokens)[:, 0]
