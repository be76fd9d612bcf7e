"""Reward functions: what they are given, how one is named, and how its settings are checked before anything starts.

A reward function is decorated, takes a trajectory and its scenario, or a whole group and its scenario, and gives a
number each: NaN where it does not apply. It may be `async`. What stands after `*` in its signature are its settings:

    @reward
    def brevity(trajectory: Trajectory, scenario: Scenario, *, longest: int = 100) -> float:
        return 1 - min(len(trajectory.record.answer or ""), longest) / longest

In a configuration it is named as `brevity` where Gumshoe has it, and as `my_package.rewards:brevity` elsewhere.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from numbers import Real
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gumshoe.errors import GumshoeError, UsageError
from gumshoe.plugins import checked, faults, imported, settings_of
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario

Result = TypeVar("Result")
BUILT_IN = ("gumshoe.rewards.builtin_rewards",)
"""Modules whose reward functions are named without their module."""


class RewardSettings(BaseModel):
    """A reward function as a configuration names it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class RewardFunction:
    """A function that `reward` or `group_reward` marked."""

    function: Callable[..., Any]
    of_group: bool

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """As the function itself."""
        return self.function(*arguments, **settings)

    @property
    def inputs(self) -> int:
        """How many arguments it takes that are no settings."""
        parameters = inspect.signature(self.function).parameters.values()
        return sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)

    @cached_property
    def settings(self) -> type[BaseModel]:
        """What its settings must be: the arguments after `*`, with their types and defaults."""
        return settings_of(self.function)


def reward(function: Callable[..., Any]) -> RewardFunction:
    """Mark a function of a trajectory and its scenario."""
    return RewardFunction(function, of_group=False)


def group_reward(function: Callable[..., Any]) -> RewardFunction:
    """Mark a function of a group's trajectories and their scenario, which gives a number for each of them."""
    return RewardFunction(function, of_group=True)


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward function with its settings."""

    name: str
    function: RewardFunction
    settings: Mapping[str, Any] = field(default_factory=dict)

    async def of(self, group: Sequence[Trajectory], scenario: Scenario) -> list[float]:
        """[group]: a number each; NaN where it does not apply.

        Raises:
            GumshoeError: the function gave something else, which is a defect in it.
            Exception: whatever it raises; UnavailableError where a judge gave no answer.
        """
        if self.function.of_group:
            given = await _awaited(self.function(group, scenario, **self.settings))
            values = list(given) if isinstance(given, Iterable) else [given]
        else:
            values = await all_of(_awaited(self.function(each, scenario, **self.settings)) for each in group)
        if len(values) != len(group):
            raise GumshoeError(
                "rewards.wrong-count",
                f"the reward {self.name} returned {len(values)} numbers for a group of {len(group)} trajectories",
            )
        return [self._checked(value, scenario) for value in values]

    async def aclose(self) -> None:
        """Close the judges and embedders among its settings."""
        for setting in self.settings.values():
            if hasattr(setting, "aclose"):
                await setting.aclose()
            elif hasattr(setting, "close"):
                setting.close()

    def _checked(self, value: Any, scenario: Scenario) -> float:
        if isinstance(value, Real) and not math.isinf(value):
            return float(value)
        raise GumshoeError(
            "rewards.invalid-value",
            f"the reward {self.name} returned {value!r} for an episode of scenario {scenario.id}; return a finite "
            "number, or NaN if the reward does not apply",
        )


async def all_of(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results in their order; where one fails, the others are stopped."""
    running = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*running)
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def load_reward(wanted: RewardSettings) -> Reward:
    """The reward function of that name, with these settings.

    Raises:
        UsageError: it does not exist, or its settings are wrong; the message says what exists.
    """
    function = _found(wanted.name)
    try:
        settings = function.settings
    except NameError as error:
        raise UsageError(
            "rewards.unresolved-type",
            f"the reward {wanted.name}: {error}; import the types of its settings at run time too",
        ) from None
    try:
        return Reward(wanted.name, function, checked(settings, wanted.arguments))
    except ValidationError as error:
        raise UsageError(
            "rewards.invalid-settings", f"invalid settings of the reward {wanted.name}: {faults(settings, error)}"
        ) from None


def built_in() -> dict[str, RewardFunction]:
    """The reward functions that come with Gumshoe, by name."""
    modules = [vars(import_module(module)) for module in BUILT_IN]
    return {name: each for found in modules for name, each in found.items() if isinstance(each, RewardFunction)}


def _found(name: str) -> RewardFunction:
    known = built_in()
    if name in known:
        return known[name]
    place, _, attribute = name.rpartition(":")
    if not place:
        raise UsageError(
            "rewards.unknown-reward",
            f"unknown reward {name!r}; use {', '.join(sorted(known))}, or your own as my_package.rewards:name",
        )
    function = imported(f"the reward {name}", place, attribute, "rewards.import-failed")
    if not isinstance(function, RewardFunction):
        raise UsageError(
            "rewards.not-a-reward-function",
            f"{place} has no reward function {attribute!r}; decorate it with gumshoe.rewards.reward.reward or "
            "group_reward",
        )
    if function.inputs != 2:
        raise UsageError(
            "rewards.wrong-signature",
            f"the reward {name} must take 2 arguments before its settings (a trajectory or a group, and the scenario), "
            f"got {function.inputs}",
        )
    return function


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
