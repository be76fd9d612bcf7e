"""Say when a canary is promoted and when it is rolled back."""

from dataclasses import dataclass, replace

from gumshoe.cluster.canary_conditions import (
    DEFAULT_CONDITION,
    NEVER,
    Condition,
    allow_tolerance,
    count_alternatives,
    default_rollback,
    parse_condition,
    without_measure,
)
from gumshoe.errors import UsageError

SECONDS, MIN_EPISODES, CONFIDENCE, EVERY = 7200.0, 100, 0.95, 30.0
"""Defaults of a `WatchPlan`."""


@dataclass(frozen=True, slots=True)
class WatchPlan:
    """When to promote and when to roll back a canary."""

    promote_when: Condition
    rollback_when: Condition
    seconds: float
    """How long to watch."""
    min_episodes: int
    """Minimum number of questions that each of the two adapters must have answered before a promotion."""
    confidence: float
    every: float
    """Seconds between two looks."""
    is_default: bool
    """True if the user named no condition, so that measures which the servers lack are left out."""

    @classmethod
    def of(
        cls,
        promote_when: str | None,
        rollback_when: str | None,
        *,
        seconds: float | None = None,
        min_episodes: int | None = None,
        confidence: float | None = None,
        every: float | None = None,
    ) -> "WatchPlan":
        """Parse the conditions, and take the default of each option that is None.

        Raises:
            UsageError: if one is not a condition, or both can never hold, or an option is out of its range.
        """
        wanted = parse_condition(DEFAULT_CONDITION if promote_when is None else promote_when)
        rollback = default_rollback(wanted) if rollback_when is None else parse_condition(rollback_when)
        made = cls(
            allow_tolerance(wanted),
            rollback,
            SECONDS if seconds is None else seconds,
            MIN_EPISODES if min_episodes is None else min_episodes,
            CONFIDENCE if confidence is None else confidence,
            EVERY if every is None else every,
            promote_when is None,
        )
        if not (count_alternatives(made.promote_when) or count_alternatives(made.rollback_when)):
            raise UsageError(
                "deploy.nothing-to-watch-for", f"both conditions are `{NEVER}`; leave one out for its default"
            )
        if not 0.5 <= made.confidence < 1:
            raise UsageError(
                "deploy.invalid-confidence",
                f"the confidence must be at least 0.5 and below 1, got {made.confidence:g}; write e.g. 0.95",
            )
        return made

    @property
    def error(self) -> float:
        """Probability of a wrong decision of each kind."""
        return 1 - self.confidence

    def since(self, seconds: float) -> "WatchPlan":
        """Return the plan for the rest of a watch that began `seconds` ago."""
        return replace(self, seconds=max(0.0, self.seconds - seconds))

    def without(self, measure: str) -> "WatchPlan":
        """Return the plan without the comparisons of a measure."""
        promote_when, rollback_when = (
            without_measure(each, measure) for each in (self.promote_when, self.rollback_when)
        )
        return replace(self, promote_when=promote_when, rollback_when=rollback_when)
