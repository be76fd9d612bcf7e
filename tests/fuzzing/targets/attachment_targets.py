"""Targets: what is attached to messages, and the formats of Outlook."""

import io
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.attachments import AttachmentLimits, AttachmentReader
from gumshoe.mail.message import AttachedFile
from gumshoe.mail.message_files import read_message_file
from gumshoe.mail.rfc822 import parse_message
from gumshoe.mail.text import decode, html_to_text
from gumshoe.mail.tnef import read_tnef
from tests.documents.pages import pdf
from tests.fuzzing.byte_inputs import damaged, joined
from tests.fuzzing.fuzz_target import Check, FuzzTarget, check_texts, simple_target
from tests.mail.test_attachments import docx, open_document, paragraph, xlsx
from tests.mail.test_outlook import SENT_MESSAGE, compound_file

_LIMITS = AttachmentLimits(max_bytes=1 << 20, max_characters=5_000, seconds=10)
RTF = rb"""{\rtf1\ansi\ansicpg1252\deff0{\fonttbl{\f0\fcharset128 MS Gothic;}}\f0\'82\'a0\par \u20320?\uc2\u55296 ??
{\*\htmltag84 <p>}\htmlrtf {\htmlrtf0 gas}{\field{\*\fldinst HYPERLINK "x"}{\fldrslt link}}\bin3 abc\tab price}"""
HTML = b"""<!doctype html><html><head><meta charset=shift_jis><title>x</title><style>a{}</style></head><body onload=x>
<table><tr><td>gas<td>price</table><ul><li>one<li>two</ul><a href="http://x/?a=1&b=2">link</a><pre> a
 b</pre><sup>2</sup>&amp;&#55296;&#0;&nbsp;<![CDATA[x]]><!-- <p> -->
<script>1</script><svg><text>t</text></svg></body>"""
CALENDAR = b"""BEGIN:VCALENDAR\r\nMETHOD:REQUEST\r\nBEGIN:VTIMEZONE\r\nTZID:X\r\nEND:VTIMEZONE\r\nBEGIN:VEVENT
SUMMARY:Lunch\r\nDTSTART;TZID=X:20240305T120000\r\nDURATION:PT1H\r\nRRULE:FREQ=WEEKLY;BYDAY=MO,TU;UNTIL=20250101
ATTENDEE;CN="A, B":mailto:a@x\r\nORGANIZER:mailto:b@x\r\nLOCATION:Room\\, 1\r\nDESCRIPTION:a\\nb\r\n c\r\nEND:VEVENT
BEGIN:VTODO\r\nDUE;VALUE=DATE:20240306
END:VTODO\r\nEND:VCALENDAR\r\n"""


def _tnef() -> bytes:
    def attribute(level: int, number: int, value: bytes) -> bytes:
        return struct.pack("<BII", level, number, len(value)) + value + struct.pack("<H", sum(value) & 0xFFFF)

    text = "gas price\0".encode("utf-16-le")
    properties = struct.pack("<IHHI", 1, 0x1F, 0x1000, 1) + struct.pack("<I", len(text)) + text
    return (
        b"\x78\x9f\x3e\x22\1\0"
        + attribute(1, 0x00089006, b"\0\0\1\0")
        + attribute(1, 0x00018004, b"subject\0")
        + attribute(1, 0x0006_9003, properties)
        + attribute(2, 0x0006_9002, bytes(14))
        + attribute(2, 0x0001_8010, b"a.txt\0")
        + attribute(2, 0x0006_800F, b"attached")
    )


@cache
def _archives() -> list[bytes]:
    w = paragraph("gas price")
    return [docx(w), open_document("<text:p>gas</text:p>"), xlsx(["gas", 1], ["price", 2.5])]


@cache
def _archive_parts() -> list[tuple[list[zipfile.ZipInfo], dict[str, bytes]]]:
    found = []
    for data in _archives():
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found.append((archive.infolist(), {name: archive.read(name) for name in archive.namelist()}))
    return found


def _attached(name: str, media_type: str) -> Callable[[], AbstractContextManager[Check]]:
    """Return how to open a check that a file is read, or that there is a reason why not."""

    @contextmanager
    def prepare() -> Iterator[Check]:
        with AttachmentReader(_LIMITS) as reader:

            def check(data: bytes) -> None:
                found = reader.read(AttachedFile(name, media_type, data))
                check_texts(found.name, found.text, found.problem)
                assert bool(found.text) != bool(found.problem)
                assert len(found.text) <= _LIMITS.max_characters

            yield check

    return prepare


def _check_html(data: bytes) -> None:
    text = decode(data)
    html_to_text(text).encode("utf-8", "surrogatepass")


def _check_outlook(data: bytes) -> None:
    found = read_message_file(data, "here")
    if not isinstance(found, UnreadableItem):
        parse_message(found[0], "here")


def _check_tnef(data: bytes) -> None:
    try:
        found = read_tnef(data)
    except ValueError:
        return
    for each in found.files:
        each.name.encode("utf-8", "surrogatepass")


ATTACHMENT_TARGETS = (
    FuzzTarget("pdf", lambda: damaged([pdf("gas price", "Title")]), _attached("a.pdf", "application/pdf"), 30),
    FuzzTarget("office", lambda: damaged(_archives(), [b"PK\3\4", b"PK\1\2", b"PK\5\6"]), _attached("a.docx", ""), 30),
    FuzzTarget(
        "rtf", lambda: damaged([RTF], [b"{", b"}", b"\\u-1?", b"\\'", b"\\bin99999 "]), _attached("a.rtf", ""), 30
    ),
    FuzzTarget(
        "calendar",
        lambda: damaged([CALENDAR]) | joined(CALENDAR.splitlines(keepends=True)),
        _attached("a.ics", "text/calendar"),
        60,
    ),
    FuzzTarget(
        "html", lambda: damaged([HTML], [b"<", b">", b"&#x", b"<table>", b"</p>"]), _attached("a.html", "text/html"), 60
    ),
    simple_target(
        "html-text", lambda: damaged([HTML], [b"<table>" * 50, b"<b>" * 200, b"&#1114112;"]), _check_html, 100
    ),
    simple_target("outlook", lambda: damaged([compound_file(SENT_MESSAGE)], most=4), _check_outlook, 60),
    simple_target("tnef", lambda: damaged([_tnef()]), _check_tnef, 100),
)
