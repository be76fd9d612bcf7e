"""Directories and archives of mail: which files are messages, which are mbox files, and what is said about others."""

import errno
import gzip
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.source_files import UnreadableItem, read_files
from gumshoe.mail import build, mail_directory, message_preparer, segment_writer, source_batches
from gumshoe.mail.build import build_mail_index, extend_mail_index
from gumshoe.mail.inboxes import OwnedSource
from gumshoe.mail.index_build import IndexBuild
from gumshoe.mail.items import MailSource
from gumshoe.mail.message import ParsedMessage
from gumshoe.mail.sources import open_source
from tests.errors import raises

SEPARATOR = b"From pat@example.com Tue Mar  5 09:30:00 2024\n"


def mail(number: int) -> bytes:
    return f"Message-ID: <{number}@example.com>\nFrom: ann@example.com\nSubject: {number}\n\nText.\n\n".encode()


def mbox(*numbers: int) -> bytes:
    return b"".join(SEPARATOR + mail(number) for number in numbers)


def write(place: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


def read(uri: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return subject and state of each message, and place and reason of each unreadable item."""
    told: list[int] = []
    source = open_source(uri)
    items = list(source.read(told.append))
    assert sum(told) == source.total
    return (
        [(item.subject, item.state) for item in items if isinstance(item, ParsedMessage)],
        [(item.where, item.reason) for item in items if isinstance(item, UnreadableItem)],
    )


THUNDERBIRD = {
    "Mail/Local Folders/Inbox": mbox(1, 2),
    "Mail/Local Folders/Inbox.msf": b"// <!-- <mdb:mork:z v=1.4/> -->",
    "Mail/Local Folders/Inbox.sbd/Work": mbox(3),
    "Mail/Local Folders/Inbox.sbd/Work.msf": b"x",
    "Mail/Local Folders/Trash": mbox(4),
    "Mail/Local Folders/Trash.sbd/Old": mbox(5),
    "Mail/Local Folders/Sent": b"",
    "Mail/Local Folders/msgFilterRules.dat": b"From x",
    "ImapMail/host/Junk": mbox(6),
    "ImapMail/host/[Gmail].sbd/Spam": mbox(7),
    "ImapMail/host/[Gmail].sbd/All Mail": mbox(8),
    "prefs.js": b"// Mozilla",
    "places.sqlite": b"SQLite format 3",
    "key4.db": b"\0\0",
}


def test_a_thunderbird_profile_is_read_as_a_tree(tmp_path: Path) -> None:
    found, unreadable = read(f"mbox:{write(tmp_path, THUNDERBIRD)}")
    states = {"4": "trash", "5": "trash", "6": "spam", "7": "spam"}
    assert sorted(found) == [(str(number), states.get(str(number), "")) for number in range(1, 9)]
    assert unreadable == []


def test_an_export_of_apple_mail_is_read(tmp_path: Path) -> None:
    files = {"Work.mbox/mbox": mbox(1, 2), "Work.mbox/table_of_contents": b"\0", "Trash.mbox/mbox": mbox(3)}
    write(tmp_path, files)
    assert read(f"mbox:{tmp_path}")[0] == [("3", "trash"), ("1", ""), ("2", "")]
    assert read(f"mbox:{tmp_path / 'Work.mbox'}")[0] == [("1", ""), ("2", "")]


def test_an_unpacked_export_of_google_is_read(tmp_path: Path) -> None:
    files = {
        "Takeout/Mail/Inbox.mbox": mbox(1),
        "Takeout/Mail/Spam.mbox": mbox(2),
        "Takeout/archive_browser.html": b"x",
    }
    assert read(f"mbox:{write(tmp_path, files)}") == ([("1", ""), ("2", "spam")], [])


def test_a_damaged_mbox_of_a_directory_does_not_stop_the_others(tmp_path: Path) -> None:
    write(tmp_path, {"a.mbox": mbox(1), "b.mbox.gz": gzip.compress(mbox(2))[:-9], "c.mbox": mbox(3), "d.mbox": b"junk"})
    found, unreadable = read(f"mbox:{tmp_path}")
    assert [subject for subject, _ in found] == ["1", "2", "3"]
    assert unreadable == [(f"{tmp_path}/b.mbox.gz", "damaged file"), (f"{tmp_path}/d.mbox", "not an mbox")]


def test_mbox_files_in_a_tree_of_messages_are_split(tmp_path: Path) -> None:
    write(tmp_path, {"a": mbox(1, 2), "b": mbox(3), "c": mail(4)})
    items = list(open_source(f"maildir:{tmp_path}").read(lambda _: None))
    assert [(item.where if isinstance(item, UnreadableItem) else item.subject) for item in items] == [
        "1",
        "2",
        "3",
        "4",
    ]


def test_a_large_message_in_a_file_of_its_own_is_no_problem(tmp_path: Path) -> None:
    write(tmp_path, {"1.eml": mbox(1) + b"A long line of text.\n" * 60_000})
    assert read(f"eml:{tmp_path}") == ([("1", "")], [])
    assert read(f"mbox:{tmp_path / '1.eml'}")[1] == [(str(tmp_path / "1.eml"), "one large message")]


def test_a_message_that_begins_with_a_space_before_a_colon_is_no_mbox(tmp_path: Path) -> None:
    write(
        tmp_path, {"1.eml": mail(1).replace(b"From:", b"From :"), "2.eml": b"From : ann@example.com\nSubject: 2\n\nx"}
    )
    assert read(f"eml:{tmp_path}") == ([("1", ""), ("2", "")], [])
    with raises("mail.unreadable-mbox", str(tmp_path / "2.eml")):
        open_source(f"mbox:{tmp_path / '2.eml'}")


def test_eml_reads_files_of_apple_mail_and_compressed_files(tmp_path: Path) -> None:
    apple = b"%d\n" % len(mail(2)) + mail(2)
    files = {
        "a.eml": mail(1),
        "INBOX.mbox/1A/Data/Messages/2.emlx": apple,
        "INBOX.mbox/1A/Data/Messages/3.partial.emlx": apple.replace(b"2", b"3"),
        "Junk.mbox/1A/Data/Messages/4.emlx": apple,
        "b.eml.gz": gzip.compress(mail(5)),
        "._a.eml": b"\0\5\x16\7",
        "Info.plist": b"x",
    }
    found, unreadable = read(f"eml:{write(tmp_path, files)}")
    assert sorted(found) == [("1", ""), ("2", ""), ("2", "spam"), ("3", ""), ("5", "")]
    assert unreadable == []


def test_flags_and_folders_of_a_maildir_tell_the_state(tmp_path: Path) -> None:
    files = {
        "cur/1:2,S": mail(1),
        "cur/2:2,ST": mail(2),
        ".Trash/cur/3:2,S": mail(3),
        ".Junk/new/4": mail(4),
        ".Junk/cur/5:2,T": mail(5),
        "cur/6:2,S": gzip.compress(mail(6)),
        "cur/7:2,S": b"\x1f\x8b\x08damaged",
    }
    found, unreadable = read(f"maildir:{write(tmp_path, files)}")
    states = [("1", ""), ("2", "deleted"), ("3", "trash"), ("4", "spam"), ("5", "deleted"), ("6", "")]
    assert sorted(found) == states
    assert unreadable == [(f"{tmp_path}/cur/7:2,S", "damaged file")]


def rename(old: str, new: str) -> Callable[[Path], object]:
    return lambda place: (place / old).rename(place / new)


def delete(name: str) -> Callable[[Path], object]:
    return lambda place: (place / name).unlink()


def change_while_read(monkeypatch: pytest.MonkeyPatch, place: Path, *changes: Callable[[Path], object]) -> None:
    """Change a directory each time that files of it are read: the first change after it was listed, and so on."""
    waiting = list(changes)

    def read_changed(*arguments: Any) -> Any:
        if waiting:
            waiting.pop(0)(place)
        return read_files(*arguments)

    monkeypatch.setattr(mail_directory, "read_files", read_changed)


CHANGES: dict[str, tuple[list[Callable[[Path], object]], set[str]]] = {
    "read": ([rename("cur/1:2,", "cur/1:2,S")], {"1", "2", "3"}),
    "moved from new": ([rename("new/2", "cur/2:2,")], {"1", "2", "3"}),
    "renamed on another system": ([rename("cur/1:2,", "cur/1!2,S")], {"1", "2", "3"}),
    "renamed twice": ([rename("cur/1:2,", "cur/1:2,S"), rename("cur/1:2,S", "cur/1:2,RS")], {"1", "2", "3"}),
    "moved to another folder": ([rename("cur/1:2,", ".Work/cur/9:2,")], {"1", "2", "3"}),
    "marked as deleted": ([rename("cur/1:2,", "cur/1:2,T")], {"1 deleted", "2", "3"}),
    "deleted": ([delete("cur/1:2,")], {"2", "3"}),
    "arrived": ([lambda place: (place / "new/4").write_bytes(mail(4))], {"1", "2", "3", "4"}),
}


@pytest.mark.parametrize(("changes", "expected"), CHANGES.values(), ids=CHANGES)
def test_mail_that_changes_while_it_is_read_is_found(
    changes: list[Callable[[Path], object]], expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"cur/1:2,": mail(1), "new/2": mail(2), ".Work/cur/3:2,S": mail(3)})
    change_while_read(monkeypatch, tmp_path, *changes)
    source = open_source(f"maildir:{tmp_path}")
    items = list(source.read(lambda _: None))
    found = [f"{item.subject} {item.state}".strip() for item in items if isinstance(item, ParsedMessage)]
    assert (sorted(found), len(items)) == (sorted(expected), len(expected))
    assert source.has_changed
    assert len(list(open_source(f"maildir:{tmp_path}").read(lambda _: None))) == len(expected)


def test_mail_that_was_listed_under_both_of_its_names_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"cur/1:2,": mail(1), "new/1": mail(1), "new/2": mail(2)})
    change_while_read(monkeypatch, tmp_path, delete("new/1"))
    assert len(list(open_source(f"maildir:{tmp_path}").read(lambda _: None))) == 2


def test_mail_whose_folder_is_gone_is_unreadable_and_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"cur/1:2,": mail(1), ".Work/cur/2:2,S": mail(2)})
    change_while_read(monkeypatch, tmp_path, lambda place: shutil.rmtree(place / ".Work"))
    _, unreadable = read(f"maildir:{tmp_path}")
    assert unreadable == [(f"{tmp_path}/.Work/cur/2:2,S", "cannot be opened")]


def test_a_change_is_known_as_soon_as_it_is_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build records after each segment if it can go on from there."""
    write(tmp_path, {"cur/1:2,": mail(1), "cur/2:2,": mail(2), "cur/3:2,": mail(3)})
    change_while_read(monkeypatch, tmp_path, rename("cur/1:2,", "cur/1:2,S"))
    source = open_source(f"maildir:{tmp_path}")
    next(source.read_raw(lambda _: None))
    assert source.has_changed


def test_mail_that_is_renamed_after_it_was_listed_is_not_lost_if_the_build_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves from the end of the list to the part that the build has read."""
    place = write(tmp_path / "mail", {"new/1": mail(1), "cur/2:2,": mail(2), "cur/3:2,": mail(3)})
    added: list[object] = []
    add_batch = IndexBuild._add_batch

    def open_and_rename(uri: str) -> MailSource:
        source = open_source(uri)
        (place / "new/1").rename(place / "cur/1:2,S")
        return source

    def add_or_stop(*arguments: Any) -> None:
        added.append(arguments)
        if len(added) == 2:
            raise KeyboardInterrupt
        add_batch(*arguments)

    monkeypatch.setattr(source_batches, "_BATCH", 1)
    monkeypatch.setattr(message_preparer, "_MIN_BATCHES", 1)  # of those that are read ahead
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    monkeypatch.setattr(segment_writer, "_FULL_MESSAGES", 1)
    source = OwnedSource(f"maildir:{place}", "ann@example.com")
    with monkeypatch.context() as patch:
        patch.setattr(build, "open_source", open_and_rename)
        patch.setattr(IndexBuild, "_add_batch", add_or_stop)
        with pytest.raises(KeyboardInterrupt):
            build_mail_index([source], tmp_path / "index")
    report = build_mail_index([source], tmp_path / "index")
    assert (report.read, report.messages, report.kept_out) == (3, 3, {})


def test_a_sync_of_mail_that_changes_removes_only_what_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write(tmp_path / "mail", {f"cur/{number}:2,": mail(number) for number in range(4)})
    source = OwnedSource(f"maildir:{place}", "ann@example.com")
    build_mail_index([source], tmp_path / "index")
    change_while_read(monkeypatch, place, lambda _: (rename("cur/1:2,", "cur/1:2,S")(place), delete("cur/2:2,")(place)))
    report = extend_mail_index([source], tmp_path / "index", sync=True)
    assert (report.just_removed, report.doubtful, report.messages, report.unreadable) == (1, [], 3, {})


def test_an_unreadable_file_that_was_renamed_hides_no_deleted_mail(tmp_path: Path) -> None:
    place = write(tmp_path / "mail", {"cur/1:2,": mail(1), "cur/2:2,": mail(2), "new/3": b"\x1f\x8b\x08damaged"})
    source = OwnedSource(f"maildir:{place}", "ann@example.com")
    build_mail_index([source], tmp_path / "index")
    (place / "new/3").rename(place / "cur/3:2,S")
    (place / "cur/2:2,").unlink()
    report = extend_mail_index([source], tmp_path / "index", sync=True)
    assert (report.just_removed, report.doubtful) == (1, [])


@pytest.mark.parametrize(
    ("kind", "files", "hint"),
    [
        ("mbox", {"cur/1": mail(1)}, "maildir:"),
        ("eml", {"x/new/1": mail(1)}, "maildir:"),
        ("mbox", {"a.eml": mail(1)}, "eml:"),
        ("mbox", {"a.msg": b"x"}, "eml:"),
        ("eml", {"Inbox.msf": b"x", "Inbox": mbox(1)}, "mbox:"),
        ("eml", {"X.mbox/mbox": mbox(1)}, "mbox:"),
        ("eml", {"a.pst": b"!BDN"}, "pst:FILE"),
        ("mbox", {"a.jsonl": b"{}"}, "jsonl:FILE"),
        ("mbox", {"a.txt": b"x"}, "check the directory"),
    ],
)
def test_an_error_says_what_to_name_instead(kind: str, files: dict[str, bytes], hint: str, tmp_path: Path) -> None:
    with raises("mail.no-messages", hint):
        open_source(f"{kind}:{write(tmp_path, files)}")


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"PK\x03\x04", ".zip"),
        (gzip.compress(b"x", mtime=0), ".gz"),
        (b"!BDN", "pst:FILE"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "eml:DIR"),
        (b'{"body": "x"}', "jsonl:FILE"),
    ],
)
def test_a_file_that_is_no_mbox_is_named(data: bytes, hint: str, tmp_path: Path) -> None:
    write(tmp_path, {"box": data})
    with raises("mail.unreadable-mbox", hint):
        open_source(f"mbox:{tmp_path / 'box'}")


def test_a_file_given_as_a_directory_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"box": mbox(1)})
    for kind in ("maildir", "eml"):
        with raises("sources.no-such-directory", f"mbox:{tmp_path / 'box'}"):
            open_source(f"{kind}:{tmp_path / 'box'}")


@pytest.mark.parametrize("kind", ["maildir", "eml", "mbox"])
@pytest.mark.parametrize("form", ["{place}", "file://{place}"])
def test_folders_that_are_not_read_are_reported(
    kind: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links to other directories, and folders without permission. A link to a folder of the source loses nothing."""
    files = {"a/1.eml": mail(1), "a/box.mbox": mbox(2), "closed/3.eml": mail(3), "closed/box.mbox": mbox(4)}
    place = write(tmp_path / "source", files)
    write(tmp_path / "other", {"5.eml": mail(5), "box.mbox": mbox(6)})
    (place / "a" / "linked").symlink_to(tmp_path / "other", target_is_directory=True)
    (place / ".Sent").symlink_to(tmp_path / "other", target_is_directory=True)
    (place / "same").symlink_to(place / "a", target_is_directory=True)
    (place / "gone").symlink_to(tmp_path / "missing")
    (place / "a" / "7.eml").symlink_to(tmp_path / "other" / "5.eml")
    monkeypatch.setattr("os.scandir", partial(scan_with_permission, os.scandir))
    found, unreadable = read(f"{kind}:{form.format(place=place)}")
    assert {subject for subject, _ in found} == {"maildir": {"1", "2", "5"}, "eml": {"1", "5"}, "mbox": {"2"}}[kind]
    assert unreadable == [
        (f"{place}/.Sent", "link to a directory"),
        (f"{place}/a/linked", "link to a directory"),
        (f"{place}/closed", "cannot be opened"),
    ]


def scan_with_permission(scan: Callable[[Any], Any], place: Any) -> Any:
    """List a directory. Folders named `closed` may not be read, even by root."""
    if Path(place).name == "closed":
        raise PermissionError(errno.EACCES, "Permission denied", str(place))
    return scan(place)


def test_a_source_of_links_says_what_to_name_instead(tmp_path: Path) -> None:
    write(tmp_path / "other", {"1.eml": mail(1)})
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "linked").symlink_to(tmp_path / "other", target_is_directory=True)
    with raises("mail.no-messages", tmp_path / "source" / "linked", "link to a directory", tmp_path / "other"):
        open_source(f"eml:{tmp_path / 'source'}")
