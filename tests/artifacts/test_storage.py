"""Storage and reading by URI: a directory and a bucket behave alike."""

import errno
import fcntl
import os
from collections import deque
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from gumshoe.artifacts.storage import (
    Deadline,
    Storage,
    explain_os_errors,
    list_uri,
    lock_directory,
    open_locked_file,
    open_storage,
    open_uri,
)
from gumshoe.artifacts.store import Store
from tests.artifacts.conftest import LIMITS
from tests.artifacts.fault_proxy import FaultProxy, small_pages
from tests.artifacts.files import noise, run_concurrently, write_files
from tests.errors import raises
from tests.http_server import ReceivedRequest, run_faulty_server


@pytest.fixture
def storage(store_uri: str) -> Storage:
    return open_storage(store_uri, LIMITS)


def _put(storage: Storage, files: dict[str, bytes], scratch: Path) -> None:
    folder = write_files(scratch / "put", files)
    storage.upload({key: folder / key for key in files}, Deadline(60), lambda _: None)


def test_uploaded_files_are_listed_in_order_and_can_be_read(storage: Storage, tmp_path: Path) -> None:
    files = {"b/2": b"two", "a": b"", "b/10": b"ten", "b-": b"x"}
    before = datetime.now(UTC) - timedelta(seconds=2)  # S3's times are whole seconds
    _put(storage, files, tmp_path)
    entries = list(storage.entries())
    assert [(entry.key, entry.size) for entry in entries] == [("a", 0), ("b-", 1), ("b/10", 3), ("b/2", 3)]
    assert all(before <= entry.modified <= datetime.now(UTC) for entry in entries)
    assert {entry.key: storage.read(entry.key)[0] for entry in entries} == files


def test_a_listing_contains_keys_with_the_prefix(storage: Storage, tmp_path: Path) -> None:
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


def test_reading_a_missing_key_names_it(storage: Storage) -> None:
    for read in (storage.open, storage.read):
        with raises("store.not-found", f"{storage.uri}/no/such/key"):
            read("no/such/key")


def test_a_key_is_created_once(storage: Storage) -> None:
    assert storage.create("a/b", b"first")
    assert not storage.create("a/b", b"second")
    assert storage.read("a/b")[0] == b"first"


def test_concurrent_creation_on_a_disk_has_one_winner(tmp_path: Path) -> None:
    for round_ in range(5):
        storage = open_storage(str(tmp_path / "store"))
        done = run_concurrently(partial(storage.create, f"folder{round_}/key", bytes([n])) for n in range(8))
        assert sorted(map(bool, done)) == [False] * 7 + [True]
        assert storage.read(f"folder{round_}/key")[0] == bytes([done.index(True)])


def test_a_swap_requires_the_current_tag(storage: Storage) -> None:
    storage.create("a", b"1")
    _, tag = storage.read("a")
    assert storage.swap("a", b"2", tag)
    assert not storage.swap("a", b"3", tag)
    text, newer = storage.read("a")
    assert text == b"2"
    assert newer != tag


def test_deletion_ignores_missing_keys(storage: Storage, tmp_path: Path) -> None:
    _put(storage, {"a/b/c": b"", "a/d": b""}, tmp_path)
    storage.delete(["a/b/c", "never/was"])
    assert [entry.key for entry in storage.entries()] == ["a/d"]
    storage.delete(["a/b/c"])
    storage.delete([])


def test_more_keys_than_one_s3_request_allows_are_deleted(storage: Storage, tmp_path: Path) -> None:
    _put(storage, {"0": b"", "z": b""}, tmp_path)
    storage.delete(["0", *(f"n{number}" for number in range(1100)), "z"])
    assert list(storage.entries()) == []


def test_a_partly_written_file_is_not_visible(tmp_path: Path) -> None:
    """Stop the upload after the first of three blocks, by a deadline."""
    source = write_files(tmp_path / "source", {"large": bytes(3 << 20)}) / "large"
    storage = open_storage(str(tmp_path / "store"))
    with raises("store.deadline-exceeded", "0 seconds"):
        storage.upload({"a/large": source}, Deadline(0), lambda _: None)
    assert list(storage.entries()) == []
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_a_lock_has_one_holder_and_waiting_is_limited(tmp_path: Path) -> None:
    with lock_directory(tmp_path / "locked", wait=None) as lock:
        assert lock
        with lock_directory(tmp_path / "locked", wait=None) as second:
            assert not second
        with (
            raises("store.deadline-exceeded", "0.1 seconds"),
            lock_directory(tmp_path / "locked", wait=Deadline(0.1)),
        ):
            pass
    with lock_directory(tmp_path / "locked", wait=None) as again:
        assert again


def test_the_holder_may_remove_the_locked_directory(tmp_path: Path) -> None:
    locked, times = tmp_path / "new" / "locked", 1000

    def hold() -> int:
        held = 0
        for _ in range(times):
            with lock_directory(locked, wait=Deadline(60)) as lock:
                held += lock is not None
                locked.rmdir()
        return held

    assert run_concurrently([hold] * 5) == [times] * 5


@pytest.mark.parametrize("error", [NotADirectoryError, FileNotFoundError])
def test_only_a_directory_can_be_locked(error: type[OSError], tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    if error is NotADirectoryError:
        locked.write_bytes(b"")
    else:
        locked.symlink_to(tmp_path / "gone")
    with pytest.raises(error), lock_directory(locked, wait=Deadline(60)):
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
def test_each_os_error_has_its_code(number: int, code: str, tmp_path: Path) -> None:
    path = tmp_path / "file"

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    with raises(code, path) as raised, explain_os_errors(path):
        fail()
    assert raised.value.exit_status == 1


# By URI


@pytest.fixture
def mail(store_uri: str, tmp_path: Path) -> str:
    """Return the URI of a folder with three files."""
    storage = open_storage(store_uri, LIMITS)
    _put(storage, {"mail/b.eml": b"bb", "mail/sub/a.eml": b"a", "mail.mbox": b"box", "mailing": b""}, tmp_path)
    return f"{store_uri}/mail"


def sizes(uri: str) -> dict[str, int]:
    """Return the size in bytes of each listed file, by its URI or path."""
    return {each.key: each.size for each in list_uri(uri)}


def test_files_below_a_uri_are_listed_and_can_be_opened(mail: str) -> None:
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


def test_a_plain_path_works_as_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_missing_file_is_not_found(mail: str) -> None:
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


def test_empty_folder_objects_in_s3_are_not_files(s3_bucket: str, tmp_path: Path) -> None:
    storage = open_storage(f"s3://{s3_bucket}")
    storage.create("mail/", b"")
    _put(storage, {"mail/a": b"1"}, tmp_path)
    assert sizes(f"s3://{s3_bucket}/mail") == {f"s3://{s3_bucket}/mail/a": 1}


def test_all_pages_of_a_listing_are_read(proxied: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    names = ["a", "b c", "d/e+f", "g&h", "i"]
    _put(proxied.storage, dict.fromkeys(names, b""), tmp_path)
    proxy.inject(small_pages, "GET", query="list-type=2", times=None)
    assert [entry.key for entry in proxied.storage.entries()] == names
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
def test_an_invalid_uri_is_rejected(uri: str, code: str, value: str) -> None:
    for call in (open_uri, list_uri, open_storage):
        with raises(code, value) as raised:
            call(uri)
        assert raised.value.exit_status == 2


def test_a_pipe_is_not_listed(tmp_path: Path) -> None:
    write_files(tmp_path, {"mail/a.eml": b"a"})
    os.mkfifo(tmp_path / "mail" / "pipe")
    assert sizes(str(tmp_path / "mail")) == {str(tmp_path / "mail" / "a.eml"): 1}


def test_a_file_that_was_replaced_before_it_was_locked_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder has put another file in its place, which nobody has locked."""
    path, flock = tmp_path / "file", fcntl.flock

    def replace_and_lock(file: int, operation: int) -> None:
        (tmp_path / "new").write_bytes(b"new")
        (tmp_path / "new").replace(path)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", replace_and_lock)
    with raises("store.file-in-use", path), open_locked_file(path):
        pass
    assert path.read_bytes() == b"new"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the full device of Linux")
def test_a_full_disk_is_reported_once() -> None:
    """Closing the file writes its buffer again, which fails again."""
    path = Path("/dev/full")
    with raises("store.disk-full", path), open_locked_file(path) as file, explain_os_errors(path):
        file.write(b"line")
        file.flush()


@pytest.mark.parametrize(
    ("own", "default", "used"), [("eu-west-1", "us-east-1", "eu-west-1"), ("", "eu-west-3", "eu-west-3")]
)
def test_requests_are_signed_for_the_region_of_the_environment(
    aws_environment: pytest.MonkeyPatch, own: str, default: str, used: str
) -> None:
    signed: list[str] = []

    def answer(request: ReceivedRequest, _: str) -> tuple[int, str, bytes]:
        signed.append(request.authorization or "")
        return 200, "application/xml", b"<ListBucketResult/>"

    aws_environment.setenv("AWS_REGION", own)
    aws_environment.setenv("AWS_DEFAULT_REGION", default)
    with run_faulty_server(deque(), answer) as address:
        aws_environment.setenv("AWS_ENDPOINT_URL", address)
        assert list(open_storage("s3://bucket/project", LIMITS).entries()) == []
    assert f"/{used}/s3/aws4_request" in signed[0]
