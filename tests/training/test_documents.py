"""Training over documents: which environment a run has, the first turns of the mode `simple`, and a step's episodes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gumshoe.environments.registry import EnvFactory, open_env
from gumshoe.inference.policy import Sampling, ScriptedPolicy
from gumshoe.rewards.reward import RewardSettings, load_reward
from gumshoe.rollouts.chat_format import ChatFormat
from gumshoe.rollouts.episode import EpisodeLimits
from gumshoe.rollouts.sessions import token_chat_sessions
from gumshoe.scenarios.scenario import Scenario
from gumshoe.training.grpo.rollout_collector import RolloutCollector, Rubric
from gumshoe.training.grpo.schedule import Schedule
from gumshoe.training.grpo.simple import build_prompts, score_turn
from gumshoe.training.run_spec import open_run_env
from gumshoe.training.settings import resolve
from tests.documents.pages import make_collection, page
from tests.errors import raises
from tests.inference.fake_vllm import said_after
from tests.rollouts.conversations import QWEN2_5, call, make_tokenizer
from tests.scenarios.questions import about_documents

ASKED = [
    Scenario.model_validate(about_documents(number, answer=f"Body of document {number}", split="train"))
    for number in range(1, 5)
]


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_collection(tmp_path_factory.mktemp("training"), map(page, range(1, 9)))


@pytest.fixture(scope="module")
def world(collection: Path) -> EnvFactory:
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
def test_a_run_asks_for_reasoning_as_its_settings_and_its_model_say(
    flags: dict[str, Any], reasons: bool, hits: int, collection: Path
) -> None:
    world = open_run_env(resolve(None, flags, {}).settings, collection)
    assert (world.arguments["reasoning"], world.arguments["hits"]) == (reasons, hits)
    place = world.new_environment(ASKED[0], 10)
    assert ("<think>" in place.system_prompt()) is reasons


def test_an_environment_is_named_in_a_file_and_a_wrong_one_refused(tmp_path: Path, collection: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("environment: {documents: {hits: 4}}\n")
    assert open_run_env(resolve(str(file), {}, {}).settings, collection).arguments["hits"] == 4
    assert "environment: " in resolve(str(file), {}, {}).as_yaml()
    with raises("environments.invalid-name", "['documents']"):
        resolve(None, {"environment": "[documents]"}, {})
    with raises("environments.invalid-settings", "hits", "10"):
        open_run_env(resolve(None, {"environment": "{documents: {hits: 11}}"}, {}).settings, collection)


def test_the_episodes_of_a_step_are_run_over_documents_and_rewarded(world: EnvFactory) -> None:
    tokenizer = make_tokenizer(QWEN2_5)
    rewards = [load_reward(RewardSettings(name=name)) for name in ("rubric", "mrr", "format")]
    collector = RolloutCollector(
        world,
        Schedule(tuple(ASKED), 1, 2),
        Rubric(rewards),
        EpisodeLimits(5, 8192),
        2,
        draws=1,
        min_group_std=0,
        concurrency=4,
    )
    policy = ScriptedPolicy(tokenizer, lambda prompt, seed: said_after(prompt))  # noqa: ARG005
    speak = token_chat_sessions(policy, ChatFormat(tokenizer), Sampling(1.0, max_tokens=400), 8192)
    found = asyncio.run(collector.collect(speak, "scripted", 0, servers=1))
    assert len(found.trajectories) == 4
    for each in found.trajectories:
        assert (each.ending, each.record.right_sources) == ("answer", [each.scenario])
        assert each.rewards["mrr"] == each.rewards["format"] == 1, "it thought before each call, as it was asked to"
        assert each.rewards["rubric"] == pytest.approx(1 + 0.3 + 0.1 + 0.1 * (1 - 3 / 5))


def test_what_episodes_begin_with_is_the_prompt_of_documents(world: EnvFactory) -> None:
    (row, *_) = build_prompts(ASKED, world, ChatFormat(make_tokenizer(QWEN2_5)), 7)
    assert '"search_documents"' in row["prompt"]
    assert "at most 7 turns" in row["prompt"]


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
def test_a_first_turn_that_searches_documents_is_worth_its_apt_words(query: Any, value: float) -> None:
    assert score_turn(call("search_documents", query=query), "Does marsh fever last?", "Yes") == pytest.approx(value)


def test_the_settings_of_a_run_can_be_kept_with_its_adapter() -> None:
    settings = resolve(None, {"environment": "{documents: {hits: 4}}"}, {}).settings
    assert json.loads(settings.model_dump_json())["environment"] == {"name": "documents", "arguments": {"hits": 4}}
    assert type(settings).model_validate_json(settings.model_dump_json()) == settings
