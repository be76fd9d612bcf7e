"""Log-probabilities with the common prefix of prompts computed once."""

from typing import TYPE_CHECKING, Any

import pytest

from tests.models import random_model

if TYPE_CHECKING:
    import torch


PREFIX = 40


@pytest.fixture
def model() -> Any:
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM")
    result: Any = get_peft_model(random_model(300, 1, num_key_value_heads=1, num_attention_heads=2), config)
    with torch.no_grad():
        for name, each in result.named_parameters():
            if "lora_B" in name:
                each.normal_(0, 0.3)
    return result


def batch(prompts: list[int], completions: list[int]) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return token ids and mask, [episodes, tokens], for these lengths; all prompts have a common prefix."""
    import torch

    generator = torch.Generator().manual_seed(2)
    begin = torch.randint(10, 290, (PREFIX,), generator=generator)
    ids = torch.zeros(len(prompts), max(prompts) + max(completions), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        start = max(prompts) - prompt
        own = torch.randint(10, 290, (prompt - PREFIX + completion,), generator=generator)
        own[0] = 10 + row  # from here on they differ
        ids[row, start : start + prompt + completion] = torch.cat([begin, own])
        mask[row, start : start + prompt + completion] = 1
    return ids, mask


def logprobs_of_whole_sequences(model: Any, ids: "torch.Tensor", mask: "torch.Tensor", keep: int) -> "torch.Tensor":
    """Return log-probabilities, [episodes, keep], computed sequence by sequence."""
    import torch

    result = torch.zeros(len(ids), keep)
    for row, (tokens, there) in enumerate(zip(ids, mask, strict=True)):
        whole = tokens[there.bool()]
        count = int(there[-keep:].sum())
        logits = model(input_ids=whole[None]).logits[0, -count - 1 : -1].float() / 0.7
        found = logits.log_softmax(-1).gather(1, whole[-count:, None])[:, 0]
        result = result.index_put((torch.full((count,), row), torch.arange(count)), found)
    return result


@pytest.mark.parametrize(
    ("prompts", "completions"), [([50, 50], [9, 9]), ([41, 60, 48], [1, 12, 5]), ([44], [7]), ([45, 90], [20, 3])]
)
def test_logprobs_and_gradients_equal_those_of_whole_sequences(
    model: Any, prompts: list[int], completions: list[int]
) -> None:
    import torch

    from gumshoe.training.grpo.logprobs import common_prefix_length, compute_logprobs_after_prefix

    ids, mask = batch(prompts, completions)
    keep = max(completions)
    prefix = common_prefix_length(ids, mask, keep)
    assert prefix >= PREFIX if len(prompts) == 1 else prefix == PREFIX
    counted = torch.randint(0, 2, (len(prompts), keep), generator=torch.Generator().manual_seed(4))
    found, entropies = compute_logprobs_after_prefix(model, ids, mask, counted, prefix, 0.7)
    counted = counted.bool() & mask[:, -keep:].bool()
    wanted = logprobs_of_whole_sequences(model, ids, mask, keep) * counted
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert (entropies[counted] > 0).all()
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(3))
    gradients = []
    for each in (found, wanted):
        model.zero_grad()
        (each * weights * mask[:, -keep:]).sum().backward()  # type: ignore[no-untyped-call]
        gradients.append({name: one.grad.clone() for name, one in model.named_parameters() if one.requires_grad})
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def test_different_prompts_have_no_common_prefix() -> None:
    from gumshoe.training.grpo.logprobs import common_prefix_length

    ids, mask = batch([50, 50], [4, 4])
    ids[1, 5] = 9
    assert common_prefix_length(ids, mask, 4) == 0
