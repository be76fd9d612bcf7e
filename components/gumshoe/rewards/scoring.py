"""Judges at work on files: trajectories to score, and labelled answers to measure a judge with."""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gumshoe.artifacts.lines import read_lines
from gumshoe.errors import UsageError, faults_of
from gumshoe.rewards.judge import Judge, JudgeError
from gumshoe.rewards.reward import all_of
from gumshoe.rewards.ruler import GroupScores, Ruler
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.rollouts.writer import read_trajectories
from gumshoe.scenarios.scenario import Scenario
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.terminal import Advance

Thing = TypeVar("Thing")
Result = TypeVar("Result")


class LabelledAnswer(BaseModel):
    """An answer of which somebody has said whether it is right."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    question: str
    reference: str
    query_date: date | None = None
    given: str = Field(alias="answer")
    correct: bool
    kind: str = ""
    """In what way it is right or wrong."""

    @property
    def answer(self) -> str:
        """The reference answer, as judges are asked with."""
        return self.reference


@dataclass(frozen=True, slots=True)
class JudgedTrajectory:
    """One episode's verdict. Without an answer, or with "I don't know", it is wrong and no judge is asked."""

    scenario: str
    sample: int
    answer: str | None
    correct: bool | None
    """None where the judge gave no verdict."""
    why: str
    rule: str = ""


@dataclass(frozen=True, slots=True)
class RulerResult:
    """A group's relative scores, or why it has none."""

    scenario: str
    samples: list[int]
    scores: GroupScores | None
    dropped: str = ""


@dataclass(slots=True)
class Calibration:
    """How a judge does on labelled answers."""

    table: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    """How many by (what they are, what the judge says)."""
    kinds: dict[str, Counter[bool]] = field(default_factory=lambda: defaultdict(Counter))
    """By kind, how many the judge got right, and wrong."""
    mistakes: list[tuple[LabelledAnswer, str]] = field(default_factory=list)
    """With what decided."""
    failures: list[str] = field(default_factory=list)
    """Why answers have no verdict."""

    @property
    def accuracy(self) -> float:
        """The share of verdicts that agree with the label; 0 without any."""
        return sum(count for (is_so, said), count in self.table.items() if is_so == said) / max(1, self.table.total())


async def judge_trajectories(path: Path, scenarios: str, judge: Judge, advance: Advance) -> list[JudgedTrajectory]:
    """[trajectories]: the verdicts on a file's answers.

    Raises:
        UsageError: the file or the scenarios cannot be read, or do not belong together.
    """
    found = list(read_trajectories(path))
    by_id = _scenarios_of(found, scenarios, path)

    return await at_once(lambda each: judge_one(each, by_id[each.scenario], judge), found, advance)


async def judge_one(trajectory: Trajectory, scenario: Scenario, judge: Judge) -> JudgedTrajectory:
    """The verdict on one episode's answer."""
    about, answer = (trajectory.scenario, trajectory.sample), trajectory.record.answer
    if answer is None or trajectory.record.does_not_know:
        ending = trajectory.ending if answer is None else "it does not know"
        return JudgedTrajectory(*about, answer, False, ending, rule=ending)
    try:
        verdict = await judge.verdict(scenario, answer)
    except JudgeError as error:
        return JudgedTrajectory(*about, answer, None, error.message_with_code)
    return JudgedTrajectory(*about, answer, verdict.correct, verdict.why, verdict.rule)


async def score_groups(path: Path, ruler: Ruler, advance: Advance) -> list[RulerResult]:
    """[groups]: the relative scores of a file's groups.

    Raises:
        UsageError: the file cannot be read, or has no group of two.
    """
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    for each in read_trajectories(path):
        groups[each.scenario].append(each)
    if not any(len(group) > 1 for group in groups.values()):
        raise UsageError(
            "judges.no-groups",
            f"{path} has no scenario with 2 or more trajectories; run the rollout with e.g. --samples 4",
        )

    async def scored(group: list[Trajectory]) -> RulerResult:
        samples = [each.sample for each in group]
        try:
            return RulerResult(group[0].scenario, samples, await ruler.scores(group))
        except JudgeError as error:
            return RulerResult(group[0].scenario, samples, None, error.message_with_code)

    whole = [group for group in groups.values() if len(group) > 1]
    return await at_once(scored, whole, advance)


async def calibrate(answers: Sequence[LabelledAnswer], judge: Judge, advance: Advance) -> Calibration:
    """What a judge says of labelled answers, against what they are."""
    found = Calibration()

    async def judged(each: LabelledAnswer) -> tuple[LabelledAnswer, bool | None, str]:
        try:
            verdict = await judge.verdict(each, each.given)
        except JudgeError as error:
            return each, None, error.message_with_code
        return each, verdict.correct, f"{verdict.rule}: {verdict.why}" if verdict.rule else verdict.why

    for each, said, why in await at_once(judged, answers, advance):
        if said is None:
            found.failures.append(why)
            continue
        found.table[each.correct, said] += 1
        found.kinds[each.kind][each.correct == said] += 1
        if each.correct != said:
            found.mistakes.append((each, why))
    return found


def read_labelled(place: str) -> list[LabelledAnswer]:
    """The labelled answers of a JSONL file.

    Raises:
        UsageError: a line is not a labelled answer, or the file has none; the message says which.
    """
    found = []
    for number, line in enumerate(read_lines(place), 1):
        if not line.strip():
            continue
        try:
            found.append(LabelledAnswer.model_validate_json(line))
        except ValidationError as error:
            raise UsageError(
                "judges.invalid-labelled-answer", f"{place}:{number}: not a labelled answer: {faults_of(error)}"
            ) from None
    if not found:
        raise UsageError("judges.no-labelled-answers", f"{place} has no labelled answers")
    return found


def _scenarios_of(found: Iterable[Trajectory], scenarios: str, path: Path) -> dict[str, Scenario]:
    by_id = {each.id: each for each in load_scenarios(scenarios)}
    unknown = next((each.scenario for each in found if each.scenario not in by_id), None)
    if unknown is not None:
        raise UsageError(
            "judges.unknown-scenario",
            f"{path} has an episode of scenario {unknown}, which is not in {scenarios}; name the scenarios file that "
            "was rolled out",
        )
    return by_id


async def at_once(
    work: Callable[[Thing], Awaitable[Result]], things: Sequence[Thing], advance: Advance
) -> list[Result]:
    """[things]: the result for each, at once; how many requests that makes at a time is the judge's to say."""
    advance(total=len(things))

    async def one(thing: Thing) -> Result:
        result = await work(thing)
        advance(1)
        return result

    return await all_of(map(one, things))
