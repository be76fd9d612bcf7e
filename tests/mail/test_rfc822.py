"""Parsing of raw messages, including broken ones."""

import base64
import tarfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.message import ADDRESS_MARK, ParsedMessage, parse_date, to_datetime
from gumshoe.mail.records import parse_record
from gumshoe.mail.rfc822 import parse_message
from gumshoe.mail.sources import open_source

QUICK = settings(derandomize=True, deadline=None, database=None)
NOON = int(datetime(2001, 5, 14, 12, tzinfo=UTC).timestamp())


def parse(raw: bytes | str, fallback_date: str = "") -> ParsedMessage:
    """Parse a message that must be readable. Text is encoded as UTF-8."""
    message = parse_message(raw.encode() if isinstance(raw, str) else raw, "here", fallback_date)
    assert isinstance(message, ParsedMessage)
    return message


def parse_unreadable(raw: bytes) -> UnreadableItem:
    message = parse_message(raw, "here")
    assert isinstance(message, UnreadableItem)
    return message


def parse_headers(headers: bytes | str) -> ParsedMessage:
    return parse((headers.encode() if isinstance(headers, str) else headers) + b"\n\nText.\n")


def body(headers: str, content: bytes | str) -> str:
    """Return the text of a message with these headers for its content."""
    content = content.encode() if isinstance(content, str) else content
    return parse(b"From: ann@example.com\nMIME-Version: 1.0\n" + headers.encode() + b"\n\n" + content).body


def multipart(kind: str, *parts: str) -> str:
    return body(f"Content-Type: multipart/{kind}; boundary=XX", mixed(*parts))


def mixed(*parts: str, boundary: str = "XX") -> str:
    return "".join(f"--{boundary}\n{part}\n" for part in parts) + f"--{boundary}--\n"


PLAIN = "Content-Type: text/plain\n\nPlain text."
HTML = "Content-Type: text/html\n\n<p>HTML <b>text</b>.</p>"
PDF = 'Content-Type: application/pdf; name="report.pdf"\nContent-Transfer-Encoding: base64\n\nJVBERi0=\n'


# Bodies


def test_a_simple_message_is_parsed() -> None:
    message = parse(
        "Message-ID: <1@example.com>\nDate: Mon, 14 May 2001 05:00:00 -0700 (PDT)\n"
        'From: "Ann Lee" <Ann.Lee@Example.COM>\nTo: bob@example.com, Eve <eve@example.com>\nCc: carol@example.com\n'
        "Bcc: dan@example.com\nSubject: Lunch\n\nAt noon?\n"
    )
    assert (message.message_id, message.has_generated_id) == ("<1@example.com>", False)
    assert (message.sent, message.utc_offset) == (NOON, -420)
    assert (message.sender, message.sender_name) == ("ann.lee@example.com", "Ann Lee")
    assert [(each.role, each.address, each.name) for each in message.recipients] == [
        ("to", "bob@example.com", ""),
        ("to", "eve@example.com", "Eve"),
        ("cc", "carol@example.com", ""),
        ("bcc", "dan@example.com", ""),
    ]
    assert (message.subject, message.body) == ("Lunch", "At noon?")


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_every_line_end_is_read(ending: str) -> None:
    message = parse("From: ann@example.com\nSubject: a\n b\n\none\ntwo\n".replace("\n", ending))
    assert (message.subject, message.body) == ("a b", "one\ntwo")


def test_blank_lines_or_a_byte_order_mark_before_headers_are_skipped() -> None:
    assert parse_headers("\r\n\nFrom: ann@example.com").sender == "ann@example.com"
    assert parse_headers(b"\xef\xbb\xbfFrom: ann@example.com").sender == "ann@example.com"


def test_quoted_printable_is_decoded() -> None:
    headers = "Content-Type: text/plain; charset=iso-8859-1\nContent-Transfer-Encoding: quoted-printable"
    assert body(headers, "Gr=FC=DFe aus K=F6ln, lang=\ne Zeile=20\n") == "Grüße aus Köln, lange Zeile"


def test_bad_quoted_printable_keeps_its_text() -> None:
    headers = "Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: quoted-printable"
    assert body(headers, "100=% sure =ZZ caf=C3=A9 =\n") == "100=% sure =ZZ café"


def test_truncated_base64_is_decoded() -> None:
    headers = "Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: base64"
    encoded = base64.encodebytes("Grüße aus Köln. Der Bericht folgt.".encode()).decode()
    assert body(headers, encoded) == "Grüße aus Köln. Der Bericht folgt."
    assert body(headers, encoded.strip()[:40]).startswith("Grüße aus Köln. Der Ber")
    assert body(headers, encoded.strip()[:41]).startswith("Grüße aus Köln.")


def test_an_unknown_transfer_encoding_keeps_the_text() -> None:
    assert body("Content-Transfer-Encoding: x-what", "Text.") == "Text."


def test_a_wrong_charset_of_a_part_is_corrected() -> None:
    assert body("Content-Type: text/plain; charset=us-ascii", "Grüße") == "Grüße"
    assert body("Content-Type: text/plain; charset=utf-8", "Grüße".encode("cp1252")) == "Grüße"
    assert body("Content-Type: text/plain; charset=nonsense", "Grüße") == "Grüße"
    assert body("Content-Type: text/plain; charset*=a\0b''utf-8", "Grüße") == "Grüße"


def test_an_html_message_becomes_text() -> None:
    assert body("Content-Type: text/html; charset=utf-8", "<p>Grüße<br>Ann</p>") == "Grüße\nAnn"
    assert body("Content-Type: text/plain", "<html><body><p>One</p><p>Two</p></body></html>").split() == ["One", "Two"]
    assert body("Content-Type: text/html", "<img src=x>") == ""


def test_the_plain_text_alternative_is_preferred() -> None:
    assert multipart("alternative", PLAIN, HTML) == "Plain text."
    assert multipart("alternative", HTML, PLAIN) == "Plain text."


@pytest.mark.parametrize("blank", ["", "\n \n", "\u00a0"])
def test_html_is_used_if_the_plain_alternative_is_blank(blank: str) -> None:
    blank_part = f"Content-Type: text/plain; charset=utf-8\n\n{blank}"
    assert multipart("alternative", blank_part, HTML) == "HTML text."
    assert multipart("alternative", blank_part) == ""
    assert multipart("alternative") == ""


def test_nested_parts_are_read_in_order_and_attachments_are_named() -> None:
    alternative = "Content-Type: multipart/alternative; boundary=AA\n\n" + mixed(PLAIN, HTML, boundary="AA")
    image = "Content-Type: image/png; name=logo.png\nContent-ID: <1>\n\nx"
    related = "Content-Type: multipart/related; boundary=RR\n\n" + mixed(alternative, image, boundary="RR")
    footer = "Content-Type: text/plain\n\nFooter of the list."
    signature = "Content-Type: application/pgp-signature; name=signature.asc\n\nx"
    signed = "Content-Type: multipart/signed; boundary=SS\n\n" + mixed(related, signature, boundary="SS")
    assert multipart("mixed", signed, PDF, footer) == (
        "Plain text.\n\nFooter of the list.\n\n"
        "[attachment: logo.png]\n\n[attachment: signature.asc]\n\n[attachment: report.pdf]"
    )


def test_an_attachment_in_an_unused_alternative_is_named() -> None:
    attached = PDF.replace("\n", "\nContent-Disposition: attachment\n", 1)
    rich = "Content-Type: multipart/mixed; boundary=MM\n\n" + mixed(HTML, attached, boundary="MM")
    assert multipart("alternative", PLAIN, rich) == "Plain text.\n\n[attachment: report.pdf]"


def test_a_forwarded_message_is_text_with_its_headers() -> None:
    forwarded = (
        "Content-Type: message/rfc822\n\nFrom: Eve <eve@example.com>\nTo: ann@example.com\nX-Other: no\n"
        "Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\nDate: Mon, 14 May 2001 05:00:00 -0700\n\nOriginal text."
    )
    text = multipart("mixed", PLAIN, forwarded)
    assert text == (
        "Plain text.\n\n---- Forwarded message ----\nFrom: Eve <eve@example.com>\nTo: ann@example.com\n"
        "Date: Mon, 14 May 2001 05:00:00 -0700\nSubject: Grüße\n\nOriginal text."
    )


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ('Content-Disposition: attachment; filename="Q1 plan.xls"', "Q1 plan.xls"),
        ("Content-Disposition: attachment; filename*=UTF-8''Gr%C3%BC%C3%9Fe.xls", "Grüße.xls"),
        ('Content-Disposition: attachment; filename*0="long "; filename*1="name.xls"', "long name.xls"),
        ("Content-Disposition: attachment; filename*0*=utf-8''%E4%BD%A0; filename*1*=%E5%A5%BD.xls", "你好.xls"),
        ('Content-Disposition: attachment; filename="=?utf-8?B?5L2g5aW9?=.xls"', "你好.xls"),
        ('Content-Disposition: attachment; filename="=?koi8-r?Q?=F0=D2?= =?koi8-r?Q?=C9.xls?="', "При.xls"),
        ('Content-Disposition: attachment; filename="Grüße.xls"', "Grüße.xls"),
        ('Content-Disposition: attachment; filename="a\n b.xls"', "a b.xls"),
        ("Content-Disposition: attachment", "application/vnd.ms-excel"),
        ("Content-Disposition: attachment; filename*=idna''%FF.xls", "application/vnd.ms-excel"),
        ("Content-Disposition: attachment; filename*=nonsense''plan.xls", "plan.xls"),
    ],
)
def test_attachments_are_listed_by_name(header: str, name: str) -> None:
    part = f"Content-Type: application/vnd.ms-excel\n{header}\n\nx"
    assert multipart("mixed", PLAIN, part) == f"Plain text.\n\n[attachment: {name}]"


def test_attachment_text_is_used_only_without_a_body() -> None:
    attached = "Content-Type: text/plain\nContent-Disposition: attachment; filename=notes.txt\n\nText in a file."
    assert multipart("mixed", attached) == "Text in a file.\n\n[attachment: notes.txt]"
    assert multipart("mixed", PLAIN, attached) == "Plain text.\n\n[attachment: notes.txt]"


def test_calendars_and_tables_count_as_attachments() -> None:
    calendar = "Content-Type: text/calendar; name=invite.ics\n\nBEGIN:VCALENDAR\nSUMMARY:Lunch"
    assert multipart("alternative", PLAIN, calendar) == "Plain text."
    assert multipart("mixed", PLAIN, calendar) == "Plain text.\n\n[attachment: invite.ics]"
    assert "SUMMARY:Lunch" in multipart("mixed", calendar)


def test_a_false_multipart_keeps_its_text() -> None:
    assert body("Content-Type: multipart/mixed", "Text after all.") == "Text after all."
    assert body("Content-Type: multipart/mixed; boundary=XX", "Text after all.") == "Text after all."
    assert "Text after all." in body("Content-Type: multipart/alternative; boundary=XX", "--YY\n\nText after all.")
    assert body("Content-Type: multipart/mixed; boundary=XX", "--XX\n\nNo end") == "No end"


@pytest.mark.parametrize("kind", ["", "nonsense", "text", "text/", "text/plain; charset", 'text/plain; "', ";;;"])
def test_a_broken_content_type_keeps_the_text(kind: str) -> None:
    assert body(f"Content-Type: {kind}", "Text.") == "Text."


@pytest.mark.parametrize("depth", [50, 5000])
def test_deeply_nested_parts_are_handled_quickly(depth: int) -> None:
    nested = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(depth))
    started = time.process_time()
    for inside in (nested, b"Content-Type: message/rfc822\n\n" * depth + b"Subject: inside\n\n"):
        message = parse_message(b"From: ann@example.com\n" + inside + b"\nDeep text.", "here")
        if depth == 50:
            assert isinstance(message, ParsedMessage)
            assert message.body.endswith("Deep text.")
        else:
            assert isinstance(message, UnreadableItem)
            assert message.reason == "broken beyond reading"
    assert time.process_time() - started < 20


def test_large_headers_and_many_parts_are_handled_quickly() -> None:
    started = time.process_time()
    assert parse_headers("From: ann@example.com\n" + "\n".join(f"X-{n}: x" for n in range(10_000))).body == "Text."
    many = ", ".join(f'"P, {n}" <p{n}@example.com>' for n in range(10_000))
    assert len(parse_headers(f"From: ann@example.com\nTo: {many}").recipients) == 10_000
    assert multipart("mixed", *["\nx"] * 10_000).count("x") == 10_000
    assert parse_headers("From: " + "(" * 5000 + " ann@example.com").sender == "ann@example.com"
    assert parse_headers("From: ann@example.com\nSubject: " + "x=?a?b?" * 20_000).subject
    assert parse_headers("From: ann@example.com\nContent-Type: text/plain" + '; a="b' * 10_000).body == "Text."
    assert time.process_time() - started < 20


# Headers


@pytest.mark.parametrize(
    ("raw", "subject"),
    [
        ("=?utf-8?B?R3LDvMOfZQ==?=", "Grüße"),
        ("=?UTF-8?q?Gr=C3=BC=C3=9Fe_aus_K=C3=B6ln?=", "Grüße aus Köln"),
        ("=?iso-8859-1?Q?Gr=FC=DFe?= an alle", "Grüße an alle"),
        ("Re: =?iso-8859-1?Q?Gr=FC=DFe?= [=?koi8-r?B?8NLJ?=]", "Re: Grüße [При]"),
        ("=?utf-8?B?R3LDvA==?= =?utf-8?B?w59l?=", "Grüße"),
        ("=?utf-8?B?R3LDvA==?=\n =?utf-8?B?w59l?=", "Grüße"),
        ("=?utf-8?B?R3LD?= =?utf-8?B?vMOfZQ==?=", "Grüße"),  # cut inside a character
        ("=?utf-8?Q?a?= =?iso-8859-1?Q?=FC?=", "aü"),
        ("=?utf-8?Q?with a space?=", "with a space"),
        ("=?us-ascii?Q?Gr=C3=BC=C3=9Fe?=", "Grüße"),
        ("=?utf-8?Q?Gr=FC=DFe?=", "Grüße"),
        ("=?x-nonsense?Q?Gr=C3=BC=C3=9Fe?=", "Grüße"),
        ("=?unicode_escape?Q?=5Cu0041?=", r"\u0041"),
        ("=?iso-2022-jp?B?GyRCMnE1RBsoQg==?=", "会議"),
        ("=?gb2312?B?u+HS6Q==?=", "会议"),
        ("=?utf-8?B?R3LDv?= still readable", "=?utf-8?B?R3LDv?= still readable"),
        ("=?utf-8?B?R3LDv?= but =?utf-8?Q?=C3=BC?=", "=?utf-8?B?R3LDv?= but ü"),
        ("=?utf-8?X?abc?=", "=?utf-8?X?abc?="),
        ("Is 2=?3 or =?", "Is 2=?3 or =?"),
        ("Grüße", "Grüße"),
        ("你好 =?utf-8?Q?=C3=BC?= 你好", "你好 ü 你好"),
        (r"Ünder C:\users =?utf-8?Q?=C3=BC?=", r"Ünder C:\users ü"),
        ("folded\n over\n\tlines", "folded over lines"),
        ("  many   spaces  ", "many spaces"),
        ("=?utf-8?Q?two=0D=0ABcc:_x@example.com?=", "two Bcc: x@example.com"),
        ("", ""),
    ],
)
def test_subjects_are_decoded(raw: str, subject: str) -> None:
    assert parse_headers(f"From: ann@example.com\nSubject: {raw}").subject == subject


def test_raw_bytes_in_a_header_are_decoded() -> None:
    assert parse_headers("From: a@example.com\nSubject: Grüße".encode("cp1252")).subject == "Grüße"
    message = parse_headers("From: Jörg <a@example.com>\nTo: Zoë <z@example.com>".encode("cp1252"))
    assert message.sender_name == "Jörg"
    assert message.recipients[0].name == "Zoë"


def test_the_first_of_repeated_headers_counts() -> None:
    message = parse_headers(
        "From: a@example.com\nFrom: b@example.com\nSubject: one\nSubject: two\nMessage-ID: <1@x>\nMessage-ID: <2@x>\n"
        "To: c@example.com\nTo: d@example.com"
    )
    assert (message.sender, message.subject, message.message_id) == ("a@example.com", "one", "<1@x>")
    assert [each.address for each in message.recipients] == ["c@example.com", "d@example.com"]


@pytest.mark.parametrize("author", ["", "From:\n", "From: <>\n", "From: undisclosed-recipients:;\n"])
def test_the_sender_header_replaces_a_missing_author(author: str) -> None:
    assert parse_headers(f"{author}Subject: x\nSender: Desk <desk@example.com>").sender == "desk@example.com"


def test_a_message_without_a_sender_is_read() -> None:
    message = parse_headers("Subject: x")
    assert (message.sender, message.sender_name, message.body) == ("", "", "Text.")


@pytest.mark.parametrize(
    ("raw", "listed"),
    [
        ('"Lee, Ann" <ann@example.com>, bob@example.com', [("ann@example.com", "Lee, Ann"), ("bob@example.com", "")]),
        ("ANN@EXAMPLE.COM, Bob <Bob@Example.com>", [("ann@example.com", ""), ("bob@example.com", "Bob")]),
        ("undisclosed-recipients:;", []),
        ("Undisclosed recipients: ;", []),
        ("Team: ann@example.com, Bob <bob@example.com>;", [("ann@example.com", ""), ("bob@example.com", "Bob")]),
        ("ann@example.com (Ann Lee)", [("ann@example.com", "Ann Lee")]),
        ("'ann@example.com'", [("ann@example.com", "")]),
        ("'Ann Lee' <ann@example.com>", [("ann@example.com", "Ann Lee")]),
        ("<mailto:ann@example.com>", [("ann@example.com", "")]),
        ("mailto:ann@example.com", [("ann@example.com", "")]),
        ("=?utf-8?Q?J=C3=B6rg=2C_A=2E?= <j@example.com>", [("j@example.com", "Jörg, A.")]),
        ('"=?utf-8?Q?J=C3=B6rg?=" <j@example.com>', [("j@example.com", "Jörg")]),
        ("=?x?B?R3LDv?= <j@example.com>", [("j@example.com", "=?x?B?R3LDv?=")]),
        ("ann@example.com,\n\tbob@example.com,,", [("ann@example.com", ""), ("bob@example.com", "")]),
        ("", []),
        (" , ,", []),
    ],
)
def test_addresses_are_parsed(raw: str, listed: list[tuple[str, str]]) -> None:
    message = parse_headers(f"From: x@example.com\nTo: {raw}")
    assert [(each.address, each.name) for each in message.recipients] == listed


def test_the_exchange_name_is_used_if_there_is_no_other() -> None:
    exchange = "X-From: Kaminski, Vince J </O=ENRON/OU=NA/CN=RECIPIENTS/CN=VKAMINS>"
    assert parse_headers(f"From: vince@example.com\n{exchange}").sender_name == "Kaminski, Vince J"
    assert parse_headers(f"From: VK <vince@example.com>\n{exchange}").sender_name == "VK"


def test_control_characters_surrogates_and_index_marks_are_removed() -> None:
    bad = f"\0\x01\x1b\x7f{ADDRESS_MARK}"
    surrogate = b"\xed\xa0\x80"  # half of a pair, as if it were UTF-8
    encoded = base64.b64encode(f"{bad}".encode() + surrogate).decode()
    raw = (
        f"From: n{bad}n <a{bad}@example.com>\nTo: =?utf-8?B?{encoded}?= <b@example.com>\nX-From: {bad}\n"
        f"Message-ID: <1{bad}@x>\nSubject: s{bad} =?utf-8?B?{encoded}?=\nContent-Type: multipart/mixed; boundary=XX\n\n"
    ).encode()
    part = (
        f"--XX\n\nt{bad}".encode() + surrogate + f'\n--XX\nContent-Type: image/png; name="{bad}"\n\nx\n--XX--'.encode()
    )
    message = parse(raw + part)
    texts = [message.message_id, message.sender, message.sender_name, message.subject, message.body]
    texts += [text for each in message.recipients for text in (each.address, each.name)]
    assert "\ufffd" in message.subject
    assert message.body.startswith("t\ufffd")
    for text in texts:
        assert not set(text) & set(bad)
        text.encode()


# Dates


@pytest.mark.parametrize(
    ("text", "utc", "offset"),
    [
        ("Mon, 14 May 2001 05:00:00 -0700 (PDT)", "2001-05-14T12:00:00", -420),
        ("14 May 2001 12:00:00 +0000", "2001-05-14T12:00:00", 0),
        ("Mon, 14 May 2001 17:30:00 +0530", "2001-05-14T12:00:00", 330),
        ("Mon, 14 May 2001 05:00:00 PDT", "2001-05-14T12:00:00", -420),
        ("Mon, 14 May 2001 06:00:00 CST", "2001-05-14T12:00:00", -360),
        ("Mon, 14 May 2001 12:00:00 GMT", "2001-05-14T12:00:00", 0),
        ("Mon, 14 May 2001 12:00:00 UT", "2001-05-14T12:00:00", 0),
        ("Mon, 14 May 2001 12:00:00 -0000", "2001-05-14T12:00:00", None),
        ("Mon, 14 May 2001 12:00:00 XYZ", "2001-05-14T12:00:00", None),
        ("Mon, 14 May 2001 12:00:00", "2001-05-14T12:00:00", None),
        ("Mon, 14 May 01 12:00 +0000", "2001-05-14T12:00:00", 0),
        ("Fri, 14 May 99 12:00:00 +0000", "1999-05-14T12:00:00", 0),
        ("Mon, 14 May 2001 12:00:00 +9999", "2001-05-14T12:00:00", None),
        ("Mon May 14 12:00:00 2001", "2001-05-14T12:00:00", None),
        ("Thu, 1 Jan 1970 00:00:00 +0100", "1969-12-31T23:00:00", 60),
        ("Sun, 29 Feb 2004 23:30:00 -0100", "2004-03-01T00:30:00", -60),
        ("2001-05-14T05:00:00-07:00", "2001-05-14T12:00:00", -420),
        ("2001-05-14T12:00:00Z", "2001-05-14T12:00:00", 0),
        ("2001-05-14T12:00:00", "2001-05-14T12:00:00", None),
        ("2001-05-14 12:00:00.900", "2001-05-14T12:00:00", None),
        ("2001-05-14", "2001-05-14T00:00:00", None),
        (" \t2001-05-14T12:00:00+00:00\r\n", "2001-05-14T12:00:00", 0),
        ("2001-01-01T00:00:00+23:59:59", "2000-12-31T00:00:01", None),
    ],
)
def test_a_date_has_a_utc_time_and_an_offset(text: str, utc: str, offset: int | None) -> None:
    assert parse_date(text) == (int(datetime.fromisoformat(utc).replace(tzinfo=UTC).timestamp()), offset)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "Mon, 0 May 2001 12:00:00 +0000",
        "Mon, 31 Feb 2001 12:00:00 +0000",
        "14 13 2001 12:00:00 +0000",
        "2001-13-01",
        "2001-02-30T12:00:00",
        "0000-01-01",
        "14 May 99999 12:00:00 +0000",
        "14 May 2001 25:00:00 +0000",
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00+23:59",
        "\0",
        "Mon, 14 May 2001 12:00:00 +" + "9" * 5000,
        "14 May " + "9" * 5000,
    ],
)
def test_an_invalid_date_or_offset_is_none(text: str) -> None:
    sent, offset = parse_date(text)
    assert offset is None
    assert sent is None or "+999" in text


@settings(QUICK)
@given(st.one_of(st.text(), st.from_regex(r"[0-9]{1,2} [A-Z][a-z]{2} [0-9]{1,6} [0-9]{2}:[0-9]{2} [+-][0-9]{1,6}")))
def test_parsing_a_date_never_fails(text: str) -> None:
    to_datetime(*parse_date(text))


@settings(QUICK)
@given(
    st.datetimes(
        datetime.fromisoformat("1970-01-01"),
        datetime.fromisoformat("9000-01-01"),
        timezones=st.integers(-1439, 1439)
        .map(lambda minutes: st.just(timezone(timedelta(minutes=minutes))))
        .flatmap(lambda zone: zone),
    )
)
def test_mail_and_iso_dates_survive_a_round_trip(moment: datetime) -> None:
    offset = moment.utcoffset()
    assert offset is not None
    moment = moment.replace(microsecond=0)
    expected = (int(moment.timestamp()), round(offset.total_seconds() / 60))
    assert parse_date(moment.isoformat()) == expected
    assert parse_date(format_datetime(moment)) == expected
    shown = to_datetime(*parse_date(moment.isoformat()))
    assert shown is not None
    assert (shown, shown.utcoffset()) == (moment, offset)


def test_a_missing_date_falls_back_to_the_time_of_receipt() -> None:
    received = "Received: from a by b; Mon, 14 May 2001 05:00:00 -0700\nReceived: from c by a; never"
    assert (parse_headers(f"From: a@x\nDate: soon\n{received}").sent) == NOON
    assert parse(f"From: a@x\n{received}\n\nx", "2010-01-01").sent == NOON
    assert parse("From: a@x\n\nx", "Mon May 14 12:00:00 2001").sent == NOON
    assert parse("From: a@x\nDate: Mon, 14 May 2001 12:00:00 GMT\n\nx", "2010-01-01").sent == NOON
    assert parse_headers("From: a@x\nDate: soon").sent is None


# Ids


def test_a_generated_id_is_deterministic() -> None:
    raw = "From: Ann@example.com\nSubject: Lunch\nDate: Mon, 14 May 2001 05:00:00 -0700\n\nAt noon?\n"
    first, again = parse(raw), parse(raw.replace("\n", "\r\n"))
    record = parse_record(
        {"from": "ann@example.com", "subject": "Lunch", "date": "2001-05-14T12:00:00Z", "body": "At noon?"}, "there"
    )
    assert isinstance(record, ParsedMessage)
    assert first.has_generated_id
    assert record.has_generated_id
    assert first.message_id == again.message_id == record.message_id
    assert first.message_id.startswith("<")
    assert parse(raw + "Or one?").message_id != first.message_id
    assert parse("Message-ID: \n" + raw).message_id == first.message_id


# Unreadable messages


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "empty"),
        (b" \r\n\n\t", "empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20, "no mail headers"),
        (b"Just a note\nwithout headers\n", "no mail headers"),
        (b"\nBody after a blank line", "no mail headers"),
        (b"X-Something: else\n\nText", "no mail headers"),
        ("From: ann@example.com\n\nText".encode("utf-16"), "no mail headers"),
    ],
)
def test_an_unreadable_message_has_a_reason(raw: bytes, reason: str) -> None:
    assert (parse_unreadable(raw).where, parse_unreadable(raw).reason) == ("here", reason)


@settings(QUICK)
@given(st.binary())
def test_parsing_bytes_never_fails(raw: bytes) -> None:
    assert isinstance(parse_message(raw, "here"), ParsedMessage | UnreadableItem)


TOKENS = st.one_of(
    st.sampled_from(
        [
            *("From: ", "To: ", "Subject: ", "Date: ", "Message-ID: ", "Received: ", "Content-Type: "),
            *("Content-Disposition: ", "Content-Transfer-Encoding: ", "multipart/mixed", "multipart/alternative"),
            *("message/rfc822", "message/delivery-status", "text/html", "text/plain", "; boundary=XX", "\n--XX\n"),
            *("\n--XX--\n", "; charset=", "; charset*=", "; filename*0*=", "; filename=", "utf-16", "utf-7", "idna"),
            *("hz", "base64", "quoted-printable", "x-uuencode", "begin 644 a\n", "=?utf-8?B?", "=?gb2312?q?", "?="),
            *("\n", "\n\n", "\r", '"', "(", ")", "<", ">", ",", ":", ";", "@", "\\", "[", "]", "a", "=", "%FF", "''"),
            *("\x1b$B", "attachment", "2001", "+0000", "May ", "14 "),
        ]
    ).map(str.encode),
    st.binary(max_size=4),
)


@settings(QUICK, max_examples=300)
@given(st.lists(TOKENS, max_size=60).map(b"".join))
def test_parsing_mixed_up_mail_never_fails(raw: bytes) -> None:
    message = parse_message(b"From: ann@example.com\n" + raw, "here")
    if isinstance(message, ParsedMessage):
        "".join((message.body, message.subject, message.sender, message.sender_name, message.message_id)).encode()
        to_datetime(message.sent, message.utc_offset)


LETTERS = st.characters(exclude_categories=["C", "Z"], exclude_characters="\ufffd")
NAMES = st.lists(st.text(LETTERS, min_size=1, max_size=12), min_size=1, max_size=6).map(" ".join)
LOCAL = st.from_regex(r"[a-z0-9]{1,10}(\.[a-z0-9]{1,10})?", fullmatch=True)
CHARSETS = ["utf-8", "iso-8859-15", "koi8-r", "gb18030", "cp932", "iso-2022-jp", "cp949", "cp1252"]
SINGLE_BYTE = {"iso-8859-15", "koi8-r", "cp1252"}


def is_utf_8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@settings(QUICK, max_examples=150)
@given(
    subject=NAMES,
    name=NAMES,
    local=LOCAL,
    others=st.lists(st.tuples(NAMES, LOCAL), max_size=4),
)
def test_headers_written_by_python_survive_a_round_trip(
    subject: str, name: str, local: str, others: list[tuple[str, str]]
) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    written = EmailMessage(policy.default.clone(max_line_length=100_000))  # it loses spaces where it folds
    written["Subject"] = subject
    written["From"] = f"{quoted(name)} <{local}@example.com>"
    written["To"] = ", ".join(f"{quoted(other)} <{address}@example.com>" for other, address in others)
    written.set_content("Text.")
    message = parse(written.as_bytes())
    assert message.subject == subject
    assert (message.sender, message.sender_name) == (f"{local}@example.com", name.strip("'\""))
    assert [(each.address, each.name) for each in message.recipients] == [
        (f"{address}@example.com", other.strip("'\"")) for other, address in others
    ]


@settings(QUICK, max_examples=150)
@given(text=st.lists(NAMES, min_size=1, max_size=5).map("\n".join), charset=st.sampled_from(CHARSETS), data=st.data())
def test_a_body_written_by_python_survives_a_round_trip(text: str, charset: str, data: st.DataObject) -> None:
    encodable = text.encode(charset, "ignore").decode(charset).strip()
    assume(charset not in SINGLE_BYTE or encodable.isascii() or not is_utf_8(encodable.encode(charset)))
    encoding = data.draw(st.sampled_from(["base64", "quoted-printable"]))
    written = EmailMessage()
    written["From"] = "ann@example.com"
    written.set_content(encodable, charset=charset, cte=encoding)
    assert parse(written.as_bytes()).body == encodable


# Real mail


@pytest.fixture
def raw_enron(shared_data: Path, tmp_path: Path) -> Path:
    """Return a directory with 993 raw files of the public Enron release."""
    with tarfile.open(shared_data / "enron" / "maildir-993.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_all_raw_enron_files_are_read(raw_enron: Path) -> None:
    told: list[int] = []
    source = open_source(f"maildir:{raw_enron}")
    items = list(source.read(told.append))
    messages = [item for item in items if isinstance(item, ParsedMessage)]
    assert [item for item in items if isinstance(item, UnreadableItem)] == []
    assert len(messages) == 993
    assert sum(told) == source.total == sum(file.stat().st_size for file in raw_enron.rglob("*") if file.is_file())
    assert len({message.message_id for message in messages}) == 993
    assert not any(message.has_generated_id for message in messages)
    assert all("@" in message.sender and message.sender_name and message.body for message in messages)
    assert all(message.sent is not None and message.utc_offset in {-420, -480} for message in messages)
    assert all("@" in each.address for message in messages for each in message.recipients)
    by_id = {message.message_id: message for message in messages}
    leander = by_id["<22039354.1075855378849.JavaMail.evans@thyme>"]
    assert leander.subject == "Re: Leander etc."
    assert (leander.sender, leander.sender_name) == ("phillip.allen@enron.com", "Phillip K Allen")
    assert [(each.role, each.address) for each in leander.recipients] == [("to", "jsmith@austintx.com")]
    assert str(to_datetime(leander.sent, leander.utc_offset)) == "2001-04-26 17:01:00-07:00"
    assert leander.body == "I would look at properties in San Antonio or Dallas."
    agenda = by_id["<24401556.1075848074788.JavaMail.evans@thyme>"]
    assert str(to_datetime(agenda.sent, agenda.utc_offset)) == "1999-12-24 08:26:00-08:00"
    assert Counter(each.role for each in agenda.recipients) == {"to": 11, "cc": 4, "bcc": 4}
    assert agenda.body.startswith("I am attaching a preliminary Agenda for the meeting in Houston.  Please send \nme")
