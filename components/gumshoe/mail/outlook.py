"""Convert messages of Outlook (`.msg`) to the format of mail."""

import re
from datetime import UTC
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, formataddr
from typing import TYPE_CHECKING

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.text import decode
from gumshoe.mail.tnef import read_compressed_rtf

if TYPE_CHECKING:
    from oxmsg import Message
    from oxmsg.properties import Properties

OLE_MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""First bytes of a `.msg` file, and of other files of Microsoft Office."""

# Ids of properties (MS-OXPROPS).
_SUBJECT, _HEADERS, _BODY, _MESSAGE_ID, _REFERENCES, _REPLY_TO_ID = 0x0037, 0x007D, 0x1000, 0x1035, 0x1039, 0x1042
_RTF, _HTML, _UNICODE = 0x1009, 0x1013, 0x001F
_SENDER_NAME, _SENDER_ADDRESS, _SENDER_SMTP, _AUTHOR_SMTP = 0x0C1A, 0x0C1F, 0x5D01, 0x5D02
_SUBMITTED, _DELIVERED, _RECIPIENT_TYPE, _DISPLAY_NAME, _SHORT_FILE_NAME = 0x0039, 0x0E06, 0x0C15, 0x3001, 0x3704
_ROLES = {1: "To", 2: "Cc", 3: "Bcc"}
# Headers that describe the structure of the message, which Outlook does not keep.
_STRUCTURE = re.compile(r"^(?:Content-[\w-]+|MIME-Version):.*\n(?:[ \t].*\n)*", re.I | re.M)
_MEDIA_TYPE = re.compile(r"([a-z]+)/([\w.+-]{1,100})\Z", re.A | re.I)
_MAX_PARTS = 1000


def convert_msg(raw: bytes, where: str) -> bytes | UnreadableItem:
    """Return an Outlook message (`.msg`) in the format of mail. Needs the package python-oxmsg."""
    try:
        from olefile import OleFileIO
        from oxmsg import Message
    except ImportError:
        return UnreadableItem(where, "an Outlook message", "to read it: pip install python-oxmsg")
    try:
        with OleFileIO(raw) as ole:
            # Several entries may name the same bytes of the file: then it grows without bound when it is read.
            size = sum(entry.size for entry in ole.direntries if entry and entry.entry_type == 2)
        if size > 2 * len(raw):
            return UnreadableItem(where, "broken beyond reading", "its streams overlap")
        message = Message.load(raw)
        if not message.message_class and not message.subject and message.body is None:
            return UnreadableItem(where, "no message", "a file of Microsoft Office, but not of mail")
        return _list_headers(message) + _build_content(message)
    except Exception as error:  # noqa: BLE001 - the packages raise errors of many kinds on broken files
        return UnreadableItem(where, "broken beyond reading", f"{type(error).__name__}: {error}"[:200])


def _list_headers(message: "Message") -> bytes:
    """Return the headers with which the message came, or those that its properties give, e.g. for a sent message."""
    properties = message.properties
    came_with = _text(properties, _HEADERS).replace("\r\n", "\n").strip("\n\0 ")
    lines = []
    if came_with:
        came_with = came_with.partition("\n\n")[0]
        lines.append(_STRUCTURE.sub("", came_with + "\n").rstrip("\n"))
    names = {name.lower() for name in re.findall(r"^([!-9;-~]{1,76}):", came_with, re.M)}
    lines += [f"{name}: {_one_line(value)}" for name, value in _fields(message) if name.lower() not in names and value]
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _fields(message: "Message") -> list[tuple[str, str]]:
    properties = message.properties
    address = _text(properties, _SENDER_SMTP) or _text(properties, _AUTHOR_SMTP) or _text(properties, _SENDER_ADDRESS)
    sent = properties.date_prop_value(_SUBMITTED) or properties.date_prop_value(_DELIVERED)
    people: dict[str, list[str]] = {}
    for recipient in message.recipients[:_MAX_PARTS]:
        role = _ROLES.get((recipient.properties.int_prop_value(_RECIPIENT_TYPE) or 0) & 0xF)
        if role:
            people.setdefault(role, []).append(_address(recipient.name, recipient.email_address))
    return [
        ("From", _address(_text(properties, _SENDER_NAME), address)),
        *((role, ", ".join(each)) for role, each in people.items()),
        ("Subject", _text(properties, _SUBJECT)),
        ("Date", format_datetime(sent.astimezone(UTC)) if sent else ""),
        ("Message-ID", _text(properties, _MESSAGE_ID)),
        ("References", _text(properties, _REFERENCES)),
        ("In-Reply-To", _text(properties, _REPLY_TO_ID)),
    ]


def _build_content(message: "Message") -> bytes:
    content = EmailMessage(policy=SMTP.clone(linesep="\n"))
    properties = message.properties
    html = properties.binary_prop_value(_HTML) or _text(properties, _HTML).encode("utf-8", "replace")
    text = _text(properties, _BODY)
    content.set_content(text if text or html else _rich_text(properties))
    if html:
        content.add_alternative(html, "text", "html", params={"charset": properties.body_encoding})
    for attachment in message.attachments[:_MAX_PARTS]:
        kind = _MEDIA_TYPE.match(attachment.mime_type or "")
        main, sub = (
            kind.groups()
            if kind and kind[1].lower() not in {"message", "multipart"}
            else ("application", "octet-stream")
        )
        name = attachment.file_name or _text(attachment.properties, _SHORT_FILE_NAME)
        name = _one_line(name or _text(attachment.properties, _DISPLAY_NAME)) or "attachment"
        content.add_attachment(attachment.file_bytes or b"", main, sub, filename=name)
    return content.as_bytes()


def _text(properties: "Properties", which: int) -> str:
    try:
        text = (properties.str_prop_value(which) or "").rstrip("\0")
    except (UnicodeDecodeError, LookupError):
        return ""
    if text.isascii() or which == _BODY or any(each.pid == which and each.ptyp == _UNICODE for each in properties):
        return text
    try:  # without the code page of the message the package reads its bytes as if they were in this charset
        return decode(text.encode("iso-8859-15"), properties.body_encoding)
    except UnicodeEncodeError:
        return text


def _rich_text(properties: "Properties") -> str:
    try:
        return read_compressed_rtf(properties.binary_prop_value(_RTF) or b"")
    except Exception:  # noqa: BLE001 - the package that decompresses it raises no other on broken data
        return ""


def _address(name: str, address: str) -> str:
    return (
        formataddr((_one_line(name), _one_line(address)))
        if "@" in address and address.isascii()
        else _one_line(name or address)
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
