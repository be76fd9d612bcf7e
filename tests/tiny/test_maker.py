"""The tokenizer and the model of the tiny policy, and the command that builds one."""

import inspect
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.inference.policy_names import TINY
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.terminal import progress
from gumshoe.tiny.commands import build
from gumshoe.tiny.pretraining import PretrainingSettings, pretrain
from tests.conftest import CommandResult
from tests.tiny.conftest import PracticeEpisodes


@cache
def small() -> Any:
    """Return a tokenizer of 300 tokens."""
    from gumshoe.tiny.maker import train_tokenizer

    return train_tokenizer(["the quick brown fox, 1234 <b>"], 300)


@pytest.fixture(scope="module")
def tokenizer(practice: PracticeEpisodes) -> Any:
    return practice.tokenizer


@given(st.text())
def test_tokens_decode_to_the_same_text(text: str) -> None:
    tokenizer = small()
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_a_word_has_the_same_tokens_in_any_context(tokenizer: Any) -> None:
    """Only the first token may have a space before it."""

    def tokens(text: str) -> list[str]:
        return [tokenizer.decode([each]) for each in tokenizer.encode(text, add_special_tokens=False)]

    for value in ("Rookhope", "Mangrove", "volunteering", "\u00a323,600", "PO-25712", "07700 900408"):
        first, *rest = tokens(value)
        for text in (f'"{value}"', f"of {value}.", f"({value})", f"\n{value}\n"):
            found = tokens(text)
            start = next(place for place, token in enumerate(found) if token.lstrip() == first)
            assert found[start + 1 : start + 1 + len(rest)] == rest, text


def test_digits_are_single_and_tags_are_one_token(tokenizer: Any) -> None:
    assert len(tokenizer.encode("2031", add_special_tokens=False)) == 4
    for tag in ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<|im_end|>"):
        assert len(tokenizer.encode(tag, add_special_tokens=False)) == 1


def test_the_template_is_accepted_by_chat_format(tokenizer: Any) -> None:
    """`ChatFormat` rejects templates that are not token-exact. Calls given as objects are rendered as text."""
    ChatFormat(tokenizer)
    call = {"name": "read_email", "arguments": {"message_id": "<1@x>"}}
    content = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    as_text = [*messages, {"role": "assistant", "content": content}]
    for function in (call, {**call, "arguments": json.dumps(call["arguments"])}):
        as_calls = [*messages, {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}]
        rendered = [tokenizer.apply_chat_template(each, tokenize=False) for each in (as_text, as_calls)]
        assert rendered[0] == rendered[1]


def test_a_new_model_attends_to_the_previous_token() -> None:
    import torch

    from gumshoe.tiny.maker import TinyShape, create_model

    model = create_model(TinyShape(), small(), 1)
    model.set_attn_implementation("eager")
    ids = torch.randint(0, len(small()), (1, 40), generator=torch.Generator().manual_seed(1))
    attention = model.model(input_ids=ids, output_attentions=True).attentions[0][0, 0]  # [tokens, tokens]
    assert attention.diagonal(-1).mean() > 0.95


@pytest.mark.nightly
def test_a_new_model_learns_to_copy_quickly() -> None:
    from gumshoe.tiny.maker import TinyShape, create_model, generate_copy_examples

    model = create_model(TinyShape(), small(), 1)
    losses: list[float] = []
    examples = list(generate_copy_examples(len(small()), 400, 1))
    last = pretrain(model, examples, PretrainingSettings(60, 1024, learning_rate=1e-3), losses.append)
    assert last < losses[0] / 3


def test_copy_examples_train_only_on_the_repetition() -> None:
    from gumshoe.tiny.maker import generate_copy_examples

    few = 0
    for example in generate_copy_examples(300, 60, 1):
        half = len(example.ids) // 2
        assert list(example.ids[:half]) == list(example.ids[half:])
        assert list(example.weights) == [0.0] * half + [1.0] * half
        few += max(example.ids) - min(example.ids) < 40
    assert 15 < few < 45


def test_induction_heads_work_with_grouped_key_heads() -> None:
    """Two query heads share one key head."""
    from gumshoe.tiny.maker import TinyShape, create_model

    model = create_model(TinyShape(), small(), 1)
    attention = model.model.layers[1].self_attn
    assert attention.num_key_value_groups == TinyShape().heads // TinyShape().key_heads == 2
    width = attention.head_dim
    for key_head in range(2):
        query = attention.q_proj.weight[2 * key_head * width : (2 * key_head + 1) * width]
        assert int((query.abs().sum(1) == 0).sum()) == width // 2, "half of the dimensions are used"


@pytest.mark.nightly
def test_the_command_builds_a_policy_that_loads(tmp_path: Path, run: Callable[..., CommandResult]) -> None:
    from gumshoe.inference.policy_names import load_tokenizer
    from gumshoe.inference.transformers_policy import TransformersPolicy

    place = tmp_path / "tiny"
    command = ["tiny", "build", "--out", place, "--seed", 3, "--companies", 1]
    command += ["--copy-steps", 2, "--skill-steps", 2, "--habit-steps", 2]
    ran = run(*command, "--json")
    assert ran.status == 0, ran.err
    report = json.loads(ran.out)
    assert report == json.loads((place / "made.json").read_text())
    assert report["seed"] == 3
    assert report["schooling"] == {"companies": 1, "copy_steps": 2, "skill_steps": 2, "habit_steps": 2}
    assert report["parameters"] < 5e6
    assert sum(each.stat().st_size for each in place.iterdir()) < 10e6
    assert sum(report["slips"].values()) > 100
    ChatFormat(load_tokenizer(place))
    TransformersPolicy(place)
    again = run(*command)
    assert (again.status, again.code) == (2, "tiny.directory-not-empty")


@pytest.mark.nightly
def test_the_habit_share_scales_the_last_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With share 0, the number of habit steps has no effect; with share 0.5, it has."""
    import torch
    from safetensors.torch import load_file

    from gumshoe.tiny.maker import TrainConfig, build_tiny

    weights = []
    for share, steps in ((0.0, 2), (0.0, 4), (0.5, 2)):
        monkeypatch.setattr("gumshoe.tiny.maker._HABIT_SHARE", share)
        place = tmp_path / f"{share} {steps}"
        place.mkdir()
        build_tiny(place, 3, TrainConfig(1, 2, 2, steps), lambda stage, total: progress(stage, total=total))
        weights.append(load_file(place / "model.safetensors")["model.embed_tokens.weight"])
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_command_checks_its_output_directory_first(tmp_path: Path, run: Callable[..., CommandResult]) -> None:
    place = tmp_path / "file"
    place.write_text("mine")
    ran = run("tiny", "build", "--out", place, "--seed", 1, "--companies", 1)
    assert (ran.status, ran.code) == (2, "store.not-a-directory")
    assert str(place) in ran.err
    assert "seed 1" not in ran.err, "it fails before the build starts"
    assert place.read_text() == "mine"


def test_the_defaults_are_those_of_the_shipped_policy() -> None:
    from gumshoe.tiny.maker import TrainConfig

    given = {name: each.default for name, each in inspect.signature(build).parameters.items()}
    shipped = json.loads((TINY / "made.json").read_text())["schooling"]
    assert asdict(TrainConfig()) == shipped == {name: given[name] for name in shipped}
