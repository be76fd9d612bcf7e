"""Rewards of first turns in mode `simple`."""

import json
from pathlib import Path
from typing import Any

import pytest

from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.training.grpo.simple import first_turn_means, first_turn_reward
from tests.rollouts.conversations import QWEN2_5, make_tokenizer

QUESTION, REFERENCE = "Who is the buyer for the Mossdale order?", "Akira Odhiambo"


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("I think it is Akira.", -1.0),
        ("<tool_call>{", -1.0),
        (call("search_inbox", keywords=["Mossdale order", "buyer"]), 1.0),
        (call("search_inbox", keywords=["Mossdale"]), 1 / 3),
        (call("search_inbox", keywords=["Mossdale", "invoice"]), 1 / 6),
        (call("search_inbox", keywords=[]), 0.0),
        (call("search_inbox", keywords="Mossdale"), 0.0),
        (call("read_email", message_id="<1@x>"), 0.0),
        (call("return_final_answer", answer="Akira Odhiambo", message_ids=[]), 1.0),
        (call("return_final_answer", answer="Somebody", message_ids=[]), 0.0),
    ],
)
def test_a_first_turn_is_scored(text: str, value: float) -> None:
    chat = ChatFormat(make_tokenizer(QWEN2_5))
    ids = list(chat.encode_turn(text).ids)
    assert first_turn_reward(chat, [])(["p"], [ids], [QUESTION], [REFERENCE]) == [pytest.approx(value)]


@pytest.mark.parametrize(("mask_truncated", "trained"), [(False, 16 * 100), (True, 16 * 30)])
def test_masked_turns_are_not_counted_as_trained_on(mask_truncated: bool, trained: int) -> None:
    from tests.training.recorded_episodes import settings_of

    batch = {"optimizer__per_device_train_batch_size": 8, "optimizer__gradient_accumulation_steps": 2}
    settings = settings_of(mode="simple", rollouts__mask_truncated=mask_truncated, **batch)
    logs = {"reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 0.0, "num_tokens": 5000.0}
    lengths = {"mean_length": 100.0, "mean_terminated_length": 60.0, "clipped_ratio": 0.5}
    means = first_turn_means(logs | {f"completions/{name}": value for name, value in lengths.items()}, settings, 0)
    assert (means["trainable_tokens"], means["sampled_tokens"]) == (trained, 100)


@pytest.mark.group("torch")
@pytest.mark.parametrize(("mode", "expected"), [("simple", True), ("masked", False)])
def test_trl_masks_truncated_turns_only_where_nothing_else_does(mode: str, expected: bool, tmp_path: Path) -> None:
    from gumshoe.training.grpo.trl_config import grpo_config
    from tests.training.recorded_episodes import settings_of

    settings = settings_of(mode=mode, rollouts={"mask_truncated": True})
    assert grpo_config(settings, tmp_path, 1).mask_truncated_completions is expected
