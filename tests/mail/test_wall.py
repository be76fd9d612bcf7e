"""The wall: nothing of another inbox is found, read, or can be told from what is shown."""

import ast
import inspect
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gumshoe.mail.index
from gumshoe.mail.audit import MailAudit
from gumshoe.mail.build import MailBuildOptions
from gumshoe.mail.index import MailIndex, MessageNotFoundError
from gumshoe.mail.message import ADDRESS_MARK, normal_address
from gumshoe.mail.schema import address_term
from tests.errors import raises
from tests.mail.mailbox import KEEP_ALL, make_index, record

PEOPLE = [f"{name}@example.com" for name in ("ann", "bob", "carol", "dave", "Eve")]
WORDS = ["gas", "power", "secret", "price", "lunch"]
# Text that tries to be the index's own terms, its query language, or somebody's address.
HOSTILE = [
    f"{ADDRESS_MARK}1",
    ADDRESS_MARK + "2 gas",
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
    lambda several: [record(number, **each) for number, each in enumerate(several)]
)


def holds(message: dict[str, Any], inbox: str) -> bool:
    everyone = [message["from"], *message["to"], *message["cc"], *message["bcc"]]
    return inbox.lower() in {address.lower() for address in everyone}


def found(index: MailIndex, inbox: str, keywords: list[str], **options: Any) -> list[str]:
    return [hit.message_id for hit in index.search(inbox, keywords, **options)]


def readable(index: MailIndex, inbox: str, message_id: str) -> bool:
    try:
        index.read(inbox, message_id)
    except MessageNotFoundError:
        return False
    return True


@settings(max_examples=60)
@given(records=mailboxes, inbox=people, keyword=st.sampled_from(WORDS + HOSTILE), other=people)
def test_no_search_or_read_ever_returns_a_message_outside_the_inbox(
    records: list[dict[str, Any]], inbox: str, keyword: str, other: str
) -> None:
    mine = {each["message_id"] for each in records if holds(each, inbox)}
    with TemporaryDirectory() as directory:
        index = make_index(Path(directory), records, KEEP_ALL)
        for options in ({}, {"order": "date"}, {"sender": other}, {"recipient": other}):
            assert set(found(index, inbox, [keyword], **options)) <= mine
        assert {each["message_id"] for each in records if readable(index, inbox, each["message_id"])} == mine
        assert {message_id for message_id, _ in index.listing(inbox)} == mine


@settings(max_examples=40)
@given(records=mailboxes, inbox=people, keywords=st.lists(st.sampled_from(WORDS), min_size=1, max_size=2), other=people)
def test_an_inbox_is_shown_what_it_would_be_shown_alone(
    records: list[dict[str, Any]], inbox: str, keywords: list[str], other: str
) -> None:
    """Nothing about other inboxes can be told from results, their order, or a message: not even that they exist."""
    with TemporaryDirectory() as directory:
        whole = make_index(Path(directory) / "whole", records, KEEP_ALL)
        alone = make_index(Path(directory) / "alone", [each for each in records if holds(each, inbox)], KEEP_ALL)
        for options in ({}, {"order": "date"}, {"sender": other}, {"recipient": other}, {"limit": 1}):
            assert whole.search(inbox, keywords, **options) == alone.search(inbox, keywords, **options)
        assert whole.listing(inbox) == alone.listing(inbox)
        for each in records:
            if holds(each, inbox):
                assert whole.read(inbox, each["message_id"]) == alone.read(inbox, each["message_id"])


def test_a_message_of_another_inbox_answers_exactly_as_if_it_did_not_exist(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1, to=["carol@example.com"])])
    errors = []
    for message_id in ("<1@example.com>", "<2@example.com>"):
        with raises("mail.message-not-found", message_id) as error:
            index.read("bob@example.com", message_id)
        errors.append(error.value.message.replace(message_id, "ID"))
    assert errors[0] == errors[1]


def test_text_cannot_carry_the_term_of_an_address(tmp_path: Path) -> None:
    """A message that holds every term of the first addresses is still in nobody else's inbox."""
    forged = " ".join(address_term(number) for number in range(64))
    index = make_index(tmp_path, [record(1, to=["carol@example.com"], subject=forged, body=f"word {forged}")])
    assert found(index, "carol@example.com", ["word"]) == ["<1@example.com>"]
    assert found(index, "bob@example.com", ["word"]) == []
    for number in range(64):
        assert found(index, "carol@example.com", ["word", f"{number:x}"]) == ["<1@example.com>"]


def test_a_keyword_cannot_name_the_term_of_an_address(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1, body="word"), record(2, to=["carol@example.com"], body="word")])
    for number in range(8):
        assert found(index, "bob@example.com", ["word", f"{address_term(number)} x"]) == []


def test_blind_copies_are_known_to_the_sender_and_to_each_for_themselves(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1, bcc=["carol@example.com", "dave@example.com"], body="word")])
    shown = {
        inbox: [each.address.split("@")[0] for each in index.read(f"{inbox}@example.com", "<1@example.com>").recipients]
        for inbox in ("ann", "bob", "carol")
    }
    assert shown == {"ann": ["bob", "carol", "dave"], "bob": ["bob"], "carol": ["bob", "carol"]}
    assert found(index, "ann@example.com", ["word"], recipient="carol@example.com")
    assert not found(index, "bob@example.com", ["word"], recipient="carol@example.com")
    assert found(index, "carol@example.com", ["word"], recipient="carol@example.com")
    assert not found(index, "dave@example.com", ["word"], recipient="carol@example.com")


def test_a_dropped_duplicate_is_another_name_of_the_message_that_was_kept(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1, body="same", subject="s"), record(2, body="same", subject="s")])
    assert found(index, "bob@example.com", ["same"]) == ["<1@example.com>"]
    assert index.read("bob@example.com", "<2@example.com>").message_id == "<1@example.com>"
    assert not readable(index, "carol@example.com", "<2@example.com>")


def test_a_dropped_duplicate_under_a_used_id_is_read_by_that_id_by_whom_it_reached(tmp_path: Path) -> None:
    """Carol's copy of the first message came under the id of the second, which is not for her."""
    kept, other = record(1, body="same", subject="s"), record(2, body="another", to=["dave@example.com"])
    index = make_index(
        tmp_path, [kept, other, {**kept, "message_id": other["message_id"], "to": ["carol@example.com"]}]
    )
    assert index.read("carol@example.com", "<2@example.com>").body == "same"
    assert index.read("dave@example.com", "<2@example.com>").body == "another"
    assert index.read("carol@example.com", "<2@example.com>").message_id == "<1@example.com>"


def test_who_received_only_the_dropped_duplicate_finds_the_message_and_no_trace_of_the_others(tmp_path: Path) -> None:
    same = {"body": "same words", "subject": "s"}
    records = [
        record(1, **same, to=["bob@example.com"]),
        record(2, **same, to=["carol@example.com"], cc=["dave@example.com"]),
        record(3, **same, to=["bob@example.com"]),
    ]
    index = make_index(tmp_path, records)
    for inbox in ("ann", "bob", "carol", "dave"):
        assert found(index, f"{inbox}@example.com", ["same words"]) == ["<1@example.com>"]
    shown = {
        inbox: [each.address.split("@")[0] for each in index.read(f"{inbox}@example.com", "<2@example.com>").recipients]
        for inbox in ("ann", "bob", "carol", "dave")
    }
    assert shown == {
        "ann": ["bob", "carol", "dave"],
        "bob": ["bob"],
        "carol": ["carol", "dave"],
        "dave": ["carol", "dave"],
    }
    assert not found(index, "carol@example.com", ["same"], recipient="bob@example.com")
    assert not found(index, "bob@example.com", ["same"], recipient="dave@example.com")
    assert found(index, "dave@example.com", ["same"], recipient="carol@example.com")


def test_a_used_id_neither_hides_a_message_nor_gives_it_away(tmp_path: Path) -> None:
    """Somebody can send a message under the id of another's: both stay, each in its own inbox."""
    records = [record(1, body="first word"), record(1, body="second word", to=["carol@example.com"])]
    index = make_index(tmp_path, records)
    (first,) = index.search("bob@example.com", ["word"])
    (second,) = index.search("carol@example.com", ["word"])
    assert first.message_id == "<1@example.com>"
    assert index.read("bob@example.com", "<1@example.com>").body == "first word"
    assert index.read("carol@example.com", "<1@example.com>").body == "second word"
    assert index.read("carol@example.com", second.message_id).body == "second word"
    assert not readable(index, "bob@example.com", second.message_id)


@pytest.mark.parametrize("options", [None, KEEP_ALL])
def test_an_id_made_up_to_meet_another_message_s_gives_nothing_away(
    tmp_path: Path, options: MailBuildOptions | None
) -> None:
    """The attacker knows how a message under a used id is renamed, and waits there for it."""
    first, attack = record(1), record(1, body="attack", sender="eve@example.com", to=["eve@example.com"])
    content = f"{attack['subject']}\0{attack['body']}\0{attack['from']}".encode()
    name = f"{attack['message_id']}#{blake2b(content, digest_size=16).hexdigest()}"
    secret = record(2, message_id=name, body="secret word")
    index = make_index(tmp_path, [first, secret, attack], options)
    assert found(index, "eve@example.com", ["secret"]) == []
    assert not readable(index, "eve@example.com", name)
    assert found(index, "eve@example.com", ["attack"])
    assert index.read("bob@example.com", name).body == "secret word"


def test_the_audit_names_everybody_a_message_concerns_and_gives_no_content(tmp_path: Path) -> None:
    records = [
        record(1, body="same", subject="s", bcc=["dave@example.com"]),
        record(2, body="same", subject="s", to=["carol@example.com"]),
    ]
    audit = MailAudit(make_index(tmp_path, records).path.parent)
    everyone = frozenset(f"{name}@example.com" for name in ("ann", "bob", "carol", "dave"))
    for message_id in ("<1@example.com>", "<2@example.com>", "1@example.com"):  # the second is a dropped duplicate
        (message,) = audit.find(message_id)
        assert (message.message_id, message.addresses) == ("<1@example.com>", everyone)
        assert message.sent == datetime(2001, 5, 2, 12, tzinfo=UTC)
        assert "same" not in repr(message)
    assert audit.find("<3@example.com>") == []


def test_the_audit_tells_messages_under_one_id_apart(tmp_path: Path) -> None:
    records = [record(1, body="mine"), {**record(1, body="yours", to=["eve@example.com"]), "from": "dan@example.com"}]
    audit = MailAudit(make_index(tmp_path, records).path.parent)
    own, other = audit.find("<1@example.com>")
    assert own.message_id == "<1@example.com>"
    assert other.message_id.startswith("<1@example.com>#")
    assert other.addresses == {"dan@example.com", "eve@example.com"}


def test_the_index_offers_no_way_round_the_inbox() -> None:
    """Every public method that gives a message or a part of one takes the inbox."""
    methods = {name: each for name, each in vars(MailIndex).items() if callable(each) and not name.startswith("_")}
    assert set(methods) == {"search", "read", "listing", "stats", "unreadable"}
    for name in ("search", "read", "listing"):
        assert list(inspect.signature(methods[name]).parameters)[1] == "inbox"
    imported = ast.dump(ast.parse(Path(gumshoe.mail.index.__file__).read_text()))
    assert "audit" not in imported


@given(st.text(alphabet="aB@. \t<>'\"\0", max_size=12))
def test_an_address_has_one_form_however_often_it_is_brought_into_it(address: str) -> None:
    assert normal_address(normal_address(address)) == normal_address(address)
    assert normal_address(f" <' {address} '> ") == normal_address(address)
