"""Parsing of raw messages, including broken ones."""

import base64
import tarfile
from collections import Counter
from datetime import UTC, datetime
from email import policy
from email.message import EmailMessage
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.mail_records import parse_record
from gumshoe.mail.message import ParsedMessage, to_datetime
from gumshoe.mail.rfc822 import parse_message
from gumshoe.mail.sources import open_source
from tests.cpu_time import limit_cpu
from tests.mail.raw_messages import multipart, parse

QUICK = settings(derandomize=True, deadline=None, database=None)
NOON = int(datetime(2001, 5, 14, 12, tzinfo=UTC).timestamp())


def parse_unreadable(raw: bytes) -> UnreadableItem:
    message = parse_message(raw, "here")
    assert isinstance(message, UnreadableItem)
    return message


def parse_headers(headers: bytes | str) -> ParsedMessage:
    return parse((headers.encode() if isinstance(headers, str) else headers) + b"\n\nText.\n")


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


@pytest.mark.ci
def test_large_headers_and_many_parts_are_handled_quickly() -> None:
    with limit_cpu(20):
        assert parse_headers("From: ann@example.com\n" + "\n".join(f"X-{n}: x" for n in range(10_000))).body == "Text."
        many = ", ".join(f'"P, {n}" <p{n}@example.com>' for n in range(10_000))
        assert len(parse_headers(f"From: ann@example.com\nTo: {many}").recipients) == 10_000
        assert multipart("mixed", *["\nx"] * 10_000).count("x") == 10_000
        assert parse_headers("From: " + "(" * 5000 + " ann@example.com").sender == "ann@example.com"
        assert parse_headers("From: ann@example.com\nSubject: " + "x=?a?b?" * 20_000).subject
        assert parse_headers("From: ann@example.com\nContent-Type: text/plain" + '; a="b' * 10_000).body == "Text."


# Headers


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


def test_the_exchange_name_is_used_if_there_is_no_other() -> None:
    exchange = "X-From: Kaminski, Vince J </O=ENRON/OU=NA/CN=RECIPIENTS/CN=VKAMINS>"
    assert parse_headers(f"From: vince@example.com\n{exchange}").sender_name == "Kaminski, Vince J"
    assert parse_headers(f"From: VK <vince@example.com>\n{exchange}").sender_name == "VK"


def test_control_characters_and_surrogates_are_removed() -> None:
    bad = "\0\x01\x1b\x7f"
    surrogate = b"\xed\xa0\x80"  # half of a pair, as if it were UTF-8
    encoded = base64.b64encode(bad.encode() + surrogate).decode()
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


@pytest.mark.parametrize(
    "headers",
    [
        "MIME-Version: 1.0\nContent-Type: text/plain",
        "Content-Type: text/plain",
        "Received: from a by b; Tue, 5 Mar 2024 09:30:00 +0100",
        "Return-Path: <ann@example.com>\nX-Other: x",
        "Bcc: ann@example.com",
    ],
)
def test_a_message_with_headers_of_its_content_or_delivery_alone_is_read(headers: str) -> None:
    assert parse(f"{headers}\n\nThe text.").body == "The text."
    assert parse_unreadable(f"A note\n{headers}\n\nThe text.".encode()).reason == "no mail headers"


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
            *(
                "\x1b$B",
                "attachment",
                "application/ms-tnef",
                "application/pkcs7-mime",
                "text/calendar",
                "a.eml",
                "2001",
                "+0000",
                "May ",
                "14 ",
            ),
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


LETTERS = st.characters(
    exclude_categories=["C", "Z"], exclude_characters="\ufffd\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"
)
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


@pytest.mark.ci
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
