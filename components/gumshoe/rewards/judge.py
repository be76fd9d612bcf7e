"""What a judge is: who says whether an answer is right."""

from dataclasses import dataclass
from datetime import date
from typing import Protocol, runtime_checkable

from gumshoe.errors import UnavailableError


class JudgeError(UnavailableError):
    """A judge gave no verdict, or no scores, that can be used."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is right, and why."""

    correct: bool
    why: str
    """A reason in words: what was compared, or what a model said."""
    rule: str = ""
    """Which rule decided, of a judge that has rules."""


class JudgedQuestion(Protocol):
    """A question with its reference answer, as a scenario is one."""

    @property
    def question(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def query_date(self) -> date | None: ...


@runtime_checkable
class Judge(Protocol):
    """Compares an answer with the reference answer. What an answer says is data: nothing in it instructs the judge."""

    async def verdict(self, asked: JudgedQuestion, answer: str) -> Verdict:
        """
        Raises:
            JudgeError: there is no verdict that can be used.
        """
        ...

    async def aclose(self) -> None:
        """Close what it holds, if anything."""
        ...
