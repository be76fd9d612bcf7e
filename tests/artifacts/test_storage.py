"""Bytes under keys, and reading by URI: a directory and a bucket behave alike."""

import errno
import os
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from gumshoe.artifacts.storage import (
    Deadline,
    Storage,
    directory_lock,
    explain_os_errors,
    list_uri,
    open_storage,
    open_uri,
)
from gumshoe.artifacts.store import Store
from tests.artifacts.conftest import LIMITS
from tests.artifacts.fault_proxy import FaultProxy, small_pages
from tests.artifacts.files import at_once, noise, write_files
from tests.errors import raises


@pytest.fixture
def storage(store_uri: str) -> Storage:
    return open_storage(store_uri, LIMITS)


def _put(storage: Storage, files: dict[str, bytes], scratch: Path) -> None:
    folder = write_files(scratch / "put", files)
    storage.upload({key: folder / key for key in files}, Deadline(60), lambda _: None)


def test_what_was_uploaded_is_listed_in_order_and_can_be_read(storage: Storage, tmp_path: Path) -> None:
    files = {"b/2": b"two", "a": b"", "b/10": b"ten", "b-": b"x"}
    before = datetime.now(UTC) - timedelta(seconds=2)  # S3's times are whole seconds
    _put(storage, files, tmp_path)
    entries = list(storage.entries())
    assert [(entry.key, entry.size) for entry in entries] == [("a", 0), ("b-", 1), ("b/10", 3), ("b/2", 3)]
    assert all(before <= entry.modified <= datetime.now(UTC) for entry in entries)
    assert {entry.key: storage.read(entry.key)[0] for entry in entries} == files


def test_a_listing_holds_what_starts_with_the_prefix(storage: Storage, tmp_path: Path) -> None:
    _put(storage, {"b/1": b"", "b/c/2": b"", "bc": b"", "a": b""}, tmp_path)
    assert [entry.key for entry in storage.entries("b")] == ["b/1", "b/c/2", "bc"]
    assert [entry.key for entry in storage.entries("b/")] == ["b/1", "b/c/2"]
    assert [entry.key for entry in storage.entries("b/c/2")] == ["b/c/2"]
    assert list(storage.entries("nothing/here/")) == []


def test_reading_starts_at_the_offset(storage: Storage, tmp_path: Path) -> None:
    data = noise(100_000)
    _put(storage, {"a": data}, tmp_path)
    for offset in (0, 1, 99_999, 100_000):
        with storage.open("a", offset) as file:
            assert file.read() == data[offset:]


def test_reading_what_is_not_there_says_where(storage: Storage) -> None:
    for read in (storage.open, storage.read):
        with raises("store.not-found", f"{storage.uri}/no/such/key"):
            read("no/such/key")


def test_a_key_is_created_once(storage: Storage) -> None:
    assert storage.create("a/b", b"first")
    assert not storage.create("a/b", b"second")
    assert storage.read("a/b")[0] == b"first"


def test_of_many_who_create_a_key_at_once_on_a_disk_one_does(tmp_path: Path) -> None:
    for round_ in range(5):
        storage = open_storage(str(tmp_path / "store"))
        done = at_once(partial(storage.create, f"folder{round_}/key", bytes([n])) for n in range(8))
        assert sorted(map(bool, done)) == [False] * 7 + [True]
        assert storage.read(f"folder{round_}/key")[0] == bytes([done.index(True)])


def test_a_swap_wants_the_bytes_that_were_read(storage: Storage) -> None:
    storage.create("a", b"1")
    _, tag = storage.read("a")
    assert storage.swap("a", b"2", tag)
    assert not storage.swap("a", b"3", tag)
    text, newer = storage.read("a")
    assert text == b"2"
    assert newer != tag


def test_what_was_deleted_is_gone_and_may_be_gone_already(storage: Storage, tmp_path: Path) -> None:
    _put(storage, {"a/b/c": b"", "a/d": b""}, tmp_path)
    storage.delete(["a/b/c", "never/was"])
    assert [entry.key for entry in storage.entries()] == ["a/d"]
    storage.delete(["a/b/c"])
    storage.delete([])


def test_more_keys_than_s3_takes_in_one_request_are_deleted(storage: Storage, tmp_path: Path) -> None:
    _put(storage, {"0": b"", "z": b""}, tmp_path)
    storage.delete(["0", *(f"n{number}" for number in range(1100)), "z"])
    assert list(storage.entries()) == []


def test_a_file_that_is_not_written_to_its_end_is_not_seen(tmp_path: Path) -> None:
    """A deadline ends the upload after the first of three blocks."""
    source = write_files(tmp_path / "source", {"large": bytes(3 << 20)}) / "large"
    storage = open_storage(str(tmp_path / "store"))
    with raises("store.deadline-exceeded", "0 seconds"):
        storage.upload({"a/large": source}, Deadline(0), lambda _: None)
    assert list(storage.entries()) == []
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_a_lock_is_held_by_one_and_not_waited_for_longer_than_allowed(tmp_path: Path) -> None:
    with directory_lock(tmp_path / "locked", wait=None) as had:
        assert had
        with directory_lock(tmp_path / "locked", wait=None) as second:
            assert not second
        with (
            raises("store.deadline-exceeded", "0.1 seconds"),
            directory_lock(tmp_path / "locked", wait=Deadline(0.1)),
        ):
            pass
    with directory_lock(tmp_path / "locked", wait=None) as again:
        assert again


def test_a_lock_may_be_removed_by_whoever_holds_it(tmp_path: Path) -> None:
    locked, times = tmp_path / "new" / "locked", 1000

    def hold() -> int:
        held = 0
        for _ in range(times):
            with directory_lock(locked, wait=Deadline(60)) as had:
                held += had is not None
                locked.rmdir()
        return held

    assert at_once([hold] * 5) == [times] * 5


@pytest.mark.parametrize("error", [NotADirectoryError, FileNotFoundError])
def test_what_is_no_directory_cannot_be_locked(error: type[OSError], tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    if error is NotADirectoryError:
        locked.write_bytes(b"")
    else:
        locked.symlink_to(tmp_path / "gone")
    with pytest.raises(error), directory_lock(locked, wait=Deadline(60)):
        pass


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOENT, "store.not-found"),
        (errno.EACCES, "store.no-permission"),
        (errno.EISDIR, "store.is-a-directory"),
        (errno.ENOTDIR, "store.not-a-directory"),
        (errno.EEXIST, "store.not-a-directory"),
        (errno.ENOSPC, "store.disk-full"),
        (errno.EDQUOT, "store.disk-full"),
        (errno.EIO, "store.file-error"),
    ],
)
def test_each_error_of_the_operating_system_has_its_code(number: int, code: str, tmp_path: Path) -> None:
    path = tmp_path / "file"

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    with raises(code, path) as raised, explain_os_errors(path):
        fail()
    assert raised.value.exit_status == 1


# By URI


@pytest.fixture
def mail(store_uri: str, tmp_path: Path) -> str:
    """The URI of a folder with three files."""
    storage = open_storage(store_uri, LIMITS)
    _put(storage, {"mail/b.eml": b"bb", "mail/sub/a.eml": b"a", "mail.mbox": b"box", "mailing": b""}, tmp_path)
    return f"{store_uri}/mail"


def sizes(uri: str) -> dict[str, int]:
    """Bytes of each file that is listed, by its URI or path."""
    return {each.key: each.size for each in list_uri(uri)}


def test_everything_below_a_uri_is_listed_and_can_be_opened(mail: str) -> None:
    listed = list_uri(mail)
    assert [(each.key.rpartition("/mail/")[2], each.size) for each in listed] == [("b.eml", 2), ("sub/a.eml", 1)]
    contents = []
    for each in listed:
        with open_uri(each.key, LIMITS) as file:
            contents.append(file.read())
    assert contents == [b"bb", b"a"]
    assert list_uri(f"{mail}/") == listed


def test_the_uri_of_one_file_lists_that_file(mail: str) -> None:
    (found,) = list_uri(f"{mail}.mbox")
    assert found.size == 3
    with open_uri(found.key, LIMITS) as file:
        assert file.read() == b"box"


def test_a_plain_path_is_a_uri_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, {"mail/a.eml": b"a"})
    monkeypatch.chdir(tmp_path)
    assert sizes("mail") == {"mail/a.eml": 1}
    with open_uri("mail/a.eml") as file:
        assert file.read() == b"a"


def test_a_file_uri_is_decoded_and_a_path_is_not(tmp_path: Path) -> None:
    write_files(tmp_path, {"a b%20c#d?.eml": b"odd"})
    for uri in ((tmp_path / "a b%20c#d?.eml").as_uri(), str(tmp_path / "a b%20c#d?.eml")):
        with open_uri(uri) as file:
            assert file.read() == b"odd"
    assert sizes((tmp_path / "a b%20c#d?.eml").as_uri()) == {str(tmp_path / "a b%20c#d?.eml"): 3}


def test_what_is_not_there_is_not_found(mail: str) -> None:
    for uri in (f"{mail}/none", f"{mail}-not", f"{mail}.mbox/inside"):
        with raises("store.not-found", uri):
            list_uri(uri, LIMITS)
        below_a_file = uri.startswith("file:") and uri.endswith("/inside")
        with raises("store.not-a-directory" if below_a_file else "store.not-found", uri.removeprefix("file://")):
            open_uri(uri, LIMITS)


def test_a_folder_cannot_be_opened(mail: str) -> None:
    code = "store.not-found" if mail.startswith("s3:") else "store.is-a-directory"
    with raises(code, mail.removeprefix("file://")):
        open_uri(mail, LIMITS)


def test_a_bucket_alone_cannot_be_opened_and_lists_everything(s3_bucket: str, tmp_path: Path) -> None:
    _put(open_storage(f"s3://{s3_bucket}"), {"a": b"1", "b/c": b"22"}, tmp_path)
    assert sizes(f"s3://{s3_bucket}") == {f"s3://{s3_bucket}/a": 1, f"s3://{s3_bucket}/b/c": 2}
    with raises("store.invalid-bucket-or-key", f"s3://{s3_bucket}/"):
        open_uri(f"s3://{s3_bucket}", LIMITS)


def test_the_empty_objects_that_consoles_make_for_folders_are_not_files(s3_bucket: str, tmp_path: Path) -> None:
    storage = open_storage(f"s3://{s3_bucket}")
    storage.create("mail/", b"")
    _put(storage, {"mail/a": b"1"}, tmp_path)
    assert sizes(f"s3://{s3_bucket}/mail") == {f"s3://{s3_bucket}/mail/a": 1}


def test_a_listing_in_several_pages_is_read_to_its_end(behind: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    names = ["a", "b c", "d/e+f", "g&h", "i"]
    _put(behind.storage, dict.fromkeys(names, b""), tmp_path)
    proxy.inject(small_pages, "GET", query="list-type=2", times=None)
    assert [entry.key for entry in behind.storage.entries()] == names
    assert len(proxy.seen("GET", query="list-type=2")) == 3


@pytest.mark.parametrize(
    ("uri", "code", "value"),
    [
        ("", "store.empty-path", ""),
        ("s3://", "store.no-bucket-name", "'s3://'"),
        ("s3:///key", "store.no-bucket-name", "'s3:///key'"),
        ("file://host/path", "store.invalid-file-uri", "'file://host/path'"),
        ("file://", "store.invalid-file-uri", "'file://'"),
        ("http://host/path", "store.unknown-scheme", "'http'"),
        ("gs://bucket/key", "store.unknown-scheme", "'gs'"),
        ("S3://bucket/key", "store.unknown-scheme", "'S3'"),
    ],
)
def test_a_uri_of_another_form_is_refused(uri: str, code: str, value: str) -> None:
    for call in (open_uri, list_uri, open_storage):
        with raises(code, value) as raised:
            call(uri)
        assert raised.value.exit_status == 2


def test_a_pipe_that_nobody_writes_to_is_not_listed(tmp_path: Path) -> None:
    write_files(tmp_path, {"mail/a.eml": b"a"})
    os.mkfifo(tmp_path / "mail" / "pipe")
    assert sizes(str(tmp_path / "mail")) == {str(tmp_path / "mail" / "a.eml"): 1}
