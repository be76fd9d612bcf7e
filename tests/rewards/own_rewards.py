"""Custom reward functions, as in a user's module, some of them defective."""

import asyncio
from collections.abc import Sequence

from gumshoe.rewards.reward import group_reward, reward
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario


@reward
def length(trajectory: Trajectory, scenario: Scenario, *, times: float = 1.0, unit: str) -> float:
    return times * len(f"{trajectory.record.answer}{scenario.id}{unit}")


@reward
async def slow(trajectory: Trajectory, scenario: Scenario) -> float:  # noqa: ARG001
    await asyncio.sleep(0.01)
    return trajectory.sample


@group_reward
def place(group: Sequence[Trajectory], scenario: Scenario) -> list[float]:  # noqa: ARG001
    return [float(number) for number, _ in enumerate(group)]


@group_reward
async def too_few(group: Sequence[Trajectory], scenario: Scenario) -> list[float]:  # noqa: ARG001
    return [1.0] * (len(group) - 1)


@reward
def given(trajectory: Trajectory, scenario: Scenario, *, value: object) -> object:  # noqa: ARG001
    return value


@reward
def divided(trajectory: Trajectory, scenario: Scenario, *, by: int) -> float:  # noqa: ARG001
    return trajectory.turns / by


@reward
def lonely(trajectory: Trajectory) -> float:  # noqa: ARG001
    return 0.0


def undecorated(trajectory: Trajectory, scenario: Scenario) -> float:  # noqa: ARG001
    return 0.0
