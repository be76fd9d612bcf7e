"""Record of the inboxes and documents that a policy was trained on, beside its weights, to bind it to their readers.

Everybody who may read the adapter may read the record, so inboxes are salted hashes. They do not show the
addresses, but somebody with a list of addresses can check which of them are among them.
"""

import hashlib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gumshoe.documents.collection_names import matches_collection
from gumshoe.mail.message import normalize_address
from gumshoe.scenarios.scenario import Scenario, ScenarioSet

_INVENTED = (".example", ".test", ".invalid", ".localhost", "@example.com", "@example.net", "@example.org")
"""Ends of addresses that nobody can have (https://www.rfc-editor.org/rfc/rfc2606)."""


class LearnedSources(BaseModel):
    """Inboxes and collections of documents that a policy was trained on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    salt: str
    inboxes: tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...]
    """SHA-256 of the salt and the address of each inbox, sorted."""
    collections: tuple[str, ...] | None
    """Collections of documents, or patterns; None if the documents had no collections, or there were none."""
    has_documents: bool
    """True if some scenarios are about documents."""
    is_invented: bool
    """True if all addresses are of domains that nobody can own, as in synthetic mail."""

    @classmethod
    def of(cls, scenarios: ScenarioSet) -> "LearnedSources":
        """Return the sources of scenarios. The salt depends on the scenarios, so that a repeated training is equal."""
        salt = hashlib.sha256(f"inboxes\0{scenarios.content}".encode()).hexdigest()[:32]
        named = {each for scenario in scenarios for each in scenario.collections or ()}
        documents = [each for each in scenarios if each.inbox_address is None]
        return cls(
            salt=salt,
            inboxes=tuple(sorted(_hash_inbox(salt, each) for each in scenarios.inboxes)),
            collections=tuple(sorted(named)) if any(each.collections is not None for each in documents) else None,
            has_documents=bool(documents),
            is_invented=all(each.endswith(_INVENTED) for each in scenarios.inboxes),
        )

    @property
    def is_empty(self) -> bool:
        """True if there are no sources that only some people may read."""
        return not self.inboxes and self.collections is None

    def has_inbox(self, address: str) -> bool:
        """Return True if the policy was trained on an inbox."""
        return _hash_inbox(self.salt, normalize_address(address)) in self.inboxes

    def may_read_all(self, scenario: Scenario) -> bool:
        """Return True if a caller who may read what a scenario names may read all of the collections."""
        return all(matches_collection(scenario.collections or (), each) for each in self.collections or ())


def _hash_inbox(salt: str, address: str) -> str:
    return hashlib.sha256(f"{salt}\0{address}".encode()).hexdigest()
