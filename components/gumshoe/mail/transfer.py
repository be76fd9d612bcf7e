"""Decode the transfer encoding of MIME parts, also if its header or the encoded text is broken."""

from __future__ import annotations

import binascii
import quopri
import re
from base64 import b64decode
from email.message import Message

_COMMENT = re.compile(r"\([^()]*\)")
_ENCODING = re.compile(r"[\w-]+")
_UUENCODE = {"uuencode", "x-uuencode", "uue", "x-uue"}
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]")
_FOREIGN = re.compile(rb"[^A-Za-z0-9+/=\s]")
_PADDING = re.compile(rb"=+")
_BASE64_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2}\s*|\s*")
_ENCODED_LINE = re.compile(rb"^[A-Za-z0-9+/]{40,}={0,2}\s*$", re.M)
_UU_BEGIN = re.compile(r"begin(-base64)? [0-7]{3,4} (\S.*)")
_UU_LINE_BYTES = 45
_MAX_WORD = 20  # characters, on average


def find_transfer_encoding(part: Message[str, str]) -> str:
    """Return the transfer encoding of a part in lower case, without comments and parameters, or ""."""
    value = str(part.get("content-transfer-encoding", ""))
    found = _ENCODING.search(_COMMENT.sub(" ", value[:200]))
    return found[0].lower() if found else ""


def read_raw_payload(part: Message[str, str]) -> bytes:
    """Return the content of a part as it was sent, or nothing if it is divided into parts.

    `get_payload` is of no use: it decodes some of it with charsets and transfer encodings that may be wrong.
    """
    payload = part._payload  # type: ignore[attr-defined]
    return payload.encode("utf-8", "surrogateescape") if isinstance(payload, str) else b""


def decode_payload(part: Message[str, str]) -> bytes:
    """Return the content of a part that is not divided into parts. Never fails: what is not encoded stays as it is."""
    raw = read_raw_payload(part)
    encoding = find_transfer_encoding(part)
    if encoding == "base64":
        return decode_base64(raw)
    if encoding == "quoted-printable":
        return quopri.decodestring(raw)
    if encoding in _UUENCODE:
        _, files = split_uuencoded(raw.decode("latin-1"))
        return files[0][1] if files else raw
    return raw


def decode_base64(raw: bytes) -> bytes:
    """Decode base64 that may be truncated, in several padded pieces, or followed by text, e.g. a mailing list's footer.

    The text that follows is appended as it is.
    """
    encoded, footer = _split_footer(raw)
    pieces = (_NOT_BASE64.sub(b"", piece) for piece in _PADDING.split(encoded))
    decoded = b"".join(b64decode(piece[: len(piece) // 4 * 4] + _complete(piece)) for piece in pieces)
    return b"\n".join(filter(None, (decoded, footer)))


def _complete(piece: bytes) -> bytes:
    """Return the last, incomplete group of four letters with padding, or nothing if it holds less than a byte."""
    rest = piece[len(piece) // 4 * 4 :]
    return rest + b"=" * (4 - len(rest)) if len(rest) > 1 else b""


def _split_footer(raw: bytes) -> tuple[bytes, bytes]:
    """Return the base64 and the text behind it. Odd characters between lines of base64 are no footer.

    All is text if the first line has words: then the header is wrong.
    """
    position = 0
    for line in raw.splitlines(keepends=True):
        if not _BASE64_LINE.fullmatch(line):
            footer = raw[position:]
            is_text = position > 0 or (b" " in line.strip() and (_FOREIGN.search(line) or _has_words(line)))
            is_footer = is_text and not _ENCODED_LINE.search(footer)
            return (raw[:position], footer.strip()) if is_footer else (raw, b"")
        position += len(line)
    return raw, b""


def _has_words(line: bytes) -> bool:
    """Return True if the pieces of a line are as short as words, and not groups of four as in base64."""
    pieces = line.split()
    return sum(map(len, pieces)) < _MAX_WORD * len(pieces) and any(len(piece) % 4 for piece in pieces[:-1])


def split_uuencoded(text: str) -> tuple[str, list[tuple[str, bytes]]]:
    """Return a text without the files that are uuencoded in it, and the name and content of each file."""
    if "begin" not in text:
        return text, []
    lines = text.splitlines()
    kept: list[str] = []
    files: list[tuple[str, bytes]] = []
    position = 0
    while position < len(lines):
        begin = _UU_BEGIN.fullmatch(lines[position].rstrip())
        content, end = (b"", position) if begin is None else _read_uuencoded(lines, position + 1, bool(begin[1]))
        if begin is None or not content:
            kept.append(lines[position])
            position += 1
        else:
            files.append((begin[2].strip(), content))
            position = end
    return ("\n".join(kept), files) if files else (text, [])


def _read_uuencoded(lines: list[str], start: int, is_base64: bool) -> tuple[bytes, int]:
    """Return the content of an encoded file, and the number of the line behind it."""
    content: list[bytes] = []
    position = start
    while position < len(lines):
        line = lines[position]
        position += 1
        if line.strip() in {"end", "===="}:
            break
        try:
            content.append(b64decode(line, validate=True) if is_base64 else _decode_uu_line(line))
        except ValueError:
            position -= 1
            break
    return b"".join(content), position


def _decode_uu_line(line: str) -> bytes:
    """Decode one line of uuencode.

    Raises:
        ValueError: if it is none.
    """
    data = line.encode("ascii")
    if not data.strip():
        return b""
    length = (data[0] - 32) & 63
    needed = (length + 2) // 3 * 4
    if not 32 <= data[0] <= 96 or length > _UU_LINE_BYTES or len(data) > needed + 3:
        raise ValueError("not a line of uuencode")
    return binascii.a2b_uu(data[: needed + 1])
