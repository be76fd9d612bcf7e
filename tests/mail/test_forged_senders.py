"""A sender counts only if something shows that the message is from that person: From alone opens no inbox."""

from pathlib import Path
from typing import Any

import pytest

from gumshoe.environments.mail_results import MailFormat, header_fields
from gumshoe.mail.build import build_mail_index, extend_mail_index
from gumshoe.mail.build_report import MailBuildOptions, MailBuildReport
from gumshoe.mail.corpus import MailSearch
from gumshoe.mail.imap_account import parse_imap_uri
from gumshoe.mail.imap_folders import ListedFolder, choose_folders
from gumshoe.mail.inboxes import OwnedSource
from gumshoe.mail.index import MailIndex
from gumshoe.mail.index_options import parse_options
from gumshoe.mail.states import is_sent_folder
from tests.errors import raises
from tests.mail.mailbox import record, write_jsonl

DAVE, BOB, CAROL, EVE = (f"{name}@example.com" for name in ("dave", "bob", "carol", "eve"))
MX = "mx.example.com"
CONFIRMED = f"Authentication-Results: {MX}; dmarc=pass header.from=example.com"
REFUSED = f"Authentication-Results: {MX}; dmarc=fail header.from=example.com"


def write_mail(path: Path, *headers: str, number: int = 1, sender: str = f"From: {DAVE}", body: str = "word") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [*headers, sender, f"To: {BOB}", f"Message-ID: <{number}@example.com>", "Date: 5 May 2001 12:00 +0000"]
    path.write_text("\n".join([*lines, "Subject: s", "", f"{body}\n"]))


def build(directory: Path, *sources: str | OwnedSource, **options: Any) -> tuple[MailIndex, MailBuildReport]:
    report = build_mail_index(sources, directory / "index", MailBuildOptions(**options))
    return MailIndex(directory / "index"), report


def holders(index: MailIndex, *people: str) -> set[str]:
    """Return the names of those who have a message, by every way to get one."""
    found = set()
    for inbox in people or (DAVE, BOB, CAROL, EVE):
        listed = index.list_messages(inbox)
        assert bool(listed) == bool(index.search(inbox, ["word"]))
        if listed:
            found.add(inbox.partition("@")[0])
    return found


@pytest.mark.parametrize(
    "headers",
    [
        [f"From: {DAVE}"],
        [f"From: Dave <{DAVE}>", f"Sender: {DAVE}"],
        ["From: Dave", f"Sender: {DAVE}"],
        [f"Sender: {DAVE}"],
        [f"From: {EVE}", f"Sender: {DAVE}"],
        [f"From: {EVE}", f"Resent-From: {DAVE}", f"Resent-Sender: {DAVE}"],
        [f"From: {EVE}", f"Reply-To: {DAVE}"],
        [f"From: {EVE}", f"X-Original-From: {DAVE}", f"X-Original-Sender: {DAVE}", f"X-From: {DAVE}"],
        [f"From: {EVE}", f"Return-Path: <{DAVE}>", f"Errors-To: {DAVE}"],
        [f"From: {EVE}, {DAVE}"],
        [f"From: {EVE}", f"From: {DAVE}"],
        [f"From: {DAVE}", "X-Gmail-Labels: Sent", "X-Folder: \\Dave\\Sent", "X-Mozilla-Status: 0001", "Status: RO"],
        [f"From: {DAVE}", f"X-Authentication-Warning: {DAVE}", f"Received-SPF: pass smtp.mailfrom={DAVE}"],
        [f"From: {DAVE}", "DKIM-Signature: v=1; a=rsa-sha256; d=example.com; s=k; h=from; bh=x; b=x"],
        [f"From: {DAVE}", "ARC-Seal: i=1; d=example.com", f"ARC-Authentication-Results: i=1; {MX}; dmarc=pass"],
        [f"From: {DAVE}", CONFIRMED],
    ],
)
def test_no_header_alone_puts_a_message_into_the_inbox_of_a_sender(tmp_path: Path, headers: list[str]) -> None:
    write_mail(tmp_path / "eml" / "1.eml", sender="\n".join(headers))
    mbox = tmp_path / "mail.mbox"
    mbox.write_text("From eve@example.com Sat May  5 12:00:00 2001\n" + (tmp_path / "eml" / "1.eml").read_text())
    for place in (f"eml:{tmp_path / 'eml'}", f"maildir:{tmp_path / 'eml'}", f"mbox:{mbox}"):
        report = build_mail_index([place], tmp_path / "index", replace=True)
        assert holders(MailIndex(tmp_path / "index")) == {"bob"}
        assert report.unproven_senders == 1


def test_a_forged_sender_does_not_see_blind_copies(tmp_path: Path) -> None:
    write_mail(tmp_path / "mail" / "1", f"Cc: {DAVE}", f"Bcc: {CAROL}")
    index, _ = build(tmp_path, f"maildir:{tmp_path / 'mail'}")
    shown = {
        inbox: {each.address for each in index.read(inbox, "<1@example.com>").recipients}
        for inbox in (DAVE, BOB, CAROL)
    }
    assert shown == {DAVE: {BOB, DAVE}, BOB: {BOB, DAVE}, CAROL: {BOB, DAVE, CAROL}}
    assert not index.search(DAVE, ["word"], recipient=CAROL)


@pytest.mark.parametrize(
    ("headers", "options", "expected", "unverified"),
    [
        ([CONFIRMED], {"trust_authserv": (MX,)}, {"dave", "bob"}, False),
        ([CONFIRMED], {"trust_authserv": ("mx.other.example",)}, {"bob"}, False),
        ([REFUSED], {"trust_authserv": (MX,)}, {"bob"}, True),
        ([REFUSED], {}, {"bob"}, True),
        ([REFUSED, CONFIRMED], {"trust_authserv": (MX,)}, {"bob"}, True),
        ([], {"trust_from": True}, {"dave", "bob"}, False),
        ([CONFIRMED], {"trust_from": True}, {"dave", "bob"}, False),
        ([REFUSED], {"trust_from": True}, {"bob"}, True),
        ([REFUSED], {"trust_from": True, "trust_authserv": (MX,)}, {"bob"}, True),
    ],
)
def test_trusted_servers_and_archives_show_who_sent_a_message(
    tmp_path: Path, headers: list[str], options: dict[str, Any], expected: set[str], unverified: bool
) -> None:
    """Set the trust for one source, and then as an option of the index."""
    write_mail(tmp_path / "mail" / "1", *headers)
    uri = f"maildir:{tmp_path / 'mail'}"
    of_source, report = build(tmp_path / "1", OwnedSource(uri, **options))
    of_index, _ = build(tmp_path / "2", uri, **options)
    for index in (of_source, of_index):
        assert holders(index) == expected
        assert index.read(BOB, "<1@example.com>").is_unverified is unverified
        assert [each.is_unverified for each in index.search(BOB, ["word"])] == [unverified]
    assert report.unproven_senders == ("dave" not in expected)
    facts = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    assert of_source.stats()["sources"] == [{"source": uri, **facts} if facts else uri]
    assert {name: of_index.stats()["options"][name] for name in options} == facts


@pytest.mark.parametrize("sender", [f"From: {DAVE}, {EVE}", f"From: {DAVE}\nFrom: {EVE}", f"From: {DAVE})x@y"])
def test_a_server_confirms_nobody_if_there_are_several_authors(tmp_path: Path, sender: str) -> None:
    write_mail(tmp_path / "mail" / "1", CONFIRMED, sender=sender)
    index, _ = build(tmp_path, f"maildir:{tmp_path / 'mail'}", trust_authserv=(MX,))
    assert holders(index) == {"bob"}


def test_records_are_archives(tmp_path: Path) -> None:
    index, report = build(tmp_path, write_jsonl(tmp_path / "mail.jsonl", [record(1, sender=DAVE, body="word")]))
    assert holders(index) == {"dave", "bob"}
    assert report.unproven_senders == 0


@pytest.mark.parametrize(
    "folder", ["dave-s/_sent_mail", "dave/sent_items", "dave/.Sent/cur", "Gesendet", "[Gmail].Sent Mail"]
)
def test_mail_in_a_folder_for_sent_mail_is_in_the_inbox_of_its_sender(tmp_path: Path, folder: str) -> None:
    write_mail(tmp_path / "mail" / folder / "1")
    write_mail(tmp_path / "mail" / "bob" / "inbox" / "2", f"Delivered-To: {BOB}")
    write_mail(tmp_path / "mail" / "bob" / "inbox" / "3", number=3, body="another word")
    index, report = build(tmp_path, f"maildir:{tmp_path / 'mail'}")
    assert [each for each, _ in index.list_messages(DAVE)] == ["<1@example.com>"]
    assert len(index.list_messages(BOB)) == 2
    assert (report.messages, report.unproven_senders) == (2, 2)


@pytest.mark.parametrize("header", [f"Return-Path: <{EVE}>", f"Delivered-To: {BOB}", f"X-Original-To: {BOB}"])
def test_delivered_mail_in_a_folder_for_sent_mail_counts_for_its_recipients(tmp_path: Path, header: str) -> None:
    """A rule of a mail program may move forged mail there."""
    write_mail(tmp_path / "mail" / "Sent" / "1", header)
    index, _ = build(tmp_path, f"maildir:{tmp_path / 'mail'}")
    assert holders(index) == {"bob"}


def test_a_sender_that_a_server_found_forged_is_not_genuine_in_a_folder_for_sent_mail(tmp_path: Path) -> None:
    write_mail(tmp_path / "mail" / "Sent" / "1", REFUSED)
    index, _ = build(tmp_path, f"maildir:{tmp_path / 'mail'}")
    assert holders(index) == {"bob"}


def test_headers_in_the_body_do_not_replace_those_of_the_server(tmp_path: Path) -> None:
    """A message may have no header but those of the server. Then the first headers in its text are read."""
    forged = [CONFIRMED, f"From: {DAVE}", f"To: {BOB}", "Message-ID: <1@example.com>", "Subject: s", "", "word"]
    tops = {
        "inbox": [f"Received: from x by {MX}; 5 May 2001 12:00 +0000", f"Authentication-Results: {MX}; none"],
        "Sent": [f"Return-Path: <{EVE}>", "MIME-Version: 1.0"],
    }
    for folder, top in tops.items():
        (tmp_path / folder / folder).mkdir(parents=True)
        (tmp_path / folder / folder / "1").write_text("\n".join([*top, "", *forged]))
        trusted = (MX,) if folder == "inbox" else ()
        index, _ = build(tmp_path / folder, f"maildir:{tmp_path / folder}", trust_authserv=trusted)
        assert holders(index) == {"bob"}


def test_files_of_sent_mail_are_recognized(tmp_path: Path) -> None:
    write_mail(tmp_path / "1")
    text = "From x Sat May  5 12:00:00 2001\n" + (tmp_path / "1").read_text()
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    (boxes / "Sent.mbox").write_text(text)
    index, _ = build(tmp_path / "a", f"mbox:{boxes / 'Sent.mbox'}")
    assert holders(index) == {"bob", "dave"}
    index, _ = build(tmp_path / "b", f"mbox:{boxes}")
    assert holders(index) == {"bob", "dave"}


@pytest.mark.parametrize(
    "path", ["Inbox", "sentinel/inbox", "sent-to-me", "a/presents", ".", "absent", "all_documents"]
)
def test_other_folders_are_not_for_sent_mail(path: str) -> None:
    assert not is_sent_folder(path)


def test_an_owner_has_all_mail_and_sees_what_is_forged(tmp_path: Path) -> None:
    write_mail(tmp_path / "mail" / "1", REFUSED)
    index, report = build(tmp_path, OwnedSource(f"maildir:{tmp_path / 'mail'}", DAVE))
    assert holders(index) == {"dave"}
    assert index.read(DAVE, "<1@example.com>").is_unverified
    assert report.unproven_senders == 0


def test_a_message_is_marked_if_every_copy_of_the_inbox_is_forged(tmp_path: Path) -> None:
    """A list changes what a server checks. A copy that came directly shows that the text is genuine."""
    write_mail(tmp_path / "mail" / "1", REFUSED)
    index, _ = build(tmp_path / "a", f"maildir:{tmp_path / 'mail'}")
    assert index.read(BOB, "<1@example.com>").is_unverified
    write_mail(tmp_path / "mail" / "2", CONFIRMED, number=2)
    report = extend_mail_index([f"maildir:{tmp_path / 'mail'}"], tmp_path / "a" / "index")
    index = MailIndex(tmp_path / "a" / "index")
    assert report.messages == 1
    assert not index.read(BOB, "<1@example.com>").is_unverified
    assert not index.search(BOB, ["word"])[0].is_unverified


def test_a_forged_copy_in_another_inbox_changes_nothing(tmp_path: Path) -> None:
    write_mail(tmp_path / "mail" / "1")
    write_mail(tmp_path / "mail" / "2", REFUSED, number=2)
    path = tmp_path / "mail" / "2"
    path.write_text(path.read_text().replace(f"To: {BOB}", f"To: {EVE}"))
    index, _ = build(tmp_path, f"maildir:{tmp_path / 'mail'}")
    assert not index.read(BOB, "<1@example.com>").is_unverified
    assert index.read(EVE, "<2@example.com>").is_unverified


def test_models_and_people_see_that_a_sender_is_unverified(tmp_path: Path) -> None:
    write_mail(tmp_path / "mail" / "1", REFUSED)
    write_mail(tmp_path / "mail" / "2", number=2, body="word two")
    index, _ = build(tmp_path, f"maildir:{tmp_path / 'mail'}")
    shown = MailFormat(True, 20, 100, str, True)
    marked = {
        hit.message_id: (
            "(unverified sender)" in shown.format_hits([hit], "word")[0],
            "(unverified sender)" in header_fields(index.read(BOB, hit.message_id), limit=20)["From"],
            "(unverified sender)" in MailSearch(index, BOB).read(hit.message_id).text,
        )
        for hit in index.search(BOB, ["word"])
    }
    assert marked == {"<1@example.com>": (True, True, True), "<2@example.com>": (False, False, False)}


def test_trust_is_part_of_the_content_and_can_be_extended(tmp_path: Path) -> None:
    write_mail(tmp_path / "a" / "1")
    write_mail(tmp_path / "b" / "2", number=2, body="word two")
    first, second = (f"maildir:{tmp_path / name}" for name in "ab")
    choices: list[dict[str, Any]] = [{}, {"trust_from": True}, {"trust_authserv": (MX,)}]
    contents = {
        build(tmp_path / str(number), first, second, **options)[0].stats()["content"]
        for number, options in enumerate(choices)
    }
    assert len(contents) == 3
    of_source, _ = build(tmp_path / "once", first, OwnedSource(second, trust_from=True))
    build(tmp_path / "twice", first)
    extend_mail_index([OwnedSource(second, trust_from=True)], tmp_path / "twice" / "index")
    twice = MailIndex(tmp_path / "twice" / "index")
    assert twice.stats()["content"] == of_source.stats()["content"]
    assert [each for each, _ in twice.list_messages(DAVE)] == ["<2@example.com>"]
    report = extend_mail_index([first, OwnedSource(second, trust_from=True)], tmp_path / "twice" / "index", sync=True)
    assert (report.content, report.unproven_senders) == (of_source.stats()["content"], 1)


@pytest.mark.parametrize("name", ["", "mx example", "mx;x", "a@b", "(mx)"])
def test_names_of_servers_are_checked(name: str) -> None:
    with raises("mail.invalid-server-name", repr(name)):
        OwnedSource("maildir:x", trust_authserv=(name,))
    with raises("mail.invalid-server-name", repr(name)):
        parse_options({"trust_authserv": [name]})


def test_names_of_servers_have_one_form() -> None:
    names = ["b.example", "MX.example.com", "mx.EXAMPLE.com"]
    expected = ("b.example", "mx.example.com")
    assert OwnedSource("maildir:x", trust_authserv=tuple(names)).trust_authserv == expected
    assert parse_options({"trust_authserv": names}).trust_authserv == expected


def test_an_owner_needs_no_trust(tmp_path: Path) -> None:
    with raises("mail.option-conflict", "maildir:x"):
        OwnedSource("maildir:x", DAVE, trust_from=True)
    write_mail(tmp_path / "mail" / "1")
    index, _ = build(tmp_path, OwnedSource(f"maildir:{tmp_path / 'mail'}", CAROL), trust_from=True)
    assert holders(index) == {"carol"}


@pytest.mark.parametrize(
    ("folders", "sent"),
    [
        ({"INBOX": "", "Sent": "", "Gesendet": "\\sent"}, {"Gesendet"}),
        ({"INBOX": "", "Sent Items": "", "INBOX/Sent": ""}, {"Sent Items", "INBOX/Sent"}),
        ({"INBOX": "", "Archive": "\\archive"}, set()),
    ],
)
def test_imap_folders_for_sent_mail_are_those_that_the_server_tells(folders: dict[str, str], sent: set[str]) -> None:
    """Without their special use (RFC 6154), names decide."""
    listed = [
        ListedFolder(title.encode(), title, "/", frozenset(filter(None, [flag]))) for title, flag in folders.items()
    ]
    account, _ = parse_imap_uri("imap://dave%40example.com@host")
    chosen = choose_folders(account, (), listed, is_gmail=False)
    assert {each.title for each in chosen if each.is_sent} == sent
