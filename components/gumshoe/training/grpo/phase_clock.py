"""Measure what the trainer's time goes to: the phases of optimizer steps, and the tokens that the model reads."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from gumshoe.training.timeline import Interval

Phase = Literal["publishing", "waiting", "preparing", "old", "reference", "forward", "backward", "other"]
"""Phase of a step: publishing the adapter; waiting for episodes; making batches of them; log-probabilities before the
loss, of the policy (old) and of the reference; the forward and the backward pass of the loss; and everything else, e.g.
the optimizer and the records."""


@dataclass(slots=True)
class PhaseClock:
    """Measure the phases of a step. A phase within another one interrupts it, so that no time counts twice."""

    synchronize: Callable[[], None] = lambda: None
    """Waits until the device has done its work, which it does while the program goes on."""
    clock: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of each phase since `start_step`."""
    tokens: Counter[str] = field(default_factory=Counter)
    """Number of tokens that the model has read in each phase."""
    intervals: list[Interval] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    started: float = 0.0
    """Time of the clock when the step began."""
    _since: float = 0.0

    def start_step(self) -> None:
        """Begin a step."""
        self.seconds, self.tokens, self.intervals = {}, Counter(), []
        self.started = self.clock()

    @property
    def step_seconds(self) -> float:
        """Time since the step began."""
        return self.clock() - self.started

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Count the time of a block as a phase."""
        self._change()
        self._open.append(name)
        try:
            yield
        finally:
            self._change()
            self._open.pop()

    def count(self, tokens: int) -> None:
        """Count tokens that the model reads now."""
        self.tokens[self._open[-1] if self._open else "other"] += tokens

    def end_step(self) -> dict[str, float]:
        """Return the time of each phase in the order of `Phase`, in seconds, with the rest of the step as `other`."""
        known = {name: self.seconds[name] for name in Phase.__args__ if name in self.seconds}  # type: ignore[attr-defined]
        return {**known, "other": max(0.0, self.step_seconds - sum(known.values()))}

    def _change(self) -> None:
        """End the interval of the current phase, and begin another one."""
        self.synchronize()
        now = self.clock()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
            self.intervals.append(Interval(name, self._since, now))
        self._since = now
