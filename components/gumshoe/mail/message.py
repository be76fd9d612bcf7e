"""A message as it comes from a source, and the rules that its text, addresses and dates follow."""

import re
from calendar import timegm
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from email.utils import parsedate_to_datetime, parsedate_tz
from functools import lru_cache
from hashlib import sha256
from typing import Literal

Role = Literal["to", "cc", "bcc"]
ROLES: tuple[Role, ...] = ("to", "cc", "bcc")

# Starts the index's own term for an address. No text that is stored or searched for contains it.
ADDRESS_MARK = "\ue000"
_AROUND = re.compile(r"""^[\s<>'"]+|[\s<>'"]+$""")
_UNWANTED = re.compile(f"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff{ADDRESS_MARK}]")
_CONTROLS = bytes(code for code in (*range(32), 127) if code not in b"\t\n\r")
_MAX_OFFSET = 24 * 60
_FIRST, _LAST = -62135510400, 253402214400  # a day within the years 1 and 9999: any clock can show what is between


@dataclass(frozen=True, slots=True)
class Recipient:
    """One addressee: how they were addressed, their address in lower case, and the name written beside it."""

    role: Role
    address: str
    name: str = ""


@dataclass(slots=True)
class ParsedMessage:
    """A message as a source gave it, in the form in which it is indexed."""

    message_id: str
    sent: int | None
    """Seconds since 1970, UTC; None where the message does not say."""
    utc_offset: int | None
    """Minutes east of UTC of the clock that the date was written by; None where it is unknown."""
    sender: str
    sender_name: str
    recipients: list[Recipient]
    subject: str
    body: str
    invented_id: bool = field(default=False)
    """The message had no id of its own."""


def clean(text: str) -> str:
    """Text without carriage returns, control characters, broken code points and the index's own mark."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.isascii():  # far the most text, and five times as fast to check so
        data = text.encode()
        if len(data.translate(None, _CONTROLS)) == len(data):
            return text
    return _UNWANTED.sub("\ufffd", text)


def clean_line(text: str) -> str:
    """`clean`, on one line, with runs of white space as one space."""
    if text.isascii() and text.isprintable() and "  " not in text:  # nothing to do but at the ends
        return text.strip()
    return " ".join(clean(text).split())


@lru_cache(1 << 16)  # few people write most mail
def normal_address(address: str) -> str:
    """The form in which addresses are compared: lower case, without brackets, quotes or white space around it."""
    return _AROUND.sub("", clean(address)).lower()


def to_utc(moment: datetime) -> tuple[int, int | None]:
    """Seconds since 1970 and offset in minutes. A moment without a time zone counts as UTC, offset unknown."""
    offset = moment.utcoffset()
    if offset is None:
        return int(moment.replace(tzinfo=UTC).timestamp()), None
    return int(moment.timestamp()), offset.days * 1440 + round(offset.seconds / 60)


def parse_date(text: str) -> tuple[int | None, int | None]:
    """Seconds since 1970 (UTC) and offset in minutes of a date, ISO 8601 or as in a mail header.

    Either is None where the text does not say; an impossible offset counts as unknown, its date as UTC.
    """
    text = text.strip()
    try:
        return known_date(*to_utc(datetime.fromisoformat(text)))
    except (ValueError, OverflowError):
        pass
    try:
        parts = parsedate_tz(text)
        if parts is None or not 1 <= parts[0] <= 9998 or parts[2] == 0:
            return None, None
        datetime(*parts[:6])  # noqa: DTZ001 - only to see whether there is such a day
        offset = None if parts[9] is None else round(parts[9] / 60)
        if offset is not None and abs(offset) >= _MAX_OFFSET:
            offset = None
        if offset == 0 and parsedate_to_datetime(text).tzinfo is None:  # no zone, -0000, or one that nobody knows
            offset = None
        return known_date(timegm((*parts[:6], 0, 1, 0)) - (offset or 0) * 60, offset)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None, None


def known_date(sent: float, utc_offset: int | None) -> tuple[int | None, int | None]:
    """A date as it is stored: unknown where no calendar can show it, without an offset that no clock can have."""
    if not _FIRST <= sent <= _LAST:
        return None, None
    return int(sent), None if utc_offset is None or abs(utc_offset) >= _MAX_OFFSET else utc_offset


def shown_date(sent: int | None, utc_offset: int | None) -> datetime | None:
    """The moment a message was sent, on the clock of its sender."""
    if sent is None:
        return None
    zone = UTC if not utc_offset else timezone(timedelta(minutes=utc_offset))
    return (datetime.fromtimestamp(0, UTC) + timedelta(seconds=sent)).astimezone(zone)


def invent_id(*parts: str) -> str:
    """An id for a message without one: the same for the same content, wherever it is read."""
    return f"<{sha256(chr(0).join(parts).encode()).hexdigest()[:32]}@no-message-id>"
