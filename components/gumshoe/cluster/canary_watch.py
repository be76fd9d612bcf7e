"""Watch a canary's own measures, and promote it or roll it back when they show enough.

Invariants: a canary is promoted or rolled back only if the condition for that is shown with the confidence that was
asked for. If another command changes the canary, this one changes nothing.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Literal

from gumshoe.cluster.canary_conditions import count_alternatives, list_comparisons, negate
from gumshoe.cluster.canary_measures import CanaryEvidence, MeasureTracker, ServerMetrics, find_measures
from gumshoe.cluster.canary_plan import WatchPlan
from gumshoe.cluster.deploy import Deployments
from gumshoe.cluster.kubernetes_api import ClusterUnavailableError
from gumshoe.cluster.metrics_sources import MetricsSource, MetricsUnreachableError
from gumshoe.cluster.pod_problems import ProblemLog
from gumshoe.cluster.readiness import DeploymentFailedError, DeploymentNotReadyError
from gumshoe.cluster.releases import StoredRelease
from gumshoe.cluster.serving_state import ServingState
from gumshoe.errors import RefusedError, UnavailableError, UsageError
from gumshoe.terminal import Advance, err, printable, progress

Outcome = Literal["promoted", "rolled back", "undecided"]
_PATIENCE = 600.0  # seconds for which metrics or cluster may be unreachable
_STEP = 5.0  # seconds between two updates of the progress bar


class CanaryUndecidedError(UnavailableError):
    """Report that a watch ended before it was decided. Watching on can decide."""


class CanaryRolledBackError(RefusedError):
    """Report that a canary was rolled back because of its measures."""


@dataclass(frozen=True, slots=True)
class ComparisonState:
    """A comparison and what is known about it."""

    condition: str
    state: Literal["shown", "open", "refuted"]
    numbers: str

    def __str__(self) -> str:
        return f"{self.condition}: {self.state}, {self.numbers}"


@dataclass(frozen=True, slots=True)
class WatchResult:
    """How a watch ended, and what was seen last."""

    outcome: Outcome
    canary: str
    baseline: str
    canary_questions: float
    baseline_questions: float
    comparisons: tuple[ComparisonState, ...]
    reason: str

    @property
    def text(self) -> str:
        """The result in one line."""
        seen = "; ".join(map(str, self.comparisons))
        questions = f"{self.canary_questions:,.0f} questions to {self.canary}, {self.baseline_questions:,.0f} to "
        return f"{self.reason}. Seen: {questions}{self.baseline}" + (f"; {seen}" if seen else "")


@dataclass(frozen=True, slots=True)
class _Look:
    """Metrics of one check."""

    measured: CanaryEvidence
    servers: Sequence[ServerMetrics]
    unavailable: int
    """Number of servers without the canary."""


@dataclass(slots=True)
class CanaryWatch:
    """Watch the canary of a deployment, and decide about it."""

    changes: Deployments
    source: MetricsSource
    plan: WatchPlan
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    wall_clock: Callable[[], float] = time.time
    """Return the seconds since 1970, as servers tell when they started."""
    is_changing: bool = False
    """True once it is decided, while the deployment is changed."""
    _tracker: MeasureTracker = field(default_factory=MeasureTracker)

    def run(self, name: str) -> WatchResult:
        """Watch until the canary is promoted or rolled back, or the time is over.

        Raises:
            UsageError: if there is no canary, the agent servers do not have the measures, or the chart differs.
            CanaryChangedError: if another command changed the canary.
            MetricsUnreachableError: if the metrics are unreachable for 10 minutes.
            ClusterError: if a permission is missing.
            GumshoeError: if the promotion or the rollback fails.
        """
        _, watched = self.changes.find_canary(name)
        self.changes.check_promotion(name)
        look = self._look_first(name, watched)
        self._adapt_to_feedback(look)
        self._announce(watched)
        outcome, look = self._wait(name, watched, look)
        result = self._describe(outcome, watched, look)
        self.is_changing = outcome != "undecided"
        if outcome == "promoted":
            err.print(f"Promoting: {printable(result.reason)}", soft_wrap=True)
            self.changes.promote(name, watched)
        elif outcome == "rolled back":
            err.print(f"Rolling back: {printable(result.reason)}", soft_wrap=True)
            try:
                self.changes.stop_canary(name, watched)
            except (DeploymentNotReadyError, DeploymentFailedError) as error:  # the change is kept
                result = replace(result, reason=f"{result.reason}, but {error.message}")
        return result

    def _look_first(self, name: str, watched: ServingState) -> _Look:
        started, log = self.now(), ProblemLog()
        while (look := self._try_to_look(name, watched, started, log)) is None:
            self.sleep(self.plan.every)
        return look

    def _try_to_look(self, name: str, watched: ServingState, reached: float, log: ProblemLog) -> _Look | None:
        """Read the metrics. Return None if they or the cluster are unreachable, but not for long since `reached`."""
        try:
            look = self._look(*self.changes.find_canary(name, watched))
        except (ClusterUnavailableError, MetricsUnreachableError) as problem:
            if self.now() - reached > _PATIENCE:
                raise type(problem)(problem.code, f"{problem.message}; nothing was changed") from None
            if log.is_news(name, problem.message):
                err.print(f"[bold yellow]waiting:[/] {printable(problem.message_with_code)}", soft_wrap=True)
            return None
        log.forget(name)
        return look

    def _wait(self, name: str, watched: ServingState, look: _Look) -> tuple[Outcome, _Look]:
        until, reached, log = self.now() + self.plan.seconds, self.now(), ProblemLog()
        with progress(f"Watching {watched.canary}", total=round(self.plan.seconds)) as advance:
            while True:
                outcome = self._decide(look)
                advance(note=self._note(look, watched))
                if outcome != "undecided" or self.now() >= until:
                    return outcome, look
                self._pause(min(self.plan.every, until - self.now()), advance)
                if found := self._try_to_look(name, watched, reached, log):
                    look, reached = found, self.now()

    def _pause(self, seconds: float, advance: Advance) -> None:
        until = self.now() + seconds
        while (rest := until - self.now()) > 0:
            step = min(rest, _STEP)
            self.sleep(step)
            advance(step)

    def _look(self, stored: StoredRelease, watched: ServingState) -> _Look:
        """Read the metrics, and add up what servers with the canary's present share have counted."""
        found = self.source.read(stored)
        self._tracker.update(found)
        servers = self._tracker.select(watched.canary, watched.adapter, watched.percent / 100)
        canary, baseline = (
            self._tracker.sum(each, servers, self.wall_clock()) for each in (watched.canary, watched.adapter)
        )
        return _Look(CanaryEvidence(canary, baseline), found, sum(watched.canary in each.unavailable for each in found))

    def _decide(self, look: _Look) -> Outcome:
        """Decide by the present evidence. A rollback comes first."""
        measured, plan = look.measured, self.plan
        if measured.is_met(plan.rollback_when, plan.error):
            return "rolled back"
        enough = min(measured.canary.total, measured.baseline.total) >= plan.min_episodes
        return "promoted" if enough and measured.is_met(plan.promote_when, plan.error) else "undecided"

    def _adapt_to_feedback(self, look: _Look) -> None:
        """Leave out corrections if the servers take no feedback.

        Raises:
            UsageError: if a condition that the user named mentions them.
        """
        wanted = find_measures(self.plan.promote_when) | find_measures(self.plan.rollback_when)
        if "corrections" not in wanted or any(each.verdicts_per_caller for each in look.servers):
            return
        if not self.plan.is_default and "corrections" in find_measures(self.plan.promote_when):
            raise UsageError(
                "deploy.no-feedback",
                "the agent servers take no feedback, so that corrections cannot be measured; set "
                "agent.settings.keeping.feedback=true in the chart, or leave corrections out of the condition",
            )
        err.print("The agent servers take no feedback, so corrections do not count.")
        self.plan = self.plan.without("corrections")

    def _announce(self, watched: ServingState) -> None:
        plan = self.plan
        err.print(
            f"Watching canary {printable(watched.canary)} ({watched.percent:g} % of the questions) beside "
            f"{printable(watched.adapter)} for up to {timedelta(seconds=round(plan.seconds))} hours, with a confidence "
            f"of {plan.confidence:.4g}\n  promote when:   {printable(plan.promote_when)}\n"
            f"  roll back when: {printable(plan.rollback_when)}",
            soft_wrap=True,
        )

    def _note(self, look: _Look, watched: ServingState) -> str:
        canary, baseline = look.measured.canary, look.measured.baseline
        parts = [f"{canary.total:,.0f} questions to {watched.canary}, {baseline.total:,.0f} to {watched.adapter}"]
        if look.unavailable:
            parts.append(f"{watched.canary} is not available in {look.unavailable} of {len(look.servers)} servers")
        parts += [f"{each.condition} {each.state}" for each in self._list_states(look)]
        return "; ".join(parts)

    def _list_states(self, look: _Look) -> tuple[ComparisonState, ...]:
        """Return each comparison of the promotion condition, or of the rollback condition if nothing promotes."""
        plan, measured = self.plan, look.measured
        condition = plan.promote_when if count_alternatives(plan.promote_when) else plan.rollback_when
        error = plan.error / max(1, count_alternatives(condition))
        states = []
        for each in list_comparisons(condition):
            opposite = negate(each)
            state: Literal["shown", "open", "refuted"] = "open"
            if measured.is_met(each, error):
                state = "shown"
            elif measured.is_met(opposite, error):
                state = "refuted"
            states.append(ComparisonState(str(each), state, measured.describe(each, error)))
        return tuple(states)

    def _describe(self, outcome: Outcome, watched: ServingState, look: _Look) -> WatchResult:
        plan, measured = self.plan, look.measured
        reasons = {
            "promoted": f"{watched.canary} is promoted: {plan.promote_when} is shown",
            "rolled back": f"{watched.canary} is rolled back: it is shown that {self._find_cause(look)}",
            "undecided": f"{watched.canary} is neither promoted nor rolled back: {self._find_obstacle(look, watched)}",
        }
        counts = measured.canary.total, measured.baseline.total
        return WatchResult(outcome, watched.canary, watched.adapter, *counts, self._list_states(look), reasons[outcome])

    def _find_cause(self, look: _Look) -> str:
        """Return the comparisons that are shown among those that cause a rollback, with their numbers."""
        error = self.plan.error / max(1, count_alternatives(self.plan.rollback_when))
        shown = [each for each in list_comparisons(self.plan.rollback_when) if look.measured.is_met(each, error)]
        return " and ".join(f"{each} ({look.measured.describe(each, error)})" for each in shown)

    def _find_obstacle(self, look: _Look, watched: ServingState) -> str:
        """Return why there is no decision."""
        canary, baseline = look.measured.canary, look.measured.baseline
        if look.unavailable and not canary.total:
            return f"{watched.canary} is not available in {look.unavailable} of {len(look.servers)} servers"
        for name, counts in ((watched.adapter, baseline), (watched.canary, canary)):
            if counts.total < self.plan.min_episodes:
                return f"{name} has {counts.total:,.0f} of at least {self.plan.min_episodes:,} questions"
        return "not enough is shown yet, with this confidence"


def raise_unless_promoted(result: WatchResult, name: str) -> None:
    """Raise the error of a result other than a promotion.

    Raises:
        CanaryRolledBackError: if the canary was rolled back.
        CanaryUndecidedError: if nothing was decided.
    """
    if result.outcome == "rolled back":
        raise CanaryRolledBackError(
            "deploy.canary-rolled-back",
            f"{result.text}; {result.canary} stays loaded without questions; remove it with `gumshoe rollback {name}`",
        )
    if result.outcome == "undecided":
        raise CanaryUndecidedError(
            "deploy.canary-undecided",
            f"{result.text}; nothing was changed; watch on with the same command, give the canary more questions, or "
            "allow a larger difference, e.g. baseline + 5%",
        )
