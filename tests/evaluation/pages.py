"""Create invented evaluations of any size, and their reports."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gumshoe.environments.base import EpisodeState
from gumshoe.environments.registry import open_env
from gumshoe.evaluation.comparison import compare_policies
from gumshoe.evaluation.evaluate import EvaluationRun
from gumshoe.evaluation.evaluation_request import EvaluationRequest, NamedPolicy
from gumshoe.evaluation.metrics import accuracy_by_kind, compute_metrics
from gumshoe.evaluation.predictions import Prediction
from gumshoe.evaluation.report import write_report
from gumshoe.evaluation.results import Agreement, EvaluationResult, JudgeResult
from gumshoe.rewards.scoring import JudgedTrajectory
from gumshoe.rollouts.call_forms import find_form
from gumshoe.rollouts.trajectory import Span, TokenUsage, Trajectory
from gumshoe.rollouts.writer import RolloutOptions
from gumshoe.scenarios.scenario import ScenarioSet
from tests.evaluation.conftest import Place
from tests.evaluation.predictions import evaluation, result
from tests.inference.fake_vllm import encoded, logprobs_of
from tests.rollouts.conversations import call
from tests.scenarios.questions import scenario

SYSTEM = "You answer questions from an inbox. " * 40


def sampled(text: str) -> Span:
    ids = encoded(text)
    return Span("sampled", text, tuple(ids), tuple(logprobs_of(ids)), tuple(find_form("hermes").parse(text, [])))


def injected(text: str) -> Span:
    return Span("injected", text, tuple(encoded(text)))


def listing(number: int, hits: int = 10) -> str:
    """Return a search result that lists message `number` among others."""
    return "\n".join(
        f"2001-05-{day:02d} ann@example.com: Subject {number + day}\n  … what message {number + day} says, in some "
        f"words, and a few more of them …\n  id: <{number + day}@example.com>"
        for day in range(hits)
    )


def episode(number: int, *, correct: bool, policy: str, body: str = "Body", hits: int = 10) -> Trajectory:
    """Return an episode that searches, reads and answers question `number`."""
    source = f"<{number}@example.com>"
    answer = f"Body of message {number}" if correct else "Something else"
    spans = [
        Span("prompt", f"{SYSTEM}What does message {number} say?", tuple(encoded(SYSTEM))),
        sampled(call("search_inbox", keywords=[f"Zoë 漢 {number}"])),
        injected(f"<tool_response>\n{listing(number, hits)}\n</tool_response>"),
        sampled(call("read_email", message_id=source)),
        injected(f"<tool_response>\nFrom: ann\n\n{body}\n</tool_response>"),
        sampled(call("return_final_answer", answer=answer, message_ids=[source])),
    ]
    record = EpisodeState(
        searches=1, found=[source], read=[source], answer=answer, sources=[source], right_sources=[source]
    )
    return Trajectory(f"q{number}", 0, policy, "answer", "", spans, record, 3, 1.0, 0.1, TokenUsage(3000, 90))


def invent_evaluation(
    place: Place,
    questions: int,
    policies: Sequence[tuple[str, int]],
    body: str = "Body",
    doubted: int | None = None,
    **asked: Any,
) -> tuple[EvaluationRun, EvaluationRequest]:
    """Return an evaluation of policies (name, n), each of which errs on every n-th question.

    With `doubted`, there is a second judge that disagrees on every `doubted`-th question.
    """
    scenarios = ScenarioSet.of(
        scenario(number, **{"kind": f"kind {number % 3}", **asked}) for number in range(questions)
    )
    trajectories = {
        name: [episode(number, correct=number % every != 0, policy=name, body=body) for number in range(questions)]
        for name, every in policies
    }
    if questions > 100:  # three special episodes of the last policy: no call, "I don't know", and a wrong source
        unusable, unsure, misled = (trajectories[policies[-1][0]][each] for each in (-10, -5, 5))
        unusable.ending, unusable.record.answer = "no call", None
        unsure.record.answer, unsure.record.does_not_know = "I don't know", True
        misled.record.right_sources = []

    def verdicts(each: Trajectory, number: int, correct: bool) -> list[tuple[str, JudgedTrajectory]]:
        first = JudgedTrajectory(each.scenario, 0, each.record.answer, correct, f"why of {number}: {body}")
        if doubted is None:
            return [("heuristic", first)]
        second = JudgedTrajectory(
            each.scenario, 0, each.record.answer, correct != (number % doubted == 0), f"doubt of {number}"
        )
        return [("heuristic", first), ("exact", second)]

    predictions = [
        Prediction.from_trajectory(
            name, about, each, verdicts(each, number, number % every != 0), 1.0 if number % every else -1.0
        )
        for name, every in policies
        for number, (about, each) in enumerate(zip(scenarios, trajectories[name], strict=True))
    ]
    results = []
    for name, _ in policies:
        own = [each for each in predictions if each.policy == name]
        agreement = None
        if doubted is not None:
            apart = tuple(f"q{number}/0" for number in range(0, questions, doubted))
            agreement = Agreement(
                judges=("heuristic", "exact"),
                answers=questions,
                agreed=questions - len(apart),
                kappa=0.25,
                disagreements=apart,
            )
        changes = {"metrics": compute_metrics(own), "kinds": accuracy_by_kind(own), "agreement": agreement}
        results.append(result(own).model_copy(update=changes))
    judges = tuple(JudgeResult(name=name, usage={}) for name in ("heuristic", "exact")[: 1 + (doubted is not None)])
    comparisons = tuple(compare_policies(each, results[0]) for each in results[1:])
    found: EvaluationResult = evaluation(*results).model_copy(update={"comparisons": comparisons, "judges": judges})
    rollout = RolloutOptions(place.index, str(place.scenarios), "", str(place.tokenizer), "test")
    named = tuple(NamedPolicy(name, "vllm:http://localhost#x") for name, _ in policies)
    world = open_env(place.index)
    return EvaluationRun(found, scenarios, predictions, trajectories, world), EvaluationRequest(rollout, named)


def write_page(path: Path, evaluated: EvaluationRun, settings: EvaluationRequest) -> str:
    """Write the report and return its address."""
    write_report(evaluated, settings, path)
    return path.as_uri()
