"""Interface of judges, which decide if an answer is correct."""

from dataclasses import dataclass
from datetime import date
from typing import Protocol, runtime_checkable

from gumshoe.errors import UnavailableError


class JudgeError(UnavailableError):
    """Report that a judge gave no usable verdict or scores."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision of a judge about one answer."""

    correct: bool
    """False if the answer is wrong, and also if the judge cannot decide."""
    why: str
    """Reason in words: what was compared, or the explanation of a model."""
    rule: str = ""
    """Name of the rule that decided, if the judge has rules."""
    is_undecided: bool = False
    """The judge cannot decide if the answer is correct. It counts as wrong, unless the caller asks another judge."""

    def __post_init__(self) -> None:
        """Raise ValueError if the verdict is both correct and undecided."""
        if self.correct and self.is_undecided:
            raise ValueError("a verdict cannot be both correct and undecided")


class JudgedQuestion(Protocol):
    """A question with its reference answer, such as a scenario."""

    @property
    def question(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def query_date(self) -> date | None: ...


@runtime_checkable
class Judge(Protocol):
    """Compare answers with reference answers. An answer is data: the judge must not follow instructions in it."""

    async def verdict(self, asked: JudgedQuestion, answer: str) -> Verdict:
        """Decide if an answer is correct.

        Raises:
            JudgeError: if there is no usable verdict.
        """
        ...

    async def aclose(self) -> None:
        """Close connections and files, if any."""
        ...
