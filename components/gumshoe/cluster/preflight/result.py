"""What a check found, and what mends it."""

from dataclasses import dataclass
from enum import StrEnum

from gumshoe.errors import GumshoeError


class State(StrEnum):
    """How something is, the best first."""

    SKIPPED = "skipped"
    OK = "ok"
    WARNING = "warning"
    UNANSWERED = "unanswered"
    """Nothing answered that could say how it is."""
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, in words."""

    state: State
    text: str
    mend: str = ""
    """What to do about it, in words."""
    commands: tuple[str, ...] = ()
    """The same, to be copied."""
    code: str = ""
    """The code of the error that it was found by, if it was."""


def ok(text: str) -> Finding:
    return Finding(State.OK, text)


def skipped(text: str) -> Finding:
    return Finding(State.SKIPPED, text)


def warning(text: str, mend: str, *commands: str) -> Finding:
    """Something that a first run does without, or that may be as it is on purpose."""
    return Finding(State.WARNING, text, mend, commands)


def problem(text: str, mend: str, *commands: str) -> Finding:
    """Something that a run fails for."""
    return Finding(State.PROBLEM, text, mend, commands)


def from_error(state: State, error: GumshoeError, mend: str = "", *commands: str) -> Finding:
    """Return a finding with the message and the code of an error."""
    return Finding(state, error.message, mend, commands, error.code)


def counted(number: int, what: str) -> str:
    """So many of a thing."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
