"""Decode the transfer encoding of MIME parts, also if its header or the encoded text is broken."""

from __future__ import annotations

import binascii
import quopri
import re
from base64 import b64decode
from email.message import Message

_COMMENT = re.compile(r"\([^()]*\)")
_ENCODINGS = re.compile(
    r"(?P<base64>\bb(?:ase[-_ ]?)?64\b)|(?P<quoted>\bquoted[-_ ]?printable\b)|(?P<uuencode>\b(?:x-)?uue(?:ncode)?\b)"
    r"|\b(?:7-?bit|8-?bit|binary)\b",
    re.I,
)
_SPACED_BREAK = re.compile(rb"=[ \t]+(?=\r?\n)")  # servers pad lines, and some of them end with a soft line break
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]")
_FOREIGN = re.compile(rb"[^A-Za-z0-9+/=\s]")
_PADDING = re.compile(rb"=+")
_BASE64_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2}\s*|\s*")
_ENCODED_LINE = re.compile(rb"^[A-Za-z0-9+/]{40,}={0,2}\s*$", re.M)
_ENCODED_PARAGRAPH = re.compile(rb"\n[ \t]*+\r?\n(?=[A-Za-z0-9+/]{16,}={0,2}[ \t]*\r?(?:\n|\Z))")
_MAX_HEADER = 4096  # bytes
_UU_BEGIN = re.compile(r"begin(-base64)? [0-7]{3,6} (\S.*)")
_UU_LINE_BYTES = 45
_YENC = re.compile(rb"^=ybegin ([^\n]*+)\n(?:=ypart [^\n]*+\n)?", re.M)
_YENC_END = re.compile(rb"^=yend [^\n]*(?:\n|\Z)", re.M)
_YENC_ESCAPED = re.compile(rb"=([^\r\n])", re.S)
_FROM_YENC = bytes((code - 42) % 256 for code in range(256))
_MAX_WORD = 20  # characters, on average


def find_transfer_encoding(part: Message[str, str]) -> str:
    """Return `base64`, `quoted-printable`, `uuencode`, or "" for a part that is not encoded.

    The header may be misspelt, and have comments and parameters.
    """
    value = str(part.get("content-transfer-encoding", ""))
    found = _ENCODINGS.search(_COMMENT.sub(" ", value[:200]))
    kind = found.lastgroup or "" if found else ""
    return "quoted-printable" if kind == "quoted" else kind


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
        return quopri.decodestring(_SPACED_BREAK.sub(b"=", raw) if b"= " in raw or b"=\t" in raw else raw)
    if encoding == "uuencode":
        _, files = split_uuencoded(raw.decode("latin-1"))
        return files[0][1] if files else raw
    return raw


def decode_base64(raw: bytes) -> bytes:
    """Decode base64 that may be truncated, or in several padded pieces.

    Text above or below it stays as it is, e.g. the warning of a mail server, or the footer of a mailing list.
    """
    header, raw = _split_header(raw)
    encoded, footer = _split_footer(raw)
    pieces = (_NOT_BASE64.sub(b"", piece) for piece in _PADDING.split(encoded))
    decoded = b"".join(b64decode(piece[: len(piece) // 4 * 4] + _complete(piece)) for piece in pieces)
    return b"\n".join(filter(None, (header, decoded, footer)))


def _complete(piece: bytes) -> bytes:
    """Return the last, incomplete group of four letters with padding, or nothing if it holds less than a byte."""
    rest = piece[len(piece) // 4 * 4 :]
    return rest + b"=" * (4 - len(rest)) if len(rest) > 1 else b""


def _split_header(raw: bytes) -> tuple[bytes, bytes]:
    """Return the text above the base64, which ends with a blank line, and the rest."""
    if _is_text(raw.lstrip().partition(b"\n")[0]) and (found := _ENCODED_PARAGRAPH.search(raw, 0, _MAX_HEADER)):
        rest = raw[found.end() :]
        if len(b"".join(_split_footer(rest)[0].split())) % 4 == 0:
            return raw[: found.start()].strip(), rest
    return b"", raw


def _is_text(line: bytes) -> bool:
    """Return True for a line with words, and not of base64 with spaces."""
    return b" " in line.strip() and (_FOREIGN.search(line) is not None or _has_words(line))


def _split_footer(raw: bytes) -> tuple[bytes, bytes]:
    """Return the base64 and the text behind it. Odd characters between lines of base64 are no footer.

    All is text if the first line has words: then the header is wrong.
    """
    position = paragraph = 0
    for line in raw.splitlines(keepends=True):
        if not _BASE64_LINE.fullmatch(line):
            if raw[:paragraph].strip() and len(b"".join(raw[paragraph:position].split())) % 4:
                position = paragraph  # a footer that begins with a single word on a line
            footer = raw[position:]
            is_text = position > 0 or _is_text(line)
            is_footer = is_text and not _ENCODED_LINE.search(footer)
            return (raw[:position], footer.strip()) if is_footer else (raw, b"")
        position += len(line)
        if line.rstrip().endswith(b"=") or not line.strip():
            paragraph = position
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


def split_yenc(data: bytes) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return a text without the files that are in it as yEnc (http://www.yenc.org), and their names and content."""
    kept: list[bytes] = []
    files: list[tuple[str, bytes]] = []
    position = 0
    for begin in _YENC.finditer(data):
        _, _, name = begin[1].removesuffix(b"\r").partition(b"name=")
        if not name or begin.start() < position:
            continue
        end = _YENC_END.search(data, begin.end())
        if end is None:
            break
        kept.append(data[position : begin.start()])
        encoded = data[begin.end() : end.start()].replace(b"\r", b"").replace(b"\n", b"")
        escaped = _YENC_ESCAPED.sub(lambda found: bytes([(found[1][0] - 64) % 256]), encoded)
        files.append((name.decode("utf-8", "replace").strip(), escaped.translate(_FROM_YENC)))
        position = end.end()
    return b"".join([*kept, data[position:]]), files
