"""Define the findings of a check, with their remedies."""

from dataclasses import dataclass
from enum import StrEnum

from gumshoe.errors import GumshoeError
from gumshoe.redaction import redact


class State(StrEnum):
    """The state of a finding, best first."""

    SKIPPED = "skipped"
    OK = "ok"
    WARNING = "warning"
    UNANSWERED = "unanswered"
    """No answer, so the state is unknown."""
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check, in words."""

    state: State
    text: str
    remedy: str = ""
    """Advice in words."""
    commands: tuple[str, ...] = ()
    """Commands that carry out the advice, for copying."""
    code: str = ""
    """Code of the error that caused it, if any."""

    def __post_init__(self) -> None:
        for name in ("text", "remedy"):
            object.__setattr__(self, name, redact(getattr(self, name)))
        object.__setattr__(self, "commands", tuple(map(redact, self.commands)))


def ok(text: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(State.OK, text)


def skipped(text: str) -> Finding:
    """Return a finding for something that was not checked."""
    return Finding(State.SKIPPED, text)


def warning(text: str, remedy: str, *commands: str) -> Finding:
    """Return a finding that a first run can do without, or that may be intended."""
    return Finding(State.WARNING, text, remedy, commands)


def problem(text: str, remedy: str, *commands: str) -> Finding:
    """Return a finding that makes a run fail."""
    return Finding(State.PROBLEM, text, remedy, commands)


def from_error(state: State, error: GumshoeError, remedy: str = "", *commands: str) -> Finding:
    """Return a finding with the message and the code of an error."""
    return Finding(state, error.message, remedy, commands, error.code)


def pluralize(number: int, what: str) -> str:
    """Return a number with its noun, e.g. `2 pods`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
