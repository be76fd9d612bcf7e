"""Parsing of messages that are given as fields."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.mail_records import parse_record
from gumshoe.mail.message import ParsedMessage, to_datetime

NOON = int(datetime(2001, 5, 14, 12, tzinfo=UTC).timestamp())
NAN = float("nan")


def parse(**fields: Any) -> ParsedMessage:
    if "sender" in fields:
        fields["from"] = fields.pop("sender")
    message = parse_record({"body": "Text.", **fields}, "here")
    assert isinstance(message, ParsedMessage)
    return message


@pytest.mark.parametrize(
    ("written", "sent", "offset"),
    [
        ("2001-05-14T05:00:00-07:00", NOON, -420),
        ("2001-05-14 12:00:00", NOON, None),
        ("2001-05-14 12:00:00 UTC", NOON, 0),
        ("Mon, 14 May 2001 05:00:00 -0700 (PDT)", NOON, -420),
        (NOON, NOON, None),
        (NOON + 0.75, NOON, None),
        (NOON * 1000, NOON, None),
        (NOON * 1000 + 999, NOON, None),
        (NOON * 10**6, NOON, None),
        (NOON * 10**9, NOON, None),
        (str(NOON), NOON, None),
        (str(NOON * 1000), NOON, None),
        (f"{NOON}.0", NOON, None),
        (0, 0, None),
        (-86400, -86400, None),
        ("soon", None, None),
        ("", None, None),
        (None, None, None),
        (NAN, None, None),
        (float("inf"), None, None),
        (1e300, None, None),
        (10**30, None, None),
        (datetime(2001, 5, 14, 12, tzinfo=UTC), NOON, 0),
        (date(2001, 5, 14), NOON - 12 * 3600, None),
    ],
)
def test_dates_are_read_in_every_form(written: Any, sent: int | None, offset: int | None) -> None:
    message = parse(date=written)
    assert (message.sent, message.utc_offset) == (sent, offset)
    to_datetime(message.sent, message.utc_offset)


@pytest.mark.parametrize(
    "written",
    [
        ["ann@example.com", "Bob <bob@example.com>"],
        "ann@example.com, Bob <bob@example.com>",
        ["ann@example.com, Bob <bob@example.com>"],
        ("ann@example.com", {"name": "Bob", "email": "bob@example.com"}),
        [{"address": "ann@example.com"}, {"emailAddress": {"name": "Bob", "address": "bob@example.com"}}],
        "frozenset({'ann@example.com', 'Bob <bob@example.com>'})",
        "{'ann@example.com', \"Bob <bob@example.com>\"}",
        "['ann@example.com', 'Bob <bob@example.com>']",
        "('ann@example.com', 'Bob <bob@example.com>')",
        str(["ann@example.com,\n\tBob <bob@example.com>"]),
        '["ann@example.com", "\\"Bob\\" <bob@example.com>"]',
        ["ann@example.com", None, NAN, "", "nan", "=?utf-8?Q?Bob?= <bob@example.com>"],
    ],
)
def test_recipients_are_read_in_every_form(written: Any) -> None:
    for fields in ({"to": written}, {"cc": written}, {"bcc": written}):
        recipients = parse(**fields).recipients
        assert [(each.address, each.name, each.is_doubtful) for each in recipients] == [
            ("ann@example.com", "", False),
            ("bob@example.com", "Bob", False),
        ]


@pytest.mark.parametrize(
    "nothing", [None, "", NAN, "nan", "None", "[]", "frozenset()", "set()", [], [None], {}, {"name": ""}]
)
def test_missing_values_are_empty(nothing: Any) -> None:
    message = parse(sender=nothing, to=nothing, delivered_to=nothing)
    assert (message.sender, message.sender_name, message.recipients, message.delivered_to) == ("", "", [], [])
    message = parse(subject=NAN, body=NAN, message_id=NAN, x_from=NAN, references=NAN, in_reply_to=None, labels=NAN)
    assert (message.subject, message.body, message.has_generated_id, message.references) == ("", "", True, [])


@pytest.mark.parametrize(
    ("sender", "read"),
    [
        ({"name": "Meyer, Greg", "email": "greg@example.com"}, ("greg@example.com", "Meyer, Greg", False)),
        ({"name": "eve@example.com", "email": "<dave@example.com>"}, ("dave@example.com", "eve@example.com", False)),
        ({"email": "dave@example.com, eve@example.com"}, ("dave@example.com", "", True)),
        ("=?utf-8?Q?M=C3=BCller?= <m@example.com>", ("m@example.com", "Müller", False)),
        ("Greg Meyer", ("", "Greg Meyer", False)),
        ('"greg@example.com', ("greg@example.com", "", True)),
        (["Greg", "greg@example.com"], ("greg@example.com", "", False)),
    ],
)
def test_the_sender_is_read_in_every_form(sender: Any, read: tuple[str, str, bool]) -> None:
    message = parse(sender=sender)
    assert (message.sender, message.sender_name, message.sender_is_doubtful) == read


def test_encoded_words_are_decoded_in_subjects_only() -> None:
    word = "=?utf-8?B?S8O8aGx3YXNzZXI=?="
    message = parse(subject=word, body=word)
    assert (message.subject, message.body) == ("Kühlwasser", word)


def test_optional_fields_are_read() -> None:
    message = parse(
        message_id="<3@x>",
        delivered_to=["Ann <ann@example.com>", "ann@example.com", '"eve@example.com'],
        references=["<1@x>", "<2@x>"],
        in_reply_to="<2@x>",
        labels=["INBOX", "SPAM"],
    )
    assert message.delivered_to == ["ann@example.com"]
    assert (message.references, message.state) == (["<1@x>", "<2@x>"], "spam")
    assert parse(references="<1@x> <2@x>").references == ["<1@x>", "<2@x>"]
    assert parse(message_id="3@x", references="<1@x>").references == ["1@x"]


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"state": "deleted"}, "deleted"),
        ({"state": "Junk"}, "spam"),
        ({"state": "trash"}, "trash"),
        ({"labels": "Inbox,Trash"}, "trash"),
        ({"labels": ["INBOX", "IMPORTANT"]}, ""),
        ({"state": None, "labels": None}, ""),
    ],
)
def test_labels_give_the_state(fields: dict[str, Any], state: str) -> None:
    assert parse(**fields).state == state


@pytest.mark.parametrize(
    "fields",
    [
        {"from": 5},
        {"from": {"email": 5}},
        {"to": [["a@b"]]},
        {"to": [7]},
        {"delivered_to": 7},
        {"references": 7},
        {"references": [7]},
        {"labels": [7]},
        {"date": True},
        {"subject": {}},
    ],
)
def test_a_wrong_type_is_reported(fields: dict[str, Any]) -> None:
    item = parse_record({"body": "Text.", **fields}, "here")
    assert isinstance(item, UnreadableItem)
    assert item.reason == "wrong type of field"
    assert next(iter(fields)) in item.detail


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"state": "deleted"}, "deleted"),
        ({"state": "Deleted"}, "deleted"),
        ({"labels": ["deleted"]}, "trash"),
        ({"labels": ["Trash"]}, "trash"),
        ({"state": "spam", "labels": ["deleted"]}, "spam"),
    ],
)
def test_only_the_state_of_a_record_is_a_flag(fields: dict[str, Any], state: str) -> None:
    assert parse(**fields).state == state
