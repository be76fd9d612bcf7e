"""Items of a source of mail as they are read, before they are parsed.

A source yields raw items (`MailSource.read_raw`), in one thread. `parse_item` parses one of them, in any process: raw
items can be pickled, and parsing depends on nothing else.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gumshoe.artifacts.source_files import UnreadableItem, parse_json_line
from gumshoe.mail.mail_records import parse_record
from gumshoe.mail.message import ParsedMessage, State
from gumshoe.mail.message_files import read_message_file
from gumshoe.mail.rfc822 import parse_message


@dataclass(frozen=True, slots=True)
class RawMessage:
    """One message in the format of mail (RFC 5322)."""

    where: str
    raw: bytes
    fallback_date: str = ""
    """Date of the message if its headers have none, as written in a mail header."""
    state: State = ""
    """State according to its folder or its flags."""
    is_sent: bool = False
    """True if it is in a folder for sent mail."""


@dataclass(frozen=True, slots=True)
class RawFile:
    """One file with a message, in any of the formats of `read_message_file`."""

    where: str
    raw: bytes
    state: State = ""
    """State according to its folder or its flags."""
    is_sent: bool = False
    """True if it is in a folder for sent mail."""


@dataclass(frozen=True, slots=True)
class RawLine:
    """One line of a JSON Lines file. See `parse_record` for its fields."""

    where: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One record of a dataset. See `parse_record` for its fields."""

    where: str
    fields: Any


RawItem = RawMessage | RawFile | RawLine | RawRecord | UnreadableItem


def parse_item(item: RawItem) -> ParsedMessage | UnreadableItem:
    """Parse one item of a source. Never fails: anything that is not a message gives an `UnreadableItem`."""
    if isinstance(item, UnreadableItem):
        return item
    if isinstance(item, RawRecord):
        return parse_record(item.fields, item.where)
    if isinstance(item, RawLine):
        parsed = parse_json_line(item.raw, item.where)
        return parsed if isinstance(parsed, UnreadableItem) else parse_record(parsed[1], item.where)
    if isinstance(item, RawMessage):
        return _parse_raw(item, item.raw, item.state, item.fallback_date)
    found = read_message_file(item.raw, item.where)
    if isinstance(found, UnreadableItem):
        return found
    raw, state = found
    return _parse_raw(item, raw, "deleted" if state == "deleted" else item.state or state)


def _parse_raw(
    item: RawMessage | RawFile, raw: bytes, state: State, fallback_date: str = ""
) -> ParsedMessage | UnreadableItem:
    message = parse_message(raw, item.where, fallback_date)
    if isinstance(message, ParsedMessage):
        message.state = state or message.state
        message.is_sent = item.is_sent and not message.was_delivered
    return message


@dataclass(frozen=True, slots=True)
class MailSource(ABC):
    """A source of mail. Creating it checks that it exists."""

    uri: str
    total: int | None
    """Size in bytes, if known in advance."""

    @abstractmethod
    def read_raw(self, advance: Callable[[int], object]) -> Iterator[RawItem]:
        """Yield all items, in the same order each time unless the source changes.

        `advance` is called with the number of bytes read.

        Raises:
            UnavailableError, StorageError: if the source itself failed.
        """

    @property
    def has_changed(self) -> bool:
        """True if items have appeared or disappeared since the source was opened: another reading may differ."""
        return False

    @property
    def position(self) -> Any:
        """Position after the last item that was read, as values of JSON. None if the source has no positions."""
        return None

    def read_after(self, position: Any, advance: Callable[[int], object]) -> Iterator[RawItem]:  # noqa: ARG002
        """Yield the items after a `position` of an earlier reading, or all if the source has no positions."""
        return self.read_raw(advance)

    def read(self, advance: Callable[[int], object]) -> Iterator[ParsedMessage | UnreadableItem]:
        """Yield all items, parsed in this process."""
        return map(parse_item, self.read_raw(advance))
