"""Lists of mail sources in YAML."""

from pathlib import Path

import pytest

from gumshoe.mail.inboxes import OwnedSource
from gumshoe.mail.source_list import read_source_list
from tests.errors import raises


def test_entries_are_uris_or_mappings(tmp_path: Path) -> None:
    path = tmp_path / "sources.yaml"
    path.write_text(
        "- mbox:archive.mbox\n"
        "- source: maildir:ann\n"
        "  owner: Ann@example.com\n"
        "  aliases: [a.lee@example.com]\n"
        "- {source: 'jsonl:mail.jsonl', owner: }\n"
        "- {source: 'mbox:journal.mbox', trust_from: true}\n"
        "- {source: 'mbox:all.mbox', trust_authserv: [MX.example.com]}\n"
    )
    assert read_source_list(path) == [
        OwnedSource("mbox:archive.mbox"),
        OwnedSource("maildir:ann", "ann@example.com", ("a.lee@example.com",)),
        OwnedSource("jsonl:mail.jsonl"),
        OwnedSource("mbox:journal.mbox", trust_from=True),
        OwnedSource("mbox:all.mbox", trust_authserv=("mx.example.com",)),
    ]


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("", "mail.invalid-source-list", []),
        ("source: maildir:x", "mail.invalid-source-list", []),
        ("- [", "mail.invalid-source-list", []),
        ("[" * 1000, "mail.invalid-source-list", []),
        ("- maildir:x\n- [maildir:y]", "mail.invalid-source-list", ["entry 2"]),
        ("- {source: maildir:x, ovner: ann@example.com}", "mail.invalid-source-list", ["entry 1", "ovner"]),
        ("- {owner: ann@example.com}", "mail.invalid-source-list", ["entry 1", "source"]),
        ("- {source: maildir:x, aliases: a@example.com}", "mail.invalid-source-list", ["entry 1", "aliases"]),
        ("- {source: maildir:x, owner: ann}", "mail.invalid-owner", ["entry 1", "'ann'"]),
        ("- {source: maildir:x, aliases: [a@example.com]}", "mail.invalid-owner", ["entry 1"]),
        ("- {source: maildir:x, trust_from: perhaps}", "mail.invalid-source-list", ["entry 1", "trust_from"]),
        ("- {source: maildir:x, trust_authserv: [m x]}", "mail.invalid-server-name", ["entry 1", "'m x'"]),
        ("- {source: maildir:x, owner: a@x, trust_from: true}", "mail.option-conflict", ["entry 1", "a@x"]),
        ("- maildir:x\n- ftp:y", "sources.unknown-form", ["entry 2", "ftp:y"]),
    ],
)
def test_an_invalid_list_names_the_file_and_the_entry(tmp_path: Path, text: str, code: str, values: list[str]) -> None:
    path = tmp_path / "sources.yaml"
    path.write_text(text)
    with raises(code, path, *values):
        read_source_list(path)


def test_a_list_must_be_readable(tmp_path: Path) -> None:
    with raises("mail.invalid-source-list", tmp_path / "none.yaml"):
        read_source_list(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"- maildir:\xe4\n")
    with raises("mail.invalid-source-list", tmp_path / "latin.yaml"):
        read_source_list(tmp_path / "latin.yaml")
