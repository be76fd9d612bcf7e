"""Compute the log-probabilities of completions without padding all of them to the longest.

Episodes differ a lot in length, so episodes of similar length go through the model together. All prompts start with
the same instructions and tools. On small models this prefix costs more than the tokens that are trained on, so it can
go through the model once for all episodes.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import DynamicCache

_MIN_PREFIX = 32  # tokens; a shorter common prefix is not worth a pass of its own
_MAX_LENGTH_RATIO = 1.25  # longest to shortest sequence of a batch
_IGNORED = -100  # label of tokens without a log-probability


def compute_logprobs(
    compute: Callable[[torch.Tensor, torch.Tensor], Any],
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    counted: torch.Tensor,
    size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies of completions, both [episodes, keep], in nats.

    Both are 0 for tokens that are not in `counted` [episodes, keep], and after the end of a completion.

    `compute` takes token ids and labels of at most `size` episodes of similar length, as TRL's fused head does. They
    are padded on the right, where no counted token attends to. So no attention mask is needed, which would rule out the
    fast attention kernels.

    `input_ids` and `attention_mask` are [episodes, tokens]: prompts padded on the left, then `keep` columns of
    completions padded on the right.
    """
    keep = counted.shape[1]
    rows = [ids[mask.bool()] for ids, mask in zip(input_ids, attention_mask, strict=True)]
    lengths = attention_mask[:, -keep:].sum(1).tolist()
    counted = counted.to(input_ids.device).bool() & attention_mask[:, -keep:].bool()
    order = attention_mask.sum(1).argsort(descending=True, stable=True)
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for part in torch.split(order, size):
        ids = pad_sequence([rows[row] for row in part.tolist()], batch_first=True)
        labels = torch.full_like(ids, _IGNORED)
        for place, row in enumerate(part.tolist()):
            end = len(rows[row])
            own = slice(end - lengths[row], end)
            labels[place, own] = ids[place, own].where(counted[row, : lengths[row]], _IGNORED)
        output = compute(ids, labels)
        asked, blank = labels[:, 1:] != _IGNORED, torch.zeros(counted[part].shape, device=ids.device)
        logprobs, entropies = (
            blank.masked_scatter(counted[part], each[asked].float()) for each in (output.log_probs, output.entropy)
        )
        found.append((logprobs, entropies))
    back = order.argsort()
    logprobs, entropies = (torch.cat(each)[back] for each in zip(*found, strict=True))
    return logprobs, entropies


def sort_by_length(passes: Sequence[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """Redistribute the episodes over passes (TRL's batches) by length, with the longest in the first pass."""
    lengths = torch.cat([each["prompt_mask"].sum(1) + each["completion_mask"].sum(1) for each in passes])
    parts = lengths.argsort(descending=True, stable=True).chunk(len(passes))
    shared = [dict(each) for each in passes]
    for name, value in passes[0].items():
        if value.ndim:  # scalars belong to the whole step
            every = torch.cat([each[name] for each in passes])
            for each, rows in zip(shared, parts, strict=True):
                each[name] = every[rows]
    return shared


def common_prefix_length(input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int) -> int:
    """Return the number of tokens that all prompts start with; 0 if it is too small to be worth a pass of its own.

    The last token of a prompt is never counted, because the first token of the completion is predicted from it.

    `input_ids` and `attention_mask` are [episodes, tokens]: prompts padded on the left, then `keep` columns of
    completions padded on the right.
    """
    prompts = [row[mask.bool()] for row, mask in zip(input_ids[:, :-keep], attention_mask[:, :-keep], strict=True)]
    shortest = min(len(each) for each in prompts)
    if shortest <= _MIN_PREFIX:
        return 0
    same = torch.stack([each[: shortest - 1] == prompts[0][: shortest - 1] for each in prompts]).all(0)
    length = int(same.long().cumprod(0).sum())
    return length if length >= _MIN_PREFIX else 0


def compute_logprobs_after_prefix(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    counted: torch.Tensor,
    prefix: int,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies at a temperature, both [episodes, keep], in nats.

    The first `prefix` tokens of all prompts go through the model once. Values and gradients are those of the whole
    sequences. Both results are 0 for tokens that are not in `counted` [episodes, keep], and after the end of a
    completion.
    """
    keep = counted.shape[1]
    rows = [ids[mask.bool()] for ids, mask in zip(input_ids, attention_mask, strict=True)]
    lengths = attention_mask[:, -keep:].sum(1).tolist()
    counted = counted.bool() & attention_mask[:, -keep:].bool()
    prefix_cache = model.get_decoder()(input_ids=rows[0][None, :prefix], use_cache=True).past_key_values
    predictors: dict[int, torch.Tensor] = {}  # by row: hidden states that predict the counted tokens, [tokens, hidden]
    for alike in _group_by_length([len(row) - prefix for row in rows]):
        hidden = _run_continuations(model, prefix_cache, [rows[row][prefix:] for row in alike], prefix)
        for row, found in zip(alike, hidden, strict=True):
            end = len(rows[row]) - prefix - 1
            predictors[row] = found[end - lengths[row] : end][counted[row, : lengths[row]]]
    every = torch.cat([predictors[row] for row in range(len(rows))])
    logits = model.get_output_embeddings()(every).float() / temperature  # [tokens, vocabulary]
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(1, input_ids[:, -keep:][counted][:, None])[:, 0]
    with torch.no_grad():
        spread = -(logprobs.exp() * logprobs).sum(-1)
    blank = torch.zeros(counted.shape, dtype=chosen.dtype, device=chosen.device)
    return blank.masked_scatter(counted, chosen), blank.masked_scatter(counted, spread)


def _group_by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indices of sequences in groups of similar length, because padding costs as much as tokens."""
    part: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda each: lengths[each]):
        if part and lengths[place] > _MAX_LENGTH_RATIO * lengths[part[0]]:
            yield part
            part = []
        part.append(place)
    yield part


def _run_continuations(
    model: Any, prefix_cache: Any, continuations: Sequence[torch.Tensor], prefix: int
) -> torch.Tensor:
    """Return the hidden states of several continuations of one prefix, [continuations, tokens, hidden]."""
    cache = DynamicCache()
    for number, layer in enumerate(prefix_cache.layers):
        shape = (len(continuations), -1, -1, -1)
        cache.update(layer.keys.expand(shape), layer.values.expand(shape), number)
    ids = pad_sequence(list(continuations), batch_first=True)
    places = torch.arange(prefix, prefix + ids.shape[1], device=ids.device)[None]
    hidden: torch.Tensor = model.get_decoder()(
        input_ids=ids, position_ids=places, past_key_values=cache, use_cache=True
    ).last_hidden_state  # no counted token attends to the padding on the right
    return hidden
