"""Extract the text of a message from its MIME parts."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from email.errors import InvalidBase64LengthDefect
from email.message import Message

from gumshoe.mail.headers import decode_header_text
from gumshoe.mail.message import clean_line
from gumshoe.mail.text import decode, decode_html, html_to_text

_ATTACHMENT_TYPES = {"text/calendar", "text/csv", "text/vcard", "text/x-vcard"}  # text, but not shown inline
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]")


def extract_text(message: Message[str, str]) -> str:
    """Return the text of a message: its inline parts, otherwise its text attachments, then the attachments' names."""
    inline_texts, attached_texts, names = [], [], []
    for part, inline in _list_parts(message):
        text = _decode_part(part)
        if inline and text is not None:
            inline_texts.append(text.strip())
            continue
        names.append(clean_line(decode_header_text(_read_parameter(part.get_filename) or part.get_content_type())))
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
                lines.append(f"{name}: {clean_line(decode_header_text(str(value)))}")
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
