"""Pretrain a small model from random weights by supervised learning."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

_WINDOW = 64  # batches that are sorted by length together


@dataclass(frozen=True, slots=True)
class Example:
    """One training sequence.

    Invariant: ids and weights have the same length.
    """

    ids: Sequence[int]
    """[tokens]"""
    weights: Sequence[float]
    """[tokens]: weight of each token in the loss; 0 for context. The first token never counts."""


@dataclass(frozen=True, slots=True)
class PretrainingSettings:
    """Hyperparameters of pretraining."""

    steps: int
    batch_tokens: int = 8192
    """Maximum number of tokens per batch, with padding."""
    learning_rate: float = 2e-3
    """Peak learning rate, after warmup; it then decays linearly to 0."""
    warmup: float = 0.05
    """Share of the steps."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Muon (https://kellerjordan.github.io/posts/muon) learns faster from random weights. It optimizes all matrices
    except embeddings, with steps scaled to match those of AdamW, which optimizes the rest."""
    weight_decay: float = 0.01
    clip: float = 1.0
    """Maximum norm of the gradient."""
    seed: int = 0


def pretrain(
    model: Any,
    examples: Sequence[Example],
    settings: PretrainingSettings,
    advance: Callable[[float], object] = lambda _: None,
) -> float:
    """Train a causal language model of `transformers`, and return its final loss.

    Each step is one batch of examples of similar length. Each epoch has another order, which depends only on the seed.
    `advance` is called with the loss of each step.

    The final loss is the mean of the last tenth of the steps, in nats per token, weighted.

    Raises:
        ValueError: there are no examples, or an example does not fit into a batch or has no token with a weight.
    """
    from torch.nn.utils import clip_grad_norm_

    if not examples or max(len(example.ids) for example in examples) > settings.batch_tokens:
        raise ValueError(f"examples must be given, each of at most {settings.batch_tokens} tokens")
    if not all(any(weight > 0 for weight in example.weights[1:]) for example in examples):
        raise ValueError("each example must have a weight above 0 after its first token")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizers = list(_optimizers(model, settings))
    losses: list[float] = []
    model.train()
    for step, batch in enumerate(islice(_batches(examples, settings), settings.steps)):
        rate = settings.learning_rate * _rate_factor(step, settings)
        loss = _loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(trained, settings.clip)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        advance(losses[-1])
    model.eval()
    last = losses[-max(1, len(losses) // 10) :]
    return sum(last) / len(last)


def _optimizers(model: Any, settings: PretrainingSettings) -> "Iterator[torch.optim.Optimizer]":
    import torch

    rate, decay = settings.learning_rate, settings.weight_decay
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    matrices = {name for name, each in trained.items() if each.ndim == 2 and "embed" not in name and "head" not in name}
    if settings.optimizer == "muon" and matrices:
        yield torch.optim.Muon(
            [trained.pop(name) for name in sorted(matrices)], rate, decay, adjust_lr_fn="match_rms_adamw"
        )
    yield torch.optim.AdamW(trained.values(), lr=rate, weight_decay=decay, fused=True)


def _rate_factor(step: int, settings: PretrainingSettings) -> float:
    warmup = settings.warmup * settings.steps
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 1 - (step - warmup) / (settings.steps - warmup)


def _batches(examples: Sequence[Example], settings: PretrainingSettings) -> Iterator[list[Example]]:
    """Yield batches without end, each with examples of similar length."""
    rng = random.Random(settings.seed)  # noqa: S311 - nothing secret
    while True:
        order = rng.sample(range(len(examples)), len(examples))
        mean = sum(len(example.ids) for example in examples) / len(examples)
        window = max(1, int(_WINDOW * settings.batch_tokens / mean))
        for start in range(0, len(order), window):
            near = sorted((examples[each] for each in order[start : start + window]), key=lambda each: len(each.ids))
            batches = list(_pack(near, settings.batch_tokens))
            yield from rng.sample(batches, len(batches))


def _pack(examples: list[Example], tokens: int) -> Iterator[list[Example]]:
    """Yield batches of as many examples as fit, from examples sorted by length."""
    batch: list[Example] = []
    for example in examples:
        if (len(batch) + 1) * len(example.ids) > tokens:
            yield batch
            batch = []
        batch.append(example)
    yield batch


def _loss(model: Any, batch: list[Example]) -> "torch.Tensor":
    """Return the weighted mean loss of a batch; only tokens with a weight go through the last layer."""
    import torch

    device = next(model.parameters()).device
    longest = max(len(example.ids) for example in batch)
    ids = torch.zeros(
        len(batch), longest, dtype=torch.long
    )  # [batch, tokens]; no token attends to the padding on the right
    weights = torch.zeros(len(batch), longest)
    for row, example in enumerate(batch):
        ids[row, : len(example.ids)] = torch.as_tensor(example.ids)
        weights[row, : len(example.ids)] = torch.as_tensor(example.weights)
    ids, weights = ids.to(device), weights[:, 1:].to(device)
    counted = weights > 0
    hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][counted]
    logits = model.get_output_embeddings()(hidden).float()  # [counted, vocabulary]
    losses = torch.nn.functional.cross_entropy(logits, ids[:, 1:][counted], reduction="none")
    return (losses * weights[counted]).sum() / weights.sum()
