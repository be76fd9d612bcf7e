"""Mail on IMAP servers: real sockets and TLS, with a server that misbehaves, and with Dovecot where it is installed."""

import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.mail import imap, imap_session, message_preparer, source_batches
from gumshoe.mail.build import build_mail_index, extend_mail_index
from gumshoe.mail.imap import ImapMail
from gumshoe.mail.imap_account import ImapAccount, parse_imap_uri
from gumshoe.mail.imap_folders import ListedFolder, choose_folders
from gumshoe.mail.inboxes import OwnedSource
from gumshoe.mail.index import MailIndex
from gumshoe.mail.items import RawMessage
from tests.certificates import make_certificate
from tests.conftest import find_free_port, skip_missing
from tests.errors import raises
from tests.mail.dovecot import find_dovecot, run_dovecot
from tests.mail.imap_server import PASSWORD, TOKEN, FakeImapServer, ImapServer, Visit
from tests.mail.mailbox import record, write_jsonl
from tests.waiting import Clock

DELIVERED = "Mon, 14 May 2001 12:00:00 +0000"
ACCOUNT = ImapAccount("ann@example.com", "imap.example.com", 993, True)


def mail(number: int, text: str = "Text.") -> bytes:
    """Return a raw message with the id `<NUMBER@example.com>`."""
    return (
        f"Message-ID: <{number}@example.com>\r\nFrom: bob@example.com\r\nTo: ann@example.com\r\n"
        f"Subject: Subject {number}\r\n\r\n{text}\r\n"
    ).encode()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imap") / "certificate.pem"
    path.write_bytes(make_certificate("localhost"))
    return path


@pytest.fixture(autouse=True)
def environment(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("GUMSHOE_IMAP_PASSWORD", PASSWORD)
    monkeypatch.delenv("GUMSHOE_IMAP_TOKEN", raising=False)
    monkeypatch.setattr(imap, "_FIRST_PAUSE", 0.0)


@pytest.fixture(params=["fake", "dovecot"])
def server(request: pytest.FixtureRequest, certificate: Path) -> Iterator[ImapServer]:
    """Run the fake server, and then Dovecot, to see that they behave alike."""
    if request.param == "fake":
        with FakeImapServer(certificate).run() as fake:
            yield fake
    elif find_dovecot() is None:
        skip_missing("Dovecot (dovecot-imapd)")
    else:
        with run_dovecot(certificate) as dovecot:
            yield dovecot


@pytest.fixture
def fake(certificate: Path) -> Iterator[FakeImapServer]:
    with FakeImapServer(certificate).run() as server:
        yield server


@pytest.fixture
def starttls(certificate: Path) -> Iterator[FakeImapServer]:
    """Run a server that begins without TLS."""
    with FakeImapServer(certificate, starts_with_tls=False).run() as server:
        yield server


def open_mail(uri: str) -> ImapMail:
    return ImapMail.open(uri, uri.partition(":")[2])


def read(source: ImapMail) -> list[RawMessage | UnreadableItem]:
    return list(source.read_raw(lambda _: None))


def contents(source: ImapMail) -> list[bytes]:
    """Return the messages of a source, which must all be readable."""
    items = read(source)
    assert not [each for each in items if isinstance(each, UnreadableItem)]
    return [each.raw for each in items if isinstance(each, RawMessage)]


# Messages and folders -------------------------------------------------------------------------------------------------


def test_messages_are_read_as_they_are(server: ImapServer) -> None:
    raw = b'Subject: 8 bit \xe9\r\n\r\n{12}\r\n) ( " \\ \r\nA1 OK\r\n* BYE\r\n'
    uids = [server.append("INBOX", each) for each in (mail(1), raw, mail(3, "x" * 300_000))]
    told: list[int] = []
    source = open_mail(server.uri())
    items = list(source.read_raw(told.append))
    assert [each.raw for each in items if isinstance(each, RawMessage)] == [mail(1), raw, mail(3, "x" * 300_000)]
    assert sum(told) == sum(len(each.raw) for each in items if isinstance(each, RawMessage))
    validity, last = source.position["INBOX"]
    host = server.uri().removeprefix("imaps://").rstrip("/")
    assert [each.where for each in items] == [f"imap://{host}/INBOX;UIDVALIDITY={validity}/;UID={uid}" for uid in uids]
    assert last == uids[-1]


def test_a_message_without_date_gets_the_date_of_delivery(fake: FakeImapServer) -> None:
    fake.append("INBOX", mail(1))
    (item,) = read(open_mail(fake.uri()))
    assert isinstance(item, RawMessage)
    assert item.fallback_date == DELIVERED


def test_trash_and_junk_are_left_out_unless_asked_for(server: ImapServer) -> None:
    server.create("Archive")
    for number, folder in enumerate(("INBOX", "Sent", "Trash", "Junk", "Archive"), 1):
        server.append(folder, mail(number))
    server.append("INBOX", mail(6), "\\Deleted")

    def states(folders: str) -> list[tuple[bytes, str]]:
        items = read(open_mail(server.uri(folders)))
        return [(each.raw, each.state) for each in items if isinstance(each, RawMessage)]

    usual = [(mail(1), ""), (mail(6), "deleted"), (mail(5), ""), (mail(2), "")]
    assert states("") == usual
    assert states("*") == [*usual[:3], (mail(4), "spam"), (mail(2), ""), (mail(3), "trash")]
    assert states("Trash,inbox") == [(mail(1), ""), (mail(6), "deleted"), (mail(3), "trash")]
    assert states("S*") == [(mail(2), "")]


def test_names_of_folders(server: ImapServer) -> None:
    for number, name in enumerate(("Entw&APw-rfe", "a b", 'say "x\\y"', "2001", "A&-B", "x,y"), 1):
        server.create(name)
        server.append(name, mail(number))
    wanted = "Entw%C3%BCrfe,a%20b,say%20%22x%5Cy%22,2001,A%26B,x%2Cy"
    source = open_mail(server.uri(wanted))
    assert sorted(contents(source)) == [mail(number) for number in range(1, 7)]
    assert "Entwürfe" in source.position
    with raises("mail.imap-no-folder", "none", "INBOX"):
        open_mail(server.uri("INBOX,none"))


@pytest.mark.parametrize("folder", ["INBOX%0d%0aA1%20DELETE%20Sent", "INBOX%22%20x", "%00"])
def test_names_cannot_add_commands(fake: FakeImapServer, folder: str) -> None:
    with raises("mail.imap-no-folder"):
        open_mail(fake.uri(folder))
    assert not any("DELETE" in each for each in fake.commands)


def test_nothing_is_written(fake: FakeImapServer) -> None:
    for number in range(3):
        fake.append("INBOX", mail(number))
    source = open_mail(fake.uri("*"))
    read(source)
    list(source.read_after(dict(source.position), lambda _: None))
    kinds = {re.sub("^(UID )?([A-Z]+).*", r"\1\2", each) for each in fake.commands}
    assert kinds == {"CAPABILITY", "AUTHENTICATE", "LIST", "EXAMINE", "UID SEARCH", "UID FETCH", "LOGOUT"}
    assert all("BODY" not in each or "BODY.PEEK[]" in each for each in fake.commands)


def listed(title: str, *flags: str) -> ListedFolder:
    return ListedFolder(title.encode(), title, "/", frozenset(flags))


def choose(*folders: ListedFolder, wanted: list[str] | None = None, is_gmail: bool = False) -> dict[str, str]:
    chosen = choose_folders(ACCOUNT, wanted or [], folders, is_gmail)
    return {each.title: each.state for each in chosen}


def test_usual_names_count_if_the_server_does_not_tell_the_use() -> None:
    folders = [listed(each) for each in ("INBOX", "Deleted Items", "Mail/Spam", "Trashcan")]
    assert choose(*folders) == {"INBOX": "", "Trashcan": ""}
    assert choose(*folders, wanted=["*"])["Mail/Spam"] == "spam"
    told = [listed("Papierkorb", "\\trash"), listed("Trash")]
    assert choose(*told, wanted=["*"]) == {"Papierkorb": "trash", "Trash": ""}


def test_folders_inside_the_trash_are_trash() -> None:
    folders = [listed("INBOX"), listed("Bin", "\\trash"), listed("Bin/old"), listed("Bins")]
    assert choose(*folders, wanted=["*"]) == {"INBOX": "", "Bin": "trash", "Bin/old": "trash", "Bins": ""}


def test_folders_that_show_messages_of_others_are_left_out() -> None:
    folders = [listed("INBOX"), listed("All", "\\all"), listed("Stars", "\\flagged"), listed("Root", "\\noselect")]
    assert choose(*folders) == {"INBOX": ""}
    assert choose(*folders, wanted=["All"]) == {"All": ""}
    assert choose(*folders, listed("Bin", "\\trash"), is_gmail=True) == {"All": ""}
    assert choose(*folders, listed("Bin", "\\trash"), wanted=["*"], is_gmail=True) == {"All": "", "Bin": "trash"}


def test_an_account_without_folders() -> None:
    with raises("mail.imap-no-folder"):
        choose(listed("Root", "\\noselect"))


def test_special_uses_that_only_an_extension_lists(fake: FakeImapServer) -> None:
    fake.lists_special_uses = False
    fake.folders["Papierkorb"] = fake.folders.pop("Trash")
    fake.append("Papierkorb", mail(1))
    (item,) = read(open_mail(fake.uri("*")))
    assert isinstance(item, RawMessage)
    assert item.state == "trash"


def test_a_folder_with_a_name_that_is_not_encoded(fake: FakeImapServer) -> None:
    fake.create("Entwürfe")
    fake.append("Entwürfe", mail(1))
    assert contents(open_mail(fake.uri("Entw%C3%BCrfe"))) == [mail(1)]


# Reading on -----------------------------------------------------------------------------------------------------------


def test_reading_continues_after_a_position(server: ImapServer) -> None:
    server.append("INBOX", mail(1))
    second = server.append("INBOX", mail(2))
    source = open_mail(server.uri())
    assert contents(source) == [mail(1), mail(2)]
    position = dict(source.position)
    assert position["INBOX"][1] == second
    assert list(source.read_after(position, lambda _: None)) == []
    assert source.position == position
    third = server.append("INBOX", mail(3))
    (item,) = source.read_after(position, lambda _: None)
    assert isinstance(item, RawMessage)
    assert item.raw == mail(3)
    assert source.position["INBOX"] == (position["INBOX"][0], third)


def test_a_replaced_folder_is_read_again(server: ImapServer) -> None:
    server.create("Work")
    server.append("Work", mail(1))
    source = open_mail(server.uri("Work"))
    read(source)
    position = dict(source.position)
    server.delete("Work")
    server.create("Work")
    server.append("Work", mail(2))
    items = list(source.read_after(position, lambda _: None))
    assert [each.raw for each in items if isinstance(each, RawMessage)] == [mail(2)]
    assert source.position["Work"][0] != position["Work"][0]


def test_an_index_is_extended_by_new_messages_only(fake: FakeImapServer, tmp_path: Path) -> None:
    fake.append("INBOX", mail(1))
    build_mail_index([OwnedSource(fake.uri(), "ann@example.com")], tmp_path / "index")
    fake.append("INBOX", mail(2))
    report = extend_mail_index([OwnedSource(fake.uri(), "ann@example.com")], tmp_path / "index")
    assert (report.read, report.messages) == (2, 2)
    report = extend_mail_index([OwnedSource(fake.uri(), "ann@example.com")], tmp_path / "index")
    assert (report.read, report.messages) == (2, 2)
    assert len(MailIndex(tmp_path / "index").list_messages("ann@example.com")) == 2


def test_a_sync_removes_what_the_server_no_longer_has(fake: FakeImapServer, tmp_path: Path) -> None:
    fake.create("Work")
    fake.append("INBOX", mail(1))
    fake.append("Work", mail(2))
    sources = [OwnedSource(fake.uri(), "ann@example.com")]
    build_mail_index(sources, tmp_path / "index")
    fake.delete("Work")
    fake.append("INBOX", mail(3))
    report = extend_mail_index(sources, tmp_path / "index", sync=True)
    assert (report.read, report.messages, report.just_removed) == (2, 2, 1)
    fake.append("INBOX", mail(4))
    assert extend_mail_index(sources, tmp_path / "index").read == 3  # only the new message


def lose_at(fake: FakeImapServer, folder: str, uid: int, word: str) -> None:
    """Lose the connection at a message, and refuse further commands that contain a word."""
    lost: list[str] = []

    def misbehave(visit: Visit, tag: str, command: str) -> bool:
        if f"UID FETCH {uid} (UID BODY" in command and visit.folder is fake.folders[folder]:
            lost.append(command)
            visit.close()
        elif lost and word in command:
            visit.send(f"{tag} NO [AUTHENTICATIONFAILED] Expired")
        else:
            return False
        return True

    fake.misbehave = misbehave


def list_downloads(fake: FakeImapServer) -> list[str]:
    """Return the UIDs that were downloaded since this was called."""
    found = [each.split()[2] for each in fake.commands if "BODY.PEEK" in each]
    fake.commands.clear()
    return found


@pytest.mark.parametrize(("word", "code"), [("AUTHENTICATE", "mail.imap-login"), ("connect", "mail.imap-unavailable")])
def test_an_interrupted_build_downloads_nothing_twice(
    fake: FakeImapServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, code: str
) -> None:
    """It fails twice in the second folder. Meanwhile, mail arrives and is deleted."""
    monkeypatch.setattr(imap, "_FETCHED_AT_ONCE", 1)
    monkeypatch.setattr(source_batches, "_BATCH", 2)
    for number in range(1, 6):
        fake.append("INBOX", mail(number))
        fake.append("Sent", mail(10 + number))
    account = OwnedSource(fake.uri(), "ann@example.com")
    sources: list[str | OwnedSource] = [write_jsonl(tmp_path / "mail.jsonl", [record(100)]), account]
    lose_at(fake, "Sent", 3, word)
    with raises(code):
        build_mail_index(sources, tmp_path / "index")
    assert list_downloads(fake) == ["1", "2", "3", "4", "5", "1", "2", "3"]
    fake.append("INBOX", mail(6))
    fake.mark("INBOX", 1)
    fake.expunge("INBOX")
    lose_at(fake, "Sent", 4, word)
    with raises(code):
        build_mail_index(sources, tmp_path / "index")
    assert list_downloads(fake) == ["6", "3", "4"]
    fake.misbehave = lambda *_: False
    report = build_mail_index(sources, tmp_path / "index")
    assert list_downloads(fake) == ["4", "5"]
    assert (report.read, report.messages, report.kept_out, report.unreadable) == (12, 12, {}, {})
    fake.append("Sent", mail(16))
    assert extend_mail_index([account], tmp_path / "index").messages == 13
    assert list_downloads(fake) == ["6"]


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_build_that_is_stopped_while_it_reads_keeps_what_it_has_indexed(
    fake: FakeImapServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    error: type[BaseException],
) -> None:
    monkeypatch.setattr(imap, "_FETCHED_AT_ONCE", 1)
    monkeypatch.setattr(source_batches, "_BATCH", 1)
    monkeypatch.setattr(message_preparer, "_MIN_BATCHES", 1)  # of those that are read ahead
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    for uid in range(1, 6):
        fake.append("INBOX", mail(uid))

    def stop(_visit: Visit, _tag: str, command: str) -> bool:
        is_third = "UID FETCH 3 (UID BODY" in command
        if is_third:
            os.kill(os.getpid(), number)
        return is_third  # without an answer

    fake.misbehave = stop
    sources = [OwnedSource(fake.uri(), "ann@example.com")]
    with pytest.raises(error):
        build_mail_index(sources, tmp_path / "index")
    assert list_downloads(fake) == ["1", "2", "3"]
    fake.misbehave = lambda *_: False
    assert build_mail_index(sources, tmp_path / "index").messages == 5
    assert list_downloads(fake) == ["3", "4", "5"]


def test_an_interrupted_extension_reads_on_in_folders_that_it_did_not_reach(
    fake: FakeImapServer, tmp_path: Path
) -> None:
    sources = [OwnedSource(fake.uri(), "ann@example.com")]
    for number, folder in enumerate(("INBOX", "Sent")):
        fake.append(folder, mail(number))
    build_mail_index(sources, tmp_path / "index")
    for number, folder in enumerate(("INBOX", "Sent"), 2):
        fake.append(folder, mail(number))
    fake.misbehave = once(say_bye, 'EXAMINE "Sent"', times=10)
    with raises("mail.imap-unavailable"):
        extend_mail_index(sources, tmp_path / "index")
    fake.misbehave = lambda *_: False
    fake.commands.clear()
    assert extend_mail_index(sources, tmp_path / "index").messages == 4
    assert list_downloads(fake) == ["2"]


def test_a_message_that_was_left_out_at_first_is_not_lost_if_reading_ends_before_it(fake: FakeImapServer) -> None:
    for number in range(1, 5):
        fake.append("INBOX", mail(number))

    def leave_out_second(visit: Visit, tag: str, command: str) -> bool:
        if "FLAGS" not in command:
            return False
        fake.misbehave = lambda *_: False
        fake._answer(visit, tag, command.replace("1,2,3", "1,3"))
        return True

    fake.misbehave = leave_out_second
    source = open_mail(fake.uri("INBOX"))
    items = source.read_raw(lambda _: None)
    assert [next(items).where[-1] for _ in range(2)] == ["1", "3"]
    items.close()  # type: ignore[attr-defined]
    rest = list(source.read_after(dict(source.position), lambda _: None))
    assert [each.raw for each in rest if isinstance(each, RawMessage)] == [mail(2), mail(3), mail(4)]


def test_an_interrupted_reading_continues_where_it_was(fake: FakeImapServer) -> None:
    for number in range(5):
        fake.append("INBOX", mail(number))
    source = open_mail(fake.uri())
    items = source.read_raw(lambda _: None)
    next(items), next(items)
    items.close()  # type: ignore[attr-defined]
    rest = list(source.read_after(dict(source.position), lambda _: None))
    assert [each.raw for each in rest if isinstance(each, RawMessage)] == [mail(2), mail(3), mail(4)]


def test_many_messages(fake: FakeImapServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imap, "_FETCHED_AT_ONCE", 5_000)
    for number in range(1_203):
        fake.append("INBOX", mail(number))
    fake.folders["INBOX"].messages[0].uid = 0x7FFFFFF0  # 10 digits
    fake.folders["INBOX"].messages.sort(key=lambda each: each.uid)
    assert len(set(contents(open_mail(fake.uri())))) == 1_203
    assert max(map(len, fake.commands)) < 8_192


# TLS and login --------------------------------------------------------------------------------------------------------


def test_starttls(server: ImapServer, starttls: FakeImapServer) -> None:
    used = starttls if isinstance(server, FakeImapServer) else server
    used.append("INBOX", mail(1))
    assert contents(open_mail(used.uri("INBOX", "imap"))) == [mail(1)]


def test_a_server_without_tls_is_refused(starttls: FakeImapServer) -> None:
    starttls.capabilities.remove("STARTTLS")
    with raises("mail.imap-no-tls"):
        open_mail(starttls.uri())
    with raises("mail.imap-no-tls"):
        open_mail(starttls.uri(scheme="imaps"))
    assert {*starttls.commands} <= {"CAPABILITY"}


def test_a_session_that_begins_logged_in_is_refused(starttls: FakeImapServer) -> None:
    starttls.greeting = "* PREAUTH ready"  # after which STARTTLS is not allowed
    with raises("mail.imap-no-tls"):
        open_mail(starttls.uri())
    assert {*starttls.commands} <= {"CAPABILITY"}


def test_answers_from_before_tls_are_dropped(starttls: FakeImapServer) -> None:
    injected = ['* LIST () "/" evil', "* CAPABILITY IMAP4rev1 AUTH=PLAIN X-GM-EXT-1"]

    def misbehave(visit: Visit, tag: str, command: str) -> bool:
        if command == "STARTTLS":
            answer = "".join(f"{each}\r\n" for each in [*injected, f"{tag} OK Begin TLS.", *injected])
            visit.send(answer.encode())  # in one packet
            visit.start_tls(starttls.context)
        return command == "STARTTLS"

    starttls.misbehave = misbehave
    assert [each.title for each in open_mail(starttls.uri()).folders] == ["INBOX", "Sent"]


def test_certificates_are_verified(fake: FakeImapServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises("mail.imap-certificate", "127.0.0.1"):
        open_mail(fake.uri().replace("localhost", "127.0.0.1"))
    monkeypatch.delenv("SSL_CERT_FILE")
    with raises("mail.imap-certificate", "localhost"):
        open_mail(fake.uri())
    assert fake.commands == []


def test_a_wrong_password(server: ImapServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUMSHOE_IMAP_PASSWORD", "wrong horse")
    with raises("mail.imap-login", "GUMSHOE_IMAP_PASSWORD", "Authentication failed") as raised:
        open_mail(server.uri())
    assert "wrong horse" not in raised.value.message


def test_a_token(fake: FakeImapServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUMSHOE_IMAP_TOKEN", TOKEN)
    fake.append("INBOX", mail(1))
    assert contents(open_mail(fake.uri())) == [mail(1)]
    assert "AUTHENTICATE XOAUTH2" in fake.commands
    monkeypatch.setenv("GUMSHOE_IMAP_TOKEN", "expired")
    with raises("mail.imap-login", "GUMSHOE_IMAP_TOKEN"):
        open_mail(fake.uri())


def test_a_server_that_knows_only_login(fake: FakeImapServer, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.capabilities.remove("AUTH=PLAIN")
    assert open_mail(fake.uri()).folders
    assert 'LOGIN "ann@example.com" ***' in fake.commands
    monkeypatch.setenv("GUMSHOE_IMAP_PASSWORD", "pässword")
    with raises("mail.imap-login"):
        open_mail(fake.uri())


def test_each_account_may_have_its_own_variable(fake: FakeImapServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUMSHOE_IMAP_PASSWORD", "of somebody else")
    monkeypatch.setenv("GUMSHOE_IMAP_PASSWORD_ANN_EXAMPLE_COM", PASSWORD)
    assert open_mail(fake.uri()).folders


@pytest.mark.parametrize("value", [None, "", "line\n", "\x01"])
def test_without_a_secret_nobody_connects(
    fake: FakeImapServer, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("GUMSHOE_IMAP_PASSWORD")
    if value is not None:
        monkeypatch.setenv("GUMSHOE_IMAP_PASSWORD", value)
    with raises("mail.imap-no-secret", "GUMSHOE_IMAP_PASSWORD"):
        open_mail(fake.uri())
    assert fake.visits == 0


def test_secrets_stay_out_of_logs_and_errors(fake: FakeImapServer, caplog: pytest.LogCaptureFixture) -> None:
    # The second reason is so long that it is cut off inside the password.
    reasons = [f"the password {PASSWORD} is wrong", "x" * 190 + PASSWORD]

    def misbehave(visit: Visit, tag: str, command: str) -> bool:
        if command.startswith("LOGIN"):
            visit.send(f"{tag} NO {reasons[0]}")
        return command.startswith("LOGIN")

    caplog.set_level(logging.DEBUG)
    open_mail(fake.uri())
    fake.capabilities.remove("AUTH=PLAIN")
    open_mail(fake.uri())
    fake.misbehave = misbehave
    while reasons:
        with raises("mail.imap-login") as raised:
            open_mail(fake.uri())
        assert PASSWORD[:8] not in caplog.text + raised.value.message
        reasons.pop(0)
    assert "AGFubk" not in caplog.text  # in base64


# URIs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "account", "folders"),
    [
        ("imap://ann%40example.com@imap.example.com/INBOX", ACCOUNT, ["INBOX"]),
        ("imap://ann@example.com@imap.example.com", ACCOUNT, []),
        ("imaps://ann%40example.com@imap.example.com:993/", ACCOUNT, []),
        ("imap://ann@[::1]:143/a/b,c%2Cd", ImapAccount("ann", "::1", 143, False), ["a/b", "c,d"]),
        ("imaps://ann@host:1993/%C3%BC", ImapAccount("ann", "host", 1993, True), ["ü"]),
    ],
)
def test_uris(uri: str, account: ImapAccount, folders: list[str]) -> None:
    assert parse_imap_uri(uri) == (account, folders)
    assert parse_imap_uri(account.uri)[0].uri == account.uri


@pytest.mark.parametrize("uri", ["imap://ann:s3cret@host/", "imaps://ann%40example.com:s3cret@host:993/INBOX"])
def test_a_password_in_a_uri_is_refused(uri: str) -> None:
    with raises("mail.imap-password-in-uri", "GUMSHOE_IMAP_PASSWORD") as raised:
        open_mail(uri)
    assert "s3cret" not in raised.value.message


@pytest.mark.parametrize(
    "uri",
    [
        "imap://host/INBOX",
        "imap://ann@/INBOX",
        "imap:host",
        "imap://ann:s3cret/x@host/",
        "imap://ann@host:99999/",
        "imap://ann%0d%0a@host/",
        "imap://ann@host/a#b",
        "imap://ann@host/a?b",
        "imap://[ann@host/",
    ],
)
def test_wrong_uris(uri: str) -> None:
    with raises("mail.imap-uri") as raised:
        open_mail(uri)
    assert "s3cret" not in raised.value.message


# Faulty servers -------------------------------------------------------------------------------------------------------


def once(action: Callable[[Visit, str, str], None], word: str, times: int = 1) -> Callable[[Visit, str, str], bool]:
    """Return a misbehavior for the first commands that contain a word."""
    left = [times]

    def misbehave(visit: Visit, tag: str, command: str) -> bool:
        if word not in command or not left[0]:
            return False
        left[0] -= 1
        action(visit, tag, command)
        return True

    return misbehave


def drop_in_literal(visit: Visit, _: str, __: str) -> None:
    visit.send(b"* 1 FETCH (UID 1 BODY[] {500}\r\nabc")
    visit.close()


def say_bye(visit: Visit, _: str, __: str) -> None:
    visit.send("* BYE Too many commands")
    visit.close()


@pytest.mark.parametrize("action", [drop_in_literal, say_bye])
@pytest.mark.parametrize("word", ["BODY.PEEK", "FLAGS", "SEARCH", "EXAMINE"])
def test_lost_connections_continue(fake: FakeImapServer, action: Callable[[Visit, str, str], None], word: str) -> None:
    for number in range(6):
        fake.append("INBOX", mail(number))
    source = open_mail(fake.uri())
    fake.misbehave = once(action, word, times=2)
    assert contents(source) == [mail(number) for number in range(6)]
    assert fake.visits == 4


def test_what_was_read_is_not_read_again_after_a_loss(fake: FakeImapServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imap, "_FETCHED_AT_ONCE", 1)
    for number in range(3):
        fake.append("INBOX", mail(number))
    source = open_mail(fake.uri())
    fake.misbehave = once(drop_in_literal, "UID FETCH 2 (UID BODY.PEEK")
    assert contents(source) == [mail(number) for number in range(3)]
    assert [each for each in fake.commands if "BODY" in each] == [
        f"UID FETCH {uid} (UID BODY.PEEK[])" for uid in (1, 2, 2, 3)
    ]


def refuse(visit: Visit, tag: str, _: str) -> None:
    visit.send(f"{tag} NO [SERVERBUG] Internal error")


def send_no_content(visit: Visit, tag: str, _: str) -> None:
    visit.send("* 3 FETCH (UID 3 BODY[] NIL)", f"{tag} OK")


def leave_out(visit: Visit, tag: str, _: str) -> None:
    visit.send(f"{tag} OK Fetch completed.")


def send_too_much(visit: Visit, _: str, __: str) -> None:
    visit.send(b"* 3 FETCH (UID 3 BODY[] {99999999999}\r\nabc")


@pytest.mark.parametrize("action", [drop_in_literal, say_bye, refuse, send_no_content, leave_out, send_too_much])
def test_a_message_that_the_server_cannot_send(fake: FakeImapServer, action: Callable[[Visit, str, str], None]) -> None:
    for number in range(1, 7):
        fake.append("INBOX", mail(number))
    source = open_mail(fake.uri())

    def misbehave(visit: Visit, tag: str, command: str) -> bool:
        if "BODY.PEEK" not in command or "3" not in command:
            return False
        action(visit, tag, command)
        return True

    fake.misbehave = misbehave
    items = read(source)
    assert [each.raw for each in items if isinstance(each, RawMessage)] == [mail(n) for n in (1, 2, 4, 5, 6)]
    (unreadable,) = [each for each in items if isinstance(each, UnreadableItem)]
    assert unreadable.reason == "cannot be downloaded"
    assert unreadable.where.endswith(";UID=3")
    assert source.position == {"INBOX": (1, 6, 3), "Sent": (2, 0)}
    position = dict(source.position)
    assert list(source.read_after(position, lambda _: None)) == []  # it is counted once
    assert source.position == position
    fake.append("INBOX", mail(7))
    fake.misbehave = lambda *_: False
    items = list(source.read_after(position, lambda _: None))
    assert [each.raw for each in items if isinstance(each, RawMessage)] == [mail(3), mail(7)]
    assert source.position == {"INBOX": (1, 7), "Sent": (2, 0)}


def test_messages_that_are_refused_for_ever_do_not_keep_others_out(fake: FakeImapServer) -> None:
    for number in range(1, 20):
        fake.append("INBOX", mail(number))
    fake.misbehave = once(refuse_for_good, "BODY.PEEK", times=1_000)
    source = open_mail(fake.uri("INBOX"))
    assert len(list(source.read_after({"INBOX": (1, 19, *range(1, 12))}, lambda _: None))) == 0
    assert source.position == {"INBOX": (1, 19, 5, 6, 7, 8, 9, 10, 11, 1, 2, 3, 4)}
    fake.folders["INBOX"].messages = [each for each in fake.folders["INBOX"].messages if each.uid != 6]
    fake.append("INBOX", mail(20))
    fake.misbehave = once(refuse_for_good, "UID FETCH 5 (UID BODY.PEEK", times=1_000)
    items = list(source.read_after(dict(source.position), lambda _: None))
    assert [each.raw for each in items if isinstance(each, RawMessage)] == [
        mail(number) for number in (7, 8, 9, 10, 11, 1, 2, 3, 4, 20)
    ]
    assert source.position == {"INBOX": (1, 20, 5)}


def refuse_for_good(visit: Visit, tag: str, _: str) -> None:
    visit.send(f"{tag} NO The message is damaged")


@pytest.mark.parametrize("word", ["BODY.PEEK", "FLAGS", "SEARCH", "EXAMINE"])
def test_what_is_refused_for_a_while_is_tried_again(fake: FakeImapServer, word: str) -> None:
    fake.append("INBOX", mail(1))
    source = open_mail(fake.uri())
    fake.misbehave = once(refuse, word, times=2)
    assert contents(source) == [mail(1)]
    assert fake.visits == 2


def test_a_folder_that_is_refused_for_a_while_was_not_replaced(fake: FakeImapServer) -> None:
    for number in range(2):
        fake.append("INBOX", mail(number))
    source = open_mail(fake.uri())
    lose, refuse_folder = once(say_bye, "BODY.PEEK"), once(refuse, "EXAMINE")
    lost: list[bool] = []

    def misbehave(visit: Visit, tag: str, command: str) -> bool:
        if lose(visit, tag, command):
            lost.append(True)
            return True
        return bool(lost) and refuse_folder(visit, tag, command)

    fake.misbehave = misbehave
    assert contents(source) == [mail(0), mail(1)]


@pytest.mark.parametrize("action", [drop_in_literal, say_bye, refuse])
def test_a_server_that_sends_no_message_is_unavailable(
    fake: FakeImapServer, action: Callable[[Visit, str, str], None]
) -> None:
    for number in range(20):
        fake.append("INBOX", mail(number))
    source = open_mail(fake.uri())
    fake.misbehave = once(action, "BODY.PEEK", times=1_000)
    with raises("mail.imap-unavailable"):
        read(source)
    assert fake.visits < 20


def test_a_server_that_is_gone(fake: FakeImapServer) -> None:
    with raises("mail.imap-unavailable"):
        open_mail(f"imaps://ann@localhost:{find_free_port()}/")
    source = open_mail(fake.uri())
    fake.misbehave = once(lambda visit, *_: visit.close(), "connect", times=100)
    with raises("mail.imap-unavailable"):
        read(source)
    assert fake.visits == 6  # five tries


def test_slow_answers_end_at_a_deadline(fake: FakeImapServer, clock: Clock) -> None:
    def trickle(visit: Visit, _: str, __: str) -> None:
        for byte in b"* LIST (" * 1_000:
            clock.advance(20)
            visit.send(bytes([byte]))

    fake.misbehave = once(trickle, "LIST")
    with raises("mail.imap-unavailable", "in time"):
        open_mail(fake.uri())


def test_silence_ends_at_a_deadline(
    fake: FakeImapServer, starttls: FakeImapServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imap_session, "_IDLE_SECONDS", 0.2)
    starttls.greeting = ""
    starttls.misbehave = lambda visit, _, __: bool(visit.receive()) or True
    with raises("mail.imap-unavailable", "imaps://"):
        open_mail(starttls.uri())
    fake.misbehave = lambda visit, _, command: command.startswith("AUTHENTICATE") and (bool(visit.receive()) or True)
    with raises("mail.imap-unavailable"):
        open_mail(fake.uri())


def test_endless_answers_end(fake: FakeImapServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def flood(visit: Visit, _: str, __: str) -> None:
        while True:
            visit.send(b"* 1 EXISTS\r\n" * 1_000)

    monkeypatch.setattr(imap_session, "_COMMAND_BYTES", 200_000)
    fake.misbehave = once(flood, "LIST")
    with raises("mail.imap-unavailable", "too large"):
        open_mail(fake.uri())


def test_large_messages_are_not_downloaded(fake: FakeImapServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imap, "MAX_MESSAGE_SIZE", 1_000)
    for number, text in enumerate(("", "x" * 2_000, "")):
        fake.append("INBOX", mail(number, text))
    first, large, last = read(open_mail(fake.uri()))
    assert isinstance(first, RawMessage)
    assert isinstance(last, RawMessage)
    assert isinstance(large, UnreadableItem)
    assert (large.reason, large.where[-6:]) == ("message too large", ";UID=2")
    assert [each for each in fake.commands if "BODY" in each] == ["UID FETCH 1,3 (UID BODY.PEEK[])"]


@pytest.mark.parametrize("stated", [0, 1, 10_000_000])
def test_sizes_that_are_stated_wrongly(fake: FakeImapServer, stated: int) -> None:
    fake.append("INBOX", mail(1))
    fake.folders["INBOX"].messages[0].stated_size = stated
    assert contents(open_mail(fake.uri())) == [mail(1)]


def test_a_folder_that_cannot_be_opened(fake: FakeImapServer) -> None:
    fake.append("INBOX", mail(1))
    source = open_mail(fake.uri())
    fake.delete("Sent")
    message, folder = source.read_after({"Sent": (2, 9)}, lambda _: None)
    assert isinstance(message, RawMessage)
    assert isinstance(folder, UnreadableItem)
    assert folder.reason == "folder cannot be opened"
    assert source.position["Sent"] == (2, 9)


def test_messages_deleted_meanwhile_are_skipped(fake: FakeImapServer) -> None:
    for number in range(3):
        fake.append("INBOX", mail(number))
    source = open_mail(fake.uri())

    def expunge(_: Visit, __: str, command: str) -> bool:
        if "BODY.PEEK" in command and len(fake.folders["INBOX"].messages) == 3:
            del fake.folders["INBOX"].messages[1]
        return False

    fake.misbehave = expunge
    assert contents(source) == [mail(0), mail(2)]


def test_a_folder_replaced_while_reading(fake: FakeImapServer) -> None:
    fake.append("INBOX", mail(1))
    source = open_mail(fake.uri())

    def replace(visit: Visit, _: str, __: str) -> None:
        fake.folders["INBOX"].uidvalidity = 99
        visit.close()

    fake.misbehave = once(replace, "BODY.PEEK")
    with raises("mail.imap-unavailable", "INBOX"):
        read(source)


def test_changes_by_others_meanwhile_are_not_mixed_up(fake: FakeImapServer) -> None:
    fake.folders["INBOX"].next_uid = 2  # so that the number of a message is the UID of another one
    for number in range(1, 4):
        fake.append("INBOX", mail(number))

    def misbehave(visit: Visit, _: str, command: str) -> bool:
        if "FETCH" in command:
            visit.send("* 3 FETCH (FLAGS (\\Deleted))", "* 4 EXISTS", "* 4 FETCH (UID 99 FLAGS ())")
        elif "SEARCH" in command:
            visit.send("* SEARCH 2")  # some servers split the answer
        return False

    fake.misbehave = misbehave
    items = read(open_mail(fake.uri("INBOX")))
    assert items == [RawMessage(each.where, mail(n), DELIVERED) for n, each in enumerate(items, 1)]


GARBAGE = [
    b"\xff\xfe\x00\r\n",
    b"* " + b"(" * 5_000 + b"\r\n",
    b"* 1 FETCH " + b"(" * 5_000 + b"\r\n",
    b"* 1 FETCH (UID x FLAGS 3)\r\n",
    b"* 1 FETCH (UID 1 FLAGS)\r\n",
    b'* 1 FETCH (UID 1 FLAGS ("a\r\n',
    b"* 1 FETCH (UID 1 FLAGS 7 RFC822.SIZE (1) INTERNALDATE x BODY[] 12)\r\n",
    b'* LIST () "/" &AGE\r\n',
    b"* LIST (\\Noselect) NIL\r\n",
    b"* LIST 1 2 3\r\n",
    b"* SEARCH 1 x 3\r\n* SEARCH 5\r\n",
    b"* OK [UIDVALIDITY x] UIDs\r\n* x EXISTS\r\n",
    b"* CAPABILITY \xff\r\n",
    b"HTTP/1.1 400 Bad Request\r\n",
    b"\r\n",
    b"+ \r\n",
    b"* 1 FETCH (BODY[] {-1}\r\n",
]


@pytest.mark.parametrize("word", ["connect", "CAPABILITY", "LIST", "EXAMINE", "SEARCH", "FETCH"])
def test_garbage_never_ends_in_another_error(fake: FakeImapServer, word: str) -> None:
    fake.append("INBOX", mail(1))
    for garbage in GARBAGE:

        def misbehave(visit: Visit, tag: str, command: str, garbage: bytes = garbage) -> bool:
            if word in command:
                visit.send(garbage, f"{tag or '*'} OK done")
            return word in command

        fake.misbehave = misbehave
        with suppress(UnavailableError, UsageError):
            assert all(isinstance(each, RawMessage | UnreadableItem) for each in read(open_mail(fake.uri())))


def test_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gumshoe.mail.imap_session")
    monkeypatch.setitem(sys.modules, "imapclient", None)
    with pytest.raises(UsageError) as raised:
        open_mail("imap://ann@localhost/")
    assert raised.value.code == "mail.not-installed"
