"""Read the headers of a raw message: fields, text, dates and ids."""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64, a2b_qp
from itertools import groupby

from gumshoe.mail.dates import parse_date
from gumshoe.mail.message import clean_line
from gumshoe.mail.text import decode

Fields = list[tuple[str, str]]
"""Names, in lower case, and values of header fields, in order. Bytes outside ASCII are surrogates."""

_MAIL_HEADERS = {"from", "to", "cc", "subject", "date", "message-id"}
# Headers of a message, or of the delivery of one, that other text with colons may have, too.
_MINOR_HEADERS = {
    *("bcc", "sender", "reply-to", "received", "return-path", "delivered-to"),
    *("mime-version", "content-type", "content-transfer-encoding"),
}
DELIVERED_TO = ("delivered-to", "x-original-to", "envelope-to", "x-envelope-to", "x-delivered-to")
"""Headers in which a mail server writes the address of the mailbox that it puts a message into."""
# Headers that mail servers add at the top, beside those of ARC.
_SERVER_HEADERS = {"authentication-results", "received", "return-path", *DELIVERED_TO}
_BEFORE_HEADERS = b"\xef\xbb\xbf\0 \t\r\n"  # byte order mark, padding, blank lines
_FIELD = re.compile(r"([!-9;-~]++)[ \t]*+:[ \t]*+([^\n]*+(?:\n[ \t]++[^ \t\n][^\n]*+)*+)(?:\n|$)")
_BLANK_FOLD = re.compile(r"\n[ \t]++(?=\n[ \t])")  # a blank line inside a folded field
_KNOWN_FIELD = re.compile(
    r"^(?:(?:from|to|cc|bcc|subject|date|message-id|received|sender|reply-to|return-path|references|in-reply-to"
    r"|mime-version|status|delivered-to|envelope-to|x-[!-9;-~]{1,80}|(?:content|list|resent|arc|dkim)-[!-9;-~]{1,80})"
    r"[ \t]*+:)",
    re.I | re.M,
)
_FIRST_FIELD = re.compile(rb"^(?:from|to|date|message-id|received|return-path|delivered-to)[ \t]*+:", re.I | re.M)
_SPACED_FIELD = re.compile(rb"^(Content-[A-Za-z-]{1,40})[ \t]++:", re.I | re.M)
_CHARSET = re.compile(rb"charset\s{0,9}=\s{0,9}[\"']?([\w.:-]{1,40})", re.I)
_MAX_GARBAGE = 1 << 16  # bytes before the headers

# Encoded words (RFC 2047): one, or several separated only by whitespace.
_WORD = r"=\?[^?\s]{0,80}\?[bq]\?.{0,2000}?\?="
_WORDS = re.compile(rf"{_WORD}(?:\s*+{_WORD})*", re.I)
_MAX_TEXT_LENGTH = 1 << 20  # characters of one header
_WORD_PARTS = re.compile(r"=\?([^?*\s]{0,80})[^?\s]{0,80}\?([bq])\?(.{0,2000}?)\?=", re.I)
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/=]")

_ID = re.compile(r"<([^<>]*+)>|([^\s<>,;]++)")
_MAX_IDS = 100
_MAX_ID_LENGTH = 998  # characters of a line (RFC 5322)
_MAX_REFERENCES_LENGTH = _MAX_IDS * _MAX_ID_LENGTH


def split_message(raw: bytes) -> tuple[Fields, bytes]:
    """Split a message into its header fields and its body.

    Lines among the headers that are no fields are left out. If the headers stand behind text, that text is left out,
    except for fields that mail servers add: a sender who writes headers into the body must not replace those.
    """
    fields, body = _split_once(raw)
    if has_mail_headers(fields) or (found := _FIRST_FIELD.search(raw, 1, _MAX_GARBAGE)) is None:
        return fields, body
    later_fields, later_body = _split_once(raw[found.start() :])
    names = {name for name, _ in later_fields}
    is_message = "from" in names and not names.isdisjoint(("date", "message-id", "to", "subject"))
    if not is_message:
        return fields, body
    added = [(name, value) for name, value in fields if name in _SERVER_HEADERS or name.startswith("arc-")]
    return added + later_fields, later_body


def repair_part_headers(content: bytes) -> bytes:
    """Remove spaces before the colons of fields that describe parts. The email package ends their headers there."""
    return _SPACED_FIELD.sub(rb"\1:", content) if b" :" in content or b"\t:" in content else content


def has_mail_headers(fields: Fields) -> bool:
    """Return True if at least one field is that of a message, and not of some other text with colons."""
    return any(name in _MAIL_HEADERS for name, _ in fields)


def begins_with_headers(raw: bytes, fields: Fields) -> bool:
    """Return True if a message without the usual headers begins with others, e.g. of its content or its delivery."""
    if not any(name in _MINOR_HEADERS for name, _ in fields):
        return False
    start = raw[:_MAX_GARBAGE].lstrip(_BEFORE_HEADERS)
    first = fields[0][0].encode("ascii")
    return start[: len(first)].lower() == first


def _split_once(raw: bytes) -> tuple[Fields, bytes]:
    if not raw[:1].isalpha():
        raw = raw.lstrip(_BEFORE_HEADERS)
    if b"\r\r\n" in raw[:2000]:
        raw = re.sub(rb"\r++\n", b"\n", raw)
    end, begin, newline = find_blank_line(raw)
    head = raw[:end].decode("ascii", "surrogateescape")
    if "\r" in head:
        head = head.replace("\r\n", "\n").replace("\r", newline)
    if _BLANK_FOLD.search(head):
        last_known = max((found.start() for found in _KNOWN_FIELD.finditer(head)), default=0)
        head = _BLANK_FOLD.sub("", head[:last_known]) + head[last_known:]
    fields, rest = _read_fields(head)
    body = raw[begin:]
    return fields, (rest.encode("ascii", "surrogateescape") + b"\n\n" + body if rest else body)


def find_blank_line(raw: bytes) -> tuple[int, int, str]:
    """Return the end of the headers, the start of the body, and what a single carriage return means in the headers."""
    first = raw.find(b"\r")
    if first >= 0 and b"\n" not in raw[: first + 2]:  # lines end with a carriage return alone
        end = raw.find(b"\r\r")
        if b"\n" not in raw[: end if end >= 0 else None]:
            return (end, end + 2, "\n") if end >= 0 else (len(raw), len(raw), "\n")
    unix = raw.find(b"\n\n")
    windows = raw.find(b"\n\r\n", 0, unix + 1 if unix >= 0 else None)
    if windows >= 0:
        return windows, windows + 3, " "
    return (unix, unix + 2, " ") if unix >= 0 else (len(raw), len(raw), " ")


def _read_fields(head: str) -> tuple[Fields, str]:
    """Return the fields of a header block, and the text at its end that belongs to the body."""
    fields: Fields = []
    position, end = 0, len(head)
    last_known = -1
    while position < end:
        field = _FIELD.match(head, position)
        if field is not None:
            fields.append((field[1].lower(), field[2]))
            position = field.end()
            continue
        if last_known < 0:
            last_known = max((found.start() for found in _KNOWN_FIELD.finditer(head, position)), default=0)
        # A boundary of parts, or text that no further field follows: the blank line before the body is missing.
        if head.startswith("--", position) or last_known < position:
            return fields, head[position:].removeprefix("\n")
        position = head.find("\n", position) + 1 or end
    return fields, ""


def collect_headers(fields: Fields) -> dict[str, list[str]]:
    """Return the values of the fields by name."""
    headers: dict[str, list[str]] = {}
    for name, value in fields:
        headers.setdefault(name, []).append(value)
    return headers


def decode_header_text(raw: str) -> str:
    """Return a header's text: decode encoded words, and raw bytes that were never encoded. The text is cut at 1 MiB."""
    text = repair_bytes(raw[:_MAX_TEXT_LENGTH])
    return _WORDS.sub(_decode_words, text.replace("\r", "").replace("\n", " ")) if "=?" in text else text


def _decode_words(run: re.Match[str]) -> str:
    """Decode adjacent encoded words. A character, or a group of base64, may be split over words of one charset."""
    words = [(found[1].lower(), found[2].lower(), found[3]) for found in _WORD_PARTS.finditer(run[0])]
    try:
        return "".join(
            decode(b"".join(_decode_transfer(list(same))), charset)
            for charset, same in groupby(words, key=lambda word: word[0])
        )
    except Base64Error:
        return run[0]


def _decode_transfer(words: list[tuple[str, str, str]]) -> list[bytes]:
    """Return the bytes of encoded words of one charset.

    Raises:
        Base64Error: if the length of base64 text is impossible.
    """
    pieces: list[bytes] = []
    encoded = b""
    for number, (_, encoding, text) in enumerate(words, 1):
        data = text.encode("utf-8", "surrogatepass")
        if encoding == "b":
            encoded += _NOT_BASE64.sub(b"", data)
            if len(encoded.rstrip(b"=")) % 4 and not encoded.endswith(b"=") and number < len(words):
                continue  # the next word continues the group
        pieces += [_decode_base64(group) for group in encoded.split(b"=") if group]
        encoded = b""
        if encoding == "q":
            pieces.append(a2b_qp(data, header=True))
    return pieces


def _decode_base64(encoded: bytes) -> bytes:
    return a2b_base64(encoded + b"=" * (-len(encoded) % 4))


def repair_bytes(raw: str, charset: str | None = None) -> str:
    """Decode bytes outside ASCII, which the parser stores as surrogates. `charset` is that of the message.

    ASCII characters stay as they are, so that no charset, whether declared or guessed, changes an address. If it would
    change one, Windows-1252 is used instead.
    """
    if raw.isascii():
        return raw
    data = raw.encode("utf-8", "surrogateescape")
    text = decode(data, charset)
    is_safe = text.encode("ascii", "ignore") == raw.encode("ascii", "ignore")
    return text if is_safe else data.decode("cp1252", "replace")


def is_utf8(raw: str) -> bool:
    """Return True if the bytes outside ASCII, which the parser stores as surrogates, are UTF-8."""
    try:
        raw.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        return False
    return True


def repair_fields(fields: Fields, content: bytes) -> Fields:
    """Decode bytes outside ASCII that were never encoded, with the charset that the message declares for its text."""
    if all(value.isascii() and "\x1b" not in value for _, value in fields):
        return fields
    declared = next((value for name, value in fields if name == "content-type"), "")
    found = _CHARSET.search(declared.encode("ascii", "replace")) or _CHARSET.search(content[:_MAX_GARBAGE])
    charset = found[1].decode("ascii") if found else None
    return [
        (name, _decode_subject(value, charset) if name == "subject" else repair_bytes(value, charset))
        for name, value in fields
    ]


def _decode_subject(value: str, charset: str | None) -> str:
    """Decode the bytes of a text without addresses, which may be in any charset, e.g. ISO-2022-JP."""
    is_plain = value.isascii() and "\x1b" not in value
    return value if is_plain else decode(value.encode("utf-8", "surrogateescape"), charset)


def find_date(headers: dict[str, list[str]], fallback: str) -> tuple[int | None, int | None]:
    """Return the date of a message and the offset of its zone: when it was sent, or else received."""
    for name in ("date", "delivery-date", "received"):
        for value in headers.get(name, ()):
            text = value.rpartition(";")[2] if name == "received" else value
            sent, offset = parse_date(decode_header_text(text))
            if sent is not None:
                return sent, offset
    return parse_date(fallback) if fallback else (None, None)


def shorten_name(name: str) -> str:
    """Return a sender's name without the directory path that Exchange appends to it."""
    return clean_line(name.split(" <", 1)[0]).strip("\"'<> ")


def parse_message_id(raw: str) -> str:
    """Return the id of a message in normal form, with brackets and without spaces, e.g. `<1@example.com>`.

    A text that is no such id is returned on one line, and "" if nothing stands in its brackets.
    """
    text = clean_line(repair_bytes(raw))
    if not text.strip("<> "):
        return ""
    if text[:1] == "<" and text[-1] == ">" and text.count("<") == 1 and " " not in text:
        return text
    return next(iter(_list_ids(text)), text)


def parse_references(references: list[str], in_reply_to: list[str], own_id: str) -> list[str]:
    """Return the ids of earlier messages: those of References, oldest first, and then In-Reply-To. At most 100.

    Ids have the form of `own_id`, the message's own id: with brackets, unless that has none.
    """
    ids = [each for value in references for each in _list_ids(clean_line(repair_bytes(value)))]
    ids += [each for value in in_reply_to[:1] for each in _list_replied_ids(clean_line(repair_bytes(value)))]
    if own_id and not own_id.startswith("<"):
        ids = [each.strip("<>") for each in ids]
    unique = [each for each in dict.fromkeys(ids) if each != own_id and len(each) <= _MAX_ID_LENGTH]
    return unique if len(unique) <= _MAX_IDS else [unique[0], *unique[1 - _MAX_IDS :]]


def _list_ids(text: str) -> list[str]:
    """Return the ids in a text, with brackets. Ids without brackets count if they have an @."""
    ids: list[str] = []
    for found in _ID.finditer(text[:_MAX_REFERENCES_LENGTH]):
        bare = (found[1] or found[2] or "").replace(" ", "")
        if "@" in bare or (found[1] and bare):
            ids.append(f"<{bare}>")
    return ids


def _list_replied_ids(text: str) -> list[str]:
    """Return the ids in In-Reply-To, which may be a sentence: Message from Ann <ann@example.com> <1@example.com>"""
    bracketed = re.findall(r"<[^<>]++>", text[:_MAX_REFERENCES_LENGTH])
    if not bracketed:
        return _list_ids(text) if " " not in text else []
    if len("".join(bracketed)) == len(text.replace(" ", "")):
        return _list_ids(text)
    # An id has more digits than an address of a person.
    return _list_ids(max(bracketed, key=lambda each: sum(map(str.isdigit, each))))
