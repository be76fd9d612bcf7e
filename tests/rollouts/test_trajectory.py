"""Trajectories, and their lines in a file."""

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.environments.base import Ending, EpisodeState
from gumshoe.environments.tools import Call
from gumshoe.rollouts.trajectory import ForeignCall, Origin, Span, TokenUsage, Trajectory, TrajectoryFileError
from tests.errors import raises
from tests.scenarios.questions import QUICK

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SAMPLED = Span("sampled", "ab", (5, 6), (-0.5, -1.25))


def trajectory(*spans: Span, **fields: Any) -> Trajectory:
    made = Trajectory("q1", 0, "base", "answer", "", list(spans), EpisodeState(), 1, 0.5, 0.25)
    return replace(made, **fields)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    origin = draw(st.sampled_from(get_args(Origin)))
    ids = tuple(draw(st.lists(st.integers(0, 200_000), max_size=4)))
    numbers = st.floats(max_value=0, allow_nan=False)
    logprobs = tuple(draw(numbers) for _ in ids) if origin == "sampled" else ()
    return Span(origin, draw(TEXTS), ids, logprobs)


def test_the_mask_is_one_for_sampled_tokens_and_zero_otherwise() -> None:
    made = trajectory(Span("prompt", "p", (1, 2, 3)), SAMPLED, Span("injected", "i", (7,)), SAMPLED)
    assert made.ids == [1, 2, 3, 5, 6, 7, 5, 6]
    assert made.mask == [0, 0, 0, 1, 1, 0, 1, 1]
    assert (made.prompt_tokens, made.sampled_tokens) == (4, 4)


@QUICK
@given(several=st.lists(spans(), max_size=6))
def test_ids_mask_and_counts_agree(several: list[Span]) -> None:
    made = trajectory(Span("prompt", "p", (1,)), *several)
    assert len(made.mask) == len(made.ids) == made.prompt_tokens + made.sampled_tokens
    assert sum(made.mask) == made.sampled_tokens == sum(len(each.logprobs) for each in several)


def test_trajectories_of_a_chat_model_cannot_be_trained_on() -> None:
    with raises("rollouts.no-token-ids", "gpt"):
        _ = trajectory(Span("prompt", "p"), Span("sampled", "s"), policy="gpt").ids


def test_an_episode_without_segments_has_no_ids_and_no_error() -> None:
    made = trajectory(policy="", ending="context full", turns=0)
    assert made.ids == made.mask == []


@QUICK
@given(
    several=st.lists(spans(), max_size=4),
    scenario=TEXTS,
    ending=st.sampled_from(get_args(Ending)),
    detail=TEXTS,
    answer=st.none() | TEXTS,
    sources=st.lists(TEXTS, max_size=3),
    seconds=st.floats(0, 1e6),
    rewards=st.dictionaries(TEXTS, st.floats(-10, 10), max_size=2),
)
def test_a_trajectory_is_read_back_from_its_line(
    several: list[Span],
    scenario: str,
    ending: Ending,
    detail: str,
    answer: str | None,
    sources: list[str],
    seconds: float,
    rewards: dict[str, float],
) -> None:
    record = EpisodeState(
        searches=3, repeated_searches=1, found=["a"], answer=answer, sources=sources, does_not_know=True
    )
    made = trajectory(
        *several,
        scenario=scenario,
        ending=ending,
        detail=detail,
        record=record,
        policy_seconds=seconds,
        tries=2,
        rewards=rewards,
        foreign_calls=[ForeignCall(Call("look_up", {"word": detail}, "7"), seconds, False, 12)],
    )
    line = made.to_json()
    assert "\n" not in line
    assert Trajectory.from_json(line.encode(), "here") == Trajectory.from_json(line, "here") == made


def test_trajectories_without_usage_are_read() -> None:
    line = json.loads(trajectory(SAMPLED, usage=TokenUsage(7, 2)).to_json())
    assert Trajectory.from_json(json.dumps(line), "here").usage == TokenUsage(7, 2)
    del line["usage"]
    assert Trajectory.from_json(json.dumps(line), "here").usage is None


def test_trajectories_without_foreign_calls_are_read() -> None:
    line = json.loads(trajectory(SAMPLED).to_json())
    del line["foreign_calls"]
    assert Trajectory.from_json(json.dumps(line), "here").foreign_calls == []


@pytest.mark.parametrize("several", [(SAMPLED,), ()], ids=["a turn", "the prompt was too long"])
def test_trajectories_of_version_0_1_are_read(several: tuple[Span, ...]) -> None:
    line = json.loads(trajectory(*several).to_json())
    old = {name: line[name] for name in line if name not in ("segments", "deeds", "mistakes", "spans")}
    old["segments"] = [{name: each[name] for name in ("origin", "text", "ids", "logprobs")} for each in line["spans"]]
    assert Trajectory.from_json(json.dumps(old), "here").spans == list(several)


def test_lone_surrogates_can_be_written() -> None:
    """Servers of chat models send lone surrogates in text and in arguments."""
    made = trajectory(Span("sampled", "a\ud800b"), record=EpisodeState(answer="\udfff"))
    read = Trajectory.from_json(made.to_json().encode(), "here")
    assert (read.spans[0].text, read.record.answer) == ("a?b", "?")


WHOLE: dict[str, Any] = json.loads(trajectory(SAMPLED).to_json())
WRONG: list[dict[str, Any]] = [
    {"more": 1},
    {"ending": "tired"},
    {"ending": []},
    {"spans": None},
    {"spans": 5},
    {"spans": ["text"]},
    {"spans": [{"origin": "sampled"}]},
    {"spans": [{**WHOLE["spans"][0], "ids": None}]},
    {"record": None},
    {"record": {"more": 1}},
    {"foreign_calls": [{"call": None}]},
    {"foreign_calls": [{"call": {"name": "a", "arguments": {}}}]},
    {"settings": None},
    {"settings": ["seed"]},
]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("", id="nothing"),
        pytest.param("{", id="no JSON"),
        pytest.param(b"\xff{}", id="no UTF-8"),
        pytest.param("[" * 100_000, id="nested too deep"),
        *("null", "5", '"text"', "[]", "{}"),
        *(
            pytest.param(json.dumps({key: value for key, value in WHOLE.items() if key != name}), id=f"without {name}")
            for name in ("scenario", "spans", "record", "ending")
        ),
        *(pytest.param(json.dumps({**WHOLE, **fields}), id=str(fields)) for fields in WRONG),
    ],
)
def test_an_invalid_line_is_rejected_with_its_number(line: str | bytes) -> None:
    with raises("rollouts.invalid-trajectory", "rollout.jsonl:7") as refused:
        Trajectory.from_json(line, "rollout.jsonl:7")
    assert isinstance(refused.value, TrajectoryFileError)
