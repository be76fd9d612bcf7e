"""Bound how much feedback one caller can give."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

_PERIOD = 3600.0  # seconds
_MANY = 1000  # callers above which those without recent feedback are forgotten


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
