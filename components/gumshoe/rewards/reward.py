"""Define, name and load reward functions. Their settings are validated before a run starts.

A reward function takes a trajectory, or a group of them, and the scenario. It returns one number per trajectory, or NaN
if it does not apply. It may be `async`. The arguments after `*` in its signature are its settings:

    @reward
    def brevity(trajectory: Trajectory, scenario: Scenario, *, longest: int = 100) -> float:
        return 1 - min(len(trajectory.record.answer or ""), longest) / longest

In a configuration, a built-in function is named `brevity`, and a custom one `my_package.rewards:brevity`.
"""

import asyncio
import inspect
import math
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from numbers import Real
from traceback import extract_tb
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from gumshoe.errors import GumshoeError, UsageError
from gumshoe.plugins import import_attribute, parse_named, settings_model, validate_settings
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario

Result = TypeVar("Result")
BUILT_IN = ("gumshoe.rewards.builtin_rewards",)
"""Modules with the built-in reward functions."""


class RewardSettings(BaseModel):
    """Name and settings of a reward function in a configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class RewardFunction:
    """A function decorated with `reward` or `group_reward`."""

    function: Callable[..., Any]
    is_group: bool

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """Call the function."""
        return self.function(*arguments, **settings)

    @property
    def input_count(self) -> int:
        """Number of arguments that are not settings."""
        parameters = inspect.signature(self.function).parameters.values()
        return sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)

    @cached_property
    def settings(self) -> type[BaseModel]:
        """Model of its settings: the arguments after `*`, with their types and defaults."""
        return settings_model(self.function)


def reward(function: Callable[..., Any]) -> RewardFunction:
    """Decorate a function that takes a trajectory and its scenario, and returns a number."""
    return RewardFunction(function, is_group=False)


def group_reward(function: Callable[..., Any]) -> RewardFunction:
    """Decorate a function that takes the trajectories of a group and their scenario, and returns a number for each."""
    return RewardFunction(function, is_group=True)


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward function with its settings."""

    name: str
    function: RewardFunction
    settings: Mapping[str, Any] = field(default_factory=dict)

    async def score(self, group: Sequence[Trajectory], scenario: Scenario) -> list[float]:
        """Return the reward of each trajectory [group]; NaN if it does not apply.

        Raises:
            GumshoeError: if the function fails or returns anything else, which is a defect in it; or its own error.
            UnavailableError: if a judge gave no answer.
        """
        try:
            values = await self._call(group, scenario)
        except GumshoeError:
            raise
        except Exception as error:
            raise GumshoeError(
                "rewards.failed",
                f"the reward {self.name} failed for scenario {scenario.id}: {type(error).__name__}: {error} "
                f"({self._find_line(error)})",
            ) from error
        if len(values) != len(group):
            raise GumshoeError(
                "rewards.wrong-count",
                f"the reward {self.name} returned {len(values)} numbers for a group of {len(group)} trajectories",
            )
        return [self._validate_value(value, scenario) for value in values]

    async def _call(self, group: Sequence[Trajectory], scenario: Scenario) -> list[Any]:
        if self.function.is_group:
            given = await _await_value(self.function(group, scenario, **self.settings))
            return list(given) if isinstance(given, Iterable) else [given]
        return await gather_all(_await_value(self.function(each, scenario, **self.settings)) for each in group)

    def _find_line(self, error: Exception) -> str:
        """Return the file and line of an error: the innermost in the function's module, or the innermost of all."""
        frames = extract_tb(error.__traceback__)
        module = getattr(sys.modules.get(self.function.function.__module__), "__file__", None)
        frame = ([each for each in frames if each.filename == module] or frames)[-1]
        return f"{frame.filename}:{frame.lineno}"

    async def aclose(self) -> None:
        """Close the judges and embedders in its settings."""
        for setting in self.settings.values():
            if hasattr(setting, "aclose"):
                await setting.aclose()
            elif hasattr(setting, "close"):
                setting.close()

    def _validate_value(self, value: Any, scenario: Scenario) -> float:
        if isinstance(value, Real) and not math.isinf(value):
            return float(value)
        raise GumshoeError(
            "rewards.invalid-value",
            f"the reward {self.name} returned {value!r} for an episode of scenario {scenario.id}; return a finite "
            "number, or NaN if the reward does not apply",
        )


async def gather_all(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run coroutines concurrently and return their results in order. If one fails, cancel the others."""
    running = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*running)
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def load_reward(wanted: RewardSettings) -> Reward:
    """Load a reward function with its settings.

    Raises:
        UsageError: if it does not exist, or its settings are wrong. The message lists what exists.
    """
    function = _find_function(wanted.name)
    try:
        settings = function.settings
    except NameError as error:
        raise UsageError(
            "rewards.unresolved-type",
            f"the reward {wanted.name}: {error}; import the types of its settings at run time too",
        ) from None
    what = f"invalid settings of the reward {wanted.name}"
    values = validate_settings(settings, wanted.arguments, "rewards.invalid-settings", what)
    return Reward(wanted.name, function, values)


def load_rewards(wanted: Sequence[RewardSettings]) -> list[Reward]:
    """Load reward functions, with different names (see `number_names`).

    Raises:
        UsageError: as `load_reward`.
    """
    names = number_names([each.name for each in wanted])
    return [replace(load_reward(each), name=name) for each, name in zip(wanted, names, strict=True)]


def number_names(names: Iterable[str]) -> list[str]:
    """Return names with a number after each that was there before.

    >>> number_names(["rubric", "mrr", "rubric"])
    ['rubric', 'mrr', 'rubric#2']
    """
    counts = Counter[str]()
    found = list[str]()
    for name in names:
        counts[name] += 1
        found.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return found


def parse_reward(word: str) -> RewardSettings:
    """Return the name and settings of a reward function on a command line.

    Raises:
        UsageError: if it has another form.
    """
    parsed = parse_named(word, "arguments")
    if parsed is None:
        raise UsageError(
            "rewards.invalid-name",
            f"not a reward: {word!r}; use a name, e.g. exact or my_package.rewards:name, or "
            "{name: NAME, arguments: {SETTING: VALUE}}",
        )
    name, arguments = parsed
    return RewardSettings(name=name, arguments=arguments)


def list_builtin_rewards() -> dict[str, RewardFunction]:
    """Return the built-in reward functions by name."""
    modules = [vars(import_module(module)) for module in BUILT_IN]
    return {name: each for found in modules for name, each in found.items() if isinstance(each, RewardFunction)}


def _find_function(name: str) -> RewardFunction:
    known = list_builtin_rewards()
    if name in known:
        return known[name]
    place, _, attribute = name.rpartition(":")
    if not place:
        raise UsageError(
            "rewards.unknown-reward",
            f"unknown reward {name!r}; use {', '.join(sorted(known))}, or your own as my_package.rewards:name",
        )
    function = import_attribute(f"the reward {name}", place, attribute, "rewards.import-failed")
    if not isinstance(function, RewardFunction):
        raise UsageError(
            "rewards.not-a-reward-function",
            f"{place} has no reward function {attribute!r}; decorate it with gumshoe.rewards.reward.reward or "
            "group_reward",
        )
    if function.input_count != 2:
        raise UsageError(
            "rewards.wrong-signature",
            f"the reward {name} must take 2 arguments before its settings (a trajectory or a group, and the scenario), "
            f"got {function.input_count}",
        )
    return function


async def _await_value(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
