"""Episodes in one row, with their common beginning computed once."""

from typing import TYPE_CHECKING, Any

import pytest

from tests.models import random_model

if TYPE_CHECKING:
    import torch

COMMON = 40


def model_of(architecture: str, weights: str) -> Any:
    """Return a model for training, with an adapter or with all weights trainable."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    sizes: dict[str, Any] = {"num_key_value_heads": 1, "num_attention_heads": 2}
    model = random_model(300, 1, **sizes)
    if architecture == "llama":
        config: Any = LlamaConfig
        kind: Any = LlamaForCausalLM
        model = kind(config(vocab_size=300, hidden_size=64, num_hidden_layers=2, intermediate_size=128, **sizes))
    add_fused_lm_head(model)
    if weights == "full":
        return model.train()
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM")
    result: Any = get_peft_model(model, config)
    with torch.no_grad():
        for name, each in result.named_parameters():
            if "lora_B" in name:
                each.normal_(0, 0.3)
    return result.train()


def episodes(lengths: list[int], first_trained: int) -> list[dict[str, list[int]]]:
    """Return episodes that start with the same `COMMON` tokens; every other token from a place is trained on."""
    import torch

    generator = torch.Generator().manual_seed(2)
    common = torch.randint(10, 290, (COMMON,), generator=generator).tolist()
    made = []
    for row, length in enumerate(lengths):
        ids = [*common, 10 + row, *torch.randint(10, 290, (length - COMMON - 1,), generator=generator).tolist()]
        is_trained = [place >= first_trained and (place - first_trained) % 3 < 2 for place in range(length)]
        made.append(
            {"input_ids": ids, "labels": [each if of else -100 for each, of in zip(ids, is_trained, strict=True)]}
        )
    return made


def loss_of_separate_episodes(model: Any, rows: list[dict[str, list[int]]]) -> "torch.Tensor":
    """Return the sum of the losses of tokens that are trained on, computed by `transformers` episode by episode."""
    import torch

    return sum(
        torch.nn.functional.cross_entropy(
            model(input_ids=torch.tensor([each["input_ids"]])).logits[0, :-1],
            torch.tensor(each["labels"][1:]),
            reduction="sum",
        )
        for each in rows
    )  # type: ignore[return-value]


def gradients(model: Any, loss: "torch.Tensor") -> "dict[str, torch.Tensor]":
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: each.grad for name, each in model.named_parameters() if each.requires_grad}


@pytest.mark.parametrize("weights", ["lora", "full"])
@pytest.mark.parametrize(
    ("architecture", "lengths", "first_trained", "packs", "shares", "shared"),
    [
        ("qwen2", [60, 80, 71], 50, True, True, COMMON),
        ("llama", [60, 80, 71], 50, True, True, COMMON),
        ("llama", [90, 44], COMMON, True, True, COMMON - 1),
        ("qwen2", [45, 70], 20, True, True, 0),
        ("qwen2", [60, 80], 50, True, False, 0),
        ("llama", [60], 50, True, True, 0),
        ("qwen2", [60, 80, 71], 50, False, True, 0),
    ],
)
@pytest.mark.parametrize("recomputes", [False, True])
def test_loss_and_gradients_equal_those_of_separate_episodes(
    weights: str,
    architecture: str,
    lengths: list[int],
    first_trained: int,
    packs: bool,
    shares: bool,
    shared: int,
    recomputes: bool,
) -> None:
    import torch

    from gumshoe.training.sft.packing import EpisodeCollator, ScoredTokens, use_packed_rows

    rows = episodes(lengths, first_trained)
    torch.manual_seed(1)
    model = model_of(architecture, weights)
    wanted_loss = loss_of_separate_episodes(model, rows)
    wanted = {name: each.clone() for name, each in gradients(model, wanted_loss).items()}
    model.zero_grad()
    base = model if weights == "full" else model.get_base_model()
    ScoredTokens(base)
    if packs:
        use_packed_rows(base)
    if recomputes:
        base.gradient_checkpointing_enable()
    batch = EpisodeCollator(packs, shares)(rows)
    if packs:
        assert batch["packed_row"].shared == shared
        assert batch["input_ids"].numel() == sum(lengths) - shared * (len(lengths) - 1), "no padding"
    output = model(**batch, fused_lm_head=True, use_cache=False)
    assert output.log_probs.numel() == sum(label != -100 for each in rows for label in each["labels"])
    loss = -output.log_probs.sum()
    torch.testing.assert_close(loss, wanted_loss, rtol=1e-5, atol=1e-5)
    for name, each in gradients(model, loss).items():
        assert float((each - wanted[name]).norm()) <= 1e-5 * float(wanted[name].norm()), name


def test_shared_beginnings_work_with_autocast() -> None:
    """Rotary embeddings are then in other dtypes than values."""
    import torch

    from gumshoe.training.sft.packing import EpisodeCollator, ScoredTokens, use_packed_rows

    rows, model = episodes([60, 80, 71], 50), model_of("llama", "full")
    with torch.autocast("cpu", torch.bfloat16):
        wanted = loss_of_separate_episodes(model, rows)
        ScoredTokens(model)
        use_packed_rows(model)
        loss = -model(**EpisodeCollator(True, True)(rows), fused_lm_head=True, use_cache=False).log_probs.sum()
    torch.testing.assert_close(loss, wanted, rtol=1e-3, atol=0)


def test_an_episode_without_trained_tokens_has_no_loss() -> None:
    from gumshoe.training.sft.packing import EpisodeCollator, ScoredTokens, use_packed_rows

    model = model_of("qwen2", "full")
    ScoredTokens(model)
    use_packed_rows(model)
    output = model(**EpisodeCollator(True, True)(episodes([50, 60], 100)), fused_lm_head=True, use_cache=False)
    assert output.log_probs.tolist() == [[0.0]]
    assert not output.label_mask.any()


@pytest.mark.parametrize(
    ("settings", "packs"),
    [({}, True), ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, False)],
)
def test_models_with_other_layers_than_full_attention_are_padded(settings: dict[str, Any], packs: bool) -> None:
    from gumshoe.training.sft.packing import can_pack

    assert can_pack(random_model(300, 1, **settings)) == packs


def test_hybrids_are_padded() -> None:
    from transformers import FalconH1Config, FalconH1ForCausalLM

    from gumshoe.training.sft.packing import can_pack

    config: Any = FalconH1Config
    kind: Any = FalconH1ForCausalLM
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    assert not can_pack(kind(config(vocab_size=64, intermediate_size=32, mamba_d_ssm=32, mamba_n_heads=2, **sizes)))
