"""Turns that `TransformersPolicy` samples, and batches of them: what the model reads next, and its cache."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from transformers.cache_utils import DynamicLayer

from gumshoe.inference.cache_rows import has_only_full_attention, join_rows, make_cache, take_row
from gumshoe.inference.policy import Sampling


@dataclass(frozen=True, slots=True)
class PastKeyValues:
    """The cache of a prompt's first tokens."""

    ids: list[int]
    """[tokens]"""
    layers: list[Any]
    """Layers of a cache of `transformers`, with one row: keys and values, states, or both."""


@dataclass(slots=True)
class PendingTurn:
    """A turn to sample: its prompt, its settings, and the tokens sampled so far."""

    prompt: list[int]
    """[tokens]"""
    sampling: Sampling
    stop_ids: tuple[int, ...]
    seed: int
    past: PastKeyValues | None
    """The cache of the earlier turns, if any; after sampling, of this turn too."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens that the cache contains."""
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


class TurnBatch(Protocol):
    """Turns that a model processes together, one in each row."""

    def compute_logits(self) -> torch.Tensor:
        """Process the new tokens, and return the logits of the next ones, [rows, vocabulary]."""

    def add_tokens(self, turns: Sequence[PendingTurn]) -> None:
        """Add the newest token of each row's turn. Tokens of finished turns are ignored."""

    def keep_rows(self, rows: list[int]) -> None:
        """Remove all other rows."""

    def take_row(self, row: int) -> list[Any]:
        """Return a copy of the cache of a row: all layers, with one row each."""


def make_batch(model: Any, turns: Sequence[PendingTurn]) -> TurnBatch:
    """Return a batch with one row for each turn."""
    return _PaddedBatch(model, turns) if has_only_full_attention(model) else _AlignedBatch(model, turns)


class _PaddedBatch:
    """A batch for a model in which each token attends to all earlier ones: a mask leaves out gaps between tokens.

    A row is first the cached tokens, padded on the left, and then the new tokens, padded on the left.
    """

    def __init__(self, model: Any, turns: Sequence[PendingTurn]) -> None:
        known = [turn.cached_tokens for turn in turns]
        width = max(known)
        longest = max(len(turn.prompt) - count for turn, count in zip(turns, known, strict=True))
        self._model = model
        self._ids = torch.zeros(len(turns), longest, dtype=torch.long)
        self._mask = torch.zeros(len(turns), width + longest, dtype=torch.long)
        for row, (turn, count) in enumerate(zip(turns, known, strict=True)):
            new = turn.prompt[count:]
            self._ids[row, longest - len(new) :] = torch.tensor(new)
            self._mask[row, width - count : width] = 1
            self._mask[row, width + longest - len(new) :] = 1
        self._positions = (self._mask.cumsum(-1) - 1).clamp(min=0)[:, -longest:]
        room = width + longest + max(turn.sampling.max_tokens for turn in turns)
        pasts = [turn.past if count else None for turn, count in zip(turns, known, strict=True)]
        self._cache = make_cache(model)
        by_layer = [[past.layers[each] if past else None for past in pasts] for each in range(len(self._cache.layers))]
        self._layers = [_PreallocatedLayer(room, width, each) for each in by_layer]
        self._cache.layers = list(self._layers)

    def compute_logits(self) -> torch.Tensor:
        return _run_model(self._model, self._ids, self._mask, self._positions, self._cache)

    def add_tokens(self, turns: Sequence[PendingTurn]) -> None:
        self._ids, self._mask = _add_column(self._mask, turns)
        self._positions = self._positions[:, -1:] + 1

    def keep_rows(self, rows: list[int]) -> None:
        for layer in self._layers:
            layer.keep_rows(rows)
        self._mask, self._positions = self._mask[rows], self._positions[rows]

    def take_row(self, row: int) -> list[Any]:
        return [layer.take_row(row, self._mask[row].bool()) for layer in self._layers]


class _AlignedBatch:
    """A batch for a model with sliding windows or states of fixed size.

    Sliding windows are counted in columns of the batch, so rows must not have gaps between tokens. States of fixed size
    would contain padding. So each prompt is processed only together with prompts of the same length. Then all rows
    continue together, aligned on the right.
    """

    def __init__(self, model: Any, turns: Sequence[PendingTurn]) -> None:
        lengths = torch.tensor([len(turn.prompt) for turn in turns])
        self._model, self._cache = model, make_cache(model)
        self._mask = (torch.arange(int(lengths.max())) >= lengths.max() - lengths[:, None]).long()
        self._positions = lengths[:, None] - 1
        self._ids: torch.Tensor | None = None
        self._logits = self._read_prompts(turns)

    def _read_prompts(self, turns: Sequence[PendingTurn]) -> torch.Tensor:
        """Process all prompts, fill the cache, and return the logits of the next tokens, [rows, vocabulary]."""
        groups: dict[tuple[int, int], list[int]] = {}  # rows by length and number of cached tokens
        for row, turn in enumerate(turns):
            groups.setdefault((len(turn.prompt), turn.cached_tokens), []).append(row)
        found: list[torch.Tensor] = []
        parts: list[list[Any]] = []
        for (length, known), rows in groups.items():
            cache, pasts = make_cache(self._model), [turns[row].past for row in rows]
            if known:
                by_layer = zip(*(past.layers for past in pasts if past), strict=True)
                cache.layers = [join_rows(layers) for layers in by_layer]
            ids = torch.tensor([turns[row].prompt[known:] for row in rows])
            positions = torch.arange(known, length)[None].expand(len(rows), -1)
            found.append(_run_model(self._model, ids, None, positions, cache))
            parts.append(cache.layers)
        self._cache.layers = [join_rows(layers) for layers in zip(*parts, strict=True)]
        order = torch.tensor([row for rows in groups.values() for row in rows], device=found[0].device).argsort()
        self._cache.reorder_cache(order)
        return torch.cat(found)[order]

    def compute_logits(self) -> torch.Tensor:
        if self._ids is not None:
            self._logits = _run_model(self._model, self._ids, self._mask, self._positions, self._cache)
        return self._logits

    def add_tokens(self, turns: Sequence[PendingTurn]) -> None:
        self._ids, self._mask = _add_column(self._mask, turns)
        self._positions = self._positions + 1

    def keep_rows(self, rows: list[int]) -> None:
        self._cache.reorder_cache(torch.tensor(rows, device=self._logits.device))
        self._mask, self._positions = self._mask[rows], self._positions[rows]

    def take_row(self, row: int) -> list[Any]:
        return [take_row(layer, row, int(self._mask[row].sum())) for layer in self._cache.layers]


def _add_column(mask: torch.Tensor, turns: Sequence[PendingTurn]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the newest token of each turn, [rows, 1], and the mask with a column for it, [rows, tokens + 1]."""
    ids = torch.tensor([turn.ids[-1:] for turn in turns])
    return ids, torch.cat([mask, torch.tensor([[int(not turn.finish)] for turn in turns])], dim=-1)


def _run_model(
    model: Any, ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor, cache: Any
) -> torch.Tensor:
    """Return the logits of the token after each row, [rows, vocabulary]. The cache gets the new tokens.

    `ids` and `positions` are [rows, new]. `mask` is [rows, cached + new], 0 for tokens to leave out.
    """
    logits: torch.Tensor = model(
        input_ids=ids.to(model.device),
        attention_mask=None if mask is None else mask.to(model.device),
        position_ids=positions.to(model.device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits
    return logits[:, -1]


class _PreallocatedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Cache layer that is allocated once and filled in place. The base class copies everything for each token."""

    def __init__(self, room: int, width: int, pasts: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._room, self._filled, self._pasts = room, width, pasts

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate [batch, heads, room, dimensions] and copy in the past, padded on the left."""
        super().lazy_initialization(key_states, value_states)
        self._whole = []
        for name, states in (("keys", key_states), ("values", value_states)):
            whole = states.new_zeros(*states.shape[:2], self._room, states.shape[-1])
            for row, past in enumerate(self._pasts):
                if past is not None:
                    known = getattr(past, name)[0]
                    whole[row, :, self._filled - known.shape[1] : self._filled] = known
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

    def take_row(self, row: int, columns: torch.Tensor) -> DynamicLayer:
        """Return a layer with one row, and with the columns [filled] that are True."""
        columns = columns.to(self._whole[0].device)
        made = DynamicLayer()  # type: ignore[no-untyped-call]
        made.lazy_initialization(*self._whole)
        made.keys, made.values = (whole[row : row + 1, :, : self._filled][:, :, columns] for whole in self._whole)
        return made

    def keep_rows(self, rows: list[int]) -> None:
        """Remove all other rows."""
        self._whole = [whole[rows] for whole in self._whole]

    def get_seq_length(self) -> int:
        """Return the number of cached tokens."""
        return self._filled
