"""Put the episodes of a pass into one row without padding, with their common beginning only once.

All episodes start with the same instructions and tools. The row has this beginning first, and then the rest of each
episode. A token attends to the beginning and to the earlier tokens of its own episode, so loss and gradients are those
of separate episodes. Attention is computed episode by episode, with PyTorch's fast kernels and without a mask of the
whole row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from gumshoe.inference.cache_rows import has_only_full_attention

_MIN_SHARED = 32  # tokens; a shorter common beginning is not worth attention of its own
_IGNORED = -100  # label of tokens that are not trained on
_PACKED_ATTENTION = "gumshoe_packed"  # name of `_attend`; without a mask function, so that models make no mask


@dataclass(frozen=True, slots=True)
class PackedRow:
    """Layout of a row."""

    shared: int
    """Number of tokens that all episodes start with, at the beginning of the row; 0 if they are not shared."""
    lengths: tuple[int, ...]
    """Number of the other tokens of each episode, in the order of the row."""


def can_pack(model: Any) -> bool:
    """Return True if a model computes the same in a packed row as for separate episodes.

    It must pass arguments on to its attention, and each layer must attend to the whole sequence.
    """
    is_replaceable = type(model)._supports_attention_backend and model.config._attn_implementation == "sdpa"
    return bool(is_replaceable) and has_only_full_attention(model)


def use_packed_rows(model: Any) -> None:
    """Let a model read packed rows only, as `EpisodeCollator` makes them."""
    model.set_attn_implementation(_PACKED_ATTENTION)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,  # noqa: ARG001 - None, by the name under which this is registered
    *,
    packed_row: PackedRow,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Compute causal attention in each episode of a row. Has the interface of `transformers`."""
    shared, sizes = packed_row.shared, [packed_row.shared, *packed_row.lengths]
    query, key = query.to(value.dtype), key.to(value.dtype)  # with autocast, rotary embeddings are in 32 bits
    queries, keys, values = (torch.split(each, sizes, dim=2) for each in (query, key, value))
    found = [sdpa_attention_forward(module, queries[0], keys[0], values[0], None, **more)[0]] if shared else []
    for own_query, own_key, own_value in zip(queries[1:], keys[1:], values[1:], strict=True):
        seen_key = torch.cat([keys[0], own_key], dim=2) if shared else own_key
        seen_value = torch.cat([values[0], own_value], dim=2) if shared else own_value
        bias = causal_lower_right(own_query.shape[2], seen_key.shape[2]) if shared else None
        found.append(sdpa_attention_forward(module, own_query, seen_key, seen_value, bias, **more)[0])
    return torch.cat(found, dim=1), None


AttentionInterface.register(_PACKED_ATTENTION, _attend)


class ScoredTokens:
    """Let a model compute logits only for the tokens that `scored` selects, an argument of the batch."""

    def __init__(self, model: Any) -> None:
        self._scored = torch.zeros(0, 0, dtype=torch.bool)  # [rows, tokens]: of the current forward pass
        backbone = model.base_model
        backbone.register_forward_pre_hook(self._take_argument, with_kwargs=True)
        backbone.register_forward_hook(self._select)

    def _take_argument(self, _: Any, args: Any, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._scored = arguments.pop("scored")
        return args, arguments

    def _select(self, _: Any, __: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[self._scored][None]
        return output


@dataclass(frozen=True, slots=True)
class EpisodeCollator:
    """Make the batch of a pass from episodes: `input_ids` and `labels`, both [tokens].

    The labels in the batch are those of the tokens that `scored` selects: [1, scored], each at the token before.
    """

    packs: bool
    """Put all episodes into one row; if False, each has a row of its own, padded to the longest."""
    shares: bool
    """Put the common beginning of all episodes only once into the row."""

    def __call__(self, episodes: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, Any]:
        ids = [torch.tensor(each["input_ids"]) for each in episodes]
        targets = [torch.tensor([*each["labels"][1:], _IGNORED]) for each in episodes]
        batch, next_labels = self._pack(ids, targets) if self.packs else _pad(ids, targets)
        scored = next_labels != _IGNORED
        if not scored.any():
            scored[0, -1] = True  # of a label that is ignored: the model needs at least one
        labels = next_labels[scored][None]
        return {**batch, "scored": scored, "labels": labels, "shift_labels": labels}

    def _pack(
        self, ids: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]
    ) -> tuple[dict[str, Any], torch.Tensor]:
        shared = _shared_length(ids, targets) if self.shares else 0
        parts = [slice(shared), *[slice(shared, len(each)) for each in ids]]
        owners = [0, *range(len(ids))]
        positions = [torch.arange(len(each)) for each in ids]

        def join(every: Sequence[torch.Tensor]) -> torch.Tensor:
            return torch.cat([every[owner][part] for owner, part in zip(owners, parts, strict=True)])[None]

        row = PackedRow(shared, tuple(len(each) - shared for each in ids))
        return {"input_ids": join(ids), "position_ids": join(positions), "packed_row": row}, join(targets)


def _shared_length(ids: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> int:
    """Return the number of tokens to share: all episodes start with them, and no token after one is trained on."""
    if len(ids) == 1:
        return 0
    most = min(int(torch.cat([each[:-1] != _IGNORED, torch.tensor([True])]).long().argmax()) for each in targets)
    same = torch.stack([each[:most] == ids[0][:most] for each in ids]).all(0)
    length = int(same.long().cumprod(0).sum())
    return length if length >= _MIN_SHARED else 0


def _pad(ids: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> tuple[dict[str, Any], torch.Tensor]:
    batch = {
        "input_ids": pad_sequence(list(ids), batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(each) for each in ids], batch_first=True),
    }
    return batch, pad_sequence(list(targets), batch_first=True, padding_value=_IGNORED)
