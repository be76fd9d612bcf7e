"""What lies at URIs, as a digest that changes with it."""

import os
from pathlib import Path

import pytest

from gumshoe.artifacts.storage import open_storage
from gumshoe.artifacts.uri_state import digest_of_uris
from tests.artifacts.files import write_files
from tests.errors import raises


@pytest.fixture
def mail(tmp_path: Path) -> Path:
    return write_files(tmp_path / "mail", {"cur/1": b"one", "cur/2": b"two"})


@pytest.mark.parametrize("kind", ["maildir", "dir"])
def test_it_is_the_same_until_something_changes(mail: Path, kind: str) -> None:
    uri = f"{kind}:{mail}"
    states = [digest_of_uris([uri]), digest_of_uris([uri])]
    (mail / "cur" / "3").write_bytes(b"three")
    states.append(digest_of_uris([uri]))
    os.utime(mail / "cur" / "1", (1, 1))
    states.append(digest_of_uris([uri]))
    assert states[0] == states[1]
    assert len(set(states)) == 3


def test_it_is_of_one_file_where_that_is_named_however_that_is_written(mail: Path) -> None:
    file = mail / "cur" / "1"
    states = {digest_of_uris([each]) for each in (str(file), f"jsonl:{file}", file.as_uri(), f"mbox:{file.as_uri()}")}
    assert len(states) == 1
    (mail / "cur" / "10").write_bytes(b"another that begins so")
    assert digest_of_uris([str(file)]) in states


def test_it_is_of_what_lies_in_a_bucket_too(s3_bucket: str) -> None:
    storage = open_storage(f"s3://{s3_bucket}")
    for key in ("mail/1", "mail2/1"):
        storage.create(key, b"one")
    before, one = digest_of_uris([f"maildir:s3://{s3_bucket}/mail"]), digest_of_uris([f"jsonl:s3://{s3_bucket}/mail/1"])
    storage.create("mail2/2", b"elsewhere")
    assert digest_of_uris([f"maildir:s3://{s3_bucket}/mail"]) == before
    storage.create("mail/2", b"two")
    assert digest_of_uris([f"maildir:s3://{s3_bucket}/mail"]) != before
    assert digest_of_uris([f"jsonl:s3://{s3_bucket}/mail/1"]) == one


def test_it_is_of_a_dataset_s_directory(mail: Path) -> None:
    before = digest_of_uris([f"hf:{mail}"])
    assert digest_of_uris([f"hf:{mail}@train"]) == before
    (mail / "cur" / "1").write_bytes(b"other")
    assert digest_of_uris([f"hf:{mail}"]) != before


def test_it_is_of_several_together(mail: Path) -> None:
    both = [str(mail / "cur" / "1"), str(mail / "cur" / "2")]
    before = digest_of_uris(both)
    assert before not in {digest_of_uris(both[:1]), digest_of_uris(both[1:])}
    (mail / "cur" / "2").write_bytes(b"other")
    assert digest_of_uris(both) != before


@pytest.mark.parametrize("uri", ["jsonl:none.jsonl", "maildir:s3://{bucket}/none"])
def test_what_is_not_there_is_said(uri: str, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    uri = uri.format(bucket=s3_bucket)
    with raises("store.not-found", uri.partition(":")[2]):
        digest_of_uris([uri])
