"""Serve the metrics of an agent server, as it counts and serves them itself."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, start_http_server

from gumshoe.serving.policy_metrics import AskedQuestion, PolicyMetrics, QuestionResult, Verdict

FEW = 2
"""How many verdicts of one caller count."""


@dataclass
class MeasuredServer:
    """What one agent server measures about r1 and its canary r2."""

    metrics: PolicyMetrics
    address: tuple[str, int]
    is_available: bool = True
    """True if the canary can answer."""

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}/metrics"

    def ask(
        self,
        policy: str,
        number: int,
        *,
        failed: int = 0,
        unanswered: int = 0,
        cancelled: int = 0,
        seconds: float = 1.0,
    ) -> None:
        """Count `number` questions. Those that did not fail, had an answer and were not cancelled were answered."""
        counts: dict[QuestionResult, int] = {"failed": failed, "unanswered": unanswered, "cancelled": cancelled}
        counts["answered"] = number - sum(counts.values())
        for result, count in counts.items():
            for _ in range(count):
                self.metrics.count_question(AskedQuestion(policy, time.monotonic() - seconds), result)

    def judge(self, policy: str, verdict: Verdict, callers: int, *, first: int = 0) -> None:
        """Count a verdict of each of so many callers."""
        for caller in range(first, first + callers):
            self.metrics.count_verdict(policy, verdict, f"caller {caller}", f"{verdict} {caller}")


@contextmanager
def run_measured_server(share: float = 0.1, *, feedback: bool = True) -> Iterator[MeasuredServer]:
    """Serve the metrics of an agent server whose canary has this share, on a free port."""
    registry = CollectorRegistry()
    server, thread = start_http_server(0, "127.0.0.1", registry)
    made = MeasuredServer(PolicyMetrics(registry), ("127.0.0.1", server.server_port))
    policies = (("r1", 1 - share, lambda: 1.0), ("r2", share, lambda: float(made.is_available)))
    made.metrics.open(policies, FEW if feedback else 0)
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
