"""Decide if the answer of an episode is correct, also if the question is unanswerable."""

from gumshoe.rewards.judge import Judge
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario


async def is_correct(trajectory: Trajectory, scenario: Scenario, judge: Judge) -> bool:
    """Return True if an episode ended with the right answer.

    That is "I don't know" if the question is unanswerable, and otherwise an answer that the judge accepts. The judge is
    not asked about "I don't know".

    Raises:
        JudgeError: if the judge gives no verdict.
    """
    record = trajectory.record
    if record.answer is None or scenario.unanswerable or record.does_not_know:
        return record.answer is not None and scenario.unanswerable and record.does_not_know
    return (await judge.verdict(scenario, record.answer)).correct
