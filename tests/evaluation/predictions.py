"""Create predictions with simple defaults, and results from them."""

from collections.abc import Sequence
from typing import Any

from gumshoe.evaluation.metrics import UNUSABLE, Estimate
from gumshoe.evaluation.predictions import JudgeVerdict, Prediction, group_by_question
from gumshoe.evaluation.results import EvaluationResult, JudgeResult, PolicyResult
from gumshoe.scenarios.scenario import ScenarioRecord


def prediction(number: int, **fields: Any) -> Prediction:
    """Return an episode of question `number`, by default answered correctly in three turns."""
    correct = fields.get("correct", True)
    plain: dict[str, Any] = {
        "policy": "p",
        "scenario": f"q{number}",
        "sample": 0,
        "question": f"What does message {number} say?",
        "kind": None,
        "reference": f"Body of message {number}",
        "answer": f"Body of message {number}" if correct else "Something else",
        "correct": correct,
        "verdicts": (JudgeVerdict(judge="heuristic", correct=correct, why="because"),),
        "reward": 1.0 if correct else -1.0,
        "ending": "answer",
        "detail": "",
        "turns": 3,
        "searches": 1,
        "repeated_searches": 0,
        "empty_searches": 0,
        "found": True,
        "read": True,
        "read_others": 0,
        "sources": (f"<{number}@example.com>",),
        "right_source": True,
        "hallucinated_sources": 0,
        "does_not_know": False,
        "prompt_tokens": 1000,
        "sampled_tokens": 100,
        "seconds": 2.0,
        "tries": 1,
    }
    return Prediction.model_validate({**plain, **fields})


def answers(pattern: str, policy: str = "p", **fields: Any) -> list[Prediction]:
    """Return one episode per character of a pattern; + means correct."""
    return [prediction(number, correct=sign == "+", policy=policy, **fields) for number, sign in enumerate(pattern)]


def result(predictions: Sequence[Prediction]) -> PolicyResult:
    """Return the result of one policy, with the metrics that comparisons and gates use."""
    questions = group_by_question(predictions)
    unusable = sum(each.ending in UNUSABLE for each in predictions) / len(predictions)
    return PolicyResult(
        name=predictions[0].policy,
        policy="vllm:http://localhost",
        version="v",
        environment={"name": "email"},
        is_unseen=True,
        episodes=len(predictions),
        run_again=0,
        metrics={"unusable": Estimate(value=unusable, low=0, high=1, questions=len(questions))},
        kinds={},
        control_reward_map={asked: tuple(one.reward for one in group) for asked, group in questions.items()},
        correct_map={asked: tuple(one.correct for one in group) for asked, group in questions.items()},
    )


def evaluation(*policies: PolicyResult, content: str = "c", is_whole: bool = True) -> EvaluationResult:
    """Return an evaluation of these policies."""
    return EvaluationResult(
        scenarios=ScenarioRecord(
            content=content, ids=tuple(policies[0].correct_map), questions=tuple(policies[0].correct_map)
        ),
        index="i",
        split="test",
        is_whole=is_whole,
        samples=1,
        settings={"temperature": 0.0},
        judges=(JudgeResult(name="heuristic", usage={}),),
        policies=policies,
    )
