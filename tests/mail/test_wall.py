"""Isolation of inboxes: nothing from another inbox is found, read, or visible indirectly."""

import ast
import inspect
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gumshoe.mail.index
from gumshoe.mail.audit import MailAudit
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.index import MailIndex, MessageNotFoundError
from gumshoe.mail.message import normalize_address
from gumshoe.mail.search_arguments import Order
from tests.errors import raises
from tests.mail.mailbox import KEEP_ALL, make_index, record

PEOPLE = [f"{name}@example.com" for name in ("ann", "bob", "carol", "dave", "Eve")]
WORDS = ["gas", "power", "secret", "price", "lunch"]
# Text that imitates the index's own terms, its query language, or somebody's address.
HOSTILE = [
    "\ue0001",
    "fann@example.com",
    '" OR "gas',
    "recipients:gas",
    "ann@example.com",
    "* OR *",
    "\0gas",
]

people = st.sampled_from(PEOPLE)
text = st.lists(st.sampled_from(WORDS + HOSTILE), min_size=1, max_size=6).map(" ".join)
messages = st.fixed_dictionaries(
    {
        "from": people,
        "to": st.lists(people, max_size=3),
        "cc": st.lists(people, max_size=2),
        "bcc": st.lists(people, max_size=2),
        "subject": text,
        "body": text,
    }
)
mailboxes = st.lists(messages, min_size=1, max_size=12).map(
    lambda records: [record(number, **each) for number, each in enumerate(records)]
)


def contains_message(message: dict[str, Any], inbox: str) -> bool:
    everyone = [message["from"], *message["to"], *message["cc"], *message["bcc"]]
    return inbox.lower() in {address.lower() for address in everyone}


def find_ids(index: MailIndex, inbox: str, keywords: list[str], **options: Any) -> list[str]:
    return [hit.message_id for hit in index.search(inbox, keywords, **options)]


def can_read(index: MailIndex, inbox: str, message_id: str) -> bool:
    try:
        index.read(inbox, message_id)
    except MessageNotFoundError:
        return False
    return True


@pytest.mark.ci
@settings(max_examples=60)
@given(records=mailboxes, inbox=people, keyword=st.sampled_from(WORDS + HOSTILE), other=people)
def test_search_and_read_return_only_messages_of_the_inbox(
    records: list[dict[str, Any]], inbox: str, keyword: str, other: str
) -> None:
    mine = {each["message_id"] for each in records if contains_message(each, inbox)}
    with TemporaryDirectory() as directory:
        index = make_index(Path(directory), records, KEEP_ALL)
        for options in ({}, {"order": "date"}, {"sender": other}, {"recipient": other}):
            assert set(find_ids(index, inbox, [keyword], **options)) <= mine
        assert {each["message_id"] for each in records if can_read(index, inbox, each["message_id"])} == mine
        assert {message_id for message_id, _ in index.list_messages(inbox)} == mine


@pytest.mark.ci
@settings(max_examples=40)
@given(records=mailboxes, inbox=people, keywords=st.lists(st.sampled_from(WORDS), min_size=1, max_size=2), other=people)
def test_results_are_the_same_as_if_the_inbox_were_alone(
    records: list[dict[str, Any]], inbox: str, keywords: list[str], other: str
) -> None:
    """Check that results, their order and messages reveal nothing about other inboxes, not even that they exist."""
    with TemporaryDirectory() as directory:
        whole = make_index(Path(directory) / "whole", records, KEEP_ALL)
        alone = make_index(
            Path(directory) / "alone", [each for each in records if contains_message(each, inbox)], KEEP_ALL
        )
        for options in ({}, {"order": "date"}, {"sender": other}, {"recipient": other}, {"limit": 1}):
            assert whole.search(inbox, keywords, **options) == alone.search(inbox, keywords, **options)
        assert whole.list_messages(inbox) == alone.list_messages(inbox)
        for each in records:
            if contains_message(each, inbox):
                assert whole.read(inbox, each["message_id"]) == alone.read(inbox, each["message_id"])


def test_the_order_of_messages_of_one_second_does_not_depend_on_others(tmp_path: Path) -> None:
    same: dict[str, Any] = {"date": "2001-05-05T12:00:00+00:00", "sender": "ann@example.com"}
    mine = [record(number, body=f"word {number}", **same) for number in range(1, 9)]
    others = [
        record(number + 20, body=f"word {number}", subject=f"Subject {number}", **same, to=["carol@example.com"])
        for number in range(8, 0, -1)
    ]
    alone, beside = make_index(tmp_path / "alone", mine), make_index(tmp_path / "beside", [*others, *mine])
    for order in get_args(Order):
        expected = find_ids(alone, "bob@example.com", ["word"], order=order)
        assert len(expected) == 8
        assert find_ids(beside, "bob@example.com", ["word"], order=order) == expected


def test_a_message_of_another_inbox_looks_like_a_missing_one(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1, to=["carol@example.com"])])
    errors = []
    for message_id in ("<1@example.com>", "<2@example.com>"):
        with raises("mail.message-not-found", message_id) as error:
            index.read("bob@example.com", message_id)
        errors.append(error.value.message.replace(message_id, "ID"))
    assert errors[0] == errors[1]


def test_text_and_keywords_cannot_contain_terms_that_are_not_words(tmp_path: Path) -> None:
    """Write what the terms of addresses, ids and threads are made of as text, and search for it as a keyword."""
    ids = "i2@example.com ri2@example.com r2@example.com"
    forged = f"fcarol@example.com tcarol@example.com Fcarol Tcarol {ids}"
    index = make_index(tmp_path, [record(1, subject=forged, body=forged), record(2, to=["carol@example.com"])])
    assert find_ids(index, "bob@example.com", ["example"]) == ["<1@example.com>"]
    assert find_ids(index, "bob@example.com", ["example"], sender="carol@example.com") == []
    assert find_ids(index, "bob@example.com", ["example"], recipient="carol") == []
    assert not can_read(index, "bob@example.com", "<2@example.com>")
    assert find_ids(index, "ann@example.com", ["tcarol@example.com"]) == ["<1@example.com>"]


def test_blind_copies_are_visible_only_to_the_sender_and_their_recipient(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1, bcc=["carol@example.com", "dave@example.com"], body="word")])
    shown = {
        inbox: [each.address.split("@")[0] for each in index.read(f"{inbox}@example.com", "<1@example.com>").recipients]
        for inbox in ("ann", "bob", "carol")
    }
    assert shown == {"ann": ["bob", "carol", "dave"], "bob": ["bob"], "carol": ["bob", "carol"]}
    assert find_ids(index, "ann@example.com", ["word"], recipient="carol@example.com")
    assert not find_ids(index, "bob@example.com", ["word"], recipient="carol@example.com")
    assert find_ids(index, "carol@example.com", ["word"], recipient="carol@example.com")
    assert not find_ids(index, "dave@example.com", ["word"], recipient="carol@example.com")


def test_the_id_of_a_dropped_duplicate_reads_the_kept_message(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1, body="same", subject="s"), record(2, body="same", subject="s")])
    assert find_ids(index, "bob@example.com", ["same"]) == ["<1@example.com>"]
    assert index.read("bob@example.com", "<2@example.com>").message_id == "<1@example.com>"
    assert not can_read(index, "carol@example.com", "<2@example.com>")


def test_a_dropped_duplicate_with_a_used_id_is_read_by_its_recipient(tmp_path: Path) -> None:
    """Send Carol a copy of the first message with the id of the second, which she did not receive."""
    kept, other = record(1, body="same", subject="s"), record(2, body="another", to=["dave@example.com"])
    index = make_index(
        tmp_path, [kept, other, {**kept, "message_id": other["message_id"], "to": ["carol@example.com"]}]
    )
    assert index.read("carol@example.com", "<2@example.com>").body == "same"
    assert index.read("dave@example.com", "<2@example.com>").body == "another"
    assert not can_read(index, "carol@example.com", "<1@example.com>")


def test_recipients_of_a_dropped_duplicate_see_only_their_copy(tmp_path: Path) -> None:
    same = {"body": "same words", "subject": "s"}
    records = [
        record(1, **same, to=["bob@example.com"]),
        record(2, **same, to=["carol@example.com"], cc=["dave@example.com"]),
        record(3, **same, to=["bob@example.com"]),
    ]
    index = make_index(tmp_path, records)
    for inbox in ("ann", "bob", "carol", "dave"):
        own = "<2@example.com>" if inbox in {"carol", "dave"} else "<1@example.com>"
        assert find_ids(index, f"{inbox}@example.com", ["same words"]) == [own]
    shown = {
        inbox: [
            each.address.split("@")[0]
            for each in index.read(f"{inbox}@example.com", f"<{number}@example.com>").recipients
        ]
        for inbox, number in (("ann", 2), ("bob", 3), ("carol", 2), ("dave", 2))
    }
    assert shown == {
        "ann": ["bob", "carol", "dave"],
        "bob": ["bob"],
        "carol": ["carol", "dave"],
        "dave": ["carol", "dave"],
    }
    assert not find_ids(index, "carol@example.com", ["same"], recipient="bob@example.com")
    assert not find_ids(index, "bob@example.com", ["same"], recipient="dave@example.com")
    assert find_ids(index, "dave@example.com", ["same"], recipient="carol@example.com")


def test_a_used_id_neither_hides_nor_reveals_a_message(tmp_path: Path) -> None:
    """Send a message under the id of another. Both remain, each in its own inbox."""
    records = [record(1, body="first word"), record(1, body="second word", to=["carol@example.com"])]
    index = make_index(tmp_path, records)
    (first,) = index.search("bob@example.com", ["word"])
    (second,) = index.search("carol@example.com", ["word"])
    assert first.message_id == "<1@example.com>"
    assert index.read("bob@example.com", "<1@example.com>").body == "first word"
    assert index.read("carol@example.com", "<1@example.com>").body == "second word"
    assert index.read("carol@example.com", second.message_id).body == "second word"
    assert index.read("bob@example.com", second.message_id).body == "first word"


@pytest.mark.parametrize("options", [None, KEEP_ALL])
def test_a_predicted_replacement_id_reveals_nothing(tmp_path: Path, options: MailBuildOptions | None) -> None:
    """Let the attacker predict how a message with a used id is renamed, and take that id first."""
    first, attack = record(1), record(1, body="attack", sender="eve@example.com", to=["eve@example.com"])
    content = f"{attack['subject']}\0{attack['body']}\0{attack['from']}".encode()
    name = f"{attack['message_id']}#{blake2b(content, digest_size=16).hexdigest()}"
    secret = record(2, message_id=name, body="secret word")
    index = make_index(tmp_path, [first, secret, attack], options)
    assert find_ids(index, "eve@example.com", ["secret"]) == []
    assert not can_read(index, "eve@example.com", name)
    assert find_ids(index, "eve@example.com", ["attack"])
    assert index.read("bob@example.com", name).body == "secret word"


def test_the_audit_lists_the_message_of_each_inbox_without_content(tmp_path: Path) -> None:
    records = [
        record(1, body="same", subject="s", bcc=["dave@example.com"]),
        record(2, body="same", subject="s", to=["carol@example.com"]),
    ]
    audit = MailAudit(make_index(tmp_path, records).directory)
    found = {
        message_id: {each.inbox.split("@")[0]: each.message_id for each in audit.find(message_id)}
        for message_id in ("<1@example.com>", "<2@example.com>", "1@example.com", "<3@example.com>")
    }
    held = {**dict.fromkeys(("ann", "bob", "dave"), "<1@example.com>"), "carol": "<2@example.com>"}
    assert list(found.values()) == [held, held, held, {}]
    assert audit.find("<1@example.com>")[0].sent == datetime(2001, 5, 2, 12, tzinfo=UTC)
    assert "same" not in repr(audit.find("<1@example.com>"))


def test_the_audit_distinguishes_messages_with_the_same_id(tmp_path: Path) -> None:
    """Send another message with a used id: only an inbox that holds both lists one of them under another id."""
    records = [record(1, body="mine"), record(1, body="yours", to=["eve@example.com"])]
    audit = MailAudit(make_index(tmp_path, records).directory)
    found = {(each.inbox.split("@")[0], each.message_id.partition("#")[0]) for each in audit.find("<1@example.com>")}
    assert found == {(name, "<1@example.com>") for name in ("ann", "bob", "eve")}
    assert [each.inbox for each in audit.find("<1@example.com>") if "#" in each.message_id] == ["ann@example.com"]


def test_the_index_cannot_be_read_without_an_inbox() -> None:
    """Check that every public method that returns a message or a part of one requires the inbox."""
    methods = {name: each for name, each in vars(MailIndex).items() if callable(each) and not name.startswith("_")}
    of_one_inbox = {
        "search",
        "search_partially",
        "search_by_meaning",
        "read",
        "read_thread",
        "list_thread",
        "list_messages",
    }
    assert set(methods) == of_one_inbox | {"stats", "list_unreadable"}
    for name in of_one_inbox:
        assert list(inspect.signature(methods[name]).parameters)[1] == "inbox"
    imported = ast.dump(ast.parse(Path(gumshoe.mail.index.__file__).read_text()))
    assert "audit" not in imported


@given(st.text(alphabet="aB@. \t<>'\"\0", max_size=12))
def test_normalizing_an_address_is_idempotent(address: str) -> None:
    assert normalize_address(normalize_address(address)) == normalize_address(address)
    assert normalize_address(f" <' {address} '> ") == normalize_address(address)
