"""One raw message (RFC 5322 and MIME) to a `ParsedMessage`. Broken ones give what text they hold."""

from __future__ import annotations

import inspect
import re
from base64 import b64decode
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from email.errors import HeaderParseError, InvalidBase64LengthDefect
from email.header import decode_header
from email.message import Message
from email.parser import BytesParser
from email.policy import Compat32
from email.utils import getaddresses
from functools import lru_cache

from gumshoe.artifacts.source_files import Unreadable
from gumshoe.mail.message import (
    ROLES,
    ParsedMessage,
    Recipient,
    clean,
    clean_line,
    invent_id,
    normal_address,
    parse_date,
)
from gumshoe.mail.text import decode, decode_html, html_to_text


class _Unchanged(Compat32):
    """Headers as they were written: bytes outside ASCII are ours to decode. Ten times as fast as newer policies."""

    def header_fetch_parse(self, name: str, value: str) -> str:  # noqa: ARG002 - the name of the parameter is given
        return value


_PARSER = BytesParser(policy=_Unchanged())
_STRUCTURED = re.compile(r"[\"()<>:;\\\[\]]|[^\s,]\s+[^\s,]")  # more than bare addresses between commas
_ANY_OF = {"from", "to", "cc", "subject", "date", "message-id"}
_FILES = {"text/calendar", "text/csv", "text/vcard", "text/x-vcard"}  # text, but not to be read in passing
# What Python's email package has been seen to raise on broken input.
_PARSER_FAULTS = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError)
# Since 3.11.10 it drops what it cannot parse strictly, unless told not to.
_LENIENT = {"strict": False} if "strict" in inspect.signature(getaddresses).parameters else {}
_MAILTO = re.compile(r"\bmailto:", re.I)
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]")
_ADDRESS = re.compile(r"[^\s<>()\",;:]+@[^\s<>()\",;:]+")
# Encoded words (RFC 2047), one or several that only white space separates.
_WORD = r"=\?[^?\s]{1,80}\?[bq]\?.{0,2000}?\?="
_WORDS = re.compile(rf"{_WORD}(?:\s*{_WORD})*", re.I)


def parse_message(raw: bytes, where: str, fallback_date: str = "") -> ParsedMessage | Unreadable:
    """Parse one message. Never fails: what is not a message comes back as `Unreadable`.

    `fallback_date` counts where the message itself has no date.
    """
    if not raw.strip():
        return Unreadable(where, "empty")
    try:
        message = _PARSER.parsebytes(raw.removeprefix(BOM_UTF8).lstrip(b"\r\n"))
        headers = _headers(message)
        if not _ANY_OF & headers.keys():
            return Unreadable(where, "no mail headers", f"{len(raw)} bytes")
        text = clean(_text(message))
    except _PARSER_FAULTS as error:
        return Unreadable(where, "broken beyond reading", f"{type(error).__name__}: {error}"[:200])
    authors = (author for role in ("from", "sender") for author in _addresses(headers.get(role, [])))
    sender, sender_name = next(authors, ("", ""))
    sent, offset = _date(headers, fallback_date)
    recipients = [Recipient(role, *pair) for role in ROLES for pair in _addresses(headers.get(role, []))]
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
    return _WORDS.sub(_decoded_words, text) if "=?" in text else text


def _decoded_words(words: re.Match[str]) -> str:
    try:
        pieces = decode_header(words[0])
    except (HeaderParseError, ValueError):  # base64 that is none
        return words[0]
    return "".join(piece if isinstance(piece, str) else decode(piece, charset) for piece, charset in pieces)


def _repaired(raw: str) -> str:
    """Bytes outside ASCII, which the parser hides in surrogates, as text."""
    return raw if raw.isascii() else decode(raw.encode("utf-8", "surrogateescape"))


def listed_addresses(text: str) -> list[tuple[str, str]]:
    """Name and address, as written, of each that a text lists."""
    text = _MAILTO.sub("", text)
    try:
        return getaddresses([text], **_LENIENT)
    except RecursionError:  # hundreds of brackets in one another
        return [("", address) for address in _ADDRESS.findall(text)]


def _addresses(values: list[str]) -> Iterator[tuple[str, str]]:
    """Address and name of each that the headers list. A group without members lists nobody."""
    for value in values:
        yield from _listed(value)


@lru_cache(1 << 14)  # the same few people write to each other
def _listed(value: str) -> tuple[tuple[str, str], ...]:
    line = _repaired(value).replace("\r", " ").replace("\n", " ")
    pairs = listed_addresses(line) if _STRUCTURED.search(line) else [("", each) for each in line.split(",")]
    named = [(normal_address(address), clean_line(_decoded(name)).strip("'\"")) for name, address in pairs]
    return tuple(pair for pair in named if pair[0])


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
        names.append(clean_line(_decoded(_parameter(part.get_filename) or part.get_content_type())))
        attached.append((text or "").strip())
    body = "\n\n".join(filter(None, shown)) or "\n\n".join(filter(None, attached))
    return "\n\n".join(filter(None, [body, *(f"[attachment: {name}]" for name in names)]))


def _leaves(part: Message[str, str]) -> Iterator[tuple[Message[str, str], bool]]:
    """The parts to read, in order, and whether each is shown inline. Of alternatives, the best one."""
    if not part.is_multipart():
        inline = part.get_content_disposition() != "attachment" and part.get_content_maintype() in {"text", "multipart"}
        yield part, inline and part.get_content_type() not in _FILES
        return
    children = [child for child in part.get_payload() if isinstance(child, Message)]
    if part.get_content_type() == "message/rfc822":
        yield _heading(children[0]), True
    if part.get_content_type() == "multipart/alternative":
        choices = [list(_leaves(child)) for child in children]
        best = min(choices, key=_plainness, default=[])
        yield from best
        # Some programs put the attachments into one of the alternatives.
        others = (leaf for choice in choices if choice is not best for leaf in choice)
        yield from (leaf for leaf in others if leaf[0].get_content_disposition() == "attachment")
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
    if any(isinstance(defect, InvalidBase64LengthDefect) for defect in part.defects):  # cut off: left as it was
        letters = _NOT_BASE64.sub(b"", data)
        data = b64decode(letters[: len(letters) // 4 * 4])
    charset = _parameter(part.get_content_charset)
    if part.get_content_type() == "text/html":
        return decode_html(data, charset)
    text = decode(data, charset)
    if text[:200].lstrip().lower().startswith(("<html", "<!doctype html")):
        return html_to_text(text)
    return text


def _parameter(read: Callable[[], str | None]) -> str | None:
    """A parameter of a part's header, or None where it is encoded in a way that nobody knows (RFC 2231)."""
    try:
        return read()
    except ValueError:
        return None
