"""Read messages of mbox files (mboxo, mboxrd and their relatives), in bounded memory."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import BinaryIO

from gumshoe.artifacts.lines import GZIP_ERRORS, read_blocks
from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.artifacts.storage import StorageError
from gumshoe.mail.headers import find_blank_line
from gumshoe.mail.items import MailSource, RawItem, RawMessage
from gumshoe.mail.message import State
from gumshoe.mail.message_files import MAX_MESSAGE_SIZE
from gumshoe.mail.separators import LOOKAHEAD, Separators, find_sent_date
from gumshoe.mail.states import find_header_state

_QUOTED_FROM = re.compile(rb"^>(>*From )", re.M)
_KEPT = 8 << 10  # bytes of a message that is too large which are kept to judge the line below them
_BLOCK = 1 << 20
_LARGE = 1 << 20  # bytes; a file with one message of that size may have separators that are unknown
_MAX_IDS = 20  # `Message-ID` headers in one message
# Headers of what Pine and the IMAP server of the University of Washington write as the first message of a folder.
_FOLDER_DATA = (
    b"\nFrom: Mail System Internal Data <",
    b"\nSubject: DON'T DELETE THIS MESSAGE -- FOLDER INTERNAL DATA",
)


@dataclass(frozen=True, slots=True)
class MboxFile:
    """One file of an `MboxSource`."""

    where: str
    open: Callable[[], BinaryIO]
    state: State = ""
    """State of all its messages, according to its folder."""
    is_sent: bool = False
    """True if it is a folder for sent mail."""


@dataclass(frozen=True, slots=True)
class MboxSource(MailSource):
    """One or more mbox files."""

    files: list[MboxFile]
    unread: list[UnreadableItem] = field(default_factory=list)
    """Folders that are not read."""

    def read_raw(self, advance: Callable[[int], object]) -> Iterator[RawItem]:
        yield from self.unread
        for file in self.files:
            try:
                with file.open() as opened:
                    blocks = read_blocks(opened, file.where, advance)
                    yield from split_mbox(blocks, file.where, file.state, is_sent=file.is_sent)
            except StorageError as error:
                if len(self.files) == 1:
                    raise
                yield UnreadableItem(file.where, "cannot be opened", error.message_with_code)
            except GZIP_ERRORS as error:
                yield UnreadableItem(file.where, "damaged file", str(error))


ONE_LARGE_MESSAGE = "one large message"
"""Reason that is counted for a file whose separators may be unknown."""

START_SIZE = 4096
"""Bytes of a file that are enough for `starts_like_mbox`."""


def starts_like_mbox(data: bytes) -> bool:
    """Return True if the first bytes of a file are those of an mbox."""
    start = data.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
    is_header = start[4:START_SIZE].lstrip(b" \t").startswith(b":")
    return start.startswith((b"From ", b"From\n", b"From\r")) and not is_header


def _is_folder_data(raw: bytes) -> bool:
    """Return True if a message is data that a mail program keeps about its folder."""
    start = raw[:_KEPT]
    head = b"\n" + start[: find_blank_line(start)[0]]
    return all(header in head for header in _FOLDER_DATA)


def split_mbox(blocks: Iterable[bytes], where: str, state: State = "", *, is_sent: bool = False) -> Iterator[RawItem]:
    """Yield the messages of an mbox, and an `UnreadableItem` for each that is too large or seems to be several."""
    separators = Separators()
    damage: list[str] = []
    number, size = 0, 0
    for separator, raw, dropped in _split(_normalize(_until_damage(blocks, damage)), separators):
        if not separator:
            yield UnreadableItem(where, "not an mbox", "its first line does not start with 'From '")
            continue
        number += 1
        place = f"{where}#{number}"
        size = len(raw) + dropped
        if dropped:
            yield UnreadableItem(place, "message too large", f"{size:,} bytes; the maximum is {MAX_MESSAGE_SIZE:,}")
            continue
        if number == 1 and _is_folder_data(raw):
            yield UnreadableItem(place, "no message", "data that a mail program keeps about the folder")
            continue
        yield RawMessage(place, raw, find_sent_date(separator), find_header_state(raw) or state, is_sent)
        if size > _KEPT and (ids := _count_ids(raw)) > _MAX_IDS:
            yield UnreadableItem(place, "several messages in one", f"{ids} Message-ID headers in one message")
    if damage:
        yield UnreadableItem(where, "damaged file", damage[0])
    if number == 1 and size > _LARGE:
        detail = f"{size:,} bytes in one message; check that its messages are separated by lines that start with From"
        yield UnreadableItem(where, ONE_LARGE_MESSAGE, detail)
    if separators.rejected and separators.rejected >= number:
        detail = f"{separators.rejected} lines look like separators of messages, but no headers follow them"
        yield UnreadableItem(where, "unclear separators", detail)


def _until_damage(blocks: Iterable[bytes], damage: list[str]) -> Iterator[bytes]:
    """Yield blocks up to the damage of a compressed file, and add its description to `damage`."""
    try:
        yield from blocks
    except GZIP_ERRORS as error:
        damage.append(str(error))


def _split(blocks: Iterator[bytes], separators: Separators) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield separator and content of each message, and how many bytes of it were dropped because it is too large.

    The separator is empty for content that stands above the first message.
    """
    data = bytearray(b"\n")  # begins with the end of the separator
    separator: bytes | None = None
    scanned = dropped = 0
    is_complete = False
    while True:
        found = data.find(b"\nFrom", scanned)
        if found >= 0 and data[found + 5 : found + 6] == b":":
            scanned = found + 5
            continue
        if found >= 0 and (is_complete or len(data) - found > 2 * LOOKAHEAD):
            end = separators.find_end(data, found + 1)
            scanned = found + 5
            if end >= 0:
                if separator is not None or found:
                    yield separator or b"", _content(data, found + 1), dropped
                separator = bytes(data[found + 1 : end])
                del data[: end - 1]
                scanned = dropped = 0
            continue
        if is_complete:
            break
        scanned = found if found >= 0 else max(0, len(data) - 5)
        if scanned > (_BLOCK if dropped else MAX_MESSAGE_SIZE):
            dropped += scanned - _KEPT
            del data[: scanned - _KEPT]
            scanned = _KEPT
        block = next(blocks, None)
        is_complete = block is None
        data += block or b""
    if separator is not None or len(data) > 1:
        yield separator or b"", _content(data, len(data)), dropped


def _content(data: bytearray, end: int) -> bytes:
    raw = bytes(data[1:end])
    return _QUOTED_FROM.sub(rb"\1", raw) if b">From " in raw else raw


def _normalize(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Remove a byte order mark and blank lines at the start, and turn the line ends of old Macs (CR) into LF."""
    first = next(blocks, b"").removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
    if b"\r" in first and b"\n" not in first:
        return (block.replace(b"\r", b"\n") for block in chain([first], blocks))
    return chain([first], blocks)


def _count_ids(raw: bytes) -> int:
    return raw.count(b"\nMessage-ID:") + raw.count(b"\nMessage-Id:")
