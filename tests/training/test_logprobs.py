"""What prompts begin with alike goes through the model once, and nothing else changes."""

from typing import TYPE_CHECKING, Any

import pytest

from tests.models import random_model

if TYPE_CHECKING:
    import torch


ALIKE = 40


@pytest.fixture
def model() -> Any:
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM")
    made: Any = get_peft_model(random_model(300, 1, num_key_value_heads=1, num_attention_heads=2), config)
    with torch.no_grad():
        for name, each in made.named_parameters():
            if "lora_B" in name:
                each.normal_(0, 0.3)
    return made


def batch(prompts: list[int], completions: list[int]) -> "tuple[torch.Tensor, torch.Tensor]":
    """[episodes, tokens]: prompts that begin alike, of these lengths, padded on the left; completions on the right."""
    import torch

    dice = torch.Generator().manual_seed(2)
    begin = torch.randint(10, 290, (ALIKE,), generator=dice)
    ids = torch.zeros(len(prompts), max(prompts) + max(completions), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        start = max(prompts) - prompt
        own = torch.randint(10, 290, (prompt - ALIKE + completion,), generator=dice)
        own[0] = 10 + row  # from here on they differ
        ids[row, start : start + prompt + completion] = torch.cat([begin, own])
        mask[row, start : start + prompt + completion] = 1
    return ids, mask


def plainly(model: Any, ids: "torch.Tensor", mask: "torch.Tensor", keep: int) -> "torch.Tensor":
    """Sequence by sequence, the whole of each."""
    import torch

    made = torch.zeros(len(ids), keep)
    for row, (tokens, there) in enumerate(zip(ids, mask, strict=True)):
        whole = tokens[there.bool()]
        count = int(there[-keep:].sum())
        logits = model(input_ids=whole[None]).logits[0, -count - 1 : -1].float() / 0.7
        found = logits.log_softmax(-1).gather(1, whole[-count:, None])[:, 0]
        made = made.index_put((torch.full((count,), row), torch.arange(count)), found)
    return made


@pytest.mark.parametrize(
    ("prompts", "completions"), [([50, 50], [9, 9]), ([41, 60, 48], [1, 12, 5]), ([44], [7]), ([45, 90], [20, 3])]
)
def test_log_probabilities_and_gradients_are_those_of_whole_sequences(
    model: Any, prompts: list[int], completions: list[int]
) -> None:
    import torch

    from gumshoe.training.grpo.logprobs import common_prefix_length, compute_logprobs_after_prefix

    ids, mask = batch(prompts, completions)
    keep = max(completions)
    beginning = common_prefix_length(ids, mask, keep)
    assert beginning >= ALIKE if len(prompts) == 1 else beginning == ALIKE
    counted = torch.randint(0, 2, (len(prompts), keep), generator=torch.Generator().manual_seed(4))
    found, entropies = compute_logprobs_after_prefix(model, ids, mask, counted, beginning, 0.7)
    counted = counted.bool() & mask[:, -keep:].bool()
    wanted = plainly(model, ids, mask, keep) * counted
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert (entropies[counted] > 0).all()
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(3))
    gradients = []
    for each in (found, wanted):
        model.zero_grad()
        (each * weights * mask[:, -keep:]).sum().backward()  # type: ignore[no-untyped-call]
        gradients.append({name: one.grad.clone() for name, one in model.named_parameters() if one.requires_grad})
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def test_prompts_that_begin_otherwise_have_nothing_in_common() -> None:
    from gumshoe.training.grpo.logprobs import common_prefix_length

    ids, mask = batch([50, 50], [4, 4])
    ids[1, 5] = 9
    assert common_prefix_length(ids, mask, 4) == 0
