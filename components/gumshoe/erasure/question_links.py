"""Collect the questions that concern a target. Some records of their episodes name only the question."""

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from pydantic import BaseModel, ConfigDict

from gumshoe.erasure.target import EraseTarget, find_stated_inbox
from gumshoe.errors import GumshoeError
from gumshoe.scenarios.scenario import Scenario


class PendingLinks(BaseModel):
    """The questions that an unfinished erasure looks for, so that it finds their records if it is run again."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    questions: list[str]
    """Hashes of questions. Comparing texts with them requires the erased name."""
    ids: list[str]
    """Hashes of the ids of scenarios, each with its place."""
    digests: list[str]
    """Digests of questions, as adapters record them."""


@dataclass(slots=True)
class Links:
    """Questions that concern a target, and scenarios that do not."""

    target: EraseTarget
    scope: str = ""
    """Place in which ids of scenarios have a meaning."""
    ids: set[str] = field(default_factory=set)
    """Hashes of the ids of scenarios, within their places."""
    others: set[str] = field(default_factory=set)
    """Hashes of the ids of scenarios about other inboxes, messages or documents, within their places."""
    questions: set[str] = field(default_factory=set)
    """Hashes of questions, everywhere."""
    digests: set[str] = field(default_factory=set)
    """`Scenario.digest` of each question, by which adapters name what they were trained on."""

    def within(self, scope: str) -> "Links":
        """Return the same links, for records of another place."""
        return Links(self.target, scope, self.ids, self.others, self.questions, self.digests)

    def save(self) -> PendingLinks:
        """Return the links to keep until the erasure is complete."""
        return PendingLinks(questions=sorted(self.questions), ids=sorted(self.ids), digests=sorted(self.digests))

    def restore(self, pending: PendingLinks) -> None:
        """Add the links that an interrupted erasure kept."""
        self.questions |= set(pending.questions)
        self.ids |= set(pending.ids)
        self.digests |= set(pending.digests)

    def add(self, record: Any) -> None:
        """Add the question of a record that concerns the target. Note the id of a scenario that does not.

        Only scenarios, and episodes about the inbox to erase, add their question. An episode about something else that
        only came across the target does not.
        """
        if not isinstance(record, dict):
            return
        question, name = record.get("question"), record.get("scenario")
        name = name if isinstance(name, str) else record.get("id") if question else None
        own_id = self._hash(f"{self.scope}\0{name}") if isinstance(name, str) else None
        if own_id is not None and self._is_about_others(record):
            self.others.add(own_id)
        if not (_is_scenario(record) or self.target.is_inbox_of(record)) or not self.target.concerns(record):
            return
        if isinstance(question, str) and question.strip():
            self.questions.add(self._hash_question(question))
            stated = record.get("inbox_address")
            for each in {stated, self.target.name if self.target.kind == "inbox" else stated}:
                if isinstance(each, str | None):
                    self._add_digest(question, each)
        if own_id is not None:
            self.ids.add(own_id)

    def _is_about_others(self, record: dict[str, Any]) -> bool:
        if self.target.kind == "inbox":
            return find_stated_inbox(record) not in (None, self.target.name)
        return _is_scenario(record) and not self.target.concerns(record)

    def _add_digest(self, question: str, inbox: str | None) -> None:
        try:
            self.digests.add(Scenario.from_question(question, inbox, None).digest)
        except GumshoeError:
            return

    def is_of_others(self, record: Any) -> bool:
        """Return True if a record is an episode of a scenario about other collections than the document's."""
        if self.target.collection is None or not isinstance(record, dict):
            return False
        own_id = self._hash_id(record)
        return own_id in self.others and own_id not in self.ids

    def has(self, record: Any) -> bool:
        """Return True if a record is about a question that concerns the target.

        Several people may ask the same question. So the question decides only if neither the record nor the id of its
        scenario tells whose it is.
        """
        if not isinstance(record, dict) or self._is_about_others(record):
            return False
        own_id, question = self._hash_id(record), record.get("question")
        is_own, is_others = own_id in self.ids, own_id in self.others
        if is_own != is_others:
            return is_own
        if isinstance(question, str) and question.strip():
            return self._hash_question(question) in self.questions
        return is_own

    def _hash_id(self, record: dict[str, Any]) -> str | None:
        name = record.get("scenario")
        return self._hash(f"{self.scope}\0{name}") if isinstance(name, str) else None

    def _hash_question(self, question: str) -> str:
        return self._hash(question.strip().lower())

    def _hash(self, text: str) -> str:
        """Return a hash of a text, salted with the target's name: comparing other texts with it requires the name."""
        return sha256(f"{self.target.name}\0{text}".encode(errors="surrogatepass")).hexdigest()


def _is_scenario(record: dict[str, Any]) -> bool:
    return not record.keys().isdisjoint(("message_ids", "document_ids", "unanswerable"))
