"""The digest of sources changes with their content."""

import os
from pathlib import Path

import pytest

from gumshoe.artifacts.source_files import digest_of_uris
from gumshoe.artifacts.storage import open_storage
from tests.artifacts.files import write_files
from tests.errors import raises


@pytest.fixture
def mail(tmp_path: Path) -> Path:
    return write_files(tmp_path / "mail", {"cur/1": b"one", "cur/2": b"two"})


@pytest.mark.parametrize("kind", ["maildir", "dir"])
def test_the_digest_changes_with_the_files(mail: Path, kind: str) -> None:
    uri = f"{kind}:{mail}"
    states = [digest_of_uris([uri]), digest_of_uris([uri])]
    (mail / "cur" / "3").write_bytes(b"three")
    states.append(digest_of_uris([uri]))
    os.utime(mail / "cur" / "1", (1, 1))
    states.append(digest_of_uris([uri]))
    assert states[0] == states[1]
    assert len(set(states)) == 3


def test_every_spelling_of_a_file_has_the_same_digest(mail: Path) -> None:
    file = mail / "cur" / "1"
    states = {digest_of_uris([each]) for each in (str(file), f"jsonl:{file}", file.as_uri(), f"mbox:{file.as_uri()}")}
    assert len(states) == 1
    (mail / "cur" / "10").write_bytes(b"another that begins so")
    assert digest_of_uris([str(file)]) in states


def test_the_digest_changes_with_a_bucket(s3_bucket: str) -> None:
    storage = open_storage(f"s3://{s3_bucket}")
    for key in ("mail/1", "mail2/1"):
        storage.create(key, b"one")
    before, one = digest_of_uris([f"maildir:s3://{s3_bucket}/mail"]), digest_of_uris([f"jsonl:s3://{s3_bucket}/mail/1"])
    storage.create("mail2/2", b"elsewhere")
    assert digest_of_uris([f"maildir:s3://{s3_bucket}/mail"]) == before
    storage.create("mail/2", b"two")
    assert digest_of_uris([f"maildir:s3://{s3_bucket}/mail"]) != before
    assert digest_of_uris([f"jsonl:s3://{s3_bucket}/mail/1"]) == one


def test_the_digest_changes_with_a_local_dataset(mail: Path) -> None:
    before = digest_of_uris([f"hf:{mail}"])
    assert digest_of_uris([f"hf:{mail}@train"]) == before
    (mail / "cur" / "1").write_bytes(b"other")
    assert digest_of_uris([f"hf:{mail}"]) != before


def test_the_digest_covers_several_sources(mail: Path) -> None:
    both = [str(mail / "cur" / "1"), str(mail / "cur" / "2")]
    before = digest_of_uris(both)
    assert before not in {digest_of_uris(both[:1]), digest_of_uris(both[1:])}
    (mail / "cur" / "2").write_bytes(b"other")
    assert digest_of_uris(both) != before


@pytest.mark.parametrize("uri", ["jsonl:none.jsonl", "maildir:s3://{bucket}/none"])
def test_a_missing_source_is_reported(
    uri: str, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    uri = uri.format(bucket=s3_bucket)
    with raises("store.not-found", uri.partition(":")[2]):
        digest_of_uris([uri])


@pytest.mark.parametrize("scheme", ["imap", "imaps"])
def test_the_digest_of_a_server_always_changes(scheme: str) -> None:
    uri = f"{scheme}://ann%40example.com@imap.example.com/INBOX"
    assert digest_of_uris([uri]) != digest_of_uris([uri])
