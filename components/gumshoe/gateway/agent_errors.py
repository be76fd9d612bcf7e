"""Failures of agents. The settings `on_error`, `on_crash` and `on_deadline` say what they mean for an episode."""

import sysconfig
from pathlib import Path
from traceback import extract_tb

from gumshoe.errors import GumshoeError, UsageError
from gumshoe.redaction import MASK, redact
from gumshoe.text_checks import replace_bad_characters

_NOT_OF_AGENTS = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]), "<")  # beginnings of files' names
_MOST_SHOWN = 600  # characters of an agent's own text in a message
_MOST_READ = 50_000  # characters of it that are searched for credentials
_MOST_GROUPS = 10  # exception groups within each other


class AgentFailedError(GumshoeError):
    """Report that an agent raised an exception, exited with a status other than 0, or returned no usable answer."""


class AgentCrashedError(GumshoeError):
    """Report that an agent's process was killed by a signal, or could not be started."""


class AgentDeadlineError(GumshoeError):
    """Report that an agent did not end in time."""


class AgentsHangError(UsageError):
    """Report that too many agents did not end after their deadline, so that no further one can be started."""


def describe_exception(error: BaseException, key: str) -> str:
    """Return type, message and line of an agent's exception, without the key of its episode.

    Call it where agents run: reading the message runs code of the exception's class.
    """
    for _ in range(_MOST_GROUPS):
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
    lines = [each for each in extract_tb(error.__traceback__) if not each.filename.startswith(_NOT_OF_AGENTS)]
    own = [each for each in lines if "site-packages" not in each.filename]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    try:
        message = str(error)
    except BaseException as fault:  # noqa: BLE001 - of a class that the agent has written
        message = f"its message cannot be read ({type(fault).__name__})"
    return shorten(f"{type(error).__name__}: {message}", key) + place


def shorten(text: str, key: str, *, from_end: bool = False) -> str:
    """Return the beginning or the end of an agent's own text, without credentials and the key of its episode."""
    read = text[-_MOST_READ:] if from_end else text[:_MOST_READ]
    cleaned = redact(replace_bad_characters(read).replace(key, MASK)).strip()
    if len(cleaned) <= _MOST_SHOWN:
        return cleaned
    return f"…{cleaned[-_MOST_SHOWN:]}" if from_end else f"{cleaned[:_MOST_SHOWN]}…"
