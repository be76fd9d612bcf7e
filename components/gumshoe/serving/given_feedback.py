"""Convert feedback to a scenario: a question with what the caller says is right."""

import secrets
from datetime import UTC, datetime
from typing import NamedTuple

from pydantic import ValidationError

from gumshoe.model_validation import describe_validation_error
from gumshoe.scenarios.scenario import Consent, Scenario
from gumshoe.serving.api_models import FeedbackBody
from gumshoe.serving.errors import RefusedRequestError


class KnownAnswer(NamedTuple):
    """A correct answer, and the ids of the sources that contain it. Both are empty if the question is unanswerable."""

    answer: str
    sources: tuple[str, ...]


def find_known_answer(body: FeedbackBody) -> KnownAnswer | None:
    """Return the correct answer that feedback tells, or None if it tells none, or not which sources contain it."""
    if body.unanswerable:
        return KnownAnswer("", ())
    answer, sources = (body.answer, body.source_ids) if body.right else (body.right_answer, body.right_source_ids)
    return KnownAnswer(answer, tuple(sources)) if answer and sources else None


def add_known_answer(scenario: Scenario, known: KnownAnswer, given_by: str, consent: Consent, noun: str) -> Scenario:
    """Return the scenario of a question with its correct answer, its sources, the caller, the time and the consent.

    `noun` names a source: "message" or "document".

    Raises:
        RefusedRequestError: if the answer or the ids are invalid.
    """
    fields = scenario.model_dump(include={"question", "inbox_address", "query_date", "collections"}, exclude_none=True)
    given = {"given_by": given_by, "given_at": datetime.now(UTC).replace(microsecond=0), "consent": consent}
    name = f"asked-{scenario.digest}-{secrets.token_hex(4)}"
    found = {"answer": known.answer, f"{noun}_ids": known.sources, "unanswerable": not known.sources}
    try:
        return Scenario.model_validate({**fields, **found, **given, "id": name})
    except ValidationError as error:
        raise RefusedRequestError("serving.invalid-answer", describe_validation_error(error)) from None
