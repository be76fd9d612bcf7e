"""Which scenarios a step of training works on.

What always holds: it depends on the seed, the step and the draw alone, and on no state; so a run that was stopped goes
on as the undisturbed one would, in whatever epoch.
"""

from dataclasses import dataclass
from functools import cache

from gumshoe.scenarios.scenario import Scenario
from gumshoe.synthesis.rng import Rng


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order of scenarios, from the first step on.

    >>> Schedule(scenarios, seed=42, groups=8).draw(step=0)

    Invariant: there are at least as many scenarios as a step has groups.
    """

    scenarios: tuple[Scenario, ...]
    seed: int
    groups: int
    """Scenarios of a step."""

    def draw(self, step: int, draw: int = 0) -> list[Scenario]:
        """What a step, from 0, works on [groups]; with a later draw, what takes the place of scenarios that taught
        nothing, which may be fewer. A step never has a scenario twice.

        The first draws of all steps go through every scenario before any comes again, epoch after epoch.
        """
        count = len(self.scenarios)
        places = range(step * self.groups, (step + 1) * self.groups)
        first = [_epoch(count, self.seed, self.groups, place // count)[place % count] for place in places]
        if draw:
            left = [each for each in range(count) if each not in set(first)]
            again = Rng(self.seed, "drawn again", step).shuffled(left)
            first = again[(draw - 1) * self.groups : draw * self.groups]
        return [self.scenarios[each] for each in first]


@cache
def _epoch(count: int, seed: int, groups: int, epoch: int) -> tuple[int, ...]:
    """[count]: the order of an epoch. What it begins with is not what the step that it begins in has already."""
    order = Rng(seed, "epoch", epoch).shuffled(range(count))
    begun = epoch * count % groups  # scenarios that the epoch before has in that step
    if begun:
        before = set(_epoch(count, seed, groups, epoch - 1)[-begun:])
        begins = [each for each in order if each not in before][: groups - begun]
        order = [*begins, *(each for each in order if each not in set(begins))]
    return tuple(order)
