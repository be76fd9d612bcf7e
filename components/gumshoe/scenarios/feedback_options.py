"""Options for turning feedback into scenarios, as on the command line and in a pipeline's parameter `feedback`."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator

from gumshoe.errors import UsageError
from gumshoe.model_validation import ParameterModel, validate_model
from gumshoe.scenarios.personal_data import KINDS, PersonalDataKind, PersonalDataRedactor
from gumshoe.scenarios.scenario import ScenarioError

Contradictions = Literal["drop", "newest", "majority"]
RedactedAnswers = Literal["drop", "keep"]
_DURATION = re.compile(r"(\d{1,6})([hdw])")
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


class FeedbackOptions(ParameterModel):
    """The feedback to take, and what to do with it."""

    since: str = ""
    """Only feedback since a date (2024-05-01), a time (2024-05-01T12:00Z), or a duration ago (12h, 90d, 2w)."""
    until: str = ""
    """Only feedback before that."""
    max_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Maximum share of the scenarios that one caller's feedback may have."""
    redact: tuple[str, ...] = ("pii",)
    """Kinds of personal data to redact; `pii` for all, `none` for none."""
    redacted_answers: RedactedAnswers = "drop"
    """Leave out questions whose reference answer has personal data, or keep them with the answer as it is."""
    phone_regions: tuple[Annotated[str, StringConstraints(pattern="^[A-Za-z]{2}$", to_upper=True)], ...] = ("US", "GB")
    """Countries whose phone numbers are found without a country code."""
    contradictions: Contradictions = "drop"
    """Answer to take if people gave different ones to the same question: none, the newest, or the most frequent."""
    max_answer: Annotated[int, Field(ge=1)] = 100
    """Maximum length of the reference answer in words."""
    unsupported: Literal["drop", "keep"] = "drop"
    """Leave out answers whose words are not in their sources, or keep them."""
    assume_consent: bool = False
    """Use feedback for which no consent was recorded, i.e. of earlier versions."""

    @field_validator("redact", "phone_regions", mode="before")
    @classmethod
    def _to_tuple(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [value]
        return tuple(value) if isinstance(value, list) else value

    @field_validator("since", "until")
    @classmethod
    def _check_time(cls, text: str) -> str:
        parse_moment(text, datetime.now(UTC))
        return text

    @field_validator("redact")
    @classmethod
    def _check_redaction(cls, redact: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [each for each in redact if each not in ("none", "pii", *KINDS)]:
            raise UsageError(
                "scenarios.unknown-redaction",
                f"unknown kind of personal data: {wrong[0]!r}; use pii (all), none, or some of {', '.join(KINDS)}",
            )
        if not redact or ("none" in redact and len(redact) > 1):
            raise UsageError(
                "scenarios.unknown-redaction",
                f"redact must be none, or name kinds, got {', '.join(redact) or 'nothing'}",
            )
        return redact

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "FeedbackOptions":
        """Return the options that a mapping sets.

        Raises:
            UsageError: if a key or a value is invalid.
        """
        return validate_model(cls, values, "scenarios.invalid-feedback-options", "invalid options of feedback")

    @property
    def redacted_kinds(self) -> tuple[PersonalDataKind, ...]:
        """The kinds of personal data to redact, without `pii` and `none`."""
        return KINDS if "pii" in self.redact else tuple(each for each in KINDS if each in self.redact)

    def open_redactor(self) -> PersonalDataRedactor:
        """Return the redactor of personal data.

        Raises:
            UsageError: if a country does not exist, or a library is missing.
        """
        return PersonalDataRedactor(self.redacted_kinds, self.phone_regions)

    def resolve(self, now: datetime) -> "FeedbackOptions":
        """Return the options with absolute times.

        Durations in days and weeks begin with a day (UTC), so that a step that is repeated on that day takes the same.
        """
        today = now.replace(hour=0, minute=0, second=0, microsecond=0)
        begins = {name: now if getattr(self, name).endswith("h") else today for name in ("since", "until")}
        found = {name: parse_moment(getattr(self, name), begin) for name, begin in begins.items()}
        return self.model_copy(update={name: each.isoformat() for name, each in found.items() if each is not None})

    def includes(self, moment: datetime, now: datetime) -> bool:
        """Return True if feedback of that time is to be taken."""
        since, until = parse_moment(self.since, now), parse_moment(self.until, now)
        return (since is None or moment >= since) and (until is None or moment < until)


def parse_moment(text: str, now: datetime) -> datetime | None:
    """Return the time that a text names: a date, a time (UTC without an offset), or a duration before now.

    >>> parse_moment("2d", datetime(2024, 5, 3, tzinfo=UTC))
    datetime.datetime(2024, 5, 1, 0, 0, tzinfo=datetime.timezone.utc)

    Raises:
        ScenarioError: if it names none.
    """
    if not text:
        return None
    try:
        if duration := _DURATION.fullmatch(text):
            return now - int(duration[1]) * _UNITS[duration[2]]
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ScenarioError(
            "scenarios.invalid-time",
            f"not a date, a time or a duration: {text!r}; write e.g. 2024-05-01, 2024-05-01T12:00Z or 90d",
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
