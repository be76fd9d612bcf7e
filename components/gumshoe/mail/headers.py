"""Read the headers of a raw message: text, names, dates and ids."""

from __future__ import annotations

import re
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message

from gumshoe.mail.message import clean_line, parse_date
from gumshoe.mail.text import decode

# Encoded words (RFC 2047): one, or several separated only by whitespace.
_WORD = r"=\?[^?\s]{1,80}\?[bq]\?.{0,2000}?\?="
_WORDS = re.compile(rf"{_WORD}(?:\s*{_WORD})*", re.I)


def collect_headers(message: Message[str, str]) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for name, value in message.raw_items():
        headers.setdefault(name.lower(), []).append(str(value))
    return headers


def decode_header_text(raw: str) -> str:
    """Return a header's text: decode encoded words, and raw bytes that were never encoded."""
    text = repair_bytes(raw)
    return _WORDS.sub(_decode_words, text) if "=?" in text else text


def _decode_words(words: re.Match[str]) -> str:
    try:
        pieces = decode_header(words[0])
    except (HeaderParseError, ValueError):  # invalid base64
        return words[0]
    return "".join(piece if isinstance(piece, str) else decode(piece, charset) for piece, charset in pieces)


def repair_bytes(raw: str) -> str:
    """Decode bytes outside ASCII, which the parser stores as surrogates."""
    return raw if raw.isascii() else decode(raw.encode("utf-8", "surrogateescape"))


def find_date(headers: dict[str, list[str]], fallback: str) -> tuple[int | None, int | None]:
    received = [value.rpartition(";")[2] for value in headers.get("received", [])]
    for text in (*headers.get("date", []), *headers.get("delivery-date", []), *received, fallback):
        sent, offset = parse_date(repair_bytes(text))
        if sent is not None:
            return sent, offset
    return None, None


def shorten_name(name: str) -> str:
    """Return a sender's name without the directory path that Exchange appends to it."""
    return clean_line(name.split(" <", 1)[0]).strip("\"'<> ")
