"""Run judges and rewards on files: score trajectories, and calibrate a judge on labelled answers."""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import chain
from math import sqrt
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gumshoe.artifacts.lines import read_lines
from gumshoe.errors import UsageError
from gumshoe.model_validation import describe_validation_error
from gumshoe.rewards.judge import Judge, JudgeError, Verdict
from gumshoe.rewards.reward import Reward, gather_all
from gumshoe.rewards.ruler import GroupScores, Ruler
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.rollouts.writer import read_trajectories
from gumshoe.scenarios.scenario import Scenario
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.terminal import Advance

_Z = 1.959964  # of a normal distribution, two-sided 95 %
Thing = TypeVar("Thing")
Result = TypeVar("Result")


class LabelledAnswer(BaseModel):
    """An answer with a human label."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    question: str
    reference: str
    query_date: date | None = None
    given: str = Field(alias="answer")
    correct: bool
    kind: str = ""
    """Kind of correct or wrong answer."""

    @property
    def answer(self) -> str:
        """The reference answer, as in `JudgedQuestion`."""
        return self.reference


@dataclass(frozen=True, slots=True)
class JudgedTrajectory:
    """Verdict on one episode.

    No answer is wrong without asking the judge. So is "I don't know", unless the question is unanswerable: then it is
    right, and every other answer is wrong.
    """

    scenario: str
    sample: int
    answer: str | None
    correct: bool | None
    """None if the judge gave no verdict."""
    why: str
    rule: str = ""
    is_undecided: bool = False
    """The judge could not decide, so that the answer counts as wrong."""


@dataclass(frozen=True, slots=True)
class RewardedTrajectory:
    """Rewards of one episode."""

    scenario: str
    sample: int
    rewards: dict[str, float]
    """Value by reward function; NaN if it does not apply."""


@dataclass(frozen=True, slots=True)
class RulerResult:
    """Scores of a group, or the reason why it has none."""

    scenario: str
    samples: list[int]
    scores: GroupScores | None
    dropped: str = ""


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of answers, with its 95 % confidence interval by Wilson."""

    count: int
    of: int

    @property
    def share(self) -> float:
        """Share in [0, 1]; 0 without answers."""
        return self.count / self.of if self.of else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper bound in [0, 1]; (0, 1) without answers."""
        if not self.of:
            return 0.0, 1.0
        squared = _Z * _Z / self.of
        centre = (self.share + squared / 2) / (1 + squared)
        half = _Z / (1 + squared) * sqrt(self.share * (1 - self.share) / self.of + squared / (4 * self.of))
        return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(slots=True)
class Calibration:
    """Results of a judge on labelled answers."""

    table: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    """Confusion matrix: counts by (label, verdict). Undecided answers count as wrong."""
    undecided: Counter[bool] = field(default_factory=Counter)
    """Counts of answers that the judge could not decide, by label. They are also in the confusion matrix, as wrong."""
    kinds: dict[str, Counter[bool]] = field(default_factory=lambda: defaultdict(Counter))
    """Counts of correct (True) and wrong (False) verdicts, by kind of answer."""
    mistakes: list[tuple[LabelledAnswer, str]] = field(default_factory=list)
    """Answers with a wrong verdict, and the reason for it."""
    failures: list[str] = field(default_factory=list)
    """Errors of the answers without a verdict."""

    @property
    def rates(self) -> dict[str, Rate]:
        """Rates of `false acceptances` (of wrong answers), `false refusals` (of right ones) and `undecided` (of all).

        An undecided answer is not a false refusal.
        """
        wrong = sum(self.table[False, verdict] for verdict in (True, False))
        right = sum(self.table[True, verdict] for verdict in (True, False))
        return {
            "false acceptances": Rate(self.table[False, True], wrong),
            "false refusals": Rate(self.table[True, False] - self.undecided[True], right),
            "undecided": Rate(self.undecided.total(), wrong + right),
        }

    @property
    def accuracy(self) -> float:
        """Share of verdicts that agree with the label; 0 without verdicts."""
        correct = sum(count for (label, verdict), count in self.table.items() if label == verdict)
        return correct / max(1, self.table.total())


async def judge_trajectories(path: Path, scenarios: str, judge: Judge, advance: Advance) -> list[JudgedTrajectory]:
    """Return the verdicts on the answers of a file [trajectories].

    Raises:
        UsageError: if the file or the scenarios cannot be read, or do not belong together.
    """
    found = list(read_trajectories(path))
    by_id = _scenarios_of(found, scenarios, path)

    return await map_concurrently(lambda each: judge_trajectory(each, by_id[each.scenario], judge), found, advance)


async def judge_trajectory(trajectory: Trajectory, scenario: Scenario, judge: Judge) -> JudgedTrajectory:
    """Return the verdict on one episode's answer."""
    about, answer = (trajectory.scenario, trajectory.sample), trajectory.record.answer
    if answer is None or trajectory.record.does_not_know:
        ending = trajectory.ending if answer is None else "it does not know"
        is_right = scenario.unanswerable and trajectory.record.does_not_know
        return JudgedTrajectory(*about, answer, is_right, ending, rule=ending)
    if scenario.unanswerable:
        return JudgedTrajectory(*about, answer, False, "the question is unanswerable", rule="unanswerable")
    try:
        verdict = await judge.verdict(scenario, answer)
    except JudgeError as error:
        return JudgedTrajectory(*about, answer, None, error.message_with_code)
    return JudgedTrajectory(*about, answer, verdict.correct, verdict.why, verdict.rule, verdict.is_undecided)


async def reward_trajectories(
    path: Path, scenarios: str, rewards: Sequence[Reward], advance: Advance
) -> list[RewardedTrajectory]:
    """Return the rewards of a file's trajectories, as training computes them: for all trajectories of a scenario.

    Raises:
        UsageError: if the file or the scenarios cannot be read, or do not belong together.
        UnavailableError: if a judge gave no answer.
        GumshoeError: if a reward function fails.
    """
    found = list(read_trajectories(path))
    by_id = _scenarios_of(found, scenarios, path)
    groups = _group_by_scenario(found)

    async def score(group: list[Trajectory]) -> list[RewardedTrajectory]:
        columns = {each.name: await each.score(group, by_id[group[0].scenario]) for each in rewards}
        return [
            RewardedTrajectory(each.scenario, each.sample, {name: values[row] for name, values in columns.items()})
            for row, each in enumerate(group)
        ]

    return list(chain.from_iterable(await map_concurrently(score, groups, advance)))


async def score_groups(path: Path, ruler: Ruler, advance: Advance) -> list[RulerResult]:
    """Return the relative scores of a file's groups [groups]. Groups of one trajectory are ignored.

    Raises:
        UsageError: if the file cannot be read, or has no group of 2 or more.
    """
    groups = [group for group in _group_by_scenario(read_trajectories(path)) if len(group) > 1]
    if not groups:
        raise UsageError(
            "judges.no-groups",
            f"{path} has no scenario with 2 or more trajectories; run the rollout with e.g. --samples 4",
        )

    async def score(group: list[Trajectory]) -> RulerResult:
        samples = [each.sample for each in group]
        try:
            return RulerResult(group[0].scenario, samples, await ruler.scores(group))
        except JudgeError as error:
            return RulerResult(group[0].scenario, samples, None, error.message_with_code)

    return await map_concurrently(score, groups, advance)


async def calibrate(answers: Sequence[LabelledAnswer], judge: Judge, advance: Advance) -> Calibration:
    """Compare a judge's verdicts with the labels of answers."""
    found = Calibration()

    async def judge_answer(each: LabelledAnswer) -> tuple[LabelledAnswer, Verdict | None, str]:
        try:
            verdict = await judge.verdict(each, each.given)
        except JudgeError as error:
            return each, None, error.message_with_code
        return each, verdict, f"{verdict.rule}: {verdict.why}" if verdict.rule else verdict.why

    for each, verdict, why in await map_concurrently(judge_answer, answers, advance):
        if verdict is None:
            found.failures.append(why)
            continue
        found.table[each.correct, verdict.correct] += 1
        found.undecided[each.correct] += verdict.is_undecided
        found.kinds[each.kind][each.correct == verdict.correct] += 1
        if each.correct != verdict.correct:
            found.mistakes.append((each, f"undecided; {why}" if verdict.is_undecided else why))
    return found


def read_labelled(place: str) -> list[LabelledAnswer]:
    """Read the labelled answers of a JSONL file.

    Raises:
        UsageError: if a line is not a labelled answer, or the file has none.
    """
    found = []
    for number, line in enumerate(read_lines(place), 1):
        if not line.strip():
            continue
        try:
            found.append(LabelledAnswer.model_validate_json(line))
        except ValidationError as error:
            raise UsageError(
                "judges.invalid-labelled-answer",
                f"{place}:{number}: not a labelled answer: {describe_validation_error(error)}",
            ) from None
    if not found:
        raise UsageError("judges.no-labelled-answers", f"{place} has no labelled answers")
    return found


def _group_by_scenario(trajectories: Iterable[Trajectory]) -> list[list[Trajectory]]:
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    for each in trajectories:
        groups[each.scenario].append(each)
    return list(groups.values())


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


async def map_concurrently(
    work: Callable[[Thing], Awaitable[Result]], things: Sequence[Thing], advance: Advance
) -> list[Result]:
    """Apply `work` to all things concurrently, and return the results in order. The judge limits its own requests."""
    advance(total=len(things))

    async def one(thing: Thing) -> Result:
        result = await work(thing)
        advance(1)
        return result

    return await gather_all(map(one, things))
