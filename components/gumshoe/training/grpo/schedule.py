"""Decide which scenarios a training step works on.

Invariant: this depends only on the scenarios, the seed and the step, and on no state. So a resumed run draws the same
scenarios as an uninterrupted one, in any epoch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from gumshoe.scenarios.scenario import Scenario
from gumshoe.synthesis.rng import Rng
from gumshoe.training.records import StepRecord


@dataclass(frozen=True, slots=True)
class Schedule:
    """Draw the scenarios of each step.

    >>> Schedule(scenarios, seed=42, groups=8).draw(step=0)

    Invariant: there are at least as many scenarios as groups per step.
    """

    scenarios: tuple[Scenario, ...]
    seed: int
    groups: int
    """Scenarios per step."""
    keeps_order: bool = False
    """The first epoch has the given order instead of a random one, and replacements from nearby."""

    def draw(self, step: int) -> list[Scenario]:
        """Return the scenarios of a step, [groups]; steps are numbered from 0.

        All steps use every scenario once before any is used again, epoch after epoch. None occurs twice in a step.
        """
        return [self.scenarios[each] for each in self._draw(step)]

    def order(self, step: int) -> list[Scenario]:
        """Return all scenarios in the order in which a step takes them: those that it draws, then replacements.

        The replacements are in random order, except in the first epoch if that keeps the given order: then those of
        the closest steps come first, so that they are about as difficult.
        """
        first = self._draw(step)
        drawn = set(first)
        others = [each for each in range(len(self.scenarios)) if each not in drawn]
        others = Rng(self.seed, "drawn again", step).shuffled(others)
        if self.keeps_order and step * self.groups < len(self.scenarios):
            others.sort(key=lambda each: abs(each // self.groups - step))
        return [self.scenarios[each] for each in (*first, *others)]

    def _draw(self, step: int) -> list[int]:
        count = len(self.scenarios)
        places = range(step * self.groups, (step + 1) * self.groups)
        return [self._epoch_order(place // count)[place % count] for place in places]

    def _epoch_order(self, epoch: int) -> tuple[int, ...]:
        return _epoch_order(len(self.scenarios), self.seed, self.groups, epoch, self.keeps_order)


def find_resting(records: Iterable[StepRecord], last: int, steps: int) -> set[str]:
    """Return the ids of scenarios with a flat group in the last few steps: `steps` of them, up to the step `last`."""
    recent = (each for each in records if each.use == 1 and last - steps < each.step <= last)
    return {scenario for each in recent for scenario in each.scenarios_flat}


@cache
def _epoch_order(count: int, seed: int, groups: int, epoch: int, keeps_order: bool) -> tuple[int, ...]:
    """Return the order of an epoch, [count]. If it starts within a step, it starts with scenarios new to that step."""
    if keeps_order and not epoch:
        return tuple(range(count))
    order = Rng(seed, "epoch", epoch).shuffled(range(count))
    used = epoch * count % groups  # scenarios of the previous epoch in the step that this epoch starts in
    if used:
        before = set(_epoch_order(count, seed, groups, epoch - 1, keeps_order)[-used:])
        first = [each for each in order if each not in before][: groups - used]
        order = [*first, *(each for each in order if each not in set(first))]
    return tuple(order)
