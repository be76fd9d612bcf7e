"""Bound how much feedback one caller can give."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

_PERIOD = 3600.0  # seconds
_MANY = 1000  # callers above which those without recent feedback are forgotten
VERDICT_PERIOD = 86_400.0
"""Seconds in which the verdicts of a caller are limited."""
_MOST_CALLERS = 10_000  # callers whose verdicts are counted within that time


@dataclass(slots=True)
class FeedbackLimit:
    """Count the feedback of each caller in the last hour."""

    limit: int
    now: Callable[[], float] = time.monotonic
    _times: dict[str, deque[float]] = field(default_factory=dict)

    def admit(self, caller: str) -> int:
        """Count feedback of a caller. Return 0 if it is within the limit, or else the seconds until it would be."""
        now = self.now()
        if len(self._times) >= _MANY:
            self._times = {name: times for name, times in self._times.items() if times[-1] > now - _PERIOD}
        times = self._times.setdefault(caller, deque())
        while times and times[0] <= now - _PERIOD:
            times.popleft()
        if len(times) >= self.limit:
            return max(1, ceil(times[0] + _PERIOD - now))
        times.append(now)
        return 0


@dataclass(slots=True)
class VerdictLimit:
    """Bound how much one caller can change the measures of a policy.

    A verdict counts if it is the caller's first one on the policy's answer to its question, and one of the caller's
    first `limit` ones on the policy, both within 24 hours. Memory is bounded: at most `limit` questions per caller and
    policy, and 10,000 callers.
    """

    limit: int
    now: Callable[[], float] = time.monotonic
    _counted: dict[str, list[tuple[float, str, str]]] = field(default_factory=dict)
    """Counted verdicts by caller: time, policy and question of each."""

    def admit(self, caller: str, policy: str, question: str) -> str:
        """Count a verdict. Return an empty string if it is within the limits, or else why not."""
        since = self.now() - VERDICT_PERIOD
        if caller not in self._counted and len(self._counted) >= _MOST_CALLERS:
            self._counted = {name: kept for name, kept in self._counted.items() if kept[-1][0] > since}
            if len(self._counted) >= _MOST_CALLERS:
                return "too many"
        counted = [each for each in self._counted.get(caller, []) if each[0] > since]
        if any((named, asked) == (policy, question) for _, named, asked in counted):
            return "repeated"
        if sum(named == policy for _, named, _ in counted) >= self.limit:
            return "too many"
        self._counted[caller] = [*counted, (self.now(), policy, question)]
        return ""
