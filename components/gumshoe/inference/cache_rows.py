"""Rows of a cache of `transformers`: take one out, join several, and repeat one, for layers of any architecture.

A layer has keys and values (of the whole sequence, or of the last tokens of a sliding window), states of fixed size
(convolutions and linear attention), or both. A layer with one row is what is kept of a conversation between turns.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

_ATTENTION = (DynamicLayer, DynamicSlidingWindowLayer)
_SUPPORTED = (
    *_ATTENTION,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)
_KEYS_AND_VALUES = ("keys", "values")  # [rows, heads, tokens, dimensions]
_STATES = ("conv_states", "recurrent_states")  # by index: [rows, ...], or None


def make_cache(model: Any) -> Any:
    """Return an empty cache with the layers that a model needs."""
    return DynamicCache(config=model.config)


def is_supported(model: Any) -> bool:
    """Return True if rows of a model's cache can be taken out and joined, and the model continues from them."""
    kinds = layer_types(model)
    if not kinds <= set(_SUPPORTED) or not any(issubclass(kind, _ATTENTION) for kind in kinds):
        return False
    return kinds <= set(_ATTENTION) or _reads_states(model)


@torch.inference_mode()
def _reads_states(model: Any) -> bool:
    """Return True if several tokens that a model reads at once depend on the states in its cache.

    Some implementations use states for single tokens only, and otherwise begin anew without an error.
    """
    ids = torch.arange(8, device=model.device)[None]
    first, more = ids[:, :5], ids[:, 5:]
    known = make_cache(model)

    def read(ids: torch.Tensor, cache: Any, start: int) -> torch.Tensor:
        positions = torch.arange(start, start + ids.shape[1], device=model.device)[None]
        found: torch.Tensor = model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True).logits
        return found

    def read_more(changed: str | None) -> torch.Tensor:
        cache = make_cache(model)
        cache.layers = [join_rows([layer]) for layer in known.layers]
        for states in (getattr(layer, changed, {}) for layer in cache.layers if changed):
            states.update({key: each + 1 for key, each in states.items() if each is not None})
        return read(more, cache, first.shape[1])

    try:
        read(first, known, 0)
    except ValueError:  # the model has a kind of cache of its own
        return False
    kept = [name for name in _STATES if any(_has_state(layer, name) for layer in known.layers)]
    plain = read_more(None)
    return all(not torch.equal(read_more(name), plain) for name in kept)


def _has_state(layer: Any, name: str) -> bool:
    return any(each is not None for each in getattr(layer, name, {}).values())


def layer_types(model: Any) -> set[type]:
    """Return the types of the layers of a model's cache; an empty set if DynamicCache does not know one of them."""
    try:
        return {type(layer) for layer in make_cache(model).layers}
    except (KeyError, AttributeError, TypeError):
        return set()


def has_only_full_attention(model: Any) -> bool:
    """Return True if all layers of a model attend to the whole sequence, so that rows can have gaps between tokens."""
    return layer_types(model) == {DynamicLayer}


def has_only_attention(model: Any) -> bool:
    """Return True if all layers of a model attend to earlier tokens, to all or to the last ones."""
    return bool(kinds := layer_types(model)) and kinds <= set(_ATTENTION)


def take_row(layer: Any, row: int, length: int) -> Any:
    """Return a copy of a layer with one of its rows, which has `length` tokens and may be padded on the left."""
    made = _combine(
        [layer],
        lambda found: found[0][row : row + 1].clone(),
        lambda found: found[0][row : row + 1, :, -length:].clone(),
    )
    if hasattr(made, "cumulative_length"):
        made.cumulative_length = length
    return made


def repeat_row(layer: Any, rows: int) -> Any:
    """Return a layer with `rows` times the only row of a layer. The numbers are shared, and gradients are summed."""
    return _combine([layer], lambda found: found[0].expand(rows, *found[0].shape[1:]))


def join_rows(layers: Sequence[Any]) -> Any:
    """Return a layer with the rows of several layers. Keys and values are padded on the left to the longest."""

    def join(found: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(found))

    def align(found: Sequence[torch.Tensor]) -> torch.Tensor:
        longest = max(each.shape[-2] for each in found)
        return torch.cat([pad(each, (0, 0, longest - each.shape[-2], 0)) for each in found])

    return _combine(layers, join, align)


def _combine(
    layers: Sequence[Any],
    states: Callable[[Sequence[torch.Tensor]], torch.Tensor],
    keys_and_values: Callable[[Sequence[torch.Tensor]], torch.Tensor] | None = None,
) -> Any:
    """Return a layer whose tensors are computed from those of several layers of one kind.

    A layer has states in dictionaries by index, and a sliding window counts its tokens in `cumulative_length`.
    """
    made = copy.copy(layers[0])
    for name, value in vars(layers[0]).items():
        every = [getattr(layer, name) for layer in layers]
        if name in _KEYS_AND_VALUES and value is not None:
            setattr(made, name, (keys_and_values or states)(every))
        elif isinstance(value, dict):
            combined = {
                key: states([each[key] for each in every]) if isinstance(one, torch.Tensor) else one
                for key, one in value.items()
            }
            setattr(made, name, combined)
        elif name == "cumulative_length":
            setattr(made, name, max(every))
    return made
