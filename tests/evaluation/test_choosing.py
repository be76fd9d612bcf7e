"""Evaluations that choose one of several samples of a question: metrics, costs and stored choices."""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gumshoe.evaluation.attacks.attack_run import AttackedPolicy
from gumshoe.evaluation.evaluation_step import evaluate_policies
from gumshoe.evaluation.predictions import Prediction, read_predictions
from gumshoe.evaluation.results import EvaluationResult, read_result
from gumshoe.inference import policy_names
from gumshoe.inference.policy_names import TINY
from gumshoe.rollouts.writer import read_trajectories
from tests.conftest import CommandResult
from tests.errors import raises
from tests.evaluation.conftest import QUESTIONS, Place
from tests.evaluation.test_commands import chats, options
from tests.inference.fake_vllm import FakeVLLM, chat_turn, next_call
from tests.rewards.chat_judge import late, says, shown
from tests.waiting import Clock

Run = Callable[..., CommandResult]
MAJORITY: dict[str, Any] = {"samples": 4, "choose": "majority"}


def alternating() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a chat model whose answers to a question vary: the first one and every third one after it are wrong."""
    lock, given = threading.Lock(), Counter[int]()

    def chat(request: dict[str, Any]) -> dict[str, Any]:
        results = [each["content"] for each in request["messages"] if each["role"] == "tool"]
        asked = next(each["content"] for each in request["messages"] if each["role"] == "user")
        name, arguments = next_call(asked, results)
        number = int(re.findall(r"\d+", asked)[-1])
        if name == "return_final_answer":
            with lock:
                place, given[number] = given[number], given[number] + 1
            if place % 3 == 0:
                arguments = {"answer": f"Guess {place} about it", "message_ids": []}
        turn = chat_turn(None, (name, json.dumps(arguments)), call=f"call-{len(results)}")
        return turn | {"usage": {"prompt_tokens": 500, "completion_tokens": 50, "total_tokens": 550}}

    return chat


def prefer_bodies(request: dict[str, Any]) -> dict[str, Any]:
    """Score a group as a judge that prefers answers with the text of a message."""
    return {
        each["id"]: {"explanation": "e", "score": 0.9 if "Body of message" in json.dumps(each["turns"][-2]) else 0.1}
        for each in shown(request)["trajectories"]
    }


def predictions(directory: Path) -> list[Prediction]:
    return read_predictions(directory / "predictions.jsonl")


@pytest.mark.ci
def test_the_majority_is_measured_with_its_cost(run: Run, place: Place, tmp_path: Path) -> None:
    with FakeVLLM(chat=alternating()) as server:
        policy = f"old=chat:base@{server.address}/v1"
        ran = run(*options(place, tmp_path / "e", policy, **MAJORITY, price="1/10"))
        assert ran.status == 0, ran.err
        asked = len(server.requests)
        again = run(*options(place, tmp_path / "e", policy, **MAJORITY, price="1/10"))
        assert (again.status, len(server.requests)) == (0, asked)
    assert asked == 4 * 3 * QUESTIONS
    result, found = read_result(str(tmp_path / "e"))
    assert result.choice is not None
    assert (result.choice.way, result.choice.by, result.samples) == ("majority", "heuristic", 4)
    assert result.settings["temperature"] == 1
    assert found.episodes == 4 * QUESTIONS
    metrics = {name: each.value for name, each in found.metrics.items()}
    assert (metrics["accuracy"], metrics["one_sample"], metrics["any_sample"]) == (1, 0.5, 1)
    assert (metrics["all_turns"], metrics["turns"]) == (12, 3)
    assert (metrics["all_prompt_tokens"], metrics["all_sampled_tokens"]) == (6000, 600)
    assert (metrics["judge_requests"], metrics["judge_tokens"]) == (0, 0)
    assert metrics["cost_per_1000"] == pytest.approx((6000 * 1 + 600 * 10) / 1000)
    assert "pass@2" not in metrics
    own = predictions(tmp_path / "e")
    assert [each.scenario for each in own] == [f"q{number}" for number in range(1, QUESTIONS + 1)]
    assert {each.chosen.why for each in own if each.chosen} == {"2 of 4 samples agree"}
    assert sum(each.chosen.cost.turns for each in own if each.chosen) == 12 * QUESTIONS
    whole = list(read_trajectories(tmp_path / "e" / "trajectories" / "old.jsonl"))
    spent = sum(each.policy_seconds + each.tool_seconds for each in whole)
    assert metrics["all_seconds"] == pytest.approx(spent / QUESTIONS)
    assert metrics["all_seconds"] > metrics["longest_seconds"] > 0
    page = (tmp_path / "e" / "report.html").read_text(encoding="utf-8")
    bought = result.describe_choice(found)
    for value in ("old: ", "majority of 4 samples", "heuristic", "100.0%", "50.0%"):
        assert value in bought
    assert bought in ran.out
    assert bought in page


@pytest.mark.ci
def test_attacks_are_compared_with_single_samples(
    run: Run, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attacked question has one sample, so the chosen one of several would make attacks look worse than they are."""
    attacked = list[AttackedPolicy]()

    class NoAttacks:
        provenance: ClassVar[dict[str, Any]] = {}

        def __init__(self, *_: object) -> None:
            pass

        async def run(self, policies: list[AttackedPolicy]) -> dict[str, Any]:
            attacked.extend(policies)
            return {}

        async def aclose(self) -> None:
            pass

    monkeypatch.setattr("gumshoe.evaluation.evaluate.AttackRun", NoAttacks)
    with FakeVLLM(chat=alternating()) as server:
        policy = f"old=chat:base@{server.address}/v1"
        ran = run(*options(place, tmp_path / "e", policy, **MAJORITY, attacks="held-out"))
    assert ran.status == 0, ran.err
    assert read_result(str(tmp_path / "e"))[1].metrics["accuracy"].value == 1
    (found,) = attacked
    assert set(found.accuracy.values()) == {0.5}
    assert {each.sample for each in found.clean.values()} == {0}


def test_without_a_choice_the_results_do_not_mention_one(
    run: Run, place: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    assert run(*options(place, tmp_path / "e", *chats(server))).status == 0
    for name in ("metrics.json", "predictions.jsonl", "report.html"):
        text = (tmp_path / "e" / name).read_text(encoding="utf-8")
        assert not re.search(r'all_turns|one_sample|"choice":|"chosen":|"costs":|class="bought"', text), name
    assert not (tmp_path / "e" / "choices").exists()


@pytest.mark.ci
def test_compare_allows_different_sample_counts_and_the_gate_does_not(run: Run, place: Place, tmp_path: Path) -> None:
    with FakeVLLM(chat=alternating()) as server:
        policy = f"old=chat:base@{server.address}/v1"
        assert run(*options(place, tmp_path / "one", policy)).status == 0
    with FakeVLLM(chat=alternating()) as server:
        policy = f"old=chat:base@{server.address}/v1"
        assert run(*options(place, tmp_path / "four", policy, **MAJORITY)).status == 0
        assert run(*options(place, tmp_path / "each", policy, samples=4)).status == 0
    ran = run("compare", tmp_path / "four", tmp_path / "one")
    assert ran.status == 0, ran.err
    assert "12 won, 0 lost" in ran.out
    assert "12.00 vs. 3.00 turns (4.0 times)" in ran.out
    assert "600.00 vs. 150.00 sampled tokens (4.0 times)" in ran.out
    told = json.loads(run("compare", tmp_path / "one", tmp_path / "four", "--json").out)
    assert told["costs"]["sampled_tokens"] == {"candidate": 150, "baseline": 600, "ratio": 0.25}
    assert told["costs"]["judge_requests"] == {"candidate": 0, "baseline": 0, "ratio": None}
    refused = run("gate", "--candidate", tmp_path / "four", "--baseline", tmp_path / "one")
    assert (refused.status, refused.code) == (2, "gate.other-sample-count"), refused.err
    assert "4 and 1" in refused.err
    refused = run("compare", tmp_path / "each", tmp_path / "one")  # several answers per question
    assert (refused.status, refused.code) == (2, "gate.other-sample-count"), refused.err
    assert "4 and 1" in refused.err
    refused = run("gate", "--candidate", tmp_path / "four", "--baseline", tmp_path / "each")
    assert (refused.status, refused.code) == (2, "gate.other-choice"), refused.err
    assert "majority by heuristic" in refused.err


@pytest.mark.ci
def test_choices_of_a_judge_are_stored_and_missing_ones_are_requested_again(
    run: Run, place: Place, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with FakeVLLM(chat=alternating()) as server, FakeVLLM(chat=says(prefer_bodies)) as judge:
        model = (
            f"{{model: base, url: '{judge.address}/v1', attempts: 1, concurrency: 1, deadline: 600, prompt_price: 2}}"
        )
        words = options(place, tmp_path / "e", f"old=chat:base@{server.address}/v1", samples=4, choose="best")
        words += ["--choose-by", f"{{ruler: {{model: {model}}}}}", "--price", "1/10"]
        judge.inject(late(clock, 601), times=None, after=QUESTIONS - 2)
        ran = run(*words)
        assert (ran.status, ran.code) == (75, "evaluation.choices-missing"), ran.err
        for value in ("2 questions", "ruler:base", "sample of old", "[judges.timeout]"):
            assert value in ran.err
        assert not (tmp_path / "e" / "metrics.json").exists()
        judge.heal()
        answered, judged = len(server.requests), len(judge.requests)
        first = run(*words)
        assert first.status == 0, first.err
        assert (len(server.requests), len(judge.requests)) == (answered, judged + 2)
        metrics = (tmp_path / "e" / "metrics.json").read_bytes()
        assert run(*words).status == 0
        assert len(judge.requests) == judged + 2
        assert (tmp_path / "e" / "metrics.json").read_bytes() == metrics, "the cost of stored choices is kept"
        _, found = read_result(str(tmp_path / "e"))
        # Another method uses the same samples, but its own choices.
        majority = options(place, tmp_path / "e", f"old=chat:base@{server.address}/v1", **MAJORITY)
        assert run(*majority).status == 0
        assert (len(server.requests), len(judge.requests)) == (answered, judged + 2)
        result, other = read_result(str(tmp_path / "e"))
    values = {name: each.value for name, each in found.metrics.items()}
    assert (values["accuracy"], values["one_sample"]) == (1, 0.5)
    assert (values["judge_requests"], values["judge_tokens"]) == (1, 1100)
    assert values["cost_per_1000"] == pytest.approx((6000 * 1 + 600 * 10) / 1000 + 1000 * 1000 * 2 / 1e6)
    assert result.choice is not None
    assert (result.choice.way, other.metrics["judge_requests"].value) == ("majority", 0)


@pytest.mark.parametrize(
    ("changes", "code", "value"),
    [
        ({"choose": "majority"}, "rewards.samples-missing", "2..64"),
        ({"choose": "majority", "samples": 65}, "rewards.invalid-choice-settings", "equal to 64"),
        ({"choose": "majority", "samples": 4, "temperature": 0}, "rewards.greedy-samples", "--samples 4"),
        ({"choose": "best", "samples": 4}, "rewards.chooser-missing", "ruler:MODEL"),
        ({"choose": "best", "samples": 4, "choose_by": "heuristic"}, "rewards.chooser-needs-reference", "'heuristic'"),
        ({"choose": "some", "samples": 4}, "rewards.invalid-choice-settings", "'majority' or 'best'"),
        ({"choose_by": "ruler:m", "samples": 4}, "rewards.choice-missing", "--choose-by"),
    ],
)
def test_invalid_choices_are_rejected_before_any_request(
    changes: dict[str, Any], code: str, value: str, run: Run, place: Place, tmp_path: Path
) -> None:
    ran = run(*options(place, tmp_path / "e", "a=chat:base@http://127.0.0.1:9", **changes))
    assert (ran.status, ran.code) == (2, code), ran.err
    assert value in ran.err
    assert not (tmp_path / "e").exists()


@pytest.mark.nightly
def test_samples_of_the_tiny_policy_are_reproducible_and_costs_add_up(run: Run, place: Place, tmp_path: Path) -> None:
    given = {**MAJORITY, "limit": 2, "max_turns": 3, "max_tokens": 48, "max_context": 8192}
    found: list[EvaluationResult] = []
    for name in ("a", "b"):
        ran = run(*options(place, tmp_path / name, f"tiny=transformers:{TINY}", **given))
        assert ran.status == 0, ran.err
        found.append(read_result(str(tmp_path / name))[0])
        episodes = list(read_trajectories(tmp_path / name / "trajectories" / "tiny.jsonl"))
        assert len(episodes) == 8
        costs = [each.chosen.cost for each in predictions(tmp_path / name) if each.chosen]
        assert [each.samples for each in costs] == [4, 4]
        assert sum(each.turns for each in costs) == sum(each.turns for each in episodes)
        assert sum(each.sampled_tokens or 0 for each in costs) == sum(each.sampled_tokens for each in episodes)
        assert sum(each.seconds for each in costs) == pytest.approx(
            sum(each.policy_seconds + each.tool_seconds for each in episodes)
        )
        texts = {"".join(span.text for span in each.spans) for each in episodes if each.scenario == "q1"}
        assert len(texts) > 1, "at temperature 1 samples differ"
    assert found[0].policies[0].correct_map == found[1].policies[0].correct_map
    one, other = (
        [(each.sample, each.answer, each.chosen.why if each.chosen else "") for each in predictions(tmp_path / name)]
        for name in ("a", "b")
    )
    assert one == other


@pytest.mark.ci
def test_a_pipeline_step_measures_the_configured_choice(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        policy_names, "is_vllm_installed", lambda: False
    )  # without vLLM the policy runs in this process
    asked = tmp_path / "asked"
    asked.mkdir()
    lines = place.scenarios.read_text(encoding="utf-8").splitlines()[:2]
    (asked / "scenarios.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    limits = {"max_turns": 3.0, "max_tokens": 60.0}  # Kubeflow passes all numbers as floats
    choice = {"samples": 3, "choose": "majority", "temperature": 0.7}
    e, page = tmp_path / "e", tmp_path / "page.html"
    found = evaluate_policies(place.index, asked, "tiny", {}, "heuristic", limits, e, page, choice)
    assert (found.episodes, len(found.correct_map)) == (6, 2)
    result, _ = read_result(str(tmp_path / "e"))
    assert result.settings["temperature"] == 0.7
    assert "majority of 3 samples" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "limits", [{"max_turns": 0}, {"max_tokens": 60.5}, {"max_turns": True}, {"max_tokens": "60"}, {"turns": 3}]
)
def test_a_pipeline_step_rejects_invalid_limits(limits: dict[str, object], tmp_path: Path) -> None:
    with raises("evaluation.invalid-limits", next(iter(limits))):
        evaluate_policies(tmp_path, tmp_path, "tiny", {}, "heuristic", limits, tmp_path / "e", tmp_path / "page.html")
