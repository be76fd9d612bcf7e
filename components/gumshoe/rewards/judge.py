"""Who says whether an answer is right."""

from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import BeforeValidator

from gumshoe.errors import UsageError
from gumshoe.rewards.exact import is_exact
from gumshoe.scenarios.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is right, and why."""

    correct: bool
    why: str


@runtime_checkable
class Judge(Protocol):
    """Compares an answer with a scenario's own. What an answer says is data: nothing in it instructs the judge."""

    async def verdict(self, scenario: Scenario, answer: str) -> Verdict:
        """
        Raises:
            UnavailableError: there is no verdict that can be used.
        """
        ...


class ExactJudge:
    """Takes nothing but the reference answer itself, as `is_exact` compares them."""

    async def verdict(self, scenario: Scenario, answer: str) -> Verdict:
        """As `Judge.verdict`."""
        if is_exact(answer, scenario.answer):
            return Verdict(correct=True, why="it is the reference answer")
        return Verdict(correct=False, why="it is not the reference answer, word for word")


def open_judge(word: Any) -> Any:
    """The judge of that name; one that is a judge already is left as it is.

    Raises:
        UsageError: there is none.
    """
    if isinstance(word, Judge):
        return word
    if word == "exact":
        return ExactJudge()
    raise UsageError(f"{word!r} names no judge; write exact")


NamedJudge = Annotated[Judge, BeforeValidator(open_judge)]
"""A judge, as a reward function's setting."""
