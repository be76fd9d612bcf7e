"""Targets: messages from the bytes of a mail server, or from a line of JSON, to what an agent searches and reads."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.address_lists import parse_addresses
from gumshoe.mail.build import build_mail_index
from gumshoe.mail.dates import parse_date
from gumshoe.mail.index import MailIndex
from gumshoe.mail.items import RawFile, RawLine
from gumshoe.mail.message_preparer import BatchPreparer
from gumshoe.mail.prepared_messages import PreparedItem
from tests.fuzzing.byte_inputs import NASTY_TEXTS, damaged, joined, json_values, texts
from tests.fuzzing.fuzz_target import Check, FuzzTarget, check_texts, simple_target
from tests.mail.mailbox import KEEP_ALL, record

ANN = "ann@example.com"
MIXED = b"""\
From ann@example.com Thu Jan  1 00:00:00 1970
From: "Lee, Ann" <ann@example.com>
To: bob@example.com, Team: carol@example.com, dave@[127.0.0.1];, =?utf-8?q?=C3=89ve?= <eve@example.com>
Cc: undisclosed-recipients:;
Date: Tue, 5 Mar 2024 12:00:00 +0100 (CET)
Subject: =?utf-8?B?R3LDvMOfZQ==?= =?iso-8859-1?Q?_price?=
Message-ID: <1@example.com>
References: <0@example.com> <00@example.com>
Delivered-To: bob@example.com
Received: from a (b [127.0.0.1]) by mx.example.com with ESMTP id 1 for <bob@example.com>; Tue, 5 Mar 2024 12:00:00 +0100
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="XX"; charset*0="ut"; charset*1*=us-ascii'en'f-8

--XX
Content-Type: multipart/alternative; boundary=YY

--YY
Content-Type: text/plain; charset="iso-2022-jp"; format=flowed; delsp=yes
Content-Transfer-Encoding: quoted-printable

gas =E9 =
price
> On Monday, Bob wrote:
--YY
Content-Type: text/html; charset=windows-1252

<html><head><style>p{}</style></head><body><p>gas <b>price</b><table><tr><td>1</table>&#0;&#xD800;</body></html>
--YY--
--XX
Content-Type: application/pdf; name*=utf-8''a%ff.pdf
Content-Disposition: attachment; filename="=?utf-8?q?a.pdf?="
Content-Transfer-Encoding: base64

JVBERi0=
--XX
Content-Type: message/rfc822

Subject: inner

begin 644 x.txt
#0V%T
`
end
--XX
Content-Type: text/calendar; method=REQUEST

BEGIN:VCALENDAR
BEGIN:VEVENT
DTSTART;TZID=Nowhere:20240230T250000
RRULE:FREQ=DAILY;COUNT=99999999999
END:VEVENT
END:VCALENDAR
--XX--
"""
PLAIN = (
    b"From: ann@example.com\nTo: bob@example.com\nSubject: gas\nDate: 1 Jan 2024 00:00 GMT\nMessage-ID: <2@x>\n\ngas\n"
)
PIECES = [
    *MIXED.splitlines(keepends=True),
    *(b"\n\n", b"--XX\n", b"--YY\n", b"--XX--\n", b"=?utf-8?b?", b"?=", b"=ED=A0=80", b"&#55296;", b"=00",
      b"%00", b"*=", b"*0*="),
    *(b"Content-Transfer-Encoding: x-uuencode\n", b"Content-Transfer-Encoding: 8bit\n",
      b"Content-Type: multipart/signed\n"),
    *(b"Content-Type: text/plain; charset=", b"utf-7", b"idna", b"punycode", b"unicode_escape", b"utf-16",
      b"rot13", b"hex", b"undefined"),
    *(b"Date: Mon, 99 Foo 99999 99:99:99 +9999\n", b"Date: 31 Dec 9999 23:59:59 -2359\n", b"Date: -1\n",
      b"From \n", b">From "),
]  # fmt: skip
HEADERS = [
    "from",
    "to",
    "cc",
    "bcc",
    "subject",
    "body",
    "date",
    "message_id",
    "references",
    "labels",
    "state",
    "delivered_to",
]


def _check_item(item: PreparedItem) -> None:
    if isinstance(item, UnreadableItem):
        check_texts(item.where, item.reason, item.detail)
        return
    check_texts(item.message_id, item.sender, item.sender_name, item.subject, item.body, *item.people, *item.references)
    check_texts(*(text for each in [*item.recipients, *item.attachments] for text in each))
    assert item.sent is None or -(2**47) < item.sent < 2**47
    assert item.utc_offset is None or abs(item.utc_offset) < 1440
    assert "\n" not in item.subject + item.sender + item.message_id
    json.dumps(item.statements, default=str).encode()


@contextmanager
def _open_preparer(kind: type[RawFile] | type[RawLine]) -> Iterator[Check]:
    """Yield a check that the bytes of a message become a message that can be stored, always the same."""
    with BatchPreparer(KEEP_ALL.to_limits()) as preparer:

        def check(data: bytes) -> None:
            found = []
            for _ in range(2):
                (batch,) = preparer.prepare(iter([[kind("here", data)]]))
                found.append(batch.items)
            assert repr(found[0]) == repr(found[1])
            for item in found[0]:
                _check_item(item)

        yield check


@st.composite
def record_lines(draw: st.DrawFn) -> bytes:
    """Return a line of JSON with a message whose fields are odd."""
    changed = draw(st.dictionaries(st.sampled_from(HEADERS), json_values() | st.sampled_from(NASTY_TEXTS), max_size=4))
    line = json.dumps(record(1, **changed)).encode()
    return draw(st.just(line) | damaged([line], most=3))


@contextmanager
def _open_mailbox() -> Iterator[Check]:
    """Yield a check that everything in a mailbox is counted, and that what is indexed can be searched and read."""
    with tempfile.TemporaryDirectory() as name:
        directory, number = Path(name), [0]

        def check(data: bytes) -> None:
            number[0] += 1
            source, place = directory / f"{number[0]}.mbox", directory / str(number[0])
            source.write_bytes(b"From x Thu Jan  1 00:00:00 1970\n" + PLAIN + b"\n" + data)
            report = build_mail_index([f"mbox:{source}"], place, KEEP_ALL)
            assert report.read + sum(report.unreadable.values()) >= 1
            index = MailIndex(place)
            assert len(index.list_unreadable()) == sum(report.unreadable.values())
            _read_everything(index)
            index.stats()

        yield check


def _read_everything(index: MailIndex) -> None:
    addresses = index._segments.list_inboxes()
    for address in sorted(addresses)[:20]:
        for message_id, _ in index.list_messages(address)[:20]:
            message = index.read(address, message_id)
            assert message.message_id == message_id
            check_texts(message.subject, message.body, message.sender, *(each.text for each in message.attachments))
            assert message_id in [each.message_id for each in index.read_thread(address, message_id)]
            words = [word for word in message.body.split() if word.isascii() and word.isalnum() and len(word) < 100]
            if words:
                assert index.search(address, words[:1])
    assert "<2@x>" in [each.message_id for each in index.search("bob@example.com", ["gas"])]


def _check_addresses(data: bytes) -> None:
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "surrogateescape")  # as headers are read
    for each in parse_addresses(text):
        check_texts(each.name, each.address)
        assert each.address == each.address.strip()
        if not each.is_doubtful:  # it gives access to an inbox
            assert not set(each.address) & set(" \n\r\t<>,;")
    sent, offset = parse_date(text)
    assert sent is None or -(2**47) < sent < 2**47
    assert offset is None or abs(offset) < 1440


ADDRESSES = [
    *(b"Ann <ann@example.com>", b'"Lee, Ann" <ann@example.com>', b"a@x, b@y; c@z", b"Team: a@x, b@y;",
      b"(c) a@x (d)", b"<@r1,@r2:a@x>"),
    *(b'"a\\"b"@x', b"=?utf-8?q?a=40b?= <c@d>", b"a@[127.0.0.1]", b"a at b dot c", b"mailto:a@x", b"[1] a@x",
      b"'a@x'", b"Ann (a@x) <b@y>"),
    *(b"Mon, 1 Jan 2024 00:00:00 +0000", b"2024-01-01T00:00:00Z", b"1/2/03 4:05 PM", b"99999999999",
      b"5 Mar 24", b"\xff\x80@x"),
]  # fmt: skip

MESSAGE_TARGETS = (
    FuzzTarget(
        "message", lambda: damaged([MIXED, PLAIN], PIECES) | joined(PIECES), lambda: _open_preparer(RawFile), 60
    ),
    FuzzTarget("record", record_lines, lambda: _open_preparer(RawLine), 60),
    FuzzTarget("mailbox", lambda: damaged([MIXED, PLAIN, MIXED + PLAIN], PIECES), _open_mailbox, 8),
    simple_target(
        "address",
        lambda: (
            damaged(ADDRESSES, [*ADDRESSES, b"<", b">", b'"', b",", b";", b":", b"(", b")", b"@", b"\\"])
            | texts(60).map(lambda text: text.encode("utf-8", "surrogatepass"))
        ),
        _check_addresses,
        200,
    ),
)
