"""The attempts of a run: when each began, showed progress and ended, as lines of JSON in `attempts.jsonl`.

Nothing is ever removed from the file, so that steps that were lost and trained again still count in hours and dollars.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gumshoe.errors import GumshoeError, UsageError
from gumshoe.model_validation import describe_validation_error

FINISHED = "finished"
"""Outcome of the attempt that ended the run. Other outcomes are error codes."""
_FAILED = "failed"  # an error without a code


class AttemptStart(BaseModel):
    """The start of an attempt, with the hardware that it holds until its end."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    event: Literal["start"] = "start"
    attempt: int
    """Number of the attempt, from 1."""
    time: float
    """Seconds since 1970."""
    gpus: int
    """Number of GPUs of trainers and rollout servers on all machines."""
    cpus: int
    """Number of processors of the first machine, times the number of machines."""


class AttemptProgress(BaseModel):
    """A step that was recorded. It counts even if the step was lost afterwards, and trained again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    event: Literal["step"] = "step"
    attempt: int
    time: float
    step: int


class AttemptEnd(BaseModel):
    """The end of an attempt. It is missing if the process was killed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    event: Literal["end"] = "end"
    attempt: int
    time: float
    outcome: str
    """`finished`, or the code of the error that ended it."""


AttemptEvent = Annotated[AttemptStart | AttemptProgress | AttemptEnd, Field(discriminator="event")]
_EVENT: TypeAdapter[AttemptStart | AttemptProgress | AttemptEnd] = TypeAdapter(AttemptEvent)
Clock = Callable[[], float]


def write_attempt_event(path: Path, event: AttemptStart | AttemptProgress | AttemptEnd) -> None:
    """Append an event to a run's file. If a killed process left an incomplete line there, that is ended first."""
    with path.open("a+b") as file:
        size = file.seek(0, 2)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(event.model_dump_json().encode() + b"\n")


def read_attempt_events(path: Path) -> list[AttemptStart | AttemptProgress | AttemptEnd]:
    """Read the events of a run's attempts, in order. Lines that are not JSON are left out: they are incomplete.

    Raises:
        UsageError: a line is JSON, but no event.
    """
    found = list[AttemptStart | AttemptProgress | AttemptEnd]()
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), 1):
        try:
            found.append(_EVENT.validate_json(line))
        except ValidationError as error:
            if error.errors()[0]["type"] == "json_invalid":
                continue
            raise UsageError(
                "training.invalid-record",
                f"{path}:{number}: not an event of an attempt: {describe_validation_error(error)}",
            ) from None
    return found


@contextmanager
def record_attempt(path: Path, attempt: int, gpus: int, cpus: int, clock: Clock = time.time) -> Iterator[None]:
    """Record the start of an attempt, and its end when the block ends, with the code of the error that ended it."""
    write_attempt_event(path, AttemptStart(attempt=attempt, time=clock(), gpus=gpus, cpus=cpus))
    try:
        yield
    except BaseException as error:
        outcome = error.code if isinstance(error, GumshoeError) else _FAILED
        with suppress(OSError):  # e.g. if a full disk ended the attempt, which is the error to report
            write_attempt_event(path, AttemptEnd(attempt=attempt, time=clock(), outcome=outcome))
        raise
    write_attempt_event(path, AttemptEnd(attempt=attempt, time=clock(), outcome=FINISHED))
