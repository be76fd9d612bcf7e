"""Limit the tokens and tool calls of each caller per day.

Days are those of UTC. Usage is counted in SQLite: in memory, or in a file that survives restarts.
"""

import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path

from gumshoe.environments.tools import Call
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.rollouts.episode import EpisodeObserver, Turn

_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, caller TEXT NOT NULL, tokens INTEGER NOT NULL, calls INTEGER NOT NULL, PRIMARY KEY (day, caller)
) WITHOUT ROWID
"""
_ADD = """
INSERT INTO usage VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET tokens = tokens + excluded.tokens, calls = calls + excluded.calls
"""
_LOCK_TIMEOUT = 1.0  # seconds to wait for another process that uses the same file
_CHARACTERS_PER_TOKEN = 4  # of model servers that do not report tokens

_log = logging.getLogger(__name__)


class BudgetExhaustedError(UnavailableError):
    """Report that a caller has used up its budget of the day. `retry_after` are the seconds until the next one."""

    def __init__(self, code: str, message: str, retry_after: int) -> None:
        super().__init__(code, message)
        self.args = (code, message, retry_after)  # what pickle passes to this method
        self.headers = {"Retry-After": str(retry_after)}


class UsageUnavailableError(UnavailableError):
    """Report that usage cannot be counted, so that no budget can be granted."""


@dataclass(slots=True)
class UsageBudgets:
    """Count usage by caller and day, and refuse what exceeds a budget. None means that there is no budget.

    Raises:
        UsageError: if the file cannot be used.
    """

    tokens_per_day: int | None = None
    calls_per_day: int | None = None
    file: Path | None = None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _usage: sqlite3.Connection = field(init=False)

    def __post_init__(self) -> None:
        try:
            self._usage = sqlite3.connect(
                self.file or ":memory:", timeout=_LOCK_TIMEOUT, isolation_level=None, check_same_thread=False
            )
            self._usage.execute("PRAGMA journal_mode = WAL")
            self._usage.execute("PRAGMA synchronous = OFF")  # it survives the process, which is enough
            self._usage.execute(_SCHEMA)
            self._usage.execute("DELETE FROM usage WHERE day < ?", (self.today,))
        except sqlite3.Error as error:
            raise UsageError(
                "serving.usage-file-unusable",
                f"cannot use {self.file} (limits.usage_file): {error}; name a file in a directory that can be written",
            ) from None

    def close(self) -> None:
        """Close the file."""
        self._usage.close()

    @property
    def are_limited(self) -> bool:
        """True if there is a budget."""
        return self.tokens_per_day is not None or self.calls_per_day is not None

    @property
    def today(self) -> str:
        """The current day in UTC."""
        return self.now().astimezone(UTC).date().isoformat()

    def require_rest(self, caller: str, *, tokens: bool = False, calls: bool = False) -> None:
        """Check that a caller has something left of its tokens, its calls, or both.

        Raises:
            BudgetExhaustedError: if it has not.
            UsageUnavailableError: if the file cannot be used.
        """
        if self.are_limited:
            used_tokens, used_calls = self.read(caller)
            self._check(self.tokens_per_day, used_tokens, int(tokens), "tokens")
            self._check(self.calls_per_day, used_calls, int(calls), "tool calls")

    def take(self, caller: str, *, tokens: int = 0, calls: int = 0) -> str:
        """Count tokens or calls of a caller, and return the day.

        Raises:
            BudgetExhaustedError: if they exceed the budget. Then nothing is counted.
            UsageUnavailableError: if the file cannot be used.
        """
        day = self.today
        if self.are_limited:
            with self._alone():
                used_tokens, used_calls = self.read(caller)
                self._check(self.tokens_per_day, used_tokens, tokens, "tokens")
                self._check(self.calls_per_day, used_calls, calls, "tool calls")
                self.add(caller, day, tokens=tokens, calls=calls)
        return day

    def add(self, caller: str, day: str, *, tokens: int = 0, calls: int = 0) -> None:
        """Count what a caller has used on a day, even if it exceeds its budget. Negative numbers give back.

        Raises:
            UsageUnavailableError: if the file cannot be used.
        """
        if self.are_limited and (tokens or calls):
            self._execute("DELETE FROM usage WHERE day < ?", self.today)
            if day == self.today:
                self._execute(_ADD, day, caller, tokens, calls)

    def read(self, caller: str) -> tuple[int, int]:
        """Return the tokens and calls that a caller has used today.

        Raises:
            UsageUnavailableError: if the file cannot be used.
        """
        rows = self._execute("SELECT tokens, calls FROM usage WHERE day = ? AND caller = ?", self.today, caller)
        tokens, calls = rows[0] if rows else (0, 0)
        return tokens, calls

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let no other process count while the block runs. If it fails, it has counted nothing."""
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        finally:
            if self._usage.in_transaction:  # e.g. the disk is full; each later request would fail otherwise
                with suppress(sqlite3.Error):
                    self._usage.rollback()

    def _execute(self, statement: str, *values: object) -> list[tuple[int, int]]:
        try:
            return self._usage.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            _log.error("cannot count usage in %s: %s", self.file, error)
            raise UsageUnavailableError("serving.dependency-unavailable", "usage cannot be counted") from None

    def _check(self, budget: int | None, used: int, more: int, unit: str) -> None:
        if budget is not None and more and used + more > budget:
            now = self.now().astimezone(UTC)
            midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
            seconds = max(1, ceil((midnight - now).total_seconds()))
            raise BudgetExhaustedError(
                "serving.budget-exhausted",
                f"Your budget of {budget:,} {unit} per day is used up. Try again in {seconds:,} seconds.",
                seconds,
            )


def meter_usage(budgets: UsageBudgets, caller: str, max_tokens: int) -> EpisodeObserver:
    """Return an observer that takes the turns and calls of an episode from its caller's budget, if there is one."""
    return UsageMeter(budgets, caller, max_tokens) if budgets.are_limited else EpisodeObserver()


@dataclass(slots=True)
class UsageMeter(EpisodeObserver):
    """Take the tokens of each turn of an episode, and each call that it makes, from its caller's budget.

    A turn is paid in advance, with `max_tokens` and the tokens of the turn before it, so that callers cannot exceed
    their budget with many questions at once. A turn that is cancelled costs that much, because the model may have
    sampled it; a turn that fails costs nothing.
    """

    budgets: UsageBudgets
    caller: str
    max_tokens: int
    _last: int = 0
    """Tokens of the last turn, which the next one contains."""
    _characters: int = 0

    def begin_calls(self, calls: Sequence[Call]) -> None:
        """Pay for calls before they run.

        Raises:
            BudgetExhaustedError: if its caller's budget does not suffice.
        """
        if calls:
            self.budgets.take(self.caller, calls=len(calls))

    def add_results(self, calls: Sequence[Call], results: Sequence[str]) -> None:  # noqa: ARG002
        """Count the characters of the results, for models that do not report tokens."""
        self._characters += sum(map(len, results))

    @contextmanager
    def sampling(self) -> Iterator[Callable[[Turn | None], None]]:
        """Pay for the turn that is sampled in the block.

        Raises:
            BudgetExhaustedError: if its caller's budget does not suffice.
        """
        reserved = self._last + self.max_tokens
        day = self.budgets.take(self.caller, tokens=reserved)
        sampled = list[Turn | None]()
        try:
            yield sampled.append
        except Exception:
            self.budgets.add(self.caller, day, tokens=-reserved)
            raise
        turn = sampled[0]
        self._last = self._count_tokens(turn) if turn is not None else 0
        self.budgets.add(self.caller, day, tokens=self._last - reserved)

    def _count_tokens(self, turn: Turn) -> int:
        if turn.usage is not None:
            return turn.usage.prompt_tokens + turn.usage.completion_tokens
        self._characters += sum(len(each.text) for each in turn.spans)
        return ceil(self._characters / _CHARACTERS_PER_TOKEN)
