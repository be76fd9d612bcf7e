"""Convert messages of Outlook (`.msg`) to the format of mail."""

import re
import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, formataddr
from typing import TYPE_CHECKING
from uuid import UUID

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.text import decode
from gumshoe.mail.tnef import find_codepage, read_compressed_rtf

if TYPE_CHECKING:
    from oxmsg.storage import Storage

OLE_MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""First bytes of a `.msg` file, and of other files of Microsoft Office."""

# Ids of properties (MS-OXPROPS).
_CLASS, _SUBJECT, _HEADERS, _BODY, _MESSAGE_ID = 0x001A, 0x0037, 0x007D, 0x1000, 0x1035
_REFERENCES, _REPLY_TO_ID, _RTF, _HTML = 0x1039, 0x1042, 0x1009, 0x1013
_SENDER_NAME, _SENDER_ADDRESS, _SENDER_SMTP, _AUTHOR_SMTP = 0x0C1A, 0x0C1F, 0x5D01, 0x5D02
_SUBMITTED, _DELIVERED, _RECIPIENT_TYPE, _DISPLAY_NAME, _ADDRESS, _SMTP_ADDRESS = (
    *(0x0039, 0x0E06, 0x0C15, 0x3001, 0x3003, 0x39FE),
)
_FILE_DATA, _FILE_NAME, _SHORT_FILE_NAME, _MEDIA_TYPE = 0x3701, 0x3707, 0x3704, 0x370E
_STRING, _UNICODE, _BINARY = 0x001E, 0x001F, 0x0102
_MESSAGE_CODEPAGE, _INTERNET_CODEPAGE = 0x3FFD, 0x3FDE
_EMBEDDED = f"__substg1.0_{_FILE_DATA:04X}000D"  # storage of a message that is attached to another one
_PROPERTIES = "__properties_version1.0"  # stream that each message has
_HEADER_SIZE, _EMBEDDED_HEADER_SIZE, _PART_HEADER_SIZE = 32, 24, 8  # bytes of that stream
_PROPERTY = struct.Struct("<2xH4xQ")  # type, id, flags and value
_FIRST_TIME, _TICKS_PER_SECOND, _MAX_SECONDS = datetime(1601, 1, 1, tzinfo=UTC), 10**7, 10**11
_ROLES = {1: "To", 2: "Cc", 3: "Bcc"}
# The table of names (MS-OXMSG, 2.2.3), and the set of properties of appointments with three of its names.
_NAMES, _NAME_SETS, _NAME_ENTRIES = "__nameid_version1.0", "__substg1.0_00020102", "__substg1.0_00030102"
_NAME, _FIRST_SET, _FIRST_NAMED = struct.Struct("<IHH"), 3, 0x8000
_APPOINTMENT = UUID("00062002-0000-0000-c000-000000000046").bytes_le
_START, _END, _PLACE = 0x820D, 0x820E, 0x8208
_PEOPLE = {"From", "To", "Cc", "Bcc"}
_FIELD = re.compile(r"^([!-9;-~]{1,76})[ \t]*:(.*\n(?:[ \t].*\n)*)", re.M)
_TYPE = re.compile(r"([a-z]+)/([\w.+-]{1,100})\Z", re.A | re.I)
_SIGNED = re.compile(rb"(?:MIME-Version:[^\n]{0,80}\n)?Content-Type:\s{0,9}multipart/signed", re.I)
_MAX_PARTS = 1000
_MAX_DEPTH = 5  # messages attached to each other


def convert_msg(raw: bytes, where: str) -> bytes | UnreadableItem:
    """Return an Outlook message (`.msg`) in the format of mail. Needs the package python-oxmsg.

    Messages that are attached to it become files with the ending `.eml`.
    """
    try:
        from olefile import OleFileIO
        from oxmsg.storage import Storage
    except ImportError:
        return UnreadableItem(where, "an Outlook message", "to read it: pip install python-oxmsg")
    try:
        with OleFileIO(raw) as ole:
            # Several entries may name the same bytes of the file: then it grows without bound when it is read.
            size = sum(entry.size for entry in ole.direntries if entry and entry.entry_type == 2)
            if size > 2 * len(raw):
                return UnreadableItem(where, "broken beyond reading", "its streams overlap")
            item = _Item.open(Storage.from_ole(ole), _HEADER_SIZE) if ole.exists(_PROPERTIES) else None
        if item is None or not item.text(_CLASS, _SUBJECT, _BODY):
            return UnreadableItem(where, "no message", "a file of Microsoft Office, but not of mail")
        return _convert(item, 0)
    except Exception as error:  # noqa: BLE001 - the packages raise errors of many kinds on broken files
        return UnreadableItem(where, "broken beyond reading", f"{type(error).__name__}: {error}"[:200])


@dataclass(frozen=True, slots=True)
class _Item:
    """The properties of a message, a recipient or an attachment."""

    storage: "Storage"
    numbers: dict[int, int]
    """Values of the properties of a fixed size, by their ids."""
    charset: str
    """Charset of its texts that are not in UTF-16."""

    @classmethod
    def open(cls, storage: "Storage", header_size: int, charset: str = "") -> "_Item":
        """Read the properties of fixed size, which follow a header of `header_size` bytes.

        Without a charset, that of its code page is used.
        """
        table = storage.properties_stream_bytes[header_size:]
        numbers = dict(_PROPERTY.iter_unpack(table[: len(table) // _PROPERTY.size * _PROPERTY.size]))
        for which in (_MESSAGE_CODEPAGE, _INTERNET_CODEPAGE):
            charset = charset or find_codepage(numbers.get(which, 0) & 0xFFFFFFFF, "")
        return cls(storage, numbers, charset)

    def time(self, *names: int) -> datetime | None:
        """Return the first of some properties that has a time, or None."""
        for which in names:
            if 0 < (seconds := self.numbers.get(which, 0) // _TICKS_PER_SECOND) < _MAX_SECONDS:
                return _FIRST_TIME + timedelta(seconds=seconds)
        return None

    def text(self, *names: int) -> str:
        """Return the first of some properties that has a text, or ""."""
        for which in names:
            data = self.data(which, _UNICODE).decode("utf-16-le", "replace")
            if text := (data or decode(self.data(which, _STRING), self.charset)).rstrip("\0"):
                return text
        return ""

    def data(self, which: int, kind: int = _BINARY) -> bytes:
        """Return the bytes of a property of variable size, or b"" if it is missing."""
        try:
            return self.storage.property_stream_bytes(which, kind)
        except KeyError:
            return b""

    def open_parts(self, prefix: str) -> "list[_Item]":
        """Return the recipients or attachments of a message."""
        found = [each for each in self.storage.storages if each.name.startswith(prefix)]
        return [_Item.open(each, _PART_HEADER_SIZE, self.charset) for each in found[:_MAX_PARTS]]

    def open_embedded(self) -> "_Item | None":
        """Return the message in an attachment, or None if it is a file."""
        found = next((each for each in self.storage.storages if each.name == _EMBEDDED), None)
        if found is None or not any(stream.name == _PROPERTIES for stream in found.streams):
            return None
        return _Item.open(found, _EMBEDDED_HEADER_SIZE)


def _convert(item: _Item, depth: int) -> bytes:
    """Return a message that is attached inside `depth` others in the format of mail."""
    headers = _list_headers(item)
    attachments = item.open_parts("__attach_version1.0_#")
    if len(attachments) == 1 and _SIGNED.match(content := attachments[0].data(_FILE_DATA)):
        return headers + content  # a signed message, stored as it was sent
    return headers + _build_content(item, attachments, depth)


def _list_headers(item: _Item) -> bytes:
    """Return the headers with which the message came, or those that its properties give, e.g. for a sent message."""
    came_with = item.text(_HEADERS).replace("\r\n", "\n").strip("\n\0 ").partition("\n\n")[0]
    fields = _fields(item)
    with_address = {name.lower() for name, value in fields if name in _PEOPLE and "@" in value}

    def keep(field: re.Match[str]) -> str:
        """Return a field, or "" if the properties are better: for the structure, and people without addresses."""
        name = field[1].lower()
        is_better = name in with_address and "@" not in field[2]
        return "" if is_better or name.startswith("content-") or name == "mime-version" else field[0]

    kept = _FIELD.sub(keep, came_with + "\n") if came_with else ""
    names = {field[1].lower() for field in _FIELD.finditer(kept)}
    lines = [f"{name}: {_one_line(value)}\n" for name, value in fields if name.lower() not in names and value]
    return "".join([kept, *lines]).encode("utf-8", "replace")


def _fields(item: _Item) -> list[tuple[str, str]]:
    sent = item.time(_SUBMITTED, _DELIVERED)
    people: dict[str, list[str]] = {}
    for recipient in item.open_parts("__recip_version1.0_#"):
        role = _ROLES.get(recipient.numbers.get(_RECIPIENT_TYPE, 0) & 0xF)
        if role:
            address = _address(recipient.text(_DISPLAY_NAME), recipient.text(_SMTP_ADDRESS, _ADDRESS))
            people.setdefault(role, []).append(address)
    return [
        ("From", _address(item.text(_SENDER_NAME), item.text(_SENDER_SMTP, _AUTHOR_SMTP, _SENDER_ADDRESS))),
        *((role, ", ".join(each)) for role, each in people.items()),
        ("Subject", item.text(_SUBJECT)),
        ("Date", format_datetime(sent) if sent else ""),
        ("Message-ID", item.text(_MESSAGE_ID)),
        ("References", item.text(_REFERENCES)),
        ("In-Reply-To", item.text(_REPLY_TO_ID)),
    ]


def _build_content(item: _Item, attachments: list[_Item], depth: int) -> bytes:
    content = EmailMessage(policy=SMTP.clone(linesep="\n"))
    html = item.data(_HTML) or item.text(_HTML).encode("utf-8", "replace")
    text = item.text(_BODY)
    content.set_content(text if text or html else _rich_text(item))
    if html:
        charset = find_codepage(item.numbers.get(_INTERNET_CODEPAGE, 0) & 0xFFFFFFFF, item.charset)
        content.add_alternative(html, "text", "html", params={"charset": charset} if charset else {})
    if event := _describe_event(item):
        content.add_attachment(event, disposition="inline")
    for attachment in attachments:
        name = _one_line(attachment.text(_FILE_NAME, _SHORT_FILE_NAME, _DISPLAY_NAME)) or "attachment"
        embedded = attachment.open_embedded() if depth < _MAX_DEPTH else None
        if embedded is not None:
            name = name if name.lower().endswith(".eml") else f"{name}.eml"
            content.add_attachment(_convert(embedded, depth + 1), "application", "octet-stream", filename=name)
            continue
        kind = _TYPE.match(attachment.text(_MEDIA_TYPE))
        is_file = kind is not None and kind[1].lower() not in {"message", "multipart"}
        main, sub = kind.groups() if kind is not None and is_file else ("application", "octet-stream")
        content.add_attachment(attachment.data(_FILE_DATA), main, sub, filename=name)
    return content.as_bytes()


def _describe_event(item: _Item) -> str:
    """Return time and place of an appointment or invitation as lines, or "" if it has none."""
    names = _find_names(item.storage)
    start, end = (item.time(names[which]) if which in names else None for which in (_START, _END))
    where = _one_line(item.text(names[_PLACE])) if _PLACE in names else ""
    lines = [f"When: {start:%a %Y-%m-%d %H:%M} to {end:%a %Y-%m-%d %H:%M} UTC"] if start and end else []
    return "\n".join([*lines, f"Where: {where}"] if where else lines)


def _find_names(storage: "Storage") -> dict[int, int]:
    """Return the ids that the properties of appointments have in this message, which names them in a table."""
    table = next((each for each in storage.storages if each.name == _NAMES), None)
    streams = {each.name: each.bytes_ for each in table.streams} if table else {}
    sets = streams.get(_NAME_SETS, b"")
    entries = streams.get(_NAME_ENTRIES, b"")
    names = {}
    for name, kind, number in _NAME.iter_unpack(entries[: len(entries) // _NAME.size * _NAME.size]):
        place = ((kind >> 1) - _FIRST_SET) * len(_APPOINTMENT)
        if not kind & 1 and place >= 0 and sets[place : place + len(_APPOINTMENT)] == _APPOINTMENT:
            names[name] = _FIRST_NAMED + number
    return names


def _rich_text(item: _Item) -> str:
    """Return the text of the body in RTF, or "" if it has none, or compressed-rtf is not installed."""
    try:
        return read_compressed_rtf(item.data(_RTF))
    except ImportError:
        return ""


def _address(name: str, address: str) -> str:
    return (
        formataddr((_one_line(name), _one_line(address)))
        if "@" in address and address.isascii()
        else _one_line(name or address)
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
