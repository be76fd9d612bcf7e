"""Read the feedback that agent servers have published to a store."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, ValidationError

from gumshoe.artifacts.manifest import Manifest
from gumshoe.artifacts.storage import NotFoundError
from gumshoe.artifacts.store import Store
from gumshoe.corpus import SCENARIOS_FILE
from gumshoe.model_validation import describe_validation_error
from gumshoe.scenarios.feedback_options import FeedbackOptions, parse_moment
from gumshoe.scenarios.scenario import Scenario, ScenarioError

FEEDBACK_KIND = "feedback"
"""Kind of the artifacts that agent servers publish feedback as."""


@dataclass(frozen=True, slots=True)
class FeedbackRecord:
    """One caller's feedback on one question."""

    scenario: Scenario
    given_at: datetime
    """Time of the feedback; that of the publication, if a server of an earlier version recorded it."""
    reference: str
    """The publication."""


class FeedbackSelection(BaseModel):
    """The feedback that a run of a pipeline takes, so that each step that is repeated takes the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    options: FeedbackOptions
    """The options, with absolute times."""
    publications: tuple[str, ...]
    """References of the publications."""
    content: str
    """Digest of their content."""

    @classmethod
    def of(cls, store: Store, options: FeedbackOptions, now: datetime) -> "FeedbackSelection":
        """Return the feedback that is in a store now.

        Raises:
            GumshoeError: if the store cannot be listed.
        """
        found = list_publications(store, options.resolve(now), now)
        references = tuple(each.reference for each in found)
        return cls(options=options.resolve(now), publications=references, content=digest_publications(found))

    def drop_erased(self, store: Store) -> "FeedbackSelection":
        """Return the selection without the publications that were erased meanwhile; their cached copies are erased too.

        Raises:
            GumshoeError: if the store cannot be listed.
        """
        chosen = {*self.publications}
        found = [each for each in store.list(FEEDBACK_KIND) if each.reference in chosen]
        references = tuple(each.reference for each in found)
        return self.model_copy(update={"publications": references, "content": digest_publications(found)})

    def read(self, store: Store) -> list[FeedbackRecord]:
        """Return the feedback. Publications that were erased meanwhile are missing.

        Raises:
            ScenarioError, GumshoeError: as in `read_feedback`.
        """
        found = [manifest for each in self.publications if (manifest := store.find(each)) is not None]
        return read_feedback(store, found, self.options, datetime.now(UTC))


def list_publications(store: Store, options: FeedbackOptions, now: datetime) -> list[Manifest]:
    """Return the publications that may have feedback of the time that the options name, oldest first.

    Raises:
        GumshoeError: if the store cannot be listed.
    """
    since = parse_moment(options.since, now)
    return [each for each in store.list(FEEDBACK_KIND) if since is None or each.created >= since]


def read_feedback(
    store: Store, publications: Sequence[Manifest], options: FeedbackOptions, now: datetime
) -> list[FeedbackRecord]:
    """Return the feedback of some publications in the time that the options name, and consent withdrawn later.

    A publication that was erased meanwhile has none.

    Raises:
        ScenarioError: if a line is not a scenario.
        GumshoeError: if the store cannot be read, or a file in it is damaged.
    """
    with ThreadPoolExecutor(store.limits.workers) as pool:
        found = [each for records in pool.map(lambda each: _read(store, each), publications) for each in records]
    withdrawing = options.model_copy(update={"until": None})
    return [
        each
        for each in found
        if options.includes(each.given_at, now)
        or (each.scenario.consent == "none" and withdrawing.includes(each.given_at, now))
    ]


def digest_publications(publications: Sequence[Manifest]) -> str:
    """Return a digest of the content of some publications."""
    digest = hashlib.sha256()
    for each in publications:
        digest.update(f"{each.reference}\0{each.content}\0".encode())
    return digest.hexdigest()


def _read(store: Store, manifest: Manifest) -> list[FeedbackRecord]:
    data = None
    with suppress(NotFoundError):
        data = store.read_file(manifest, SCENARIOS_FILE)
    records = []
    for number, line in enumerate((data or b"").splitlines(), 1):
        try:
            scenario = Scenario.model_validate_json(line)
        except ValidationError as error:
            raise ScenarioError(
                "scenarios.malformed-line",
                f"{store.uri}/{manifest.reference}/{SCENARIOS_FILE}:{number}: {describe_validation_error(error)}",
            ) from None
        records.append(FeedbackRecord(scenario, scenario.given_at or manifest.created, manifest.reference))
    return records
