"""Measure the policies in service, so that a canary can be compared with the adapter beside it.

Invariant: label values are the policies in service, and words from this file. Callers cannot add others.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gumshoe.serving.feedback_limit import VerdictLimit

QuestionResult = Literal["answered", "unanswered", "failed", "cancelled"]
Verdict = Literal["right", "corrected", "wrong", "unanswerable"]
RESULTS: tuple[QuestionResult, ...] = ("answered", "unanswered", "failed", "cancelled")
VERDICTS: tuple[Verdict, ...] = ("right", "corrected", "wrong", "unanswerable")
_SECONDS = (
    *(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10),
    *(12, 14, 16, 18, 20, 25, 30, 35, 40, 50, 60, 75, 90, 105, 120, 150, 180, 240, 300, 600),
)  # close to each other, because a comparison of quantiles is as coarse as these are


@dataclass(slots=True)
class AskedQuestion:
    """A question while it is answered."""

    policy: str | None = None
    """The policy that answers it; None as long as none has been chosen."""
    started: float = 0.0
    """When the policy was chosen."""

    def choose(self, policy: str) -> None:
        """Note the policy that answers, and when it began."""
        self.policy, self.started = policy, time.monotonic()


class PolicyMetrics:
    """Metrics by policy. `open` names the policies in service; nothing is counted for others."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        name = "gumshoe_"
        self._started = Gauge(
            f"{name}start_time_seconds",
            "When the server started, in seconds since 1970. Its counters began at 0 then.",
            registry=registry,
        )
        self._started.set(time.time())
        self._share = Gauge(
            f"{name}policy_share", "Fraction of the questions routed to a policy.", ["policy"], registry=registry
        )
        self._available = Gauge(
            f"{name}policy_available",
            "1 if a policy can answer, else 0. Without its canary, the server routes all questions to the main policy.",
            ["policy"],
            registry=registry,
        )
        self._questions = Counter(
            f"{name}questions",
            "Questions that a policy was chosen for, by result: answered, unanswered (it found nothing, or gave none), "
            "failed (the model or a tool failed, or there was no answer in time), cancelled (the client gave up).",
            ["policy", "result"],
            registry=registry,
        )
        self._seconds = Histogram(
            f"{name}answer_seconds",
            "Seconds from the choice of a policy until its answer, the deadline, or the client's disconnection, "
            "without the time in the queue.",
            ["policy"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._verdicts = Counter(
            f"{name}feedback",
            "Verdicts of callers on answers, by policy and verdict: right, corrected (with the right answer), wrong, "
            "unanswerable. A caller's verdict on a question counts once.",
            ["policy", "verdict"],
            registry=registry,
        )
        self._uncounted = Counter(
            f"{name}feedback_uncounted",
            "Verdicts that are not in `gumshoe_feedback_total`, by reason: no policy (named), other policy (not in "
            "service), repeated (question), too many (of the caller).",
            ["why"],
            registry=registry,
        )
        self._per_caller = Gauge(
            f"{name}feedback_per_caller",
            "Maximum number of verdicts per caller and policy that count within 24 hours; 0 without feedback.",
            registry=registry,
        )
        self._limit = VerdictLimit(0)
        self._known: set[str] = set()

    def open(self, policies: Iterable[tuple[str, float, Callable[[], float]]], verdicts_per_caller: int) -> None:
        """Start to measure policies: name, share and a function that returns 1 if it can answer, of each."""
        for name, share, is_available in policies:
            self._known.add(name)
            self._share.labels(name).set(share)
            self._available.labels(name).set_function(is_available)
            self._seconds.labels(name)
            for result in RESULTS:
                self._questions.labels(name, result)
            for verdict in VERDICTS:
                self._verdicts.labels(name, verdict)
        self._limit = VerdictLimit(verdicts_per_caller)
        self._per_caller.set(verdicts_per_caller)

    def count_question(self, asked: AskedQuestion, result: QuestionResult, *, is_timed: bool = True) -> None:
        """Count a question that a policy was chosen for. Its time counts unless it failed early."""
        if asked.policy is None:
            return
        self._questions.labels(asked.policy, result).inc()
        if is_timed:
            self._seconds.labels(asked.policy).observe(time.monotonic() - asked.started)

    def count_verdict(self, policy: str | None, verdict: Verdict, caller: str, question: str) -> bool:
        """Count a caller's verdict about a policy's answer, and return True if it is within the limits.

        `question` identifies the question, e.g. a digest.
        """
        if policy is None or policy not in self._known:
            self._uncounted.labels("no policy" if policy is None else "other policy").inc()
            return False
        if refusal := self._limit.admit(caller, policy, question):
            self._uncounted.labels(refusal).inc()
            return False
        self._verdicts.labels(policy, verdict).inc()
        return True
