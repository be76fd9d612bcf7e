"""A message as parsed from a source, and the normalization of its text, addresses and times."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from typing import Literal

import idna

from gumshoe.mail.authentication_results import ServerStatement

Role = Literal["to", "cc", "bcc"]
ROLES: tuple[Role, ...] = ("to", "cc", "bcc")
State = Literal["", "deleted", "trash", "spam"]
"""Folder or flag that its owner's mail program gave a message."""

_SURROUNDING = (  # brackets, quotes and all whitespace
    "<>'\"\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_UNWANTED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_CONTROLS = bytes(code for code in (*range(32), 127) if code not in b"\t\n\r")
_KELVIN = "\u212a"
_MAX_OFFSET = 24 * 60
_FIRST, _LAST = -62135510400, 253402214400  # years 1 to 9999, less a day for time zones


@dataclass(frozen=True, slots=True)
class Recipient:
    """One recipient: the role (to, cc or bcc), the address in lower case, and the name written beside it."""

    role: Role
    address: str
    name: str = ""
    is_doubtful: bool = False
    """True if the header can be read in another way. A doubtful address gives access to nobody."""


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """A file attached to a message, before its text is extracted."""

    name: str
    """File name on one line, or its media type if it has no name."""
    media_type: str
    data: bytes
    charset: str | None = None
    """Charset that the message declares, if it is text."""
    problem: str = ""
    """Why it cannot be read, if that is known already. See `Attachment.problem`."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file attached to a message."""

    name: str
    """File name on one line, or its media type if it has no name."""
    text: str = ""
    """Text of the file. Empty if it was not read."""
    problem: str = ""
    """Short reason why the file was not read, for counting, e.g. `no text`. Empty if it was read."""


@dataclass(slots=True)
class ParsedMessage:
    """A parsed message, in the form in which it is indexed."""

    message_id: str
    sent: int | None
    """Seconds since 1970, UTC. None if the message has no date."""
    utc_offset: int | None
    """Time zone of the sender, in minutes east of UTC. None if unknown."""
    sender: str
    sender_name: str
    recipients: list[Recipient]
    subject: str
    body: str
    has_generated_id: bool = field(default=False)
    """True if the message had no id of its own."""
    sender_is_doubtful: bool = False
    """See `Recipient.is_doubtful`."""
    delivered_to: list[str] = field(default_factory=list)
    """Addresses to which mail servers say that they delivered it, in normal form, e.g. of `Delivered-To`."""
    references: list[str] = field(default_factory=list)
    """Ids of earlier messages of its thread: References, oldest first, then In-Reply-To."""
    state: State = ""
    is_sent: bool = False
    """True if it is the copy that the sender's mail program kept, according to its folder."""
    was_delivered: bool = False
    """True if a header says that a mail server delivered it into a mailbox."""
    statements: list[ServerStatement] = field(default_factory=list)
    """Verdicts of mail servers on the sender, the topmost first."""
    attachments: list[Attachment] = field(default_factory=list)
    files: list[AttachedFile] = field(default_factory=list)
    """Attached files, whose text `AttachmentReader` turns into `attachments`."""


def list_texts(body: str, attachments: Iterable[Attachment]) -> list[str]:
    """Return the texts that are searched beside the subject: the body, and each attachment with its name."""
    return [body, *(f"{each.name}\n{each.text}" for each in attachments)]


def join_texts(body: str, attachments: Iterable[Attachment], limit: int | None = None) -> str:
    """Return the text of a message to read: the body, and the text of each attachment below a line with its name.

    Of the attachments, at most `limit` characters are shown. A last line then says how many are left out.

    >>> print(join_texts("See the offer.", [Attachment("offer.pdf", "Valid until 30 June.")], 10))
    See the offer.
    <BLANKLINE>
    [text of attachment offer.pdf]
    Valid unti […]
    <BLANKLINE>
    [10 more characters of attachments are not shown]
    """
    parts, left_out = [body.strip()], 0
    for each in attachments:
        text = each.text.strip()
        shown = text if limit is None else text[:limit]
        limit = None if limit is None else limit - len(shown)
        left_out += len(text) - len(shown)
        if shown:
            parts.append(f"[text of attachment {each.name}]\n{shown}{' […]' if len(shown) < len(text) else ''}")
    if left_out:
        parts.append(f"[{left_out:,} more characters of attachments are not shown]")
    return "\n\n".join(filter(None, parts))


def clean(text: str) -> str:
    """Normalize line ends, and replace control characters and surrogates."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.isascii():  # most text is ASCII, and this check is five times as fast
        data = text.encode()
        if len(data.translate(None, _CONTROLS)) == len(data):
            return text
    return _UNWANTED.sub("\ufffd", text)


def clean_line(text: str) -> str:
    """Clean a text like `clean` and collapse whitespace, so that it is one line."""
    if text.isascii() and text.isprintable() and "  " not in text:  # only the ends may need stripping
        return text.strip()
    return " ".join(clean(text).split())


def normalize_address(address: str) -> str:
    """Return an address as the index stores it: lower case, without surrounding brackets, quotes or whitespace.

    An internationalized domain becomes the one that mail servers use: `xn--bcher-kva.example` for `bücher.example`.
    The address of a caller is compared more strictly: see `gumshoe.mail.identities`.
    """
    lowered = lower_case(clean(address).strip(_SURROUNDING))
    local, at, domain = lowered.rpartition("@")
    return lowered if domain.isascii() or not at else f"{local}{at}{_encode_domain(domain)}"


def lower_case(text: str) -> str:
    """Return text with addresses in lower case.

    The Kelvin sign stays: it is the only letter outside ASCII with a lower case in ASCII, and names somebody else.
    """
    return _KELVIN.join(part.lower() for part in text.split(_KELVIN))


def _encode_domain(domain: str) -> str:
    """Return a domain with A-labels (IDNA 2008), or unchanged if it cannot be a domain."""
    try:
        return idna.encode(domain, strict=True).decode()
    except ValueError:  # such as idna.IDNAError
        return domain


def to_utc(moment: datetime) -> tuple[int, int | None]:
    """Return seconds since 1970 and the UTC offset in minutes.

    A time without a zone counts as UTC, with offset None.
    """
    offset = moment.utcoffset()
    if offset is None:
        return int(moment.replace(tzinfo=UTC).timestamp()), None
    return int(moment.timestamp()), offset.days * 1440 + round(offset.seconds / 60)


def validate_date(sent: float, utc_offset: int | None) -> tuple[int | None, int | None]:
    """Return a date as it is stored: None if out of range, and without an impossible offset."""
    if not _FIRST <= sent <= _LAST:
        return None, None
    return int(sent), None if utc_offset is None or abs(utc_offset) >= _MAX_OFFSET else utc_offset


def to_datetime(sent: int | None, utc_offset: int | None) -> datetime | None:
    """Return the time a message was sent, in the sender's time zone."""
    if sent is None:
        return None
    zone = UTC if not utc_offset else timezone(timedelta(minutes=utc_offset))
    return (datetime.fromtimestamp(0, UTC) + timedelta(seconds=sent)).astimezone(zone)


def generate_id(*parts: str) -> str:
    """Return an id for a message without one. Equal content gives an equal id."""
    return f"<{sha256(chr(0).join(parts).encode()).hexdigest()[:32]}@no-message-id>"
