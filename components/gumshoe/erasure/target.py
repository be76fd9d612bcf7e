"""The target of an erasure: recognize the records and texts that concern it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal

from gumshoe.documents.collection_names import check_collection_name, matches_collection
from gumshoe.errors import UsageError
from gumshoe.mail.address_mentions import compile_whole_name, list_spellings, mentions_address
from gumshoe.mail.message import lower_case, normalize_address
from gumshoe.mail.search_arguments import check_address
from gumshoe.mail.terms import bare_id

TargetKind = Literal["inbox", "message", "document"]
ERASED = "[erased]"
"""Text in place of the target, and of an erased value that is not in a list."""
_INBOX_KEYS = ("inbox_address", "inbox", "inboxes", "owner")
_PROMPT = re.compile(r"\bi am (\S+@\S+)\. today is")  # the beginning of a question in the environment for mail


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
    """Address in normal form, id of a message without brackets, or id of a document."""
    everywhere: bool = False
    collection: str | None = None
    """Only the document of this collection. A record that says nothing about collections may be about it."""

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
        if self.collection is not None:
            check_collection_name(self.collection)
        object.__setattr__(self, "name", name)

    def concerns(self, record: Any) -> bool:
        """Return True if a JSON value concerns the target, so that all of it must be erased."""
        if self.is_of_others(record):
            return False
        return any(self._concerns_text(key, text) for key, text in list_texts(record))

    def is_of_others(self, record: Any) -> bool:
        """Return True if a record names collections, and the document's collection is not one of them."""
        if self.collection is None or not isinstance(record, dict) or not isinstance(record.get("collections"), list):
            return False
        return not matches_collection(filter(_is_text, record["collections"]), self.collection)

    def _concerns_text(self, key: str, text: str) -> bool:
        if self.kind == "document":
            return bool(self._document.search(text))
        if self.kind == "message" or self.everywhere:
            return self.is_mentioned(text)
        return self._is_inbox(key, text)

    def is_inbox_of(self, record: Any) -> bool:
        """Return True if a record is about a question from the inbox to erase."""
        return self.kind == "inbox" and any(self._is_inbox(key, text) for key, text in list_texts(record))

    def is_same_inbox(self, address: str) -> bool:
        """Return True if an address is that of the inbox, in any spelling."""
        return self.kind == "inbox" and normalize_address(address) == self.name

    def _is_inbox(self, key: str, text: str) -> bool:
        is_own = key in _INBOX_KEYS and self.is_same_inbox(text)
        return is_own or (key != "" and self.name in _list_askers(text))

    def is_mentioned(self, text: str) -> bool:
        """Return True if a text without structure, such as a page or a line of a log, names the target."""
        if self.kind == "inbox":
            return mentions_address(text, self.name)
        return bool((self._quoted_document if self.kind == "document" else self._bounded).search(text))

    @property
    def spellings(self) -> tuple[str, ...]:
        """The name in all spellings that text may use. Addresses are in lower case."""
        return list_spellings(self.name) if self.kind == "inbox" else (self.name,)

    @cached_property
    def searched_bytes(self) -> bytes:
        """Bytes that every mention of the target contains. ASCII letters are in lower case."""
        local, _, _ = self.name.partition("@")
        name = self.name if self.kind != "inbox" else f"{local}@" if local.isascii() else "@"
        return name.encode().lower()

    @property
    def is_strict(self) -> bool:
        """True if no mention may stay in any file. Otherwise other inboxes keep their mail from and to the person."""
        return self.kind == "message" or self.everywhere

    @cached_property
    def _bounded(self) -> re.Pattern[str]:
        return compile_whole_name(self.name)

    @cached_property
    def _document(self) -> re.Pattern[str]:
        """Match the id alone, with its collection or its chunk, and as a search shows it to a model."""
        collection = r"[a-z0-9][a-z0-9._-]*" if self.collection is None else re.escape(self.collection)
        own = rf"(?:{collection}:)?{re.escape(self.name)}(?:#\d+)?"
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
        return re.sub("|".join(map(re.escape, self.spellings)), ERASED, text, flags=re.I)


def find_stated_inbox(record: dict[str, Any]) -> str | None:
    """Return the inbox that a record says it is about, in normal form: by its field, or as a prompt names it."""
    stated = record.get("inbox_address")
    if isinstance(stated, str):
        return normalize_address(stated)
    return next((each for _, text in list_texts(record) for each in _list_askers(text)), None)


def _list_askers(text: str) -> list[str]:
    """Return the inboxes from which prompts in a text ask, in normal form."""
    lowered = lower_case(text)
    return [normalize_address(each) for each in _PROMPT.findall(lowered)] if "i am " in lowered else []


def _is_text(value: object) -> bool:
    return isinstance(value, str)


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
