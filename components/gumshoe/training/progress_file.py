"""Tell other processes what a run is doing now: a small file that the trainer replaces at most every second."""

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.terminal import Advance

_INTERVAL = 1.0  # seconds
_EPISODES = 8


class RecentEpisode(BaseModel):
    """An episode that was scored."""

    model_config = ConfigDict(frozen=True)

    scenario: str
    question: str
    answer: str
    """Empty if the episode ended without an answer."""
    ending: str
    turns: int
    reward: float


class RunProgress(BaseModel):
    """The current phase, step and newest episodes of a run."""

    model_config = ConfigDict(frozen=True)

    phase: str
    """E.g. `Rollouts for training`."""
    step: int
    """Optimizer step that is worked on, from 1; 0 before the first."""
    steps: int
    """Optimizer steps of the whole run."""
    done: float
    """Finished parts of the phase: episodes or passes."""
    total: float | None
    note: str
    """Speed and failures of rollouts."""
    updated: float
    """Seconds since 1970."""
    episodes: tuple[RecentEpisode, ...] = ()
    """Newest first."""


class ProgressFile:
    """Write the progress of a run. Without a path, it writes nothing.

    Attributes:
        step: optimizer step that is worked on, from 1.
    """

    def __init__(self, path: Path | None = None, steps: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.step = 0
        self._path, self._steps, self._clock = path, steps, clock
        self._written = -_INTERVAL
        self._phase, self._note, self._done = "", "", 0.0
        self._total: float | None = None
        self._episodes: deque[RecentEpisode] = deque(maxlen=_EPISODES)

    def follow(self, phase: str, total: float | None, advance: Advance) -> Advance:
        """Begin a phase, and return a function that reports its progress here and to `advance`."""
        self._phase, self._note, self._done, self._total = phase, "", 0.0, total
        self._write()

        def report(amount: float = 0, *, note: str | None = None, total: float | None = None) -> None:
            advance(amount, note=note, total=total)
            self._done += amount
            self._note = self._note if note is None else note
            self._total = self._total if total is None else total
            if self._clock() - self._written >= _INTERVAL:
                self._write()

        return report

    def add_episodes(self, scenario: Scenario, trajectories: Sequence[Trajectory]) -> None:
        """Add episodes that were scored."""
        for each in trajectories:
            self._episodes.appendleft(
                RecentEpisode(
                    scenario=scenario.id,
                    question=scenario.question,
                    answer=each.record.answer or "",
                    ending=each.ending,
                    turns=each.turns,
                    reward=each.rewards.get("reward", 0.0),
                )
            )

    def _write(self) -> None:
        if self._path is None:
            return
        self._written = self._clock()
        progress = RunProgress(
            phase=self._phase,
            step=self.step,
            steps=self._steps,
            done=self._done,
            total=self._total,
            note=self._note,
            updated=time.time(),
            episodes=tuple(self._episodes),
        )
        partial = self._path.with_name(f".{self._path.name}.partial")
        with suppress(OSError):  # e.g. a full disk, which is no reason to end a run
            partial.write_text(json.dumps(progress.model_dump()), encoding="utf-8")
            partial.replace(self._path)


def read_progress(path: Path) -> RunProgress | None:
    """Read the progress of a run. Return None if the file does not exist or is not valid."""
    try:
        return RunProgress.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
