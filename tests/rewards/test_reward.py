"""Reward functions by name, with settings, for trajectories and groups; worked examples of the built-in ones."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
import yaml

from gumshoe.environments.base import Ending, EpisodeState, Event
from gumshoe.rewards.reward import RewardSettings, load_reward
from gumshoe.rollouts.call_forms import UnusableCallError, find_form
from gumshoe.rollouts.chat_format.reasoning import THINK
from gumshoe.rollouts.trajectory import Span, Trajectory
from gumshoe.training.settings_sources import CONFIGS
from tests.errors import raises
from tests.inference.fake_vllm import FakeVLLM, letter_counts
from tests.rollouts.conversations import call
from tests.scenarios.questions import scenario

OWN = "tests.rewards.own_rewards"


def episode(*said: str, sample: int = 0, settings: dict[str, Any] | None = None, **noted: Any) -> Trajectory:
    """Return a trajectory with these sampled turns and this record."""
    spans = [Span("prompt", "Q?", (1,))]
    for text in said:
        reasoning, rest, _ = THINK.split(text)
        try:
            calls = tuple(find_form("hermes").parse(rest, []))
        except UnusableCallError:
            calls = ()
        spans.append(
            Span("sampled", text, (2,), (0.0,), calls, has_reasoning=bool(reasoning) and text.startswith("<think>"))
        )
        spans.append(Span("injected", "Nothing found.", (3,)))
    about, turns = scenario(1).id, len(said)
    settings = {"max_turns": 10} if settings is None else settings
    return Trajectory(
        about, sample, "p", "answer", "", spans[:-1], EpisodeState(**noted), turns, 0, 0, settings=settings
    )


def scores(name: str, *group: Trajectory, **arguments: Any) -> list[float]:
    """Return the rewards of a group."""
    found = load_reward(RewardSettings(name=name, arguments=arguments))

    async def closing() -> list[float]:
        try:
            return await found.score(group, scenario(1))
        finally:
            await found.aclose()

    return asyncio.run(closing())


RIGHT: dict[str, Any] = {
    "found": ["<1@example.com>"],
    "read": ["<1@example.com>"],
    "right_sources": ["<1@example.com>"],
}
ANSWER, SOURCE = scenario(1).answer, ["<1@example.com>"]


@pytest.mark.parametrize(
    ("ending", "noted", "turns", "expected"),
    [
        ("unparseable call", {}, 1, -1.9),
        ("unknown tool", {"deeds": [["invalid id"]]}, 1, -1.9),
        ("bad arguments", {"found": SOURCE}, 1, -1.6),
        ("no call", RIGHT, 1, -1.4),
        ("max turns", {}, 10, 0.1),
        ("context full", {"found": SOURCE, "read": SOURCE}, 4, 0.3),
        ("answer", {"answer": "I don't know", "does_not_know": True, "found": SOURCE}, 3, 0.2),
        ("answer", {"answer": "Something else.", "sources": SOURCE, **RIGHT}, 3, -0.6),
        ("answer", {"answer": "Something else.", "sources": ["<9@x>"], "invalid_ids": 1}, 3, -0.9),
        ("answer", {"answer": ANSWER, "sources": SOURCE, **RIGHT}, 4, 1 + 0.3 + 0.1 + 0.1 * 0.6),
        ("answer", {"answer": ANSWER, "sources": [*SOURCE, "b"], "right_sources": SOURCE}, 10, 1 + 0.3 + 0.05),
        ("answer", {"answer": ANSWER, "sources": ["b", "c", "d", "e"]}, 5, 1 + 0.025 + 0.05),
        ("answer", {"answer": ANSWER}, 10, 1),
    ],
)
def test_the_rubric_in_worked_examples(ending: Ending, noted: dict[str, Any], turns: int, expected: float) -> None:
    done = replace(episode(*"a" * turns, **noted), ending=ending)
    assert scores("rubric", done) == pytest.approx([expected])


def test_every_value_of_the_rubric_is_a_setting() -> None:
    done = episode("a", answer=ANSWER, sources=SOURCE, **RIGHT)
    numbers = {"correct": 2, "correct_source": 0, "few_sources": 0, "few_turns": 0}
    assert scores("rubric", done, **numbers) == [2]
    assert scores("rubric", replace(done, ending="no call"), no_call=-5, found=0, read=0, source=0) == [-4.9]


def giving_sources(answer: str) -> list[Trajectory]:
    """Return episodes with an answer that gives no source, the correct one, and the correct one among four."""
    given = [[], SOURCE, [*SOURCE, "b", "c", "d"]]
    return [episode("a", answer=answer, sources=each, right_sources=each[:1]) for each in given]


@pytest.mark.parametrize("preset", ["smollm2-cpu", "smollm2-gpu"])
def test_the_presets_of_a_small_model_reward_each_step_towards_an_answer(preset: str) -> None:
    settings = yaml.safe_load((CONFIGS / f"{preset}.yaml").read_text(encoding="utf-8"))
    rubric, _ = settings["rewards"]["functions"]
    steps = [
        replace(episode("a", found=SOURCE, read=SOURCE), ending="truncated"),
        replace(episode("a"), ending="max turns"),
        episode("a", answer="Something else.", found=SOURCE),
        replace(episode("a", found=SOURCE, read=SOURCE), ending="max turns"),
        episode("a", answer="Something else.", sources=SOURCE, **RIGHT),
        episode("a", answer=ANSWER, found=SOURCE),
        episode("a", answer=ANSWER, sources=SOURCE, **RIGHT),
    ]
    found = scores("rubric", *steps, **rubric["arguments"])
    assert found == sorted(set(found))
    for answer in ("Something else.", ANSWER):
        without, alone, among_four = scores("rubric", *giving_sources(answer), **rubric["arguments"])
        assert among_four - without < (alone - without) / 3


@pytest.mark.parametrize(("answer", "worth"), [("Something else.", 0.1), (ANSWER, 0.3)])
def test_the_value_of_a_source_can_depend_on_the_others_that_are_given(answer: str, worth: float) -> None:
    episodes = giving_sources(answer)
    without, alone, among_four = scores("rubric", *episodes)
    expected = [without, alone, among_four - worth * 3 / 4]
    assert scores("rubric", *episodes, source_share=True) == pytest.approx(expected)


def test_if_all_sources_are_needed_one_is_not_enough() -> None:
    both = [f"<{number}@example.com>" for number in (1, 2)]
    about = scenario(1, message_ids=both, needs_all=True)
    rubric = load_reward(RewardSettings(name="rubric"))
    some, every = (episode("a", answer=ANSWER, sources=both, right_sources=given) for given in (both[:1], both))
    assert asyncio.run(rubric.score([some, every], about)) == pytest.approx([1 + 0.05 + 0.09, 1.3 + 0.05 + 0.09])


def test_only_i_dont_know_is_right_if_the_question_is_unanswerable() -> None:
    about = scenario(1, unanswerable=True, message_ids=[], answer="I don't know")
    said: dict[str, Any] = {"answer": "I don't know.", "does_not_know": True}
    knows = episode("a", **said)
    cites, guesses, silent = episode("a", sources=SOURCE, **said), episode("a", answer=ANSWER), episode("a")
    for name, expected in {"rubric": [1.39, 1.09, -0.9, 0.1], "exact": [1, 0]}.items():
        reward = load_reward(RewardSettings(name=name))
        group = [knows, cites, guesses, silent] if name == "rubric" else [knows, guesses]
        assert asyncio.run(reward.score(group, about)) == pytest.approx(expected)


def test_exact_is_one_for_a_correct_answer() -> None:
    group = [episode("a", answer=ANSWER.upper()), episode("a", answer="No."), episode("a")]
    assert scores("exact", *group) == [1, 0, 0]


def test_the_default_judge_is_heuristic() -> None:
    said = episode("a", answer=f"It says: {ANSWER}.")
    assert scores("exact", said) == [1]
    assert scores("exact", said, judge="exact") == [0]


def test_answer_similarity_is_the_cosine_and_never_negative() -> None:
    def opposed(request: dict[str, Any]) -> dict[str, Any]:
        answer = letter_counts(request)
        answer["data"][0]["embedding"] = [-each for each in answer["data"][1]["embedding"]]
        return answer

    with FakeVLLM() as server:
        model = {"model": f"openai:base@{server.address}/v1", "cache": None}
        answers = [ANSWER.upper(), "Zzz", scenario(1).question, ""]
        group = [episode("a", answer=answer) for answer in answers]
        alike, *worthless = scores("answer_similarity", *group, model=model)
        assert alike == pytest.approx(1)
        assert worthless == [0, 0, 0]
        assert scores("answer_similarity", episode("a", answer="?", does_not_know=True), model=model) == [0]
    with FakeVLLM(embeddings=opposed) as server:
        model = {"model": f"openai:base@{server.address}/v1", "cache": None}
        assert scores("answer_similarity", group[0], model=model) == [0]
    with raises("rewards.invalid-settings", "answer_similarity: model", "cash: extra inputs"):
        scores("answer_similarity", group[0], model={"model": "x", "cash": None})


def test_an_unknown_judge_is_rejected() -> None:
    with raises("judges.unknown-judge", "'oracle'"):
        scores("exact", episode("a"), judge="oracle")


@pytest.mark.parametrize(("rank", "expected"), [(None, 0), (1, 1), (4, 0.25)])
def test_mrr_is_the_reciprocal_of_the_best_rank(rank: int | None, expected: float) -> None:
    assert scores("mrr", episode("a", best_rank=rank)) == [expected]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([], 0),
        (["I think so."], 0),
        ([call("look"), call("look")], 1),
        ([call("look"), call("look") + call("look"), "<tool_call>{", f"Well. {call('look')}<|im_end|>"], 0.75),
    ],
)
def test_format_is_the_share_of_turns_with_usable_calls(said: list[str], expected: float) -> None:
    assert scores("format", episode(*said)) == [expected]


THOUGHT = f"<think>\nIt is late.\n</think>\n{call('look')}"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([THOUGHT, THOUGHT], 1),
        ([THOUGHT, call("look")], 0.5),
        (
            [
                f"<think>\n</think>{call('look')}",
                f"<think></think>{call('look')}",
                f"{call('look')}<think>Late.</think>",
            ],
            0,
        ),
    ],
)
def test_format_requires_reasoning_if_the_environment_does(said: list[str], expected: float) -> None:
    asked = episode(*said, settings={"environment": {"name": "documents", "reasoning": True}})
    assert scores("format", asked) == [expected]
    assert scores("format", episode(*said), reasoning=True) == [expected]
    assert scores("format", asked, reasoning=False) == [1]


def test_turns_is_the_share_of_unused_turns() -> None:
    assert scores("turns", episode("a", "b", "c"), episode(*"abcdefghij")) == pytest.approx([0.7, 0])
    assert math.isnan(scores("turns", episode("a", settings={}))[0])


def test_repetition_costs_more_without_results() -> None:
    deeds: list[list[Event]] = [
        ["searched", "in vain"],
        ["searched again", "in vain"],
        ["searched", "found"],
        ["searched again"],
        ["read"],
        ["searched again"],
        ["answered"],
    ]
    assert scores("repetition", episode("a", deeds=deeds), episode("a")) == pytest.approx([-0.4, 0])
    assert scores("repetition", episode("a", deeds=deeds), again=0, again_in_vain=-1) == [-1]


def test_a_custom_reward_is_named_by_its_module_and_has_settings() -> None:
    assert scores(f"{OWN}:length", episode("a", answer="four"), unit="km", times=2) == [16]
    assert scores(f"{OWN}:length", episode("a", answer="four"), unit="") == [6]
    assert scores(f"{OWN}:slow", *(episode("a", sample=number) for number in range(3))) == [0, 1, 2]
    assert scores(f"{OWN}:place", episode("a"), episode("b")) == [0, 1]


@pytest.mark.parametrize(
    ("name", "arguments", "code", "values"),
    [
        ("lenght", {}, "rewards.unknown-reward", ["'lenght'", "mrr", "my_package"]),
        ("os.path:join", {}, "rewards.not-a-reward-function", ["os.path", "'join'"]),
        (f"{OWN}:nothing", {}, "rewards.not-a-reward-function", ["'nothing'"]),
        (f"{OWN}:undecorated", {}, "rewards.not-a-reward-function", ["'undecorated'", "gumshoe.rewards.reward"]),
        (f"{OWN}:lonely", {}, "rewards.wrong-signature", [f"{OWN}:lonely", "got 1"]),
        ("no_such_module:x", {}, "rewards.import-failed", ["no_such_module", "ModuleNotFoundError"]),
        (
            "tests.rewards.broken_rewards:x",
            {},
            "rewards.import-failed",
            ["tests.rewards.broken_rewards", "ZeroDivisionError"],
        ),
        ("mrr", {"k": 1}, "rewards.invalid-settings", ["mrr: k: extra inputs"]),
        (
            "repetition",
            {"agian": 1},
            "rewards.invalid-settings",
            ["agian: extra", "again (float, -0.1", "again_in_vain"],
        ),
        ("repetition", {"again": "much"}, "rewards.invalid-settings", ["again: ", "valid number"]),
        (
            f"{OWN}:length",
            {},
            "rewards.invalid-settings",
            ["unit: field required", "times (float, 1.0", "unit (str)"],
        ),
    ],
)
def test_a_wrong_name_or_setting_is_rejected(
    name: str, arguments: dict[str, Any], code: str, values: list[str]
) -> None:
    with raises(code, *values):
        load_reward(RewardSettings(name=name, arguments=arguments))


@pytest.mark.parametrize("value", [None, "1", math.inf, -math.inf, [1.0]])
def test_a_result_that_is_not_a_number_is_an_error(value: object) -> None:
    with raises("rewards.invalid-value", f"{OWN}:given", repr(value), "scenario q1"):
        scores(f"{OWN}:given", episode("a"), value=value)


def test_nan_means_that_a_function_does_not_apply() -> None:
    assert math.isnan(scores(f"{OWN}:given", episode("a"), value=math.nan)[0])


def test_too_few_numbers_are_an_error() -> None:
    with raises("rewards.wrong-count", "1 numbers", "group of 2"):
        scores(f"{OWN}:too_few", episode("a"), episode("b"))


def test_an_exception_names_the_reward_the_scenario_and_the_line() -> None:
    with raises("rewards.failed", f"{OWN}:divided", "q1", "ZeroDivisionError", "own_rewards.py:") as raised:
        scores(f"{OWN}:divided", episode("a"), by=0)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
