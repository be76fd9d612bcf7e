"""Find the lines of an mbox that separate two messages.

Such a line starts with `From `, and so do lines of messages whose writer did not quote them. What the line says, what
stands above it, and above all whether mail headers follow it decide.
"""

import re
from typing import Literal

LOOKAHEAD = 16 << 10  # bytes after a line that are needed to judge it
_MAX_LINE = 1000  # bytes
_MAX_DATE = 150  # bytes at the end of a line that may be its date
_MAX_LINES = 200  # lines of headers that are looked at
_TAIL = 2000  # bytes above a line that are looked at

Shape = Literal["address and date", "word and date", "text and date", "address", "word", "text"]
"""What follows `From `: an address, another word or other text, and perhaps a date. Nothing counts as an address."""
_DATED: set[Shape] = {"address and date", "word and date", "text and date"}

_MONTH = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.?"
_ISO = rb"\d{4}[-/]\d\d?[-/]\d\d?(?:[T ]{1,2}[\d:.]{3,16})?(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?"
_DATE_AT_END = re.compile(
    rb"(?:^|\s)(?:"
    rb"(?:[A-Z][a-z]{2,8},? {1,3})?(?:" + _MONTH + rb"[ -]{1,3}\d{1,2}|\d{1,2}[ -]{1,3}" + _MONTH + rb")\b"
    rb"[ ,:+()A-Z\d-]{0,60}|" + _ISO + rb"|\d{1,2}[./]\d{1,2}[./]\d{2,4}(?: [\d:]{3,8})?"
    rb"|\S{1,12} {1,3}\S{1,12} {1,3}\S{1,4} {1,3}\d{1,2}:\d\d(?::\d\d)?(?: {1,3}[A-Z+\d-]{1,6})? {1,3}\d{4}"
    rb"|\d{9,10})(?: remote from \S{1,80})?\Z"
)
_TIME_OR_YEAR = re.compile(rb"\d:\d\d|\b(?:19|20)\d\d\b|\d{9}")
_ADDRESS = re.compile(rb"-|\S{1,320}@\S{0,255}|\S{1,64} at \S{1,255}|[^<>]{0,200}<[^<>\s]{1,320}>")
_PATCH = re.compile(rb"[0-9a-f]{6,64} Mon Sep 17 00:00:00 2001\s*\Z")  # what `git format-patch` writes
_HEADER = re.compile(rb"([!-9;-~]{1,76})[ \t]{0,8}:")
_ENVELOPE_LINE = re.compile(rb">?From(?:[ \t][^\n]{0,1000})?\r?\n")
_SENT_DATE = re.compile(
    rb"(?:[A-Z][a-z]{2},? +)?(?:\d{1,2} +" + _MONTH + rb"|" + _MONTH + rb" +\d).{0,60}\Z|" + _ISO + rb"\Z"
)
# Headers that a mail server, a mail program or an archive writes into each message.
_IDENTIFYING = {
    *(b"from", b"date", b"message-id", b"received", b"return-path", b"delivered-to", b"x-mozilla-status", b"status"),
    *(b"x-gm-thrid", b"x-gmail-labels", b"x-uidl", b"x-uid", b"x-account-key", b"x-apparently-to", b"envelope-to"),
    *(b"x-original-to", b"dkim-signature", b"authentication-results", b"arc-seal", b"x-received", b"x-status"),
}
_KNOWN = _IDENTIFYING | {
    *(b"to", b"cc", b"bcc", b"subject", b"sender", b"reply-to", b"mime-version", b"content-type", b"in-reply-to"),
    *(b"references", b"resent-from", b"resent-date", b"resent-to", b"newsgroups", b"x-from", b"x-keywords"),
    *(b"x-imap", b"x-imapbase", b"content-length", b"lines", b"x-priority", b"x-mailer", b"content-transfer-encoding"),
}
_PATHS = {b"from", b"date", b"message-id", b"received"}


class Separators:
    """Judge the lines of one mbox that start with `From `.

    `rejected` counts those that look like separators on their own and are none.
    """

    def __init__(self) -> None:
        self.rejected = 0
        self._is_patch_series: bool | None = None  # if the first line of the file is that of a git patch
        self._has_headers = False  # if the current message has any

    def find_end(self, data: bytearray, start: int) -> int:
        """Return where the headers begin that follow the line at `start`, or -1 if it separates no messages.

        `data[start - 1]` is the end of the line above, and `data` contains the `LOOKAHEAD` bytes that follow, or all.
        """
        end = _line_end(data, start)
        line = bytes(data[start + 4 : min(end, start + _MAX_LINE)]).strip()
        if line and (data[start + 4] not in b" \t" or line.startswith(b":")):  # another word, or a header
            return -1
        after = _skip_envelope_lines(data, end)
        is_broken = bool(data[after : after + 1].strip()) and not _HEADER.match(data, after)
        own_shape = _shape(line)
        shape = "text" if is_broken else own_shape
        names = _header_names(data, after, shape in {"address", "word", "text"})
        is_above_another = own_shape not in _DATED and _include_dated(bytes(data[end:after]))
        if not names:
            after = end
        if self._is_patch_series is None:  # the first line of the file
            self._is_patch_series = bool(_PATCH.match(line))
        elif is_above_another or not self._separates(data, start, line, shape, after, names):
            return -1
        self._has_headers = bool(names & _KNOWN)
        return after

    def _separates(self, data: bytearray, start: int, line: bytes, shape: Shape, after: int, names: set[bytes]) -> bool:
        if _PATCH.match(line):
            return bool(self._is_patch_series and names & _KNOWN)
        is_apart = _is_gap(_line_above(data, start)) and bool(data[after : after + 2].strip())
        if _have_evidence(shape, names, is_apart):
            return not _begins_attached_message(data, start)
        if _shape(line) not in {"address and date", "word and date"} or not _is_gap(_line_above(data, start)):
            return False
        if not self._has_headers or (not names and _is_empty(data, after)):
            return True
        self.rejected += 1
        return False


def find_sent_date(separator: bytes) -> str:
    """Return the date in a line that starts with `From `, or an empty string."""
    found = _SENT_DATE.search(separator[5:_MAX_LINE].strip()[-_MAX_DATE:])
    return found[0].decode("latin-1") if found else ""


def _have_evidence(shape: Shape, names: set[bytes], is_apart: bool) -> bool:
    """Return True if enough of the names of mail headers follow a line of that shape.

    Fewer are enough if the line above is blank and the next is not. If the next is broken, the line counts as text.
    """
    known = names & _KNOWN
    if shape == "address and date" and is_apart:
        return bool(known)
    if shape == "word and date" and is_apart:
        return bool(known & _IDENTIFYING)
    if shape == "word":
        return len(known & _IDENTIFYING) >= 2
    if shape != "text":
        return len(known) >= (3 if shape == "address" and not is_apart else 2) and bool(known & _IDENTIFYING)
    return {b"from", b"date"} <= known and len(known & _PATHS) >= 3


def _shape(line: bytes) -> Shape:
    found = _DATE_AT_END.search(line, max(0, len(line) - _MAX_DATE))
    sender = line[: found.start()].strip() if found else line
    has_date = found is not None and bool(_TIME_OR_YEAR.search(found[0]))
    if _ADDRESS.fullmatch(sender) or not line:
        return "address and date" if has_date else "address"
    if sender and b" " not in sender:
        return "word and date" if has_date else "word"
    return "text and date" if has_date else "text"


def _include_dated(lines: bytes) -> bool:
    """Return True if one of some lines that start with `From ` has a date: it separates, and not one above it."""
    after = [each[4:].strip() for each in lines.splitlines() if each.startswith(b"From ")]
    return any(_shape(each) in _DATED and not _PATCH.match(each) for each in after)


def _line_end(data: bytearray, start: int) -> int:
    """Return the index after the end of the line at `start`."""
    end = data.find(b"\n", start, start + LOOKAHEAD)
    return end + 1 if end >= 0 else min(len(data), start + LOOKAHEAD)


def _skip_envelope_lines(data: bytearray, start: int) -> int:
    """Skip further lines that start with `From `, of servers that the message passed earlier."""
    for _ in range(4):
        found = _ENVELOPE_LINE.match(data, start)
        if not found:
            break
        start = found.end()
    return start


def _header_names(data: bytearray, start: int, needs_all: bool) -> set[bytes]:
    """Return the names of the headers at `start`, in lower case. A few blank and broken lines are skipped.

    Two known names are enough for most lines, and then the others are left out.
    """
    names: set[bytes] = set()
    end, blank, broken = start + LOOKAHEAD, 0, 0
    for _ in range(_MAX_LINES):
        stop = data.find(b"\n", start, end)
        stop = min(len(data), end) if stop < 0 else stop
        header = _HEADER.match(data, start, stop)
        if header:
            name = header[1].lower()
            if name in names and data.startswith((b"From ", b"From\t"), start):
                break  # the next line to judge: looking beyond it from each of many would take quadratic time
            names.add(name)
            if not needs_all and name in _IDENTIFYING and len(names & _KNOWN) > 1:
                break
        elif not bytes(data[start : min(stop, start + 80)]).strip():
            blank += 1
            if names or broken or blank > 2:
                break
        elif data[start] not in b" \t":
            broken += 1
            if broken > 3 or data.startswith(b"From ", start):
                break
        start = stop + 1
        if start >= min(end, len(data)):
            break
    return names


def _line_above(data: bytearray, start: int) -> bytes:
    lowest = max(0, start - _TAIL)
    first = max(lowest, data.rfind(b"\n", lowest, start - 1) + 1)
    return bytes(data[first : start - 1]).strip()


def _is_gap(line: bytes) -> bool:
    return not line or line.startswith(b"--")


def _is_empty(data: bytearray, start: int) -> bool:
    """Return True if only blank lines stand between `start` and the next separator or the end of the file."""
    rest = bytes(data[start : start + 80]).lstrip()
    return not rest or rest.startswith(b"From ")


def _begins_attached_message(data: bytearray, start: int) -> bool:
    """Return True if the line is the first of an attached message, below the headers of a MIME part of that type."""
    lowest = max(0, start - _TAIL)
    if data.find(b"/rfc822", lowest, start) < 0 and data.find(b"/RFC822", lowest, start) < 0:
        return False
    tail = bytes(data[lowest:start]).lower()
    paragraph = tail.replace(b"\r\n", b"\n").rstrip(b"\n").rpartition(b"\n\n")[2]
    boundary, _, headers = paragraph.lstrip(b"\n").rpartition(b"\n--")
    lines = headers if boundary else paragraph
    return b"message/rfc822" in lines and (bool(boundary) or paragraph.startswith(b"--"))
