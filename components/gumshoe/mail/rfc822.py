"""Parse raw messages (RFC 5322 and MIME) into `ParsedMessage`. Broken messages yield the text they contain."""

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

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.message import (
    ROLES,
    ParsedMessage,
    Recipient,
    clean,
    clean_line,
    generate_id,
    normalize_address,
    parse_date,
)
from gumshoe.mail.text import decode, decode_html, html_to_text


class _RawHeaderPolicy(Compat32):
    """Return headers undecoded, because this module decodes them. Ten times as fast as newer policies."""

    def header_fetch_parse(self, name: str, value: str) -> str:  # noqa: ARG002 - the base class defines the parameter
        return value


_PARSER = BytesParser(policy=_RawHeaderPolicy())
_STRUCTURED = re.compile(r"[\"()<>:;\\\[\]]|[^\s,]\s+[^\s,]")  # more than plain addresses between commas
_MAIL_HEADERS = {"from", "to", "cc", "subject", "date", "message-id"}
_ATTACHMENT_TYPES = {"text/calendar", "text/csv", "text/vcard", "text/x-vcard"}  # text, but not shown inline
# Errors that Python's email package is known to raise on broken input.
_PARSER_ERRORS = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError)
# Since 3.11.10 it drops addresses that it cannot parse strictly, unless strict is off.
_LENIENT = {"strict": False} if "strict" in inspect.signature(getaddresses).parameters else {}
_MAILTO = re.compile(r"\bmailto:", re.I)
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]")
_ADDRESS = re.compile(r"[^\s<>()\",;:]+@[^\s<>()\",;:]+")
# Encoded words (RFC 2047): one, or several separated only by whitespace.
_WORD = r"=\?[^?\s]{1,80}\?[bq]\?.{0,2000}?\?="
_WORDS = re.compile(rf"{_WORD}(?:\s*{_WORD})*", re.I)


def parse_message(raw: bytes, where: str, fallback_date: str = "") -> ParsedMessage | UnreadableItem:
    """Parse one message. Never fails: anything that is not a message gives an `UnreadableItem`.

    `fallback_date` is used if the message itself has no date.
    """
    if not raw.strip():
        return UnreadableItem(where, "empty")
    try:
        message = _PARSER.parsebytes(raw.removeprefix(BOM_UTF8).lstrip(b"\r\n"))
        headers = _collect_headers(message)
        if not _MAIL_HEADERS & headers.keys():
            return UnreadableItem(where, "no mail headers", f"{len(raw)} bytes")
        text = clean(_extract_text(message))
    except _PARSER_ERRORS as error:
        return UnreadableItem(where, "broken beyond reading", f"{type(error).__name__}: {error}"[:200])
    authors = (author for role in ("from", "sender") for author in _parse_headers(headers.get(role, [])))
    sender, sender_name = next(authors, ("", ""))
    sent, offset = _find_date(headers, fallback_date)
    recipients = [Recipient(role, *pair) for role in ROLES for pair in _parse_headers(headers.get(role, []))]
    subject = clean_line(_decode_header_text(headers.get("subject", [""])[0]))
    message_id = clean_line(headers.get("message-id", [""])[0])
    return ParsedMessage(
        message_id=message_id or generate_id(sender, str(sent), subject, text),
        sent=sent,
        utc_offset=offset,
        sender=sender,
        sender_name=sender_name or shorten_name(_decode_header_text(headers.get("x-from", [""])[0])),
        recipients=recipients,
        subject=subject,
        body=text,
        has_generated_id=not message_id,
    )


def shorten_name(name: str) -> str:
    """Return a sender's name without the directory path that Exchange appends to it."""
    return clean_line(name.split(" <", 1)[0]).strip("\"'<> ")


def _collect_headers(message: Message[str, str]) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for name, value in message.raw_items():
        headers.setdefault(name.lower(), []).append(str(value))
    return headers


def _decode_header_text(raw: str) -> str:
    """Return a header's text: decode encoded words, and raw bytes that were never encoded."""
    text = _repair_bytes(raw)
    return _WORDS.sub(_decode_words, text) if "=?" in text else text


def _decode_words(words: re.Match[str]) -> str:
    try:
        pieces = decode_header(words[0])
    except (HeaderParseError, ValueError):  # invalid base64
        return words[0]
    return "".join(piece if isinstance(piece, str) else decode(piece, charset) for piece, charset in pieces)


def _repair_bytes(raw: str) -> str:
    """Decode bytes outside ASCII, which the parser stores as surrogates."""
    return raw if raw.isascii() else decode(raw.encode("utf-8", "surrogateescape"))


def parse_addresses(text: str) -> list[tuple[str, str]]:
    """Return name and address, as written, of each entry of an address list."""
    text = _MAILTO.sub("", text)
    try:
        return getaddresses([text], **_LENIENT)
    except RecursionError:  # hundreds of nested brackets
        return [("", address) for address in _ADDRESS.findall(text)]


def _parse_headers(values: list[str]) -> Iterator[tuple[str, str]]:
    """Yield address and name of each entry of the headers. A group without members has no entries."""
    for value in values:
        yield from _parse_header(value)


@lru_cache(1 << 14)  # the same few people write to each other
def _parse_header(value: str) -> tuple[tuple[str, str], ...]:
    line = _repair_bytes(value).replace("\r", " ").replace("\n", " ")
    pairs = parse_addresses(line) if _STRUCTURED.search(line) else [("", each) for each in line.split(",")]
    named = [
        (normalize_address(address), clean_line(_decode_header_text(name)).strip("'\"")) for name, address in pairs
    ]
    return tuple(pair for pair in named if pair[0])


def _find_date(headers: dict[str, list[str]], fallback: str) -> tuple[int | None, int | None]:
    received = [value.rpartition(";")[2] for value in headers.get("received", [])]
    for text in (*headers.get("date", []), *headers.get("delivery-date", []), *received, fallback):
        sent, offset = parse_date(_repair_bytes(text))
        if sent is not None:
            return sent, offset
    return None, None


def _extract_text(message: Message[str, str]) -> str:
    """Return the text of a message: its inline parts, otherwise its text attachments, then the attachments' names."""
    inline_texts, attached_texts, names = [], [], []
    for part, inline in _list_parts(message):
        text = _decode_part(part)
        if inline and text is not None:
            inline_texts.append(text.strip())
            continue
        names.append(clean_line(_decode_header_text(_read_parameter(part.get_filename) or part.get_content_type())))
        attached_texts.append((text or "").strip())
    body = "\n\n".join(filter(None, inline_texts)) or "\n\n".join(filter(None, attached_texts))
    return "\n\n".join(filter(None, [body, *(f"[attachment: {name}]" for name in names)]))


def _list_parts(part: Message[str, str]) -> Iterator[tuple[Message[str, str], bool]]:
    """Yield the parts to read, in order, and True if a part is shown inline. Of alternatives, use the best one."""
    if not part.is_multipart():
        inline = part.get_content_disposition() != "attachment" and part.get_content_maintype() in {"text", "multipart"}
        yield part, inline and part.get_content_type() not in _ATTACHMENT_TYPES
        return
    children = [child for child in part.get_payload() if isinstance(child, Message)]
    if part.get_content_type() == "message/rfc822":
        yield _format_forwarded_headers(children[0]), True
    if part.get_content_type() == "multipart/alternative":
        choices = [list(_list_parts(child)) for child in children]
        best = min(choices, key=_rank_alternative, default=[])
        yield from best
        # Some programs put attachments into one of the alternatives.
        others = (leaf for choice in choices if choice is not best for leaf in choice)
        yield from (leaf for leaf in others if leaf[0].get_content_disposition() == "attachment")
        return
    for child in children:
        yield from _list_parts(child)


def _rank_alternative(leaves: list[tuple[Message[str, str], bool]]) -> int:
    """Return 0 for an alternative in plain text, 1 for HTML or other text, 2 for one without text. Lower is better."""
    inline_texts = [part for part, inline in leaves if inline and (_decode_part(part) or "").strip()]
    if not inline_texts:
        return 2
    return int(any(part.get_content_type() != "text/plain" for part in inline_texts))


def _format_forwarded_headers(forwarded: Message[str, str]) -> Message[str, str]:
    """Return the headers of a message inside a message as a text part."""
    lines = ["---- Forwarded message ----"]
    for name in ("From", "To", "Date", "Subject"):
        for header, value in forwarded.raw_items():
            if header.lower() == name.lower():
                lines.append(f"{name}: {clean_line(_decode_header_text(str(value)))}")
    heading = Message()
    heading.set_payload("\n".join(lines), "utf-8")
    return heading


def _decode_part(part: Message[str, str]) -> str | None:
    """Return the text of one part, or None if it is not text."""
    if part.get_content_maintype() not in {"text", "multipart"}:  # a multipart without parts is mislabeled text
        return None
    data = part.get_payload(decode=True)
    if not isinstance(data, bytes):
        return None
    if any(isinstance(defect, InvalidBase64LengthDefect) for defect in part.defects):  # truncated: not decoded
        letters = _NOT_BASE64.sub(b"", data)
        data = b64decode(letters[: len(letters) // 4 * 4])
    charset = _read_parameter(part.get_content_charset)
    if part.get_content_type() == "text/html":
        return decode_html(data, charset)
    text = decode(data, charset)
    if text[:200].lstrip().lower().startswith(("<html", "<!doctype html")):
        return html_to_text(text)
    return text


def _read_parameter(read: Callable[[], str | None]) -> str | None:
    """Return a parameter of a part's header, or None if its encoding (RFC 2231) is unknown."""
    try:
        return read()
    except ValueError:
        return None
