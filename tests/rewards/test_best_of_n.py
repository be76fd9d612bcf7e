"""Choose one answer from several samples: worked examples, any order, and judges that fail."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.inference.policy import PolicyError
from gumshoe.rewards.best_of_n import Choice, ChoiceSettings, SampledAnswer, answer_with_samples, parse_choice_options
from gumshoe.rollouts.answer import Answer, Cost
from gumshoe.rollouts.trajectory import Span, TokenUsage, Trajectory
from tests.errors import raises
from tests.inference.fake_vllm import FakeVLLM, stall, status
from tests.rewards.chat_judge import by_length, obey_markup, says, shown, verdict
from tests.rewards.test_reward import episode
from tests.scenarios.questions import QUICK

QUESTION, DAY = "How much was the invoice for?", date(2001, 6, 1)
NOTHING = "(nothing)"


def samples(*answers: str, likely: Sequence[float] = (), **noted: Any) -> list[Trajectory]:
    """Return episodes with these answers (`NOTHING` for none), and optionally their log-probabilities."""
    found = []
    for number, answer in enumerate(answers):
        said = None if answer == NOTHING else answer
        made = episode(answer, sample=number, answer=said, does_not_know=answer == "I don't know", **noted)
        made.ending = "max turns" if said is None else "answer"
        logprob = likely[number] if likely else -1.0
        made.spans = [replace(each, logprobs=(logprob,)) if each.logprobs else each for each in made.spans]
        found.append(made)
    return found


def choice(group: Sequence[Trajectory], seconds: float | None = None, **told: Any) -> Choice:
    async def closing() -> Choice:
        chooser = ChoiceSettings(samples=max(2, len(group)), **told).open_selector()
        try:
            return await chooser.choose(QUESTION, DAY, group, seconds)
        finally:
            await chooser.aclose()

    return asyncio.run(closing())


def best_by(server: FakeVLLM, **model: Any) -> dict[str, Any]:
    asked = {"model": "base", "url": f"{server.address}/v1", "deadline": 600, "attempts": 2, **model}
    return {"choose": "best", "choose_by": {"ruler": {"model": asked}}}


@pytest.mark.parametrize(
    ("answers", "place", "why"),
    [
        (["$5", "$7", "$7"], 1, "2 of 3 samples agree"),
        (["$1,250", "1250 dollars", "It was $1,250.", "$900"], 0, "3 of 4 samples agree"),
        (["$900", "1250 dollars", "$1,250"], 1, "2 of 3 samples agree"),
        (["yes", "Yes.", "no"], 0, "2 of 3 samples agree"),
        (["8 May 2001", "Tuesday, May 8th", "9 May 2001"], 0, "2 of 3 samples agree"),
        (["$5", "$7"], 0, "1 of 2 samples agree, and as many on another answer"),
        (["$5", "$7", "$5", "$7"], 0, "2 of 4 samples agree, and as many on another answer"),
        (["I don't know", NOTHING, "$7"], 0, "2 of 3 samples have no answer"),
        ([NOTHING, "I don't know", "$7"], 1, "2 of 3 samples have no answer"),
        (["I don't know", NOTHING, "$7", "$8"], 2, "1 of 4 samples agree, and as many on another answer"),
        (["I don't know", "I don't know", "$7", "$8", "$9"], 2, "1 of 5 samples agree, and as many on another answer"),
        (["It is not mentioned.", "It was not found", "$7"], 0, "2 of 3 samples have no answer"),
        ([NOTHING, NOTHING], 0, "2 of 2 samples have no answer"),
    ],
)
def test_the_majority_is_chosen(answers: list[str], place: int, why: str) -> None:
    found = choice(samples(*answers))
    assert (found.place, found.why, found.failed, found.requests) == (place, why, "", 0)


def test_ties_go_to_the_likelier_sample_then_to_the_earlier() -> None:
    assert choice(samples("$5", "$7", "$9", likely=(-2, -1, -3))).place == 1
    assert choice(samples("$5", "$7", "$5", "$7", likely=(-2, -3, -1, -4))).place == 2
    assert choice(samples("$5", "$7", likely=(-1, -1))).place == 0
    chat = samples("$5", "$7")
    for each in chat:  # a chat model returns no log-probabilities
        each.spans = [Span(span.origin, span.text) for span in each.spans]
    assert choice(chat).place == 0


def test_among_agreeing_samples_the_most_frequent_sources_win() -> None:
    group = samples("$5", "$5", "$5", "$7", likely=(-1, -2, -3, 0))
    for each, given_sources in zip(group, (["<1@x>"], ["<2@x>"], ["2@x"], ["<3@x>"]), strict=True):
        each.record.sources = given_sources
    assert choice(group).place == 1, "two of three that agree give the second"


ANSWERS = ("$5", "5 dollars", "$7", "seven dollars", "$9", "the 9th of May", "Ann Lee", "I don't know", NOTHING)


@settings(QUICK, max_examples=60)
@given(st.lists(st.sampled_from(ANSWERS), min_size=2, max_size=7), st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter_without_ties(answers: list[str], dice: Any) -> None:
    group = samples(*answers, likely=[-0.1 * (1 + number) for number in range(len(answers))])
    mixed = dice.sample(group, len(group))
    one, other = choice(group), choice(mixed)
    assert mixed[other.place] is group[one.place]
    assert one.why == other.why
    silent = sum(each in (NOTHING, "I don't know") for each in answers)
    assert (answers[one.place] in (NOTHING, "I don't know")) == (2 * silent > len(answers))


@settings(QUICK, max_examples=30)
@given(st.lists(st.sampled_from(ANSWERS), min_size=2, max_size=6))
def test_a_choice_does_not_use_the_record_of_correct_sources(answers: list[str]) -> None:
    plain = choice(samples(*answers))
    right: dict[str, Any] = {"found": ["<1@x>"], "right_sources": ["<1@x>"], "best_rank": 1}
    group = samples(*answers)
    for each in group[::2]:
        each.record = replace(each.record, **right)
    assert choice(group) == plain


def test_a_chat_model_can_compare_answers_and_its_cost_is_counted() -> None:
    with FakeVLLM(
        chat=says(verdict)
    ) as server:  # accepts answers that contain the reference, so only equal texts agree
        judge = {"openai": {"model": "base", "url": f"{server.address}/v1", "prompt_price": 2}}
        found = choice(samples("a long reason", "another", "A long reason."), choose_by=judge)
        asked = [(shown(each)["reference_answer"], shown(each)["answer_to_judge"]) for each in server.requests]
    assert (found.place, found.why) == (0, "2 of 3 samples agree")
    assert asked == [("A long reason.", "another")], "one pair of different texts, and the second way is not needed"
    assert (found.requests, found.prompt_tokens, found.sampled_tokens) == (1, 1000, 100)
    assert found.dollars == pytest.approx(0.002)
    assert found.seconds > 0


def test_the_best_sample_has_the_highest_score() -> None:
    with FakeVLLM(chat=says(by_length)) as server:
        group = samples("a" * 900, "b" * 30, "c" * 300)
        found = choice(group, **best_by(server))
        mixed = choice(group[::-1], **best_by(server))
        assert (found.place, mixed.place) == (1, 1)
        assert found.why.startswith("scored 0.")
        assert found.why.endswith("by its length")
        assert (found.requests, found.prompt_tokens, found.sampled_tokens) == (1, 1000, 100)
        assert len(server.requests) == 2, "nothing is kept that would be another's answer"
        told = server.requests[0]["messages"][-1]["content"]
        assert "right_sources" not in told


def test_identical_samples_need_no_judge() -> None:
    with FakeVLLM(chat=says(by_length)) as server:
        found = choice(samples("$5", "$5", likely=(-2, -1)), **best_by(server))
        assert server.requests == []
    assert (found.place, found.requests) == (1, 0)


def test_equal_scores_prefer_an_answer_then_the_likelier_sample() -> None:
    def flat(request: dict[str, Any]) -> dict[str, Any]:
        ids = [each["id"] for each in shown(request)["trajectories"]]
        return {name: {"explanation": "as good", "score": score} for name, score in obey_markup("", ids).items()}

    with FakeVLLM(chat=says(flat)) as server:
        assert choice(samples(NOTHING, "$5", "$7", likely=(0, -2, -1)), **best_by(server)).place == 2


@pytest.mark.parametrize(
    "reply",
    [
        lambda _: "I like the first.",
        lambda _: {"somebody": {"explanation": "e", "score": 1}},
        lambda request: {each["id"]: {"explanation": "e", "score": 7} for each in shown(request)["trajectories"]},
    ],
    ids=["prose", "another id", "out of range"],
)
def test_an_unusable_answer_of_the_judge_chooses_none_and_its_cost_counts(reply: Any) -> None:
    with FakeVLLM(chat=says(reply)) as server:
        found = choice(samples("$5", "$7"), **best_by(server))
    assert "judges.unusable-answer" in found.failed
    assert (found.requests, found.prompt_tokens) == (2, 2000)


def test_a_judge_that_fails_or_stalls_chooses_none() -> None:
    with FakeVLLM(chat=says(by_length)) as server:
        server.inject(status(500), times=None)
        assert "judges.request-failed" in choice(samples("$5", "$7"), **best_by(server, attempts=1)).failed
        server.heal()
        server.inject(stall, times=None)
        slow = choice(samples("$5", "$7"), 0.2, **best_by(server))
        assert "0.2 seconds" in slow.failed
        assert "judges." not in slow.failed, "the time to choose was over, not the judge's own"


@pytest.mark.parametrize(
    ("given_settings", "code", "values"),
    [
        ({"samples": 1}, "rewards.invalid-choice-settings", ["samples: ", "equal to 2"]),
        ({"samples": 65}, "rewards.invalid-choice-settings", ["samples: ", "equal to 64"]),
        ({"samples": 4, "temperature": 0}, "rewards.invalid-choice-settings", ["temperature: ", "greater than 0"]),
        ({"samples": 4, "choose": "worst"}, "rewards.invalid-choice-settings", ["choose: ", "'majority' or 'best'"]),
        ({"samples": 4, "choose": "best"}, "rewards.chooser-missing", []),
        (
            {"samples": 4, "choose": "best", "choose_by": "heuristic"},
            "rewards.chooser-needs-reference",
            ["'heuristic'"],
        ),
        ({"samples": 4, "choose": "best", "choose_by": "openai:m"}, "rewards.chooser-needs-reference", ["'openai'"]),
        ({"samples": 4, "choose": "best", "choose_by": "mrr"}, "rewards.unknown-chooser", ["'mrr'"]),
        (
            {"samples": 4, "choose": "best", "choose_by": "{ruler: {shuffles: 2}}"},
            "judges.invalid-settings",
            ["ruler: model.model: field required"],
        ),
        (
            {"samples": 4, "choose": "best", "choose_by": "{ruler: {model: m, shufles: 2}}"},
            "judges.invalid-settings",
            ["ruler: shufles: extra inputs"],
        ),
        ({"samples": 4, "choose_by": "ruler:m"}, "rewards.cannot-compare", ["'ruler'", "; ruler "]),
        ({"samples": 4, "choose_by": "wise"}, "rewards.cannot-compare", ["'wise'"]),
        ({"samples": 4, "choose_by": "{openai: {modle: x}}"}, "judges.invalid-settings", ["openai: ", "modle: extra"]),
        ({"samples": 4, "sample": 4}, "rewards.invalid-choice-settings", ["sample: extra inputs"]),
        ({"samples": "many"}, "rewards.invalid-choice-settings", ["samples: ", "valid integer"]),
    ],
)
def test_invalid_settings_are_rejected(given_settings: dict[str, Any], code: str, values: list[str]) -> None:
    with raises(code, *values):
        ChoiceSettings.from_mapping(given_settings)


@pytest.mark.parametrize(
    ("choose", "choose_by", "name"),
    [
        ("majority", None, "heuristic"),
        ("majority", '{heuristic: {undecided: "openai:m"}}', "heuristic, undecided by openai:m"),
        ("majority", "{embedding: {model: n, threshold: 0.9}}", "embedding:n over 0.9"),
        ("best", "ruler:m@http://a/v1", "ruler:m"),
        ("best", "{ruler: {model: {model: m, deadline: 9}, shuffles: 1}}", "ruler:m"),
        ("best", "{ruler: {model: m, shuffles: 3, rubric: short}}", "ruler:m rubric=f9b0078b shuffles=3"),
    ],
)
def test_the_name_of_a_choice_has_the_settings_that_change_it(choose: str, choose_by: Any, name: str) -> None:
    given = {"samples": 4, "choose": choose, "choose_by": choose_by}
    made = ChoiceSettings.from_mapping(given)
    assert made is not None
    assert made.judge_name == name


def test_conflicting_options_are_rejected() -> None:
    assert parse_choice_options(4, None, None) is None
    assert parse_choice_options(4, "majority", None) == ChoiceSettings(samples=4)
    for words, code, value in (
        ((4, None, "heuristic", 1.0), "rewards.choice-missing", "--choose-by"),
        ((1, "majority", None, 1.0), "rewards.samples-missing", "2..64"),
        ((4, "majority", None, 0.0), "rewards.greedy-samples", "--samples 4"),
    ):
        with raises(code, value):
            parse_choice_options(*words)


def answer_of(each: Trajectory) -> Answer:
    said = each.record.answer
    success, reason = bool(said), "" if said else "none"
    fields: dict[str, Any] = {"source_ids": (), "sources": (), "steps": (), "policy": "p", "turns": each.turns}
    return Answer(QUESTION, None, DAY, said or "", success=success, reason=reason, seconds=1.0, **fields)


NEVER = math.inf


def run_samples(*outcomes: Trajectory | Exception | float, **told: Any) -> SampledAnswer:
    """Run samples that each return an episode, fail, or take a given number of seconds."""

    async def run(number: int) -> tuple[Answer, Trajectory]:
        outcome = outcomes[number]
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, float):
            await (asyncio.Event().wait() if outcome is NEVER else asyncio.sleep(outcome))
            outcome = samples("late")[0]
        return answer_of(outcome), outcome

    patience = {name: told.pop(name) for name in ("patience", "judge_patience") if name in told}

    async def whole() -> SampledAnswer:
        chosen = ChoiceSettings(samples=len(outcomes), **told)
        chooser = chosen.open_selector()
        try:
            return await answer_with_samples(run, chosen, chooser, (QUESTION, DAY), **patience)
        finally:
            await chooser.aclose()

    return asyncio.run(whole())


def test_the_answer_has_the_cost_of_all_samples() -> None:
    group = samples("$5", "$7", "$7")
    for number, each in enumerate(group, 1):
        each.turns, each.policy_seconds, each.tool_seconds = number, float(number), 0.5
        each.usage = TokenUsage(100 * number, 10 * number)
    found = run_samples(*group)
    assert (found.how, found.answer.answer, found.answer.chosen) == ("chosen", "$7", "2 of 3 samples agree")
    cost = found.answer.cost
    assert cost == Cost(3, 0, 6, 600, 60, 7.5, 3.5)
    for value in ("3 of 3", "6 turns", "600 prompt", "60 sampled", "7.5 s"):
        assert value in cost.summary
    group[0].usage = None
    unknown = run_samples(*group).answer.cost
    assert unknown is not None
    assert (unknown.prompt_tokens, unknown.sampled_tokens) == (None, None)


def test_a_failed_or_late_sample_does_not_fail_the_answer() -> None:
    one, two, three = samples("$5", "$7", "$7")
    gone = PolicyError("inference.server-unreachable", "http://first does not answer")
    found = run_samples(gone, two, NEVER, three, patience=0.05)
    assert (found.answer.answer, found.how) == ("$7", "chosen")
    assert [each.code for each in found.failures] == ["inference.server-unreachable", "rewards.sample-timeout"]
    assert found.answer.cost is not None
    assert (found.answer.cost.samples, found.answer.cost.failed) == (2, 2)
    alone = run_samples(gone, one, gone)
    assert (alone.how, alone.answer.answer) == ("only", "$5")
    assert "of 3" in alone.answer.chosen
    patient = run_samples(0.05, gone, patience=0.001)
    assert (patient.how, patient.answer.answer) == ("only", "late"), "what is late is better than nothing"
    with raises("inference.server-unreachable", "http://first"):
        run_samples(gone, PolicyError("inference.timeout", "http://second does not answer"))
    with pytest.raises(ZeroDivisionError):  # a defect is not a failure of infrastructure
        run_samples(one, ZeroDivisionError("a defect"))


def test_if_the_judge_fails_the_first_sample_with_an_answer_is_used() -> None:
    with FakeVLLM(chat=says(lambda _: "no JSON")) as server:
        found = run_samples(*samples(NOTHING, "$5", "$7"), **best_by(server))
        assert (found.how, found.answer.answer) == ("first", "$5")
        assert "judges.unusable-answer" in found.judge_error
        assert "no JSON" not in found.answer.chosen
        assert found.answer.cost is not None
        assert found.answer.cost.judge_requests == 2
        server.inject(status(401), times=None)  # the key is no longer valid
        assert run_samples(*samples("$5", "$7"), **best_by(server)).how == "first"
        server.heal()
        server.inject(stall, times=None)
        assert run_samples(*samples("$5", "$7"), judge_patience=0.3, **best_by(server)).how == "first"
