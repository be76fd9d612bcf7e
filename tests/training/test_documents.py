"""Training over documents: the environment of a run, first turns in mode `simple`, and the episodes of a step."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gumshoe.environments.registry import EnvFactory, open_env
from gumshoe.environments.tools import Call
from gumshoe.inference.policy import Sampling, ScriptedPolicy
from gumshoe.rewards.reward import RewardSettings, load_reward
from gumshoe.rollouts.chat_format.chat_format import ChatFormat, ParsedTurn
from gumshoe.rollouts.episode import EpisodeLimits
from gumshoe.rollouts.sessions import chat_loop, token_chat_sessions
from gumshoe.scenarios.scenario import Scenario
from gumshoe.training.grpo.rollout_collector import RolloutCollector, Rubric
from gumshoe.training.grpo.schedule import Schedule
from gumshoe.training.grpo.simple import build_prompts, score_turn
from gumshoe.training.run_spec import open_run_env
from gumshoe.training.settings_sources import resolve
from tests.documents.pages import make_collection, page
from tests.errors import raises
from tests.inference.fake_vllm import said_after
from tests.rollouts.conversations import QWEN2_5, make_tokenizer
from tests.scenarios.questions import about_documents

SCENARIOS = [
    Scenario.model_validate(about_documents(number, answer=f"Body of document {number}", split="train"))
    for number in range(1, 5)
]


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_collection(tmp_path_factory.mktemp("training"), map(page, range(1, 9)))


@pytest.fixture(scope="module")
def env(collection: Path) -> EnvFactory:
    return open_env(collection)


@pytest.mark.parametrize(
    ("flags", "reasons", "hits"),
    [
        ({}, True, 10),
        ({"model.name": "tiny"}, False, 2),
        ({"environment": "{documents: {hits: 5}}"}, True, 5),
        ({"environment": "{documents: {reasoning: true}}", "model.name": "tiny"}, True, 2),
        ({"environment.documents.reasoning": "false"}, False, 10),
    ],
)
def test_the_environment_depends_on_settings_and_model(
    flags: dict[str, Any], reasons: bool, hits: int, collection: Path
) -> None:
    env = open_run_env(resolve(None, flags, {}).settings, collection)
    assert (env.arguments["reasoning"], env.arguments["hits"]) == (reasons, hits)
    place = env.new_environment(SCENARIOS[0], 10)
    assert ("<think>" in place.system_prompt()) is reasons


def test_an_environment_is_read_from_a_file(tmp_path: Path, collection: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("environment: {documents: {hits: 4}}\n")
    assert open_run_env(resolve(str(file), {}, {}).settings, collection).arguments["hits"] == 4
    assert "environment: " in resolve(str(file), {}, {}).as_yaml()
    with raises("environments.invalid-name", "['documents']"):
        resolve(None, {"environment": "[documents]"}, {})
    with raises("environments.invalid-settings", "hits", "10"):
        open_run_env(resolve(None, {"environment": "{documents: {hits: 11}}"}, {}).settings, collection)


def test_episodes_over_documents_are_run_and_rewarded(env: EnvFactory) -> None:
    tokenizer = make_tokenizer(QWEN2_5)
    rewards = [load_reward(RewardSettings(name=name)) for name in ("rubric", "mrr", "format")]
    collector = RolloutCollector(
        env,
        Schedule(tuple(SCENARIOS), 1, 2),
        Rubric(rewards),
        EpisodeLimits(5, 8192),
        2,
        draws=1,
        min_group_std=0,
        concurrency=4,
    )
    policy = ScriptedPolicy(tokenizer, lambda prompt, seed: said_after(prompt))  # noqa: ARG005
    open_session = token_chat_sessions(policy, ChatFormat(tokenizer), Sampling(1.0, max_tokens=400), 8192)
    found = asyncio.run(collector.measure(chat_loop(open_session), "scripted", SCENARIOS[:4], "seed", servers=1))
    assert len(found.trajectories) == 4
    for each in found.trajectories:
        assert (each.ending, each.record.right_sources) == ("answer", [each.scenario])
        assert each.rewards["mrr"] == each.rewards["format"] == 1, "it reasoned before each call"
        assert each.rewards["rubric"] == pytest.approx(1 + 0.3 + 0.1 + 0.1 * (1 - 3 / 5))


def test_static_prompts_are_those_of_documents(env: EnvFactory) -> None:
    tokenizer = make_tokenizer(QWEN2_5)
    (row, *_) = build_prompts(SCENARIOS, env, ChatFormat(tokenizer), tokenizer, 7)
    assert '"search_documents"' in row["prompt"]
    assert "at most 7 turns" in row["prompt"]


@pytest.mark.parametrize(("added", "is_refused"), [("<|endoftext|> $A", False), ("$A <|endoftext|>", True)])
def test_static_prompts_have_the_tokens_of_episodes_once(env: EnvFactory, added: str, is_refused: bool) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = make_tokenizer(f"{{{{- bos_token }}}}{QWEN2_5}")
    tokenizer.bos_token = "<|endoftext|>"
    special = [(tokenizer.bos_token, tokenizer.bos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=added, special_tokens=special)
    chat = ChatFormat(tokenizer)
    if is_refused:
        with raises("training.prompt-encoded-differently"):
            build_prompts(SCENARIOS, env, chat, tokenizer, 7)
        return
    (row, *_) = build_prompts(SCENARIOS, env, chat, tokenizer, 7)
    assert tokenizer(row["prompt"])["input_ids"] == [tokenizer.bos_token_id, *chat.encode(row["prompt"]).ids]
    assert not row["prompt"].startswith(tokenizer.bos_token)


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("Marsh fever", 0.5),
        ("last marsh fever", 0.75),
        ("Hill fever", 0.125),
        ("", 0),
        (7, 0),
    ],
)
def test_a_search_of_documents_is_scored_by_its_words(query: Any, value: float) -> None:
    turn = ParsedTurn((Call("search_documents", {"query": query}),))
    assert score_turn(turn, "Does marsh fever last?", "Yes") == pytest.approx(value)


def test_settings_with_an_environment_survive_json() -> None:
    settings = resolve(None, {"environment": "{documents: {hits: 4}}"}, {}).settings
    assert json.loads(settings.model_dump_json())["environment"] == {"name": "documents", "arguments": {"hits": 4}}
    assert type(settings).model_validate_json(settings.model_dump_json()) == settings
