"""Decide which scenarios a training step works on.

Invariant: this depends only on the scenarios, the seed, the step and the draw, and on no state. So a resumed run draws
the same scenarios as an uninterrupted one, in any epoch.
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
    """The first epoch has the given order instead of a random one."""

    def draw(self, step: int, draw: int = 0) -> list[Scenario]:
        """Return the scenarios of a step, [groups]; steps and draws are numbered from 0.

        The first draws of all steps use every scenario once before any is used again, epoch after epoch. Later draws
        replace scenarios without a learning signal, and may return fewer. No scenario occurs twice in a step.
        """
        count = len(self.scenarios)
        places = range(step * self.groups, (step + 1) * self.groups)
        first = [self._epoch_order(place // count)[place % count] for place in places]
        if draw:
            left = [each for each in range(count) if each not in set(first)]
            again = Rng(self.seed, "drawn again", step).shuffled(left)
            first = again[(draw - 1) * self.groups : draw * self.groups]
        return [self.scenarios[each] for each in first]

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
