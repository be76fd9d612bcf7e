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

    def without_erased(self, store: Store) -> "FeedbackSelection":
        """Return the selection with what is left of publications from which something was erased meanwhile.

        Raises:
            GumshoeError: if the store cannot be listed.
        """
        found = self._list_left(store)
        references = tuple(each.reference for each in found)
        return self.model_copy(update={"publications": references, "content": digest_publications(found)})

    def read(self, store: Store) -> list[FeedbackRecord]:
        """Return the feedback, without what was erased meanwhile.

        Raises:
            ScenarioError, GumshoeError: as in `read_feedback`.
        """
        return read_feedback(store, self._list_left(store), self.options, datetime.now(UTC))

    def _list_left(self, store: Store) -> list[Manifest]:
        """Return the publications, each replaced by its redacted successor, if it has one."""
        chosen = {*self.publications}
        return [each for each in _list_all(store) if chosen & {each.reference, *each.replaces}]


def list_publications(store: Store, options: FeedbackOptions, now: datetime) -> list[Manifest]:
    """Return the publications that may have feedback of the time that the options name, oldest first.

    Raises:
        GumshoeError: if the store cannot be listed.
    """
    since = parse_moment(options.since, now)
    return [each for each in _list_all(store) if since is None or each.created >= since]


def _list_all(store: Store) -> list[Manifest]:
    """Return all publications, without those that an erasure has replaced and not deleted yet."""
    found = store.list(FEEDBACK_KIND)
    replaced = {reference for each in found for reference in each.replaces}
    return [each for each in found if each.reference not in replaced]


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
