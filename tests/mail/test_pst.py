"""Mailboxes of Outlook, read by a stand-in for the program readpst."""

from pathlib import Path

import pytest

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail import pst
from gumshoe.mail.message import ParsedMessage
from gumshoe.mail.sources import open_source
from tests.errors import raises

PROGRAM = r"""#!/bin/sh
while [ "$1" != -o ]; do shift; done
[ "$(head -c 4 "$3")" = '!BDN' ] || exit 9
mkdir -p "$2/Top/Inbox" "$2/Top/Deleted Items"
printf 'From "Pat" Tue Mar  5 09:30:00 2024\nFrom: pat@example.com\nSubject: one\n\nText.\n\n' > "$2/Top/Inbox/mbox"
printf 'From "Pat" Tue Mar  5 09:30:00 2024\nFrom: pat@example.com\nSubject: two\n\nText.\n\n' \
    > "$2/Top/Deleted Items/mbox"
ln -s /etc/passwd "$2/Top/mbox"
"""


@pytest.fixture
def mailbox(tmp_path: Path) -> Path:
    (tmp_path / "ann.pst").write_bytes(b"!BDN" + bytes(1000))
    return tmp_path / "ann.pst"


def install(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "readpst").write_text(program)
    (tmp_path / "bin" / "readpst").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")


def read(mailbox: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    told: list[int] = []
    source = open_source(f"pst:{mailbox}")
    items = list(source.read(told.append))
    assert sum(told) == source.total
    return (
        [(item.subject, item.state) for item in items if isinstance(item, ParsedMessage)],
        [(item.where, item.reason) for item in items if isinstance(item, UnreadableItem)],
    )


def test_folders_of_a_mailbox_are_read(mailbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(PROGRAM, tmp_path, monkeypatch)
    assert read(mailbox) == ([("two", "trash"), ("one", "")], [])
    raw = next(iter(open_source(f"pst:{mailbox}").read_raw(lambda _: None)))
    assert not isinstance(raw, UnreadableItem)
    assert raw.where == f"{mailbox}/Top/Deleted Items#1"


def test_what_was_read_before_a_failure_is_kept(mailbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(PROGRAM + "echo broken >&2\nexit 1\n", tmp_path, monkeypatch)
    assert read(mailbox) == ([("two", "trash"), ("one", "")], [(str(mailbox), "damaged file")])


def test_a_program_that_hangs_is_ended(mailbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(PROGRAM + "exec sleep 60\n", tmp_path, monkeypatch)
    monkeypatch.setattr(pst, "_MIN_SECONDS", 1)
    assert read(mailbox)[1] == [(str(mailbox), "damaged file")]


def test_a_missing_program_is_named(mailbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with raises("mail.no-readpst", "apt-get install pst-utils"):
        open_source(f"pst:{mailbox}")


def test_another_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x.pst").write_bytes(b"PK\3\4")
    with raises("mail.unreadable-pst", f"pst:{tmp_path / 'x.pst'}"):
        open_source(f"pst:{tmp_path / 'x.pst'}")
    with raises("store.not-found", "missing.pst"):
        open_source(f"pst:{tmp_path / 'missing.pst'}")
