"""Whose inboxes hold a message: owners, delivery headers, doubtful addresses, states and limits on inboxes."""

from pathlib import Path
from typing import Any

import pytest

from gumshoe.mail.build import build_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.inboxes import OwnedSource, list_people
from gumshoe.mail.index import MailIndex
from gumshoe.mail.message import normalize_address
from tests.errors import raises
from tests.mail.mailbox import make_index, record, write_jsonl
from tests.mail.raw_messages import parse

ANN, BOB, EVE = "ann@example.com", "bob@example.com", "eve@example.com"
LIST = {"to": ["team@lists.example.com"], "sender": "pat@example.com"}


def build(directory: Path, *records: dict[str, Any], owner: str = "", aliases: tuple[str, ...] = ()) -> MailIndex:
    source = OwnedSource(write_jsonl(directory / "mail.jsonl", records), owner, aliases)
    build_mail_index([source], directory / "index")
    return MailIndex(directory / "index")


def listed(index: MailIndex, inbox: str) -> set[str]:
    return {message_id[1] for message_id, _ in index.list_messages(inbox)}


def test_everything_in_a_mailbox_is_in_its_owners_inbox_only(tmp_path: Path) -> None:
    draft = record(3, sender=ANN, to=[BOB], bcc=[EVE])
    index = build(tmp_path, record(1, **LIST), record(2, to=["a.lee@example.com"]), draft, owner="Ann@Example.com")
    assert listed(index, ANN) == {"1", "2", "3"}
    for other in (BOB, EVE, "pat@example.com", "team@lists.example.com", "a.lee@example.com"):
        assert listed(index, other) == set()
    assert index.stats()["without_inbox"] == 0


def test_an_owner_sees_blind_copies_of_what_an_alias_sent_or_received(tmp_path: Path) -> None:
    sent = record(1, sender="a.lee@example.com", to=[BOB], bcc=[EVE])
    received = record(2, sender=EVE, to=[BOB], bcc=["a.lee@example.com", "x@example.com"])
    index = build(tmp_path, sent, received, owner=ANN, aliases=("A.Lee@example.com",))
    shown = [[each.address for each in index.read(ANN, f"<{number}@example.com>").recipients] for number in (1, 2)]
    assert shown == [[BOB, EVE], [BOB, "a.lee@example.com"]]


def test_mailboxes_of_several_owners_share_equal_messages(tmp_path: Path) -> None:
    mine, theirs = (record(1, body="same", **LIST, bcc=[name]) for name in (ANN, BOB))
    other = record(1, body="another text under the same id", **LIST)
    sources = [
        OwnedSource(write_jsonl(tmp_path / "ann.jsonl", [mine]), ANN),
        OwnedSource(write_jsonl(tmp_path / "bob.jsonl", [theirs]), BOB),
        OwnedSource(write_jsonl(tmp_path / "eve.jsonl", [other]), EVE),
    ]
    report = build_mail_index(sources, tmp_path / "index")
    index = MailIndex(tmp_path / "index")
    assert (report.messages, report.kept_out) == (2, {"duplicate": 1})
    assert [index.read(inbox, "<1@example.com>").body for inbox in (ANN, BOB, EVE)] == ["same", "same", other["body"]]
    assert index.search(EVE, ["same text"]) == []
    assert ANN not in {each.address for each in index.read(BOB, "<1@example.com>").recipients}
    assert index.stats()["sources"][0] == {"source": sources[0].uri, "owner": ANN, "aliases": []}


def test_without_an_owner_delivery_addresses_are_inboxes(tmp_path: Path) -> None:
    (tmp_path / "mail").mkdir()
    raw = (
        "Delivered-To: ann@example.com\nDelivered-To: eve@example.com\nX-Original-To: alias@example.com\n"
        "From: pat@example.com\nTo: team@lists.example.com\nSubject: s\nMessage-ID: <1@example.com>\n\nbody\n"
    )
    (tmp_path / "mail" / "1.eml").write_text(raw)
    build_mail_index([f"eml:{tmp_path / 'mail'}"], tmp_path / "index")
    index = MailIndex(tmp_path / "index")
    for inbox in (ANN, "alias@example.com", "team@lists.example.com"):
        assert listed(index, inbox) == {"1"}
    assert listed(index, EVE) == listed(index, "pat@example.com") == set()
    assert ANN not in {each.address for each in index.read(ANN, "<1@example.com>").recipients}


@pytest.mark.parametrize("role", ["from", "to", "cc", "bcc"])
@pytest.mark.parametrize(
    "written",
    [
        "'eve@example.com' <dave@example.com>",
        "eve@example.com <dave@example.com>",
        "<dave@example.com> eve@example.com",
        "Dave <dave@example.com> <eve@example.com>",
        "=?utf-8?q?a(?= <eve@example.com>, x) <dave@example.com>",
        "dave@example.com)eve@example.com",
        "eve@example.com: dave@example.com;",
        "[mailto:eve@example.com] <dave@example.com>",
    ],
)
def test_what_stands_beside_an_address_gives_no_access(tmp_path: Path, role: str, written: str) -> None:
    (tmp_path / "mail").mkdir()
    fields = {"from": ANN, "to": BOB, role: written}
    raw = "".join(f"{name}: {value}\n" for name, value in fields.items()) + "Message-ID: <1@example.com>\n\nbody\n"
    (tmp_path / "mail" / "1.eml").write_text(raw)
    lines = [{**record(2), **fields}]
    build_mail_index([f"eml:{tmp_path / 'mail'}", write_jsonl(tmp_path / "m.jsonl", lines)], tmp_path / "index")
    index = MailIndex(tmp_path / "index")
    assert listed(index, EVE) == set()
    assert index.search(EVE, ["body"]) == []


def test_doubtful_addresses_are_in_the_owners_inbox(tmp_path: Path) -> None:
    index = build(tmp_path, record(1, to=["dave@example.com)eve@example.com"]), owner=EVE)
    assert listed(index, EVE) == {"1"}


def test_messages_in_nobodys_inbox_are_counted_and_an_owner_is_suggested(tmp_path: Path) -> None:
    records = [
        record(number, body=f"text {number}", sender=f"p{number}@example.com", to=[ANN, f"q{number}@example.com"])
        for number in range(8)
    ]
    nobody = record(9, sender="Pat", to=["undisclosed recipients"])
    report = build_mail_index([write_jsonl(tmp_path / "mail.jsonl", [*records, nobody])], tmp_path / "index")
    assert report.without_inbox == 1
    assert report.owners == {f"jsonl:{tmp_path / 'mail.jsonl'}": (ANN, 8 / 9)}


def test_only_chosen_inboxes_are_built(tmp_path: Path) -> None:
    records = [record(1), record(2, to=["carol@example.com"]), record(3, sender=EVE, to=["carol@example.com"])]
    index = make_index(tmp_path, records, MailBuildOptions(inboxes=("Bob@example.com",)))
    assert [listed(index, inbox) for inbox in (BOB, ANN, EVE)] == [{"1"}, set(), set()]
    assert (index.stats()["messages"], index.stats()["kept_out"]) == (1, {"other inbox": 2})


@pytest.mark.parametrize(
    ("options", "kept", "kept_out"),
    [
        (MailBuildOptions(), {"1", "3", "4"}, {"deleted": 1}),
        (MailBuildOptions(skip=()), {"1", "2", "3", "4"}, {}),
        (MailBuildOptions(skip=("deleted", "trash", "spam")), {"1"}, {"deleted": 1, "trash": 1, "spam": 1}),
    ],
)
def test_deleted_trashed_and_junk_messages_are_skipped_by_option(
    tmp_path: Path, options: MailBuildOptions, kept: set[str], kept_out: dict[str, int]
) -> None:
    states = {1: "", 2: "deleted", 3: "trash", 4: "spam"}
    records = [record(number, body=f"text {number}", state=state) for number, state in states.items()]
    index = make_index(tmp_path, records, options)
    assert listed(index, BOB) == kept
    assert index.stats()["kept_out"] == kept_out


@pytest.mark.parametrize(("owner", "aliases"), [("ann", ()), ("", (ANN,)), (ANN, ("a lee@example.com",))])
def test_an_owner_is_a_whole_address(owner: str, aliases: tuple[str, ...]) -> None:
    with raises("mail.invalid-owner", "mbox:x"):
        OwnedSource("mbox:x", owner, aliases)


@pytest.mark.parametrize("header", ["To", "Cc", "From", "Delivered-To"])
def test_an_address_in_a_charset_that_is_guessed_gives_no_access(header: str) -> None:
    """Only UTF-8 is allowed in addresses (RFC 6532). Other bytes are shown as letters, but may be others."""
    for address, encoding, is_trusted in (
        ("j\u00f6rg@example.com", "utf-8", True),
        ("j\u00f6rg@example.com", "latin-1", False),
        ("j\u2026rg@example.com", "cp1252", False),
        ("j@b\u00fccher.example", "utf-8", True),
        ("j@b\u00fccher.example", "latin-1", False),
    ):
        message = parse(f"{header}: {address}\nSubject: s\n\ntext".encode(encoding))
        sender = [] if message.sender_is_doubtful else [message.sender]
        found = {*list_people(message), *sender} - {""}
        assert found == ({normalize_address(address)} if is_trusted else set())
