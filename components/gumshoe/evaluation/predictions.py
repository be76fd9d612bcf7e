"""What a policy made of each question, in one flat record an episode: all that metrics and comparisons are made of."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gumshoe.artifacts.lines import read_lines
from gumshoe.artifacts.storage import write_atomically
from gumshoe.environments.base import Ending
from gumshoe.errors import UsageError, faults_of
from gumshoe.rewards.scoring import JudgedTrajectory
from gumshoe.rollouts.answer import Cost
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario


class Verdicts(BaseModel):
    """What one judge says of an answer."""

    model_config = ConfigDict(frozen=True)

    judge: str
    correct: bool
    why: str
    rule: str = ""


class ChosenAnswer(BaseModel):
    """How an episode came to be its question's answer, where several were sampled."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    why: str
    correct: tuple[bool, ...]
    """[samples]: what the first judge says of each; those that were not chosen count for nothing else."""
    run_again: int
    """Episodes of the question that were begun again for want of infrastructure."""
    cost: Cost
    """Of all samples, and of choosing."""


class Prediction(BaseModel):
    """One episode of one policy, as `predictions.jsonl` has it: the one that was chosen, where it is one of several."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    policy: str
    """The policy's name in this evaluation."""
    scenario: str
    sample: int
    """Which of the question's episodes this is, from 0."""
    question: str
    kind: str | None
    reference: str
    answer: str | None
    correct: bool
    """What the first judge says."""
    verdicts: tuple[Verdicts, ...]
    """Each judge's, the deciding one first."""
    reward: float
    """By the published ART·E scheme: `rubric` of the reward functions."""
    ending: Ending
    detail: str
    """What was wrong with a call that could not be used."""
    turns: int
    searches: int
    repeated_searches: int
    empty_searches: int
    found: bool
    """A search listed the right source, or all of them where all are needed."""
    read: bool
    """It was read, or all of them were."""
    read_others: int
    """Others that were read."""
    sources: tuple[str, ...]
    """Those given with the answer."""
    right_source: bool
    """The right one is among them, or all are."""
    hallucinated_sources: int
    """Sources given that are not there: in the inbox, or the collection."""
    does_not_know: bool
    prompt_tokens: int | None
    """Of all requests, added up as an endpoint bills them; None where it did not say."""
    sampled_tokens: int | None
    seconds: float
    """In the policy and in the tools."""
    tries: int
    """Episodes that it took; those before this one failed for want of infrastructure."""
    chosen: Annotated[ChosenAnswer | None, Field(exclude_if=lambda each: each is None)] = None
    """Where it was chosen from several samples."""

    @classmethod
    def of(
        cls,
        policy: str,
        scenario: Scenario,
        trajectory: Trajectory,
        verdicts: Sequence[tuple[str, JudgedTrajectory]],
        reward: float,
    ) -> "Prediction":
        """The record of an episode; `verdicts` are by the judges' names, the deciding one first."""
        record, enough = trajectory.record, len(scenario.sources) if scenario.needs_all else 1
        invalid_reads = sum("invalid id" in deeds for deeds in record.deeds)
        usage = trajectory.usage
        return cls(
            policy=policy,
            scenario=scenario.id,
            sample=trajectory.sample,
            question=scenario.question,
            kind=scenario.kind,
            reference=scenario.answer,
            answer=record.answer,
            correct=bool(verdicts[0][1].correct),
            verdicts=tuple(
                Verdicts(judge=name, correct=bool(each.correct), why=each.why, rule=each.rule)
                for name, each in verdicts
            ),
            reward=reward,
            ending=trajectory.ending,
            detail=trajectory.detail,
            turns=trajectory.turns,
            searches=record.searches,
            repeated_searches=record.repeated_searches,
            empty_searches=record.empty_searches,
            found=len(record.found) >= enough,
            read=len(record.read) >= enough,
            read_others=record.read_others,
            sources=tuple(record.sources),
            right_source=len(record.right_sources) >= enough,
            hallucinated_sources=record.invalid_ids - invalid_reads,
            does_not_know=record.does_not_know,
            prompt_tokens=usage.prompt_tokens if usage else None,
            sampled_tokens=usage.completion_tokens if usage else None,
            seconds=trajectory.policy_seconds + trajectory.tool_seconds,
            tries=trajectory.tries,
        )


def by_question(predictions: Iterable[Prediction]) -> dict[str, list[Prediction]]:
    """The episodes of each question, in their order."""
    found: dict[str, list[Prediction]] = defaultdict(list)
    for each in predictions:
        found[each.scenario].append(each)
    return dict(found)


def write_predictions(path: Path, predictions: Iterable[Prediction]) -> None:
    """Write them as JSONL, all or nothing."""
    write_atomically(path, io.BytesIO("".join(f"{each.model_dump_json()}\n" for each in predictions).encode()))


def read_predictions(path: Path) -> list[Prediction]:
    """The predictions of a file.

    Raises:
        UsageError: a line is not a prediction; the message says which.
    """
    found = []
    for number, line in enumerate(read_lines(str(path)), 1):
        try:
            found.append(Prediction.model_validate_json(line))
        except ValidationError as error:
            raise UsageError(
                "evaluation.invalid-prediction", f"{path}:{number}: not a prediction: {faults_of(error)}"
            ) from None
    return found


_COLUMNS = ("answer", "correct", "right_source", "ending", "turns", "searches", "found", "read", "reward", "seconds")


def write_table(path: Path, predictions: Sequence[Prediction]) -> None:
    """Write them as CSV with one row a question and a block of columns a policy.

    Of several episodes of a question the first one's answer and ending are shown, and the means of all else. What a
    spreadsheet would take for a formula begins with an apostrophe (https://owasp.org/www-community/attacks/CSV_Injection).
    """
    policies = list(dict.fromkeys(each.policy for each in predictions))
    rows: dict[str, dict[str, Any]] = {}
    for name in policies:
        for scenario, episodes in by_question(each for each in predictions if each.policy == name).items():
            first = episodes[0]
            row = rows.setdefault(
                scenario,
                {"scenario": scenario, "kind": first.kind, "question": first.question, "reference": first.reference},
            )
            row |= {f"{name}: {column}": _cell(column, episodes) for column in _COLUMNS}
    head = ["scenario", "kind", "question", "reference", *(f"{name}: {each}" for name in policies for each in _COLUMNS)]
    text = io.StringIO()
    writer = csv.DictWriter(text, head)
    writer.writeheader()
    writer.writerows({name: _inert(value) for name, value in row.items()} for row in rows.values())
    write_atomically(path, io.BytesIO(text.getvalue().encode("utf-8-sig")))


def _cell(column: str, episodes: Sequence[Prediction]) -> Any:
    values = [getattr(each, column) for each in episodes]
    if column in ("answer", "ending"):
        return values[0]
    mean = sum(values) / len(values)
    return int(mean) if mean == int(mean) else round(mean, 4)


def _inert(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
