"""Sources of mail: every kind, on disk, under file:// and on S3, intact and damaged."""

import gzip
import io
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.build import build_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.index import MailIndex
from gumshoe.mail.mail_records import parse_record
from gumshoe.mail.message import ParsedMessage, to_datetime
from gumshoe.mail.sources import open_source
from tests.conftest import find_free_port
from tests.errors import raises
from tests.http_server import run_server
from tests.mail.mailbox import record

QUICK = settings(derandomize=True, deadline=None, database=None)
NOON = int(datetime(2001, 5, 14, 12, tzinfo=UTC).timestamp())


def mail(number: int, text: str = "Text.") -> bytes:
    """Return a raw message with the id `<NUMBER@example.com>`."""
    return (
        f"Message-ID: <{number}@example.com>\nFrom: ann@example.com\nTo: bob@example.com\n"
        f"Date: Mon, 14 May 2001 05:00:00 -0700\nSubject: Subject {number}\n\n{text}\n"
    ).encode()


def write(place: Path, files: dict[str, bytes]) -> Path:
    """Write files below a directory and return the directory."""
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


def read(uri: str) -> list[ParsedMessage | UnreadableItem]:
    """Read a source twice, and check that items are equal and that `advance` gets every byte."""
    told: list[int] = []
    source = open_source(uri)
    items = list(source.read(told.append))
    assert source.uri == uri
    if source.total is not None and not any(getattr(item, "reason", "") == "damaged file" for item in items):
        assert sum(told) == source.total
    assert list(open_source(uri).read(lambda _: None)) == items
    return items


def numbers(items: list[ParsedMessage | UnreadableItem]) -> list[int]:
    """Return the numbers of the messages among some items."""
    return [int(item.message_id[1:].split("@")[0]) for item in items if isinstance(item, ParsedMessage)]


def list_unreadable(items: list[ParsedMessage | UnreadableItem]) -> list[tuple[str, str]]:
    """Return place and reason of each unreadable item."""
    return [(item.where, item.reason) for item in items if isinstance(item, UnreadableItem)]


def only(items: list[ParsedMessage | UnreadableItem]) -> ParsedMessage:
    (message,) = items
    assert isinstance(message, ParsedMessage)
    return message


# URIs


@pytest.mark.parametrize(
    "uri",
    ["", "mbox", "mbox:", "imp:host", "/a/path", "s3://bucket/key", "Maildir:x", "mail dir:x", ":x", "file:///x"],
)
def test_an_unknown_uri_form_is_rejected(uri: str) -> None:
    with raises("sources.unknown-form", repr(uri), "maildir:DIR", "mbox:FILE", "eml:DIR", "jsonl:FILE", "hf:DATASET"):
        open_source(uri)


@pytest.mark.parametrize("kind", ["maildir", "eml", "mbox", "jsonl"])
@pytest.mark.parametrize("form", ["{path}", "file://{path}"])
def test_a_missing_source_is_reported_before_reading(kind: str, form: str, tmp_path: Path) -> None:
    place = form.format(path=tmp_path / "missing")
    code = "store.not-found"
    if kind in {"maildir", "eml"}:
        code = "mail.no-messages" if form.startswith("file:") else "sources.no-such-directory"
    with raises(code, f"{kind}:{place}") as raised:
        open_source(f"{kind}:{place}")
    assert raised.value.exit_status == 2
    good = write(tmp_path, {"mail.jsonl": b'{"body": "x"}'}) / "mail.jsonl"
    with raises(code, f"{kind}:{place}"):
        build_mail_index([f"jsonl:{good}", f"{kind}:{place}"], tmp_path / "index")
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("kind", ["maildir", "eml"])
def test_a_directory_without_messages_is_rejected(kind: str, tmp_path: Path) -> None:
    with raises("mail.no-messages", f"{kind}:{tmp_path}"):
        open_source(f"{kind}:{tmp_path}")
    write(tmp_path, {".hidden": mail(1)})
    with raises("mail.no-messages", f"{kind}:{tmp_path}"):
        open_source(f"{kind}:{tmp_path}")


def test_files_and_directories_cannot_be_swapped(tmp_path: Path) -> None:
    write(tmp_path, {"dir/1.eml": mail(1)})
    with raises("sources.no-such-directory", tmp_path / "dir" / "1.eml"):
        open_source(f"maildir:{tmp_path / 'dir' / '1.eml'}")
    with raises("store.is-a-directory", f"jsonl:{tmp_path / 'dir'}"):
        open_source(f"jsonl:{tmp_path / 'dir'}")


def test_a_path_with_special_characters_is_read(tmp_path: Path) -> None:
    place = write(tmp_path / "my mail 100%", {"box é.mbox": b"From a Mon May 14 12:00:00 2001\n" + mail(1)})
    assert numbers(read(f"mbox:{place / 'box é.mbox'}")) == [1]
    assert numbers(read(f"mbox:file://{quote(str(place / 'box é.mbox'))}")) == [1]
    write(place, {"1.eml": mail(2)})
    assert numbers(read(f"eml:file://{quote(str(place))}")) == [2]


# Maildir, trees of raw files, eml

MAILDIR = {
    "cur/1.a:2,S": mail(1),
    "new/2.b": mail(2),
    "tmp/3.half-delivered": mail(3),
    ".Sent.2001/cur/4.c:2,": mail(4),
    ".Sent.2001/maildirfolder": b"",
    ".Sent.2001/dovecot.index.log": b"\x01\x02",
    "dovecot-uidlist": b"3 V1 N5",
    "dovecot.index.cache": b"From: no@example.com\n\nnot mail",
    "subscriptions": b"Sent\n",
    "nested/box/cur/5": mail(5),
    "nested/box/dovecot.list.index": b"x",
}
ENRON = {
    "kaminski-v/inbox/1.": mail(1),
    "kaminski-v/inbox/10.": mail(10),
    "kaminski-v/inbox/2.": mail(2),
    "kaminski-v/c/mangmt/3.": mail(3),
    "beck-s/_sent/1.": mail(4),
    "beck-s/.DS_Store": b"\0\1Bud1",
    "beck-s/inbox/9.": b"no mail at all",
    "beck-s/inbox/8.": b"",
}


def test_a_maildir_yields_messages_and_no_server_files(tmp_path: Path) -> None:
    items = read(f"maildir:{write(tmp_path, MAILDIR)}")
    assert sorted(numbers(items)) == [1, 2, 4, 5]
    assert list_unreadable(items) == []


def test_a_tree_of_raw_files_is_read_in_order(tmp_path: Path) -> None:
    items = read(f"maildir:{write(tmp_path, ENRON)}")
    assert numbers(items) == [4, 3, 1, 10, 2]
    assert list_unreadable(items) == [
        (str(tmp_path / "beck-s/inbox/8."), "empty"),
        (str(tmp_path / "beck-s/inbox/9."), "no mail headers"),
    ]


def test_eml_files_are_found_recursively_in_any_case(tmp_path: Path) -> None:
    files = {
        "a.eml": mail(1),
        "b.EML": mail(2),
        "x/c.Eml": mail(3),
        "d.txt": mail(4),
        "eml": mail(5),
        "x.eml/e": mail(6),
    }
    assert numbers(read(f"eml:{write(tmp_path, files)}")) == [1, 2, 3]


def test_a_file_name_with_invalid_bytes_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "mail", {"1.": mail(1)})
    try:
        Path(os.fsdecode(os.fsencode(tmp_path / "mail") + b"/\xff.")).write_bytes(b"no mail")
    except OSError:
        pytest.skip("this file system takes only names in UTF-8")
    report = build_mail_index([f"maildir:{tmp_path / 'mail'}"], tmp_path / "index")
    assert (report.messages, report.unreadable) == (1, {"no mail headers": 1})
    assert MailIndex(tmp_path / "index").list_unreadable()[0][0].endswith("/\ufffd.")


def test_a_file_that_was_deleted_since_it_was_listed_is_no_message(tmp_path: Path) -> None:
    write(tmp_path, {"1.": mail(1), "2.": mail(2), "3.": mail(3)})
    source = open_source(f"maildir:{tmp_path}")
    (tmp_path / "2.").unlink()
    items = list(source.read(lambda _: None))
    assert numbers(items) == [1, 3]
    assert list_unreadable(items) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_is_reported(tmp_path: Path) -> None:
    write(tmp_path, {"1.": mail(1), "2.": mail(2)})
    (tmp_path / "1.").chmod(0)
    items = read(f"maildir:{tmp_path}")
    assert numbers(items) == [2]
    assert list_unreadable(items) == [(str(tmp_path / "1."), "cannot be opened")]


# mbox


def mbox(*messages: bytes, separator: bytes = b"From ann@example.com Mon May 14 12:00:00 2001\n") -> bytes:
    return b"".join(separator + message + b"\n" for message in messages)


def texts(items: list[ParsedMessage | UnreadableItem]) -> list[str]:
    return [item.body for item in items if isinstance(item, ParsedMessage)]


def one_mbox(tmp_path: Path, data: bytes, name: str = "box.mbox") -> list[ParsedMessage | UnreadableItem]:
    return read(f"mbox:{write(tmp_path, {name: data}) / name}")


def test_an_mbox_is_split_at_its_from_lines(tmp_path: Path) -> None:
    assert numbers(one_mbox(tmp_path, mbox(mail(1), mail(2), mail(3)))) == [1, 2, 3]
    assert one_mbox(tmp_path, b"") == []


@pytest.mark.parametrize(
    "separator",
    [
        b"From ann@example.com Mon May 14 12:00:00 2001\n",
        b"From - Mon May 14 12:00:00 2001\r\n",
        b"From 1596012345678901234@xxx Mon May 14 12:00:00 +0000 2001\n",
        b"From ann at example.com  Mon May 14 12:00:00 2001\n",
        b"From ???@??? Mon, 14 May 2001 12:00:00 +0000\n",
        b'From "Ann Lee" Mon May 14 12:00 2001\n',
    ],
)
def test_every_common_from_line_separates_and_dates(separator: bytes, tmp_path: Path) -> None:
    undated = b"Message-ID: <7@example.com>\nFrom: ann@example.com\n\nText.\n"
    items = one_mbox(tmp_path, mbox(undated, mail(8), separator=separator))
    assert numbers(items) == [7, 8]
    assert [item.sent for item in items if isinstance(item, ParsedMessage)] == [NOON, NOON]


def test_quoted_from_lines_lose_one_quote(tmp_path: Path) -> None:
    items = one_mbox(tmp_path, mbox(mail(1, ">From here on\n>>From there\n> From\n>Fromage")))
    assert texts(items) == ["From here on\n>From there\n> From\n>Fromage"]


def test_from_in_a_body_does_not_split(tmp_path: Path) -> None:
    body = "Hello\nFrom Monday 12:00 2001 on\n\nFrom my point of view it is 2001\n\nFrom 9:30 on\n\nFrom x\n"
    items = one_mbox(tmp_path, mbox(mail(1, body), mail(2)))
    assert numbers(items) == [1, 2]
    assert texts(items)[0] == body.strip()


def test_windows_line_ends_and_gzip_are_read(tmp_path: Path) -> None:
    data = mbox(mail(1), mail(2, ">From a\nb"))
    plain = one_mbox(tmp_path, data)
    assert texts(one_mbox(tmp_path, data.replace(b"\n", b"\r\n"), "dos.mbox")) == texts(plain) == ["Text.", "From a\nb"]
    assert texts(one_mbox(tmp_path, gzip.compress(data), "box.mbox.gz")) == texts(plain)
    halves = gzip.compress(data[:200]) + gzip.compress(data[200:])
    assert texts(one_mbox(tmp_path, halves, "box.gz")) == texts(plain)


def test_a_google_takeout_mbox_is_read(tmp_path: Path) -> None:
    labels = "X-GM-THRID: 1596012345678901234\r\nX-Gmail-Labels: =?UTF-8?Q?Gel=C3=B6scht,Wichtig?=\r\n"
    message = labels.encode() + mail(1, "Text.").replace(b"\n", b"\r\n")
    data = mbox(message, message, separator=b"From 1596012345678901234@xxx Mon May 14 12:00:00 +0000 2001\r\n")
    assert texts(one_mbox(tmp_path, data)) == ["Text.", "Text."]


def test_an_mbox_without_dates_in_from_lines_is_read(tmp_path: Path) -> None:
    items = one_mbox(tmp_path, mbox(mail(1), separator=b"From MAILER-DAEMON\n") + mbox(mail(2)))
    assert numbers(items) == [1, 2]


def test_broken_messages_of_an_mbox_are_reported_by_number(tmp_path: Path) -> None:
    items = one_mbox(tmp_path, mbox(mail(1), b"", b"no headers\n", mail(4)))
    assert numbers(items) == [1, 4]
    place = tmp_path / "box.mbox"
    assert list_unreadable(items) == [(f"{place}#2", "empty"), (f"{place}#3", "no mail headers")]


@pytest.mark.parametrize("data", [mail(1), b'{"body": "x"}\n', b"\x89PNG\r\n\x1a\n", b"\n", b"from ann"])
def test_a_file_that_is_not_an_mbox_is_rejected(data: bytes, tmp_path: Path) -> None:
    with raises("mail.unreadable-mbox", f"mbox:{tmp_path / 'box.mbox'}"):
        one_mbox(tmp_path, data)
    with raises("mail.unreadable-mbox", f"mbox:{tmp_path / 'box.gz'}"):
        one_mbox(tmp_path, gzip.compress(data), "box.gz")


def test_a_file_that_is_not_gzip_is_rejected(tmp_path: Path) -> None:
    with raises("mail.not-gzip", f"mbox:{tmp_path / 'box.mbox.gz'}"):
        one_mbox(tmp_path, mbox(mail(1)), "box.mbox.gz")


# jsonl


def jsonl(*records: Any) -> bytes:
    return b"".join((each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in records)


def one_jsonl(tmp_path: Path, data: bytes, name: str = "mail.jsonl") -> list[ParsedMessage | UnreadableItem]:
    return read(f"jsonl:{write(tmp_path, {name: data}) / name}")


def test_the_fields_of_a_record_are_read(tmp_path: Path) -> None:
    written = record(
        1,
        date="2001-05-14T05:00:00-07:00",
        sender="Ann.Lee@Example.com",
        to=["Bob@example.com", "Eve <eve@example.com>"],
        cc=None,
        bcc="c@example.com, Dan <d@example.com>",
        subject=" A\n subject ",
        body="One\r\ntwo",
        x_from="Lee, Ann </O=EXAMPLE/CN=ALEE>",
        mailbox="lee-a",
    )
    message = only(one_jsonl(tmp_path, jsonl(written)))
    assert (message.message_id, message.has_generated_id) == ("<1@example.com>", False)
    assert (message.sent, message.utc_offset) == (NOON, -420)
    assert (message.sender, message.sender_name) == ("ann.lee@example.com", "Lee, Ann")
    assert [(each.role, each.address, each.name) for each in message.recipients] == [
        ("to", "bob@example.com", ""),
        ("to", "eve@example.com", "Eve"),
        ("bcc", "c@example.com", ""),
        ("bcc", "d@example.com", "Dan"),
    ]
    assert (message.subject, message.body) == ("A subject", "One\ntwo")


def test_a_sender_written_with_a_name_has_it(tmp_path: Path) -> None:
    message = only(one_jsonl(tmp_path, jsonl({"from": '"Lee, Ann" <ANN@example.com>', "body": "x"})))
    assert (message.sender, message.sender_name) == ("ann@example.com", "Lee, Ann")


def test_missing_fields_are_empty_and_a_missing_id_is_generated(tmp_path: Path) -> None:
    items = one_jsonl(tmp_path, jsonl({"body": "only text"}, {"subject": "only subject"}, {"message_id": "<3@x>"}))
    assert len(items) == 3
    assert list_unreadable(items) == []
    first = items[0]
    assert isinstance(first, ParsedMessage)
    assert (first.sent, first.utc_offset, first.sender, first.recipients, first.subject) == (None, None, "", [], "")
    assert first.has_generated_id


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"not json", "not JSON"),
        (b'{"body": "cut o', "not JSON"),
        (b"[" * 5000, "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[]", "not a message record"),
        (b'"text"', "not a message record"),
        (b"null", "not a message record"),
        (b"17", "not a message record"),
        (b'{"question": "who?"}', "not a message record"),
        (b'{"body": 17}', "wrong type of field"),
        (b'{"body": ["a"]}', "wrong type of field"),
        (b'{"subject": {}, "body": "x"}', "wrong type of field"),
        (b'{"message_id": 1, "body": "x"}', "wrong type of field"),
        (b'{"from": 5, "body": "x"}', "wrong type of field"),
        (b'{"to": [["a@b"]], "body": "x"}', "wrong type of field"),
        (b'{"to": [7], "body": "x"}', "wrong type of field"),
        (b'{"date": true, "body": "x"}', "wrong type of field"),
        (b'{"date": ["2001"], "body": "x"}', "wrong type of field"),
    ],
)
def test_an_unreadable_line_is_reported_and_the_rest_read(line: bytes, reason: str, tmp_path: Path) -> None:
    items = one_jsonl(tmp_path, jsonl(record(1), line, b"", b"  \r", record(5)))
    assert numbers(items) == [1, 5]
    assert list_unreadable(items) == [(f"{tmp_path / 'mail.jsonl'}:2", reason)]


def test_invalid_numbers_and_characters_do_not_lose_a_record(tmp_path: Path) -> None:
    items = one_jsonl(
        tmp_path,
        jsonl(
            b'\xef\xbb\xbf{"message_id": "<1@x>", "body": "after a byte order mark"}',
            b'{"message_id": "<2@x>", "body": "not a number", "date": NaN}',
            b'{"message_id": "<3@x>", "body": "caf\xe9"}',
            rb'{"message_id": "<4@x>", "body": "half \ud800", "subject": "\ud83d", "from": "a\udc00@x"}',
            b'{"message_id": "<5@x>", "body": "new\nline", "x": 1}'.replace(b"\n", b"\x01"),
        ),
    )
    assert texts(items)[:4] == ["after a byte order mark", "not a number", "caf\ufffd", "half \ufffd"]
    assert list_unreadable(items) == [(f"{tmp_path / 'mail.jsonl'}:5", "not JSON")]


def test_windows_and_missing_line_ends_are_read(tmp_path: Path) -> None:
    data = jsonl(*(record(number) for number in range(1, 4))).replace(b"\n", b"\r\n")
    assert numbers(one_jsonl(tmp_path, data)) == [1, 2, 3]
    assert numbers(one_jsonl(tmp_path, data.rstrip())) == [1, 2, 3]
    assert one_jsonl(tmp_path, b"") == []


def test_lines_longer_than_a_block_are_read(tmp_path: Path) -> None:
    data = jsonl(record(1, body="x" * 3_000_000), *(record(number) for number in range(2, 5000)))
    assert numbers(one_jsonl(tmp_path, data)) == list(range(1, 5000))
    assert numbers(one_jsonl(tmp_path, gzip.compress(data, 1), "mail.jsonl.gz")) == list(range(1, 5000))


@cache
def packed_records() -> bytes:
    """Return 400 records that compress badly, so that half of the file contains about half of them."""
    drawn = random.Random(1)
    return gzip.compress(jsonl(*(record(number, body=drawn.randbytes(30).hex()) for number in range(1, 401))))


@pytest.mark.parametrize(
    ("damage", "least"),
    [
        (lambda packed: packed[: len(packed) // 2], 150),
        (lambda packed: packed[:-4], 400),
        (lambda packed: packed[:-8] + b"\0" * 8, 400),
        (lambda packed: packed + b"not gzip", 400),
        (lambda packed: packed[: len(packed) // 2] + b"\xff" * 2000, 100),
        (lambda packed: packed[:5], 0),
        (lambda _: b"not gzip at all", 0),
    ],
    ids=["cut in half", "no length", "wrong checksum", "junk behind", "junk inside", "cut in its head", "not gzip"],
)
def test_records_before_damage_in_a_gzip_file_are_kept(
    damage: Callable[[bytes], bytes], least: int, tmp_path: Path
) -> None:
    items = one_jsonl(tmp_path, damage(packed_records()), "mail.jsonl.gz")
    found = numbers(items)
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= least
    assert list_unreadable(items) == [(str(tmp_path / "mail.jsonl.gz"), "damaged file")]


def test_messages_of_a_truncated_gzip_mbox_are_kept(tmp_path: Path) -> None:
    drawn = random.Random(2)
    packed = gzip.compress(mbox(*(mail(number, drawn.randbytes(30).hex()) for number in range(1, 301))))
    items = one_mbox(tmp_path, packed[: len(packed) // 2], "box.gz")
    assert len(numbers(items)) >= 100
    assert list_unreadable(items) == [(str(tmp_path / "box.gz"), "damaged file")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("Ann <ann@example.com>"),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values, max_size=3),
    max_leaves=6,
)


@settings(QUICK, max_examples=150)
@given(st.dictionaries(st.sampled_from(["message_id", "date", "from", "to", "cc", "bcc", "subject", "body"]), JSON))
def test_parsing_a_record_never_fails(fields: dict[str, Any]) -> None:
    message = parse_record(fields, "here")
    if isinstance(message, ParsedMessage):
        "".join((message.message_id, message.sender, message.sender_name, message.subject, message.body)).encode()
        to_datetime(message.sent, message.utc_offset)


def test_thousands_of_nested_brackets_are_read() -> None:
    message = parse_record({"from": "(" * 5000 + "<ann@example.com>", "body": "x"}, "here")
    assert isinstance(message, ParsedMessage)
    assert message.sender == "ann@example.com"


def test_an_index_counts_messages_and_unreadable_items(tmp_path: Path) -> None:
    write(tmp_path, {"tree/" + name: data for name, data in ENRON.items()})
    write(
        tmp_path, {"box.mbox": mbox(mail(21), b"junk\n"), "mail.jsonl": jsonl(record(31, date=1e300), b"{", record(32))}
    )
    sources = [f"maildir:{tmp_path / 'tree'}", f"mbox:{tmp_path / 'box.mbox'}", f"jsonl:{tmp_path / 'mail.jsonl'}"]
    options = MailBuildOptions(drop_duplicates=False)
    report = build_mail_index(sources, tmp_path / "index", options)
    assert (report.read, report.messages, report.without_date) == (8, 8, 1)
    assert report.unreadable == {"no mail headers": 1, "empty": 1, "unclear separators": 1, "not JSON": 1}
    listed = MailIndex(tmp_path / "index").list_unreadable()
    assert [(place.removeprefix(str(tmp_path)), reason) for place, reason, _ in listed] == [
        ("/tree/beck-s/inbox/8.", "empty"),
        ("/tree/beck-s/inbox/9.", "no mail headers"),
        ("/box.mbox", "unclear separators"),
        ("/mail.jsonl:2", "not JSON"),
    ]
    assert build_mail_index(sources, tmp_path / "again", options).content == report.content


# S3


def put(bucket: str, files: dict[str, bytes]) -> None:
    import boto3

    client = boto3.client("s3")
    for name, data in files.items():
        client.put_object(Bucket=bucket, Key=name, Body=data)


@pytest.mark.ci
def test_every_kind_of_source_works_on_s3(s3_bucket: str, tmp_path: Path) -> None:
    files = {
        **{f"maildir/{name}": data for name, data in MAILDIR.items()},
        **{f"enron/{name}": data for name, data in ENRON.items()},
        **{f"eml/{number:03}.{suffix}": mail(number) for number, suffix in enumerate(["eml", "EML", "txt"] * 30, 1)},
        "box.mbox": mbox(mail(1), mail(2), b"junk\n"),
        "box.mbox.gz": gzip.compress(mbox(mail(1), mail(2))),
        "a dir/mail é.jsonl": jsonl(record(1), b"{", record(3)),
        "mail.jsonl.gz": packed_records()[:-4],
    }
    write(tmp_path, files)
    put(s3_bucket, files | {"maildir/": b"", "enron-other/1.": mail(99)})
    for kind, place in (
        ("maildir", "maildir"),
        ("maildir", "enron"),
        ("eml", "eml"),
        ("mbox", "box.mbox"),
        ("mbox", "box.mbox.gz"),
        ("jsonl", "a dir/mail é.jsonl"),
        ("jsonl", "mail.jsonl.gz"),
    ):
        there, here = read(f"{kind}:s3://{s3_bucket}/{place}"), read(f"{kind}:{tmp_path / place}")
        assert sorted(numbers(there)) == sorted(numbers(here)), place
        assert numbers(there)
        assert [reason for _, reason in list_unreadable(there)] == [reason for _, reason in list_unreadable(here)]
        assert all(where.startswith(f"s3://{s3_bucket}/{place}") for where, _ in list_unreadable(there))


def test_missing_sources_on_s3_are_reported(s3_bucket: str) -> None:
    put(s3_bucket, {"dir/notes.txt": b"x", "dir-other/1.eml": mail(1)})
    for uri, code in (
        (f"maildir:s3://{s3_bucket}/missing/place", "mail.no-messages"),
        (f"eml:s3://{s3_bucket}/missing/place", "mail.no-messages"),
        (f"mbox:s3://{s3_bucket}/missing/place", "store.not-found"),
        (f"jsonl:s3://{s3_bucket}/missing/place", "store.not-found"),
        (f"eml:s3://{s3_bucket}/dir", "mail.no-messages"),
        (f"mbox:s3://{s3_bucket}/dir", "mail.no-messages"),
        (f"jsonl:s3://{s3_bucket}/dir", "store.is-a-directory"),
    ):
        with raises(code, uri):
            open_source(uri)


def test_an_object_that_was_deleted_from_s3_since_it_was_listed_is_no_message(s3_bucket: str) -> None:
    import boto3

    put(s3_bucket, {f"mail/{number}.": mail(number) for number in range(1, 4)})
    source = open_source(f"maildir:s3://{s3_bucket}/mail")
    boto3.client("s3").delete_object(Bucket=s3_bucket, Key="mail/2.")
    items = list(source.read(lambda _: None))
    assert numbers(items) == [1, 3]
    assert list_unreadable(items) == []


# Datasets of the Hugging Face hub. Importing the library takes seconds and fixes its settings, so one process reads
# several datasets.

PROGRAM = """
import http.client, json, os, select, sys, time
from urllib.parse import urlsplit

waited = []
time.sleep = waited.append  # pauses between tries

import httpcore
from httpcore._backends.sync import SyncStream

really_read = SyncStream.read
hub = urlsplit(os.environ["HF_ENDPOINT"])


def hangs(port):
    asked = http.client.HTTPConnection(hub.hostname, hub.port)
    asked.request("GET", f"/hangs/{port}")
    return asked.getresponse().read() == b"yes"


def read(stream, max_bytes, timeout=None):
    client = stream.get_extra_info("socket")
    while not select.select([client], [], [], 0.02)[0]:
        if timeout and hangs(client.getsockname()[1]):  # let the timeout elapse at once, however long it is
            waited.append(timeout)
            raise httpcore.ReadTimeout("timed out")
    return really_read(stream, max_bytes, timeout)


SyncStream.read = read

from gumshoe.artifacts.hub import get_dataset_commit, get_read_commits, find_local_dataset
from gumshoe.errors import GumshoeError
from gumshoe.mail.sources import open_source

for uri in sys.argv[1:]:
    items, commit, code, error, status = [], "", "", "", 0
    waited.clear()
    try:
        for item in open_source(uri).read(lambda amount: None):
            items.append([item.message_id, item.sent, item.utc_offset, item.sender])
            items[-1] += [each.address for each in item.recipients]
        commit = "" if find_local_dataset(uri) else get_dataset_commit(uri)
    except GumshoeError as failure:
        code, error, status = failure.code, failure.message, failure.exit_status
    outcome = {"items": items, "commit": commit, "code": code, "error": error, "status": status}
    outcome["read"] = get_read_commits([uri]).get(uri, "")
    print(json.dumps(outcome | {"waited": sum(waited)}), flush=True)
"""
TIMEOUT = 30  # seconds that the hub's library waits for a response


@dataclass(frozen=True)
class Outcome:
    """Messages read from a dataset, and the error at the end, if any."""

    items: list[list[Any]]
    commit: str
    read: str
    """Commit of the dataset according to the hub."""
    code: str
    error: str
    status: int
    """Exit status of a command that ends with the error."""
    waited: float
    """Seconds spent in timeouts and in pauses between attempts."""


def parquet(*counts: range) -> list[bytes]:
    """Return files as in corbt/enron-emails, with the given numbers of messages."""
    import pyarrow.parquet  # type: ignore[import-untyped]

    files = []
    for count in counts:
        table = pyarrow.table(
            {
                "message_id": [f"<{number}@example.com>" for number in count],
                "subject": [f"Subject {number}" for number in count],
                "from": ["Ann@example.com"] * len(count),
                "to": [["bob@example.com", "eve@example.com"]] * len(count),
                "cc": pyarrow.array([None] * len(count), pyarrow.list_(pyarrow.string())),
                "bcc": pyarrow.array([[]] * len(count), pyarrow.list_(pyarrow.string())),
                "date": pyarrow.array([datetime(2001, 5, 14, 12, tzinfo=UTC).replace(tzinfo=None)] * len(count)),
                "body": ["Text."] * len(count),
                "file_name": ["kaminski-v/inbox/1."] * len(count),
            }
        )
        pyarrow.parquet.write_table(table, buffer := io.BytesIO())
        files.append(buffer.getvalue())
    return files


def read_datasets(uris: list[str], home: Path, endpoint: str) -> dict[str, Outcome]:
    """Read each dataset in a process that knows only the given hub."""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_ETAG_TIMEOUT": str(TIMEOUT),
        "HF_HUB_DOWNLOAD_TIMEOUT": str(TIMEOUT),
    }
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *uris],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return {uri: Outcome(**json.loads(line)) for uri, line in zip(uris, ended.stdout.splitlines(), strict=True)}


def rows(*numbers: int) -> list[list[Any]]:
    return [
        [f"<{number}@example.com>", NOON, None, "ann@example.com", "bob@example.com", "eve@example.com"]
        for number in numbers
    ]


class HubHandler(BaseHTTPRequestHandler):
    """Serve the part of the hub's API that is needed to read a public dataset, and some faulty repositories."""

    protocol_version = "HTTP/1.1"
    commit = "a" * 40
    files: ClassVar[dict[str, bytes]] = {}
    faults: ClassVar[dict[str, int]] = {"acme/secret": 401, "acme/missing": 404, "acme/busy": 503}
    stopped: ClassVar[threading.Event] = threading.Event()
    hanging: ClassVar[set[int]] = set()
    """Ports of the clients that get no response."""
    stuttered: ClassVar[threading.Event] = threading.Event()
    """Set after the first request for files of `acme/stutters`, which gets no response."""

    def do_GET(self) -> None:
        asked = self.path.partition("?")[0]
        path = asked.replace("acme/stutters", "acme/mail")
        name = path.partition(f"/resolve/{self.commit}/")[2]
        fault = next((fault for repository, fault in self.faults.items() if repository in path), None)
        if "acme/silent" in path or (asked.endswith("/data") and asked != path and not self.stuttered.is_set()):
            self.stuttered.set()
            self.hanging.add(self.client_address[1])
            self.stopped.wait()
            self.close_connection = True
        elif path.startswith("/hangs/"):
            self.answer(200, b"yes" if int(path.rpartition("/")[2]) in self.hanging else b"no")
        elif fault:
            self.answer(fault, b'{"error": "no"}')
        elif path in {"/api/datasets/acme/mail", f"/api/datasets/acme/mail/revision/{self.commit}"}:
            self.answer(200, json.dumps({"id": "acme/mail", "sha": self.commit, "siblings": [], "tags": []}).encode())
        elif path == f"/api/datasets/acme/mail/tree/{self.commit}":
            self.answer(200, json.dumps([{"type": "directory", "path": "data", "oid": "c" * 40}]).encode())
        elif path == f"/api/datasets/acme/mail/tree/{self.commit}/data":
            sizes = {name: len(data) for name, data in self.files.items()}
            listed = [{"type": "file", "path": name, "size": size, "oid": "b" * 40} for name, size in sizes.items()]
            self.answer(200, json.dumps(listed).encode())
        elif name in self.files:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            data = self.files[name]
            part = data[int(first) : int(last or len(data)) + 1]
            self.answer(206, part, f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        else:
            self.answer(404, b"{}")

    do_HEAD = do_GET  # noqa: N815 - its name is given

    def answer(self, status: int, data: bytes, content_range: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if status == 404:
            self.send_header("X-Error-Code", "EntryNotFound" if "/resolve/" in self.path else "RepoNotFound")
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Log nothing, because the output belongs to pytest."""


@contextmanager
def hub() -> Iterator[str]:
    """Run a hub while the block runs, and yield its address."""
    HubHandler.stopped.clear()
    HubHandler.stuttered.clear()
    HubHandler.hanging.clear()
    HubHandler.files.update(
        (f"data/train-0000{number}.parquet", data) for number, data in enumerate(parquet(range(1, 4), range(4, 6)))
    )
    with run_server(ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)) as address:
        try:
            yield address
        finally:
            HubHandler.stopped.set()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Return the outcome of reading each dataset and directory, by the last part of its URI."""
    place = tmp_path_factory.mktemp("datasets")
    first, second = parquet(range(1, 4), range(4, 6))
    write(place, {"good/data/train-00000.parquet": first, "good/data/test-00000.parquet": second})
    write(place, {"damaged/train-00000.parquet": first, "damaged/train-00001.parquet": b"PAR1 not parquet PAR1"})
    (place / "empty").mkdir()
    local = [f"hf:{place}/{name}" for name in ("good", "good@test", "good@nonsense", "damaged", "empty")]
    there = [f"hf:acme/{name}" for name in ("mail", "stutters", "secret", "missing", "busy", "silent")]
    there += [f"hf:acme/mail:{revision}" for revision in (HubHandler.commit, "gone")]
    with hub() as endpoint:
        found = read_datasets([*local, *there], place / "home", endpoint)
    return {uri.rpartition("/")[2]: outcome for uri, outcome in found.items()}


def test_a_dataset_of_the_hub_is_streamed_in_order(outcomes: dict[str, Outcome]) -> None:
    assert (outcomes["mail"].items, outcomes["mail"].error) == (rows(1, 2, 3, 4, 5), "")


def test_the_commit_of_a_dataset_comes_from_the_hub(outcomes: dict[str, Outcome]) -> None:
    assert (outcomes["mail"].commit, outcomes["good"].commit) == (HubHandler.commit, "")
    assert (outcomes["mail"].read, outcomes["good"].read) == (HubHandler.commit, ""), "for the record of an index"
    tagged = outcomes[f"mail:{HubHandler.commit}"]
    assert (tagged.items, tagged.read) == (rows(1, 2, 3, 4, 5), HubHandler.commit)
    assert (outcomes["mail:gone"].items, outcomes["mail:gone"].code) == ([], "sources.dataset-not-found")


def test_a_request_without_a_response_is_retried(outcomes: dict[str, Outcome]) -> None:
    assert (outcomes["stutters"].items, outcomes["stutters"].error) == (rows(1, 2, 3, 4, 5), "")
    assert TIMEOUT <= outcomes["stutters"].waited < 2 * TIMEOUT


def test_a_local_dataset_is_streamed_by_split(outcomes: dict[str, Outcome]) -> None:
    assert (outcomes["good"].items, outcomes["good"].error) == (rows(1, 2, 3), "")
    assert (outcomes["good@test"].items, outcomes["good@test"].error) == (rows(4, 5), "")


@pytest.mark.parametrize(
    ("name", "code", "said", "status"),
    [
        ("secret", "sources.dataset-not-found", "401", 1),
        ("missing", "sources.dataset-not-found", "404", 1),
        ("busy", "sources.hub-unavailable", "503", 75),
        ("silent", "sources.hub-unavailable", "timed out", 75),
        ("good@nonsense", "sources.dataset-unreadable", "nonsense", 1),
        ("empty", "sources.dataset-unreadable", "empty", 1),
        ("damaged", "sources.dataset-unreadable", "parquet", 1),
    ],
)
def test_a_dataset_that_cannot_be_loaded_is_reported_quickly(
    name: str, code: str, said: str, status: int, outcomes: dict[str, Outcome]
) -> None:
    found = outcomes[name]
    assert (found.code, found.status) == (code, status)
    assert found.error.startswith("hf:")
    assert f"/{name}: " in found.error
    assert said in found.error.lower()
    assert found.waited < 2 * TIMEOUT


@pytest.mark.ci
def test_without_network_only_local_datasets_are_read(tmp_path: Path) -> None:
    write(tmp_path, {"mail/train.parquet": parquet(range(1, 4))[0]})
    here, there = f"hf:{tmp_path}/mail", "hf:acme/mail"
    found = read_datasets([here, there], tmp_path / "home", f"http://127.0.0.1:{find_free_port()}")
    assert (found[here].items, found[here].error) == (rows(1, 2, 3), "")
    assert (found[there].code, found[there].status) == ("sources.hub-unavailable", 75)
    assert found[there].error.startswith("hf:acme/mail: ")
