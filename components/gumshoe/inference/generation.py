"""Batched sampling for `TransformersPolicy`: one turn of every conversation, each with its own random generator.

The model's cache of each conversation is kept between turns, so that the model processes new tokens only.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from gumshoe.inference.cache_rows import make_cache
from gumshoe.inference.policy import Sampling
from gumshoe.inference.turn_batch import PastKeyValues, PendingTurn, make_batch

_MIN_PREFIX = 32  # tokens of a shared prefix that is worth caching
_GROUPED_ATTENTION = "gumshoe_sharing"  # name of `_attend`, registered below


def use_flash_attention() -> None:
    """Keep PyTorch from cuDNN's attention, for 16-bit models on GPUs: it compiles a plan for each new shape (20 ms)."""
    torch.backends.cuda.enable_cudnn_sdp(False)


@torch.inference_mode()
def compute_shared_prefix(model: Any, prompts: Sequence[list[int]]) -> PastKeyValues | None:
    """Return the cache of the prompts' common prefix, or None if it is too short to be worth it.

    The prefix leaves out at least one token of each prompt [tokens], as input for its own turn.
    """
    first, last = min(prompts), max(prompts)  # the common prefix of these two is that of all
    shortest = min(map(len, prompts)) - 1
    common = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), shortest)
    ids = first[: min(common, shortest)]
    if len(ids) < _MIN_PREFIX:
        return None
    cache = make_cache(model)
    model(input_ids=torch.tensor([ids], device=model.device), past_key_values=cache, use_cache=True, logits_to_keep=1)
    return PastKeyValues(ids, cache.layers)


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
    batch = make_batch(model, active)
    while not is_stopped():
        going = [row for row, turn in enumerate(active) if not turn.finish]
        _sample_next_tokens(active, generators, batch.compute_logits().float().cpu())
        for row in going:
            turn = active[row]
            if turn.finish:  # its last token was not processed
                turn.past = PastKeyValues([*turn.prompt, *turn.ids[:-1]], batch.take_row(row))
        unfinished = [row for row in going if not active[row].finish]
        if not unfinished:
            return
        if len(unfinished) <= len(active) // 2:
            batch.keep_rows(unfinished)
            active, generators = [active[row] for row in unfinished], [generators[row] for row in unfinished]
        batch.add_tokens(active)


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
