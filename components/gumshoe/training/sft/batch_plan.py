"""Division of demonstrations into steps and passes: a function of the settings and the lengths only."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from gumshoe.errors import UsageError
from gumshoe.training.settings import TrainSettings

_WINDOW = 64  # steps whose demonstrations are sorted by length together


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Division of demonstrations into steps and passes."""

    steps: int
    """Number of optimizer steps."""
    passes: int
    """Passes per step and process."""
    episodes: int
    """Episodes per pass."""
    processes: int

    @property
    def batch(self) -> int:
        """Episodes per optimizer step."""
        return self.passes * self.episodes * self.processes

    @classmethod
    def of(cls, settings: TrainSettings, count: int) -> "BatchPlan":
        """Return the plan for this number of demonstrations.

        Raises:
            UsageError: there are fewer episodes per step than processes.
        """
        wanted, optimizer = settings.warm_start, settings.optimizer
        each = min(wanted.batch_size, count) // optimizer.processes
        if not each:
            raise UsageError(
                "training.batch-too-small",
                f"a step of {min(wanted.batch_size, count)} episodes cannot be split over {optimizer.processes} "
                "processes; lower optimizer.processes, or raise warm_start.batch_size and the number of episodes",
            )
        most = min(each, optimizer.per_device_train_batch_size)
        episodes = next(size for size in range(most, 0, -1) if not each % size)
        steps = math.ceil(wanted.epochs * count / (each * optimizer.processes))
        return cls(steps, each // episodes, episodes, optimizer.processes)


def order_demonstrations(lengths: Sequence[int], batch: int, steps: int, seed: int) -> list[int]:
    """Return which demonstration each place of each step takes: [steps * batch].

    The same arguments give the same order. Every demonstration is used once before any is used again. A step takes
    demonstrations of similar length, to save padding; the longest of the first steps come first, so that a lack of
    memory shows at once.
    """
    rng = random.Random(seed)  # noqa: S311 - nothing secret
    every: list[int] = []
    while len(every) < steps * batch:
        every += rng.sample(range(len(lengths)), len(lengths))
    window = batch * min(_WINDOW, len(lengths) // batch)  # so that few demonstrations occur twice in a window
    ordered: list[int] = []
    for start in range(0, steps * batch, window):
        near = sorted(every[start : min(start + window, steps * batch)], key=lambda each: lengths[each])
        parts = [near[place : place + batch] for place in range(0, len(near), batch)]
        first = [] if ordered else [parts.pop()]
        for part in (*first, *rng.sample(parts, len(parts))):
            ordered += part
    return ordered
