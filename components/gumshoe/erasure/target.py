"""What to erase, and how to recognize records and texts that concern it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal

from gumshoe.errors import UsageError
from gumshoe.mail.search_arguments import check_address
from gumshoe.mail.terms import bare_id

TargetKind = Literal["inbox", "message", "document"]
_INBOX_KEYS = ("inbox_address", "inbox", "inboxes", "owner")
_PROMPT = "i am {}. today is"  # how the environment for mail begins a question


@dataclass(frozen=True)
class EraseTarget:
    """A person's inbox, a message or a document.

    An inbox is erased with everything that quotes it as an inbox: questions about it, their episodes and answers. With
    `everywhere`, so is everything else that contains the address.

    Raises:
        UsageError: if the address is not a whole address, the id is empty, or an option does not fit the kind.
    """

    kind: TargetKind
    name: str
    """Address in lower case, id of a message without brackets, or id of a document."""
    everywhere: bool = False
    collection: str | None = None
    """Only the document of this collection."""

    def __post_init__(self) -> None:
        name = self.name.strip()
        if self.kind == "inbox":
            name = check_address("inbox", name)
        elif self.kind == "message":
            name = bare_id(name)
        if not name:
            raise UsageError("erasure.empty-target", f"the id of the {self.kind} is empty; write the whole id")
        if self.everywhere and self.kind != "inbox":
            raise UsageError("erasure.option-conflict", f"--everywhere cannot be used with --{self.kind}; leave it out")
        if self.collection is not None and self.kind != "document":
            raise UsageError("erasure.option-conflict", f"--collection cannot be used with --{self.kind}; leave it out")
        object.__setattr__(self, "name", name)

    def concerns(self, record: Any) -> bool:
        """Return True if a JSON value concerns the target, and is to be erased as a whole."""
        return any(self._concerns_text(key, text) for key, text in list_texts(record))

    def _concerns_text(self, key: str, text: str) -> bool:
        if self.kind == "document":
            return bool(self._document.search(text))
        if self.kind == "message" or self.everywhere:
            return self.is_mentioned(text)
        return self._is_inbox(key, text)

    def is_inbox_of(self, record: Any) -> bool:
        """Return True if a record is about a question from the inbox to erase."""
        return self.kind == "inbox" and any(self._is_inbox(key, text) for key, text in list_texts(record))

    def _is_inbox(self, key: str, text: str) -> bool:
        lowered = text.lower()
        is_own = key in _INBOX_KEYS and lowered.strip() == self.name
        return is_own or (key != "" and _PROMPT.format(self.name) in lowered)

    def is_mentioned(self, text: str) -> bool:
        """Return True if a text without structure, such as a page or a line of a log, names the target."""
        pattern = self._quoted_document if self.kind == "document" else self._bounded
        return bool(pattern.search(text.lower() if self.kind == "inbox" else text))

    @property
    def is_strict(self) -> bool:
        """True if no mention of the target may stay anywhere. Other inboxes keep their mail from and to a person."""
        return self.kind == "message" or self.everywhere

    @cached_property
    def _bounded(self) -> re.Pattern[str]:
        return re.compile(rf"(?<![\w.+%@-]){re.escape(self.name)}(?![\w@-]|\.\w)")

    @cached_property
    def _document(self) -> re.Pattern[str]:
        """Match the id alone, with its collection or its chunk, and as a search shows it to a model."""
        own = rf"(?:[a-z0-9][a-z0-9._-]*:)?{re.escape(self.name)}(?:#\d+)?"
        return re.compile(rf"\A\s*{own}\s*\Z|^\s*id: {own}\s*$", re.M)

    @cached_property
    def _quoted_document(self) -> re.Pattern[str]:
        own = re.escape(self.name)
        return re.compile(rf"(?:[\"'>:/]|id: |;){own}(?:#\d+)?(?:[\"'<&]|\s*$)", re.M)

    def hash(self, salt: str) -> str:
        """Return a hash of the target that does not reveal it to somebody who does not know it."""
        return sha256(f"{salt}\0{self.kind}\0{self.name}\0{self.everywhere}\0{self.collection}".encode()).hexdigest()

    def hide(self, text: str) -> str:
        """Return a text, e.g. the name of a file, without the target."""
        return re.sub(re.escape(self.name), "[erased]", text, flags=re.I)


def list_texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield all texts in a JSON value, each with the key of the object that it is in. Keys are texts too."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield "", name
            yield from list_texts(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from list_texts(each, key)
