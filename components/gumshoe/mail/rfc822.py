"""One raw message (RFC 5322 and MIME) to a `ParsedMessage`. Broken ones give what text they hold."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from email.header import decode_header
from email.message import Message
from email.parser import BytesParser
from email.policy import compat32
from email.utils import getaddresses

from gumshoe.mail.message import (
    ParsedMessage,
    Recipient,
    Role,
    Unreadable,
    clean,
    clean_line,
    invent_id,
    normal_address,
    parse_date,
)
from gumshoe.mail.text import decode, decode_html, html_to_text

_PARSER = BytesParser(policy=compat32)  # ten times as fast as the newer policies
_ANY_OF = {"from", "to", "cc", "subject", "date", "message-id"}
_ROLES: tuple[Role, ...] = ("to", "cc", "bcc")
_FILES = {"text/calendar", "text/csv", "text/vcard", "text/x-vcard"}  # text, but not to be read in passing
# What Python's email package has been seen to raise on broken input.
_PARSER_FAULTS = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError)
# Since 3.11.10 it drops what it cannot parse strictly, unless told not to.
LENIENT = {"strict": False} if "strict" in inspect.signature(getaddresses).parameters else {}


def parse_message(raw: bytes, where: str, fallback_date: str = "") -> ParsedMessage | Unreadable:
    """Parse one message. Never fails: what is not a message comes back as `Unreadable`.

    `fallback_date` counts where the message itself has no date.
    """
    if not raw.strip():
        return Unreadable(where, "empty")
    try:
        message = _PARSER.parsebytes(raw)
        headers = _headers(message)
        if not _ANY_OF & headers.keys():
            return Unreadable(where, "no mail headers", f"{len(raw)} bytes")
        text = clean(_text(message))
    except _PARSER_FAULTS as error:
        return Unreadable(where, "broken beyond reading", f"{type(error).__name__}: {error}"[:200])
    sender, sender_name = next(iter(_addresses(headers.get("from") or headers.get("sender", []))), ("", ""))
    sent, offset = _date(headers, fallback_date)
    recipients = [Recipient(role, *pair) for role in _ROLES for pair in _addresses(headers.get(role, []))]
    subject = clean_line(_decoded(headers.get("subject", [""])[0]))
    message_id = clean_line(headers.get("message-id", [""])[0])
    return ParsedMessage(
        message_id=message_id or invent_id(sender, str(sent), subject, text),
        sent=sent,
        utc_offset=offset,
        sender=sender,
        sender_name=sender_name or shorten_name(_decoded(headers.get("x-from", [""])[0])),
        recipients=recipients,
        subject=subject,
        body=text,
        invented_id=not message_id,
    )


def shorten_name(name: str) -> str:
    """A sender's name without the directory path that Exchange writes behind it."""
    return clean_line(name.split(" <", 1)[0]).strip("\"'<> ")


def _headers(message: Message[str, str]) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for name, value in message.raw_items():
        headers.setdefault(name.lower(), []).append(str(value))
    return headers


def _decoded(raw: str) -> str:
    """A header's text: encoded words, and bytes that were never encoded at all."""
    text = _repaired(raw)
    if "=?" not in text:
        return text
    try:
        pieces = decode_header(text)
    except ValueError:  # base64 that is none: HeaderParseError is one
        return text
    return "".join(piece if isinstance(piece, str) else decode(piece, charset) for piece, charset in pieces)


def _repaired(raw: str) -> str:
    """Bytes outside ASCII, which the parser hides in surrogates, as text."""
    return raw if raw.isascii() else decode(raw.encode("utf-8", "surrogateescape"))


def _addresses(values: list[str]) -> Iterator[tuple[str, str]]:
    """Address and name of each that the headers list. A group without members lists nobody."""
    repaired = [_repaired(value).replace("\r", " ").replace("\n", " ") for value in values]
    for name, address in getaddresses(repaired, **LENIENT):
        if normal := normal_address(address):
            yield normal, clean_line(_decoded(name)).strip("'\"")


def _date(headers: dict[str, list[str]], fallback: str) -> tuple[int | None, int | None]:
    received = [value.rpartition(";")[2] for value in headers.get("received", [])]
    for text in (*headers.get("date", []), *headers.get("delivery-date", []), *received, fallback):
        sent, offset = parse_date(_repaired(text))
        if sent is not None:
            return sent, offset
    return None, None


def _text(message: Message[str, str]) -> str:
    """The text of a message: its inline parts, else the text of its attachments, and the attachments' names."""
    shown, attached, names = [], [], []
    for part, inline in _leaves(message):
        text = _leaf_text(part)
        if inline and text is not None:
            shown.append(text.strip())
            continue
        names.append(clean_line(_decoded(str(part.get_filename() or part.get_content_type()))))
        attached.append((text or "").strip())
    body = "\n\n".join(filter(None, shown)) or "\n\n".join(filter(None, attached))
    return "\n\n".join(filter(None, [body, *(f"[attachment: {name}]" for name in names)]))


def _leaves(part: Message[str, str]) -> Iterator[tuple[Message[str, str], bool]]:
    """The parts to read, in order, and whether each is shown inline. Of alternatives, the best one."""
    if not part.is_multipart():
        inline = part.get_content_disposition() != "attachment" and part.get_content_maintype() in {"text", "multipart"}
        yield (
            part,
            inline and part.get_content_type() not in {"text/calendar", "text/csv", "text/vcard", "text/x-vcard"},
        )
        return
    children = [child for child in part.get_payload() if isinstance(child, Message)]
    if part.get_content_type() == "message/rfc822":
        yield _heading(children[0]), True
    if part.get_content_type() == "multipart/alternative":
        choices = [list(_leaves(child)) for child in children]
        children_leaves = min(choices, key=_plainness, default=[])
        yield from children_leaves
        return
    for child in children:
        yield from _leaves(child)


def _plainness(leaves: list[tuple[Message[str, str], bool]]) -> int:
    """0 for an alternative in plain text, 1 for one in HTML or other text, 2 for one that shows nothing."""
    shown = [part for part, inline in leaves if inline and (_leaf_text(part) or "").strip()]
    if not shown:
        return 2
    return int(any(part.get_content_type() != "text/plain" for part in shown))


def _heading(forwarded: Message[str, str]) -> Message[str, str]:
    """The headers of a message inside a message, as text of their own."""
    lines = ["---- Forwarded message ----"]
    for name in ("From", "To", "Date", "Subject"):
        for header, value in forwarded.raw_items():
            if header.lower() == name.lower():
                lines.append(f"{name}: {clean_line(_decoded(str(value)))}")
    heading = Message()
    heading.set_payload("\n".join(lines), "utf-8")
    return heading


def _leaf_text(part: Message[str, str]) -> str | None:
    """The text of one part, or None where it is of another kind."""
    if part.get_content_maintype() not in {"text", "multipart"}:  # a multipart without parts is mislabelled text
        return None
    data = part.get_payload(decode=True)
    if not isinstance(data, bytes):
        return None
    charset = part.get_content_charset()
    if part.get_content_type() == "text/html":
        return decode_html(data, charset)
    text = decode(data, charset)
    if text[:200].lstrip().lower().startswith(("<html", "<!doctype html")):
        return html_to_text(text)
    return text
