"""Predictions: one flat record per episode, from which metrics and comparisons are computed."""

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
from gumshoe.errors import UsageError
from gumshoe.model_validation import describe_validation_error
from gumshoe.rewards.scoring import JudgedTrajectory
from gumshoe.rollouts.answer import Cost
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario


class JudgeVerdict(BaseModel):
    """Verdict of one judge on an answer."""

    model_config = ConfigDict(frozen=True)

    judge: str
    correct: bool
    why: str
    rule: str = ""
    is_undecided: bool = False
    """The judge could not decide, so that the answer counts as wrong."""


class ChosenAnswer(BaseModel):
    """Why an episode was chosen among several samples of its question, and the cost of all samples."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    why: str
    correct: tuple[bool, ...]
    """Verdict of the first judge on each sample. Samples that were not chosen have no other effect."""
    run_again: int
    """Number of retries of the question's episodes after failures of infrastructure."""
    cost: Cost
    """Cost of all samples and of the choice."""


class Prediction(BaseModel):
    """One episode of one policy, as a line of `predictions.jsonl`. With `--choose`, it is the chosen sample."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    policy: str
    """Name of the policy in this evaluation."""
    scenario: str
    sample: int
    """Number of the episode among those of its question, from 0."""
    question: str
    kind: str | None
    reference: str
    answer: str | None
    correct: bool
    """Verdict of the first judge."""
    verdicts: tuple[JudgeVerdict, ...]
    """Verdict of each judge, the deciding one first."""
    reward: float
    """Reward by the ART·E rubric (the reward function `rubric`)."""
    ending: Ending
    detail: str
    """Error of the turn that ended the episode; empty if it ended without one."""
    turns: int
    mistakes: int = 0
    """Number of turns without a usable call that were answered with an error."""
    searches: int
    repeated_searches: int
    empty_searches: int
    found: bool
    """Searches listed a correct source, or all of them if all are needed."""
    read: bool
    """A correct source was read, or all of them if all are needed."""
    read_others: int
    """Number of other sources that were read."""
    sources: tuple[str, ...]
    """Ids of the sources given with the answer."""
    right_source: bool
    """A correct source is among them, or all are if all are needed."""
    hallucinated_sources: int
    """Number of given sources that do not exist in the inbox or the collection."""
    does_not_know: bool
    unanswerable: Annotated[bool, Field(exclude_if=lambda each: not each)] = False
    """True if no source has the answer, so that only "I don't know" is correct."""
    prompt_tokens: int | None
    """Sum over all requests, as an endpoint bills them; null if unknown."""
    sampled_tokens: int | None
    seconds: float
    """Seconds in the policy and the tools."""
    tries: int
    """Number of attempts; earlier ones failed because of infrastructure."""
    chosen: Annotated[ChosenAnswer | None, Field(exclude_if=lambda each: each is None)] = None
    """Details of the choice, if it was chosen among several samples."""

    @classmethod
    def from_trajectory(
        cls,
        policy: str,
        scenario: Scenario,
        trajectory: Trajectory,
        verdicts: Sequence[tuple[str, JudgedTrajectory]],
        reward: float,
    ) -> "Prediction":
        """Create the record of an episode. `verdicts` are (judge name, verdict), the deciding judge first."""
        record, enough = trajectory.record, scenario.needed_sources
        invalid_reads = sum("invalid id" in events for events in record.deeds)
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
                JudgeVerdict(
                    judge=name, correct=bool(each.correct), why=each.why, rule=each.rule, is_undecided=each.is_undecided
                )
                for name, each in verdicts
            ),
            reward=reward,
            ending=trajectory.ending,
            detail=trajectory.detail,
            turns=trajectory.turns,
            mistakes=len(trajectory.mistakes),
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
            unanswerable=scenario.unanswerable,
            prompt_tokens=usage.prompt_tokens if usage else None,
            sampled_tokens=usage.completion_tokens if usage else None,
            seconds=trajectory.policy_seconds + trajectory.tool_seconds,
            tries=trajectory.tries,
        )


def group_by_question(predictions: Iterable[Prediction]) -> dict[str, list[Prediction]]:
    """Group predictions by question, in order."""
    found: dict[str, list[Prediction]] = defaultdict(list)
    for each in predictions:
        found[each.scenario].append(each)
    return dict(found)


def write_predictions(path: Path, predictions: Iterable[Prediction]) -> None:
    """Write predictions as JSONL, atomically."""
    write_atomically(path, io.BytesIO("".join(f"{each.model_dump_json()}\n" for each in predictions).encode()))


def read_predictions(path: Path) -> list[Prediction]:
    """Read the predictions of a file.

    Raises:
        UsageError: if a line is not a prediction; the message has its number.
    """
    found = []
    for number, line in enumerate(read_lines(str(path)), 1):
        try:
            found.append(Prediction.model_validate_json(line))
        except ValidationError as error:
            raise UsageError(
                "evaluation.invalid-prediction",
                f"{path}:{number}: not a prediction: {describe_validation_error(error)}",
            ) from None
    return found


_COLUMNS = ("answer", "correct", "right_source", "ending", "turns", "searches", "found", "read", "reward", "seconds")


def write_table(path: Path, predictions: Sequence[Prediction]) -> None:
    """Write predictions as CSV, with one row per question and a block of columns per policy.

    A question with several episodes shows the answer and ending of the first, and the means of the other columns. Text
    that looks like a formula gets an apostrophe in front (https://owasp.org/www-community/attacks/CSV_Injection).
    """
    policies = list(dict.fromkeys(each.policy for each in predictions))
    rows: dict[str, dict[str, Any]] = {}
    for name in policies:
        for scenario, episodes in group_by_question(each for each in predictions if each.policy == name).items():
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
    writer.writerows({name: _escape_formula(value) for name, value in row.items()} for row in rows.values())
    write_atomically(path, io.BytesIO(text.getvalue().encode("utf-8-sig")))


def _cell(column: str, episodes: Sequence[Prediction]) -> Any:
    values = [getattr(each, column) for each in episodes]
    if column in ("answer", "ending"):
        return values[0]
    mean = sum(values) / len(values)
    return int(mean) if mean == int(mean) else round(mean, 4)


def _escape_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
