"""Worked examples of turn rewards."""

import asyncio
from dataclasses import replace
from typing import Any, get_args

import pytest

from gumshoe.environments.base import Ending, Event, Unusable
from gumshoe.rewards.judge_registry import ExactJudge
from gumshoe.rewards.turn_rewards import TurnRewardValues, turn_rewards
from gumshoe.rollouts.trajectory import Mistake
from tests.rewards.test_reward import ANSWER, episode
from tests.scenarios.questions import scenario

VALUES = TurnRewardValues(
    found=64, read=32, read_another=-1, read_again=-2, new_search=4, repeated_search=-8, in_vain=-16, invalid_id=-128
)


def rewards(*said: str, ending: Ending = "answer", **noted: Any) -> list[float]:
    done = replace(episode(*said, **noted), ending=ending)
    return asyncio.run(turn_rewards(done, scenario(1), VALUES, ExactJudge()))


def test_each_turn_has_the_value_of_its_events() -> None:
    deeds: list[list[Event]] = [
        ["searched", "in vain"],
        ["searched again", "in vain"],
        ["searched", "found"],
        ["read another"],
        ["invalid id"],
        ["read"],
        ["read again"],
        ["searched again"],
        ["answered"],
    ]
    expected = [-12, -24, 68, -1, -128, 32, -2, -8]
    assert rewards(*"a" * 9, deeds=deeds, answer=ANSWER) == [*expected, 1]
    assert rewards(*"a" * 9, deeds=deeds, answer="Something else.") == [*expected, -0.5]
    assert rewards(*"a" * 9, deeds=deeds, answer="I don't know", does_not_know=True) == [*expected, 0]


def test_i_dont_know_is_right_if_the_question_is_unanswerable() -> None:
    about = scenario(1, unanswerable=True, message_ids=[], answer="I don't know")
    knows, guesses = episode("a", answer="I don't know", does_not_know=True), episode("a", answer=ANSWER)
    assert asyncio.run(turn_rewards(knows, about, VALUES, ExactJudge())) == [1]
    assert asyncio.run(turn_rewards(guesses, about, VALUES, ExactJudge())) == [-0.5]


@pytest.mark.parametrize(
    ("gold", "needs_all", "right", "given", "worth"),
    [
        (1, False, 1, 1, 6),
        (1, False, 1, 4, 1.5),
        (2, False, 1, 1, 6),
        (2, True, 1, 1, 0),
        (2, True, 2, 2, 6),
        (2, True, 2, 3, 4),
        (1, False, 0, 2, 0),
        (1, False, 0, 0, 0),
    ],
)
def test_sources_of_an_answer_are_worth_their_share_of_all_that_it_names(
    gold: int, needs_all: bool, right: int, given: int, worth: float
) -> None:
    about = scenario(1, message_ids=[f"<{number}@example.com>" for number in range(gold)], needs_all=needs_all)
    sources = [*about.sources[:right], *(f"<other-{number}@example.com>" for number in range(given - right))]
    values = TurnRewardValues(source=6, correct=10, wrong=20)
    for answer, value in ((ANSWER, 10), ("Something else.", 20)):
        done = episode("a", answer=answer, sources=sources, right_sources=[*about.sources[:right]])
        assert asyncio.run(turn_rewards(done, about, values, ExactJudge())) == [value + worth]


@pytest.mark.parametrize("ending", ["answer", "max turns", "context full"])
def test_an_episode_without_an_answer_has_a_value_of_its_own(ending: Ending) -> None:
    unsure: dict[str, Any] = {"answer": "I don't know", "does_not_know": True, "right_sources": ["x"], "sources": ["x"]}
    values = TurnRewardValues(no_answer=-3, source=6)
    for said, expected in ((("a", "b"), [0, -3]), ((), [])):
        done = replace(episode(*said, **(unsure if ending == "answer" else {})), ending=ending)
        assert asyncio.run(turn_rewards(done, scenario(1), values, ExactJudge())) == expected


@pytest.mark.parametrize("ending", get_args(Unusable))
def test_an_unusable_call_is_penalized(ending: Ending) -> None:
    assert rewards("a", "b", ending=ending, deeds=[["searched"]]) == [4, -1]


def test_running_out_of_turns_or_context_is_not_penalized() -> None:
    assert rewards("a", ending="max turns", deeds=[["searched"]]) == [4]
    assert rewards("a", "b", ending="context full", deeds=[["searched"]]) == [4, 0]
    assert rewards(ending="context full") == []


def test_an_episode_without_a_turn_of_the_policy_has_no_rewards() -> None:
    assert rewards(answer=ANSWER) == rewards(answer="Something else.") == rewards(ending="no call") == []
    done = replace(episode(answer=ANSWER), mistakes=[Mistake(1, "bad arguments", "")])
    assert asyncio.run(turn_rewards(done, scenario(1), VALUES, ExactJudge())) == []


def test_every_event_has_a_value() -> None:
    assert set(TurnRewardValues().by_event()) == set(get_args(Event))
