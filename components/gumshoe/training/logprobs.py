"""Log-probabilities of completions whose prompts begin alike: what they begin with goes through the model once.

An agent's episodes all begin with the same instructions and tools, which on small models is most of what they hold.
"""

from typing import Any

import torch
from transformers.cache_utils import DynamicCache

_WORTH = 32  # tokens that prompts must have in common


def common_beginning(input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int) -> int:
    """How many tokens all prompts begin with; 0 where that is not worth anything. The last token of a prompt is never
    among them, since it is what the first of its completion is told from.

    `input_ids` and `attention_mask` are [episodes, tokens]: prompts padded on the left, then `keep` columns of
    completions padded on the right.
    """
    prompts = [row[mask.bool()] for row, mask in zip(input_ids[:, :-keep], attention_mask[:, :-keep], strict=True)]
    shortest = min(len(each) for each in prompts)
    if shortest <= _WORTH:
        return 0
    same = torch.stack([each[: shortest - 1] == prompts[0][: shortest - 1] for each in prompts]).all(0)
    length = int(same.long().cumprod(0).sum())
    return length if length >= _WORTH else 0


def completion_logprobs(
    model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int, beginning: int, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies [episodes, keep], in nats, of the distribution at a temperature; 0 where a
    completion has ended.

    Its gradient is that of the whole sequences.
    """
    rows = [ids[mask.bool()] for ids, mask in zip(input_ids, attention_mask, strict=True)]
    completions = attention_mask[:, -keep:].bool()
    prompts = attention_mask[:, :-keep].sum(1)  # [episodes]: tokens of each prompt
    decoder = model.get_decoder()
    begun = decoder(input_ids=rows[0][None, :beginning], use_cache=True).past_key_values
    cache = DynamicCache()
    for number, layer in enumerate(begun.layers):
        shape = (len(rows), -1, -1, -1)
        cache.update(layer.keys.expand(shape), layer.values.expand(shape), number)
    rest = torch.nn.utils.rnn.pad_sequence([row[beginning:] for row in rows], batch_first=True)  # [episodes, rest]
    there = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    places = torch.arange(beginning, beginning + rest.shape[1], device=rest.device)[None]
    hidden = decoder(
        input_ids=rest, attention_mask=there, position_ids=places, past_key_values=cache, use_cache=True
    ).last_hidden_state  # [episodes, rest, hidden]
    before = (prompts - 1 - beginning)[:, None] + torch.arange(keep, device=rest.device)  # what tells each token
    before = before.clamp(max=rest.shape[1] - 1)
    told = hidden.gather(1, before[..., None].expand(-1, -1, hidden.shape[-1]))[completions]  # [tokens, hidden]
    logits = model.get_output_embeddings()(told).float() / temperature  # [tokens, vocabulary]
    every = logits.log_softmax(-1)
    chosen = every.gather(1, input_ids[:, -keep:][completions][:, None])[:, 0]
    with torch.no_grad():
        spread = -(every.exp() * every).sum(-1)
    blank = torch.zeros(completions.shape, dtype=chosen.dtype, device=chosen.device)
    return blank.masked_scatter(completions, chosen), blank.masked_scatter(completions, spread)
