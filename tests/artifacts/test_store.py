"""Guarantees of a store, in a directory and in a bucket."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.artifacts.store import FetchResult, PublishResult, Store
from gumshoe.errors import GumshoeError
from tests.artifacts.conftest import LIMITS
from tests.artifacts.fault_proxy import Exchange, FaultProxy, forward, meanwhile
from tests.artifacts.files import (
    SMALL,
    gumshoe,
    manifest_text,
    noise,
    overwrite,
    plant,
    read_files,
    run_concurrently,
    stored_key,
    write_files,
)
from tests.errors import raises
from tests.waiting import wait_until

SMALL_SIZE = sum(map(len, SMALL.values()))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a directory that can be published."""
    return write_files(tmp_path / "source", SMALL)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return a path to fetch to, which does not exist yet."""
    return tmp_path / "fetched" / "out"


# Publishing


def test_fetch_returns_the_published_files(store: Store, source: Path, out: Path) -> None:
    published = store.publish(source, "adapters", "1")
    fetched = store.fetch("adapters/1", out)
    assert published.created
    assert read_files(out) == SMALL
    assert fetched == FetchResult(published.manifest, out, downloaded=SMALL_SIZE)


def test_fetch_leaves_nothing_beside_the_directory(store: Store, source: Path, out: Path) -> None:
    store.publish(source, "adapters", "1")
    store.fetch("adapters/1", out)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_manifest_describes_the_artifact_and_its_origin(store: Store, source: Path) -> None:
    before = datetime.now(UTC)
    store.publish(source, "adapters/email", "2", made_from=["datasets/7"], settings={"lr": "1e-5"}, image="agent:3")
    manifest = store.manifest("adapters/email/2")
    assert (manifest.kind, manifest.version, manifest.reference) == ("adapters/email", "2", "adapters/email/2")
    assert (manifest.made_from, manifest.settings, manifest.image) == (("datasets/7",), {"lr": "1e-5"}, "agent:3")
    assert before <= manifest.created <= datetime.now(UTC)
    assert len(manifest.code or "") == 64
    assert {file.path: (file.size, file.sha256) for file in manifest.files} == {
        path: (len(data), hashlib.sha256(data).hexdigest()) for path, data in SMALL.items()
    }


def test_publishing_the_same_content_again_changes_nothing(store: Store, source: Path) -> None:
    first = store.publish(source, "adapters", "1", settings={"try": "1"})
    objects = list(store.storage.entries())
    again = store.publish(source, "adapters", "1", settings={"try": "2"})
    assert again == PublishResult(first.manifest, created=False)
    assert list(store.storage.entries()) == objects


def test_a_version_cannot_be_used_twice(store: Store, source: Path, out: Path) -> None:
    store.publish(source, "adapters", "1")
    objects = list(store.storage.entries())
    write_files(source, {"notes.txt": b"Something else."})
    with raises("artifacts.version-taken", store.uri, "adapters/1"):
        store.publish(source, "adapters", "1")
    assert list(store.storage.entries()) == objects
    store.fetch("adapters/1", out)
    assert read_files(out) == SMALL


def test_files_that_may_differ_stay_as_they_were_published_first(store: Store, source: Path, out: Path) -> None:
    first = store.publish(source, "adapters", "1")
    write_files(source, {"notes.txt": b"Something else."})
    again = store.publish(source, "adapters", "1", may_differ=["notes.txt"])
    assert again == PublishResult(first.manifest, created=False)
    store.fetch("adapters/1", out)
    assert read_files(out) == SMALL
    with raises("artifacts.version-taken", "adapters/1"):
        store.publish(source, "adapters", "1", may_differ=["other.txt"])


def test_a_fetched_directory_can_be_published_under_a_new_version(store: Store, source: Path, out: Path) -> None:
    store.publish(source, "adapters", "1")
    store.fetch("adapters/1", out)
    store.publish(out, "adapters", "2")
    store.fetch("adapters/2", out.with_name("again"))
    assert read_files(out.with_name("again")) == SMALL
    assert store.manifest("adapters/2").content == store.manifest("adapters/1").content


def test_a_link_to_a_file_is_published_as_the_file(store: Store, source: Path, out: Path) -> None:
    (source / "link.txt").symlink_to(source / "notes.txt")
    store.publish(source, "adapters", "1")
    store.fetch("adapters/1", out)
    assert not (out / "link.txt").is_symlink()
    assert (out / "link.txt").read_bytes() == SMALL["notes.txt"]


def _empty(directory: Path) -> None:
    directory.mkdir()


def _only_folders(directory: Path) -> None:
    (directory / "a" / "b").mkdir(parents=True)


def _link_to_a_directory(directory: Path) -> None:
    write_files(directory, SMALL)
    (directory / "link").symlink_to(directory / "config")


def _link_to_nothing(directory: Path) -> None:
    write_files(directory, SMALL)
    (directory / "link").symlink_to(directory / "nothing")


def _pipe(directory: Path) -> None:
    write_files(directory, SMALL)
    os.mkfifo(directory / "pipe")


def _backslash(directory: Path) -> None:
    write_files(directory, {"a\\b": b""})


def _not_unicode(directory: Path) -> None:
    write_files(directory, SMALL)
    Path(os.fsdecode(os.fsencode(directory) + b"/caf\xe9")).write_bytes(b"")


def _folder_called_manifest(directory: Path) -> None:
    write_files(directory, {"manifest.json/a": b""})


@pytest.mark.parametrize(
    ("make", "code", "name"),
    [
        (_empty, "artifacts.empty-directory", "unfit"),
        (_only_folders, "artifacts.empty-directory", "unfit"),
        (_link_to_a_directory, "artifacts.unsupported-link", "unfit/link"),
        (_link_to_nothing, "artifacts.unsupported-link", "unfit/link"),
        (_pipe, "artifacts.special-file", "unfit/pipe"),
        (_backslash, "artifacts.invalid-file-name", "unfit/a\\b"),
        (_not_unicode, "artifacts.invalid-file-name", "unfit/caf\udce9"),
        (_folder_called_manifest, "artifacts.invalid-file-name", "unfit/manifest.json/a"),
    ],
)
def test_an_unsuitable_directory_is_rejected_before_the_upload(
    store: Store, make: Callable[[Path], None], code: str, name: str, tmp_path: Path
) -> None:
    make(tmp_path / "unfit")
    with raises(code, tmp_path / name):
        store.publish(tmp_path / "unfit", "adapters", "1")
    assert list(store.storage.entries()) == []


def test_a_missing_directory_is_rejected(store: Store, tmp_path: Path) -> None:
    with raises("artifacts.not-a-directory", tmp_path / "nowhere"):
        store.publish(tmp_path / "nowhere", "adapters", "1")


def test_a_foreign_manifest_json_is_rejected(store: Store, source: Path) -> None:
    (source / "manifest.json").write_text('{"name": "a browser extension"}')
    with raises("artifacts.foreign-manifest", source / "manifest.json"):
        store.publish(source, "adapters", "1")
    assert list(store.storage.entries()) == []


def test_a_manifest_json_in_a_folder_is_an_ordinary_file(store: Store, source: Path, out: Path) -> None:
    files = SMALL | {"app/manifest.json": b"[]", "latest.json": b"{}", "sha256-x/manifest.json": b"{}"}
    store.publish(write_files(source, files), "adapters", "1")
    store.fetch("adapters/1", out)
    assert read_files(out) == files
    assert [manifest.reference for manifest in store.list()] == ["adapters/1"]


BAD_NAMES = [
    "latest",
    "latest.json",
    "manifest.json",
    "sha256-0",
    "..",
    ".",
    ".x",
    "-x",
    "",
    "a b",
    "a\n",
    "ä",
    "x" * 129,
]


def test_an_invalid_version_is_rejected(store: Store, source: Path) -> None:
    for version in [*BAD_NAMES, "../x", "a/b", "/x"]:
        with raises("artifacts.invalid-name", repr(version)):
            store.publish(source, "adapters", version)
    assert list(store.storage.entries()) == []


def test_an_invalid_kind_is_rejected_everywhere(store: Store, source: Path) -> None:
    named = {"../x": "..", "a/../b": "..", "/a": "", "a/": "", "a//b": "", "a/latest": "latest"}
    for kind, part in (named | {name: name for name in BAD_NAMES}).items():
        for call in (partial(store.publish, source, version="1"), store.list, store.latest):
            with raises("artifacts.invalid-name", repr(part)):
                call(kind=kind)
    assert list(store.storage.entries()) == []


def test_parents_must_be_kind_and_version(store: Store, source: Path) -> None:
    for made_from, code, name in (
        ("datasets", "artifacts.invalid-reference", "'datasets'"),
        ("datasets/latest", "artifacts.invalid-name", "'latest'"),
        ("../datasets/1", "artifacts.invalid-name", "'..'"),
    ):
        with raises(code, name):
            store.publish(source, "adapters", "1", made_from=[made_from])
    assert list(store.storage.entries()) == []


def test_an_invalid_reference_is_rejected(store: Store, out: Path) -> None:
    for reference, code, name in (
        ("adapters", "artifacts.invalid-reference", "'adapters'"),
        ("../adapters/1", "artifacts.invalid-name", "'..'"),
        ("adapters/..", "artifacts.invalid-name", "'..'"),
        ("/", "artifacts.invalid-reference", "'/'"),
        ("", "artifacts.invalid-reference", "''"),
        ("adapters/sha256-1", "artifacts.invalid-name", "'sha256-1'"),
    ):
        for call in (store.manifest, store.lineage, store.verify, lambda name: store.fetch(name, out)):
            with raises(code, name):
                call(reference)


def test_a_file_that_changes_during_publication_makes_it_fail(
    proxied: Store, proxy: FaultProxy, source: Path, out: Path
) -> None:
    other = SMALL["notes.txt"][::-1]  # same length, so that the upload itself can succeed
    proxy.inject(meanwhile(lambda: write_files(source, {"notes.txt": other})), "PUT", "adapter.safetensors")
    with raises("artifacts.changed-while-publishing", source, "notes.txt"):
        proxied.publish(source, "adapters", "1")
    assert proxied.list() == []
    assert proxied.publish(source, "adapters", "1").created
    proxied.fetch("adapters/1", out)
    assert read_files(out) == SMALL | {"notes.txt": other}


def test_a_file_that_becomes_shorter_while_it_is_sent_makes_publication_fail(
    proxied: Store, proxy: FaultProxy, source: Path
) -> None:
    large = write_files(source, {"weights.bin": bytes(20_000_000)}) / "weights.bin"  # not all of it fits into buffers

    def shorten(exchange: Exchange) -> None:
        exchange.receive(1)
        os.truncate(large, 10)
        forward(exchange)

    proxy.inject(shorten, "PUT", "weights.bin", times=None)
    with raises("artifacts.changed-while-publishing", source, "weights.bin"):
        proxied.publish(source, "adapters", "1")
    assert proxied.list() == []


def test_bytes_sent_during_a_change_are_not_reused(
    proxied: Store, proxy: FaultProxy, tmp_path: Path, out: Path
) -> None:
    """Change the file before its bytes are sent, and change it back before the next attempt."""
    files = {f"{n}": bytes([n]) * 100 for n in range(8)}
    source = write_files(tmp_path / "source", files)
    changed = dict.fromkeys(files, b"x" * 100)
    proxy.inject(meanwhile(lambda: write_files(source, changed)), "GET", query="list-type=2")
    with raises("artifacts.changed-while-publishing", source):
        proxied.publish(source, "adapters", "1")
    write_files(source, files)
    proxied.publish(source, "adapters", "1")
    proxied.fetch("adapters/1", out)
    assert read_files(out) == files


# Finding


def test_an_unpublished_artifact_is_not_found(store: Store, source: Path, out: Path) -> None:
    store.publish(source, "adapters", "1")
    for reference, code, name in (
        ("adapters/2", "artifacts.not-found", "adapters/2"),
        ("datasets/1", "artifacts.not-found", "datasets/1"),
        ("datasets/latest", "artifacts.nothing-published", "datasets"),
    ):
        for call in (store.manifest, store.lineage, store.verify, lambda name: store.fetch(name, out)):
            with raises(code, store.uri, name):
                call(reference)
    assert not out.exists()


def test_latest_is_the_last_published_version(store: Store, source: Path, out: Path) -> None:
    assert store.latest("adapters") is None
    for version in ("2", "10", "1"):
        write_files(source, {"notes.txt": version.encode()})
        store.publish(source, "adapters", version)
        assert store.latest("adapters") == version
    assert store.latest("datasets") is None
    assert store.manifest("adapters/latest").version == "1"
    assert store.fetch("adapters/latest", out).manifest.version == "1"


def test_latest_can_be_left_unchanged(store: Store, source: Path) -> None:
    store.publish(source, "adapters", "1")
    store.publish(source, "adapters", "2", latest=False)
    assert store.latest("adapters") == "1"


def test_publishing_an_older_version_again_does_not_make_it_the_latest(store: Store, source: Path) -> None:
    store.publish(source, "adapters", "1")
    store.publish(source, "adapters", "2")
    store.publish(source, "adapters", "1")
    assert store.latest("adapters") == "2"


def test_latest_is_the_newest_after_concurrent_publications(store_uri: str, source: Path) -> None:
    store = Store(store_uri, LIMITS)
    results = run_concurrently(partial(store.publish, source, "adapters", str(version)) for version in range(6))
    assert all(isinstance(result, PublishResult) and result.created for result in results)
    assert store.latest("adapters") == store.list()[-1].version


def test_publishing_repairs_a_damaged_latest_json(store: Store, source: Path, tmp_path: Path) -> None:
    for version, damage in enumerate([b"", b"{}", b"[]", b'{"version": "1"}', b'{"version": "1", "created": "soon"}']):
        overwrite(store, "adapters/latest.json", damage, tmp_path)
        store.publish(source, "adapters", str(version))
        assert store.latest("adapters") == str(version)


def test_a_damaged_latest_json_is_an_error(store: Store, source: Path, tmp_path: Path) -> None:
    store.publish(source, "adapters", "1")
    overwrite(store, "adapters/latest.json", b'{"version', tmp_path)
    with raises("artifacts.damaged-latest", f"{store.uri}/adapters/latest.json"):
        store.manifest("adapters/latest")


def test_the_list_is_in_order_of_publication(store: Store, source: Path) -> None:
    assert store.list() == []
    for reference in ("b/2", "a/9", "b/1", "a/nested/1"):
        kind, _, version = reference.rpartition("/")
        store.publish(source, kind, version)
    assert [manifest.reference for manifest in store.list()] == ["b/2", "a/9", "b/1", "a/nested/1"]
    assert [manifest.reference for manifest in store.list("b")] == ["b/2", "b/1"]
    assert store.list("nothing") == []


def test_a_kind_does_not_match_by_prefix(store: Store, source: Path) -> None:
    store.publish(source, "adapters-old", "1")
    assert store.list("adapters") == []


def test_lineage_includes_parents_that_the_store_does_not_have(store: Store, source: Path) -> None:
    store.publish(source, "datasets", "1", made_from=["mail/0"])
    store.publish(source, "models", "1")
    store.publish(source, "adapters", "1", made_from=["datasets/1", "models/1"])
    lineage = store.lineage("adapters/latest")
    assert lineage.reference == "adapters/1"
    assert [parent.reference for parent in lineage.made_from] == ["datasets/1", "models/1"]
    assert [parent.manifest and parent.manifest.reference for parent in lineage.made_from] == ["datasets/1", "models/1"]
    (mail,) = lineage.made_from[0].made_from
    assert (mail.reference, mail.manifest, mail.made_from) == ("mail/0", None, ())


def test_circular_lineage_ends(store: Store, source: Path) -> None:
    store.publish(source, "a", "1", made_from=["b/1"])
    store.publish(source, "b", "1", made_from=["a/1"])
    (parent,) = store.lineage("a/1").made_from
    assert parent.reference == "b/1"


# Verifying


def test_verify_finds_damaged_and_missing_files(store: Store, source: Path, tmp_path: Path) -> None:
    store.publish(source, "adapters", "1")
    assert store.verify("adapters/1") == {}
    overwrite(store, stored_key(store, "adapters/1", "notes.txt"), b"Trained on 40,000 mailboxes\n", tmp_path)
    store.storage.delete([stored_key(store, "adapters/1", "config/empty")])
    assert store.verify("adapters/1") == {"notes.txt": "its SHA-256 differs", "config/empty": "missing"}


@pytest.mark.parametrize("damage", [b"", b"Trained on three mailboxes!\n", SMALL["notes.txt"] + b"more"])
def test_damaged_stored_bytes_are_never_fetched(
    store: Store, source: Path, out: Path, tmp_path: Path, damage: bytes
) -> None:
    store.publish(source, "adapters", "1")
    overwrite(store, stored_key(store, "adapters/1", "notes.txt"), damage, tmp_path)
    with raises("artifacts.damaged-in-store", stored_key(store, "adapters/1", "notes.txt")):
        store.fetch("adapters/1", out)
    assert not out.exists()


@pytest.mark.parametrize("damage", [b"", b"Trained on 40,000 mailboxes\n", SMALL["notes.txt"] + b"more"])
def test_a_damaged_file_is_not_read(store: Store, source: Path, tmp_path: Path, damage: bytes) -> None:
    manifest = store.publish(source, "adapters", "1").manifest
    assert store.read_file(manifest, "notes.txt") == SMALL["notes.txt"]
    assert store.read_file(manifest, "other.txt") is None
    overwrite(store, stored_key(store, "adapters/1", "notes.txt"), damage, tmp_path)
    with raises("artifacts.damaged-in-store", stored_key(store, "adapters/1", "notes.txt")):
        store.read_file(manifest, "notes.txt")


def test_an_artifact_with_a_missing_file_is_never_fetched(store: Store, source: Path, out: Path) -> None:
    store.publish(source, "adapters", "1")
    key = stored_key(store, "adapters/1", "notes.txt")
    store.storage.delete([key])
    with raises("store.not-found", key):
        store.fetch("adapters/1", out)
    assert not out.exists()


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/x",
        "..",
        "a/../../x",
        "/etc/x",
        "a\\..\\x",
        "a//x",
        "./x",
        "a/./x",
        "",
        ".",
        "x/",
        "a\0b",
        "manifest.json",
    ],
)
def test_a_manifest_with_an_unsafe_path_is_rejected(store: Store, path: str, out: Path, tmp_path: Path) -> None:
    text = manifest_text("adapters/1", [("fine.txt", b"fine"), (path, b"harm")])
    assert store.storage.create("adapters/1/manifest.json", text)
    before = read_files(tmp_path)
    with raises("artifacts.invalid-manifest", f"{store.uri}/adapters/1/manifest.json", "files.1.path"):
        store.fetch("adapters/1", out)
    assert read_files(tmp_path) == before
    assert not out.exists()


def test_a_valid_handmade_manifest_is_accepted(store: Store, out: Path, tmp_path: Path) -> None:
    """Check that `plant` works, so that the tests of invalid manifests mean something."""
    plant(store, "adapters/1", SMALL.items(), tmp_path)
    store.fetch("adapters/1", out)
    assert read_files(out) == SMALL


@pytest.mark.parametrize(
    ("changes", "code", "value"),
    [
        ({"content": "0" * 64}, "artifacts.inconsistent-manifest", "adapters/1/manifest.json"),
        ({"content": "sha256"}, "artifacts.invalid-manifest", "content"),
        ({"format": "gumshoe.artifact/2"}, "artifacts.invalid-manifest", "format"),
        ({"format": "web.manifest/1"}, "artifacts.foreign-manifest", "adapters/1/manifest.json"),
        ({"version": "2"}, "artifacts.misplaced-manifest", "adapters/2"),
        ({"kind": "datasets"}, "artifacts.misplaced-manifest", "datasets/1"),
        ({"made_from": ["../x"]}, "artifacts.invalid-manifest", "made_from"),
        ({"created": "2026-01-01T00:00:00"}, "artifacts.invalid-manifest", "created"),
    ],
)
def test_an_inconsistent_manifest_is_rejected(
    store: Store, changes: dict[str, object], code: str, value: str, out: Path, tmp_path: Path
) -> None:
    plant(store, "adapters/1", SMALL.items(), tmp_path, **changes)
    with raises(code, value):
        store.fetch("adapters/1", out)
    assert not out.exists()


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff\xfe", b'{"format": "gumshoe.artifact/1"}'])
def test_an_unreadable_manifest_is_rejected(store: Store, text: bytes, out: Path) -> None:
    assert store.storage.create("adapters/1/manifest.json", text)
    with raises("artifacts.invalid-manifest", f"{store.uri}/adapters/1/manifest.json"):
        store.fetch("adapters/1", out)


# Fetching


def test_fetching_again_does_nothing(store: Store, source: Path, out: Path) -> None:
    store.publish(source, "adapters", "1")
    store.fetch("adapters/1", out)
    written = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert store.fetch("adapters/1", out).downloaded == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == written


@pytest.mark.parametrize(
    ("damage", "downloaded"),
    [
        pytest.param(None, 10240, id="missing"),
        pytest.param(SMALL["adapter.safetensors"][:4000], 6240, id="short"),
        pytest.param(SMALL["adapter.safetensors"] + b"more", 10240, id="long"),
        pytest.param(bytes(10240), 10240, id="other bytes"),
    ],
)
def test_fetching_again_downloads_only_damaged_files(
    store: Store, source: Path, out: Path, damage: bytes | None, downloaded: int
) -> None:
    store.publish(source, "adapters", "1")
    store.fetch("adapters/1", out)
    (out / "adapter.safetensors").unlink()
    if damage is not None:
        (out / "adapter.safetensors").write_bytes(damage)
    assert store.fetch("adapters/1", out).downloaded == downloaded
    assert read_files(out) == SMALL


def test_an_empty_directory_can_be_fetched_into(store: Store, source: Path, out: Path) -> None:
    store.publish(source, "adapters", "1")
    out.mkdir(parents=True)
    store.fetch("adapters/1", out)
    assert read_files(out) == SMALL


def test_files_of_another_interrupted_fetch_are_removed(store: Store, source: Path, out: Path) -> None:
    store.publish(source, "adapters", "1")
    write_files(out.with_name(".out.partial") / "files", {"other.bin": b"x", "notes.txt/folder": b"x"})
    store.fetch("adapters/1", out)
    assert read_files(out) == SMALL


def test_a_destination_with_other_files_is_rejected(store: Store, source: Path, out: Path) -> None:
    store.publish(source, "adapters", "1")
    mine = {"notes.txt": b"My own notes.", "deep/down/x": b"1"}
    write_files(out, mine)
    with raises("artifacts.destination-exists", out):
        store.fetch("adapters/1", out)
    assert read_files(out) == mine


def test_a_destination_with_a_foreign_manifest_is_rejected(store: Store, source: Path, out: Path) -> None:
    store.publish(source, "adapters", "1")
    mine = {"manifest.json": b'{"name": "a browser extension"}', "icon.png": b"png"}
    write_files(out, mine)
    with raises("artifacts.foreign-manifest", out / "manifest.json"):
        store.fetch("adapters/1", out)
    assert read_files(out, manifest=True) == mine


def test_a_destination_with_another_artifact_is_rejected(store: Store, source: Path, out: Path) -> None:
    store.publish(source, "adapters", "1")
    store.fetch("adapters/1", out)
    store.publish(source, "adapters", "2")
    before = read_files(out, manifest=True)
    with raises("artifacts.destination-is-another-artifact", out, "adapters/1"):
        store.fetch("adapters/2", out)
    assert read_files(out, manifest=True) == before


def test_a_destination_with_the_same_version_of_another_store_is_rejected(
    store: Store, source: Path, out: Path, tmp_path: Path
) -> None:
    other = Store(str(tmp_path / "another-store"))
    other.publish(write_files(tmp_path / "another", {"notes.txt": b"Trained on other mail."}), "adapters", "1")
    store.publish(source, "adapters", "1")
    other.fetch("adapters/1", out)
    before = read_files(out, manifest=True)
    with raises("artifacts.destination-is-another-artifact", out, "adapters/1"):
        store.fetch("adapters/1", out)
    assert read_files(out, manifest=True) == before


def test_a_damaged_artifact_with_other_files_is_rejected(store: Store, source: Path, out: Path) -> None:
    store.publish(source, "adapters", "1")
    store.fetch("adapters/1", out)
    write_files(out, {"mine/notes.txt": b"My own notes.", "adapter.safetensors": b"damaged"})
    before = read_files(out, manifest=True)
    with raises("artifacts.destination-has-other-files", out / "mine" / "notes.txt"):
        store.fetch("adapters/1", out)
    assert read_files(out, manifest=True) == before


def test_a_destination_that_is_a_file_is_rejected(store: Store, source: Path, out: Path) -> None:
    store.publish(source, "adapters", "1")
    out.parent.mkdir()
    out.write_bytes(b"mine")
    with raises("artifacts.destination-exists", out):
        store.fetch("adapters/1", out)
    assert out.read_bytes() == b"mine"


def test_a_destination_that_cannot_be_created_is_reported(store: Store, source: Path, tmp_path: Path) -> None:
    store.publish(source, "adapters", "1")
    (tmp_path / "file").write_bytes(b"")
    with raises("store.not-a-directory", tmp_path / "file" / "out"):
        store.fetch("adapters/1", tmp_path / "file" / "out")


def test_concurrent_fetches_into_one_directory_share_the_work(
    store: Store, store_uri: str, source: Path, out: Path
) -> None:
    store.publish(source, "adapters", "1")
    for round_ in range(3):
        target = out.with_name(f"out{round_}")
        if round_ % 2:
            target.mkdir()
        stores = [Store(store_uri, LIMITS) for _ in range(5)]
        results = run_concurrently(partial(each.fetch, "adapters/1", target) for each in stores)
        assert [result for result in results if not isinstance(result, FetchResult)] == []
        fetched = [result for result in results if isinstance(result, FetchResult)]
        assert sum(each.downloaded for each in fetched) == SMALL_SIZE
        assert read_files(target) == SMALL
        assert sorted(path.name for path in out.parent.iterdir()) == [f"out{n}" for n in range(round_ + 1)]


@pytest.mark.ci
def test_concurrent_repairs_of_one_directory_share_the_work(
    store: Store, store_uri: str, source: Path, out: Path
) -> None:
    store.publish(source, "adapters", "1")
    store.fetch("adapters/1", out)
    (out / "adapter.safetensors").write_bytes(bytes(10240))
    processes = [gumshoe("fetch", "adapters/1", "--store", store_uri, "--out", out, "--json") for _ in range(2)]
    answers = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    assert sum(json.loads(stdout)["downloaded_bytes"] for stdout, _ in answers) == 10240
    assert read_files(out) == SMALL


# Killed

_KILLED = """
import itertools, os, runpy, signal, sys

last, synced, fsync = int(sys.argv.pop(1)), itertools.count(1), os.fsync

def killed(descriptor):
    if next(synced) == last:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)

os.fsync = killed
runpy.run_module("gumshoe", run_name="__main__", alter_sys=True)
"""


def _kill_at_file(number: int, *arguments: str | Path) -> None:
    """Run `gumshoe artifacts ...` and kill it after that many files are written, before the last is renamed."""
    command = [sys.executable, "-c", _KILLED, str(number), "artifacts", *map(str, arguments)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


@pytest.mark.ci
def test_a_killed_fetch_is_resumed(tmp_path: Path, out: Path) -> None:
    store = Store((tmp_path / "store").as_uri())
    files = {f"{n:03}": noise(20_000, n) for n in range(400)}
    store.publish(write_files(tmp_path / "source", files), "adapters", "1")
    out.parent.mkdir()
    _kill_at_file(50, "fetch", "adapters/1", "--store", store.uri, "--out", out)
    assert not out.exists()
    fetched = store.fetch("adapters/1", out)
    assert 0 < fetched.downloaded <= 360 * 20_000  # eight of the 50 files were in progress
    assert read_files(out) == files


@pytest.mark.parametrize("last", [1, 200])
def test_a_killed_publication_is_invisible_and_can_be_resumed(tmp_path: Path, out: Path, last: int) -> None:
    store = Store((tmp_path / "store").as_uri())
    files = {f"{n:03}": noise(10_000, n) for n in range(400)}
    source = write_files(tmp_path / "source", files)
    _kill_at_file(last, "publish", source, "--store", store.uri, "--kind", "adapters", "--version", "1")
    assert store.list() == []
    assert store.latest("adapters") is None
    with raises("artifacts.not-found", "adapters/1"):
        store.fetch("adapters/1", out)
    assert store.publish(source, "adapters", "1").created
    store.fetch("adapters/1", out)
    assert read_files(out) == files


# Two publishers of one version


def test_one_of_several_concurrent_publishers_wins(store: Store, store_uri: str, tmp_path: Path) -> None:
    sources = [
        write_files(tmp_path / f"source{n}", {"same name": noise(5000, n), f"only {n}": b"x", "shared": b"same"})
        for n in range(3)
    ]
    for round_ in range(3):
        stores = [Store(store_uri, LIMITS) for _ in sources]
        results = run_concurrently(
            partial(each.publish, source, "adapters", str(round_)) for each, source in zip(stores, sources, strict=True)
        )
        _check_one_winner(store, results, sources, tmp_path / "fetched" / str(round_), str(round_))


def test_one_publisher_wins_if_final_writes_collide(proxied: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    """Let every publisher see that the version is free and send its files before any makes them visible."""
    sources = [write_files(tmp_path / f"source{n}", {"same name": noise(5000, n)}) for n in range(3)]
    key = "adapters/1/manifest.json"

    def wait_for_all() -> None:
        wait_until(lambda: len(proxy.seen("PUT", key)) >= len(sources) or proxy.closing.is_set())

    proxy.inject(meanwhile(wait_for_all), "PUT", key, times=len(sources))
    stores = [Store(proxied.uri, LIMITS) for _ in sources]
    results = run_concurrently(
        partial(each.publish, source, "adapters", "1") for each, source in zip(stores, sources, strict=True)
    )
    _check_one_winner(proxied, results, sources, tmp_path / "fetched", "1")


def _check_one_winner(
    store: Store, results: list[PublishResult | Exception], sources: list[Path], out: Path, version: str
) -> None:
    winners = [number for number, result in enumerate(results) if isinstance(result, PublishResult)]
    losers = [each for each in results if isinstance(each, GumshoeError) and each.code == "artifacts.version-taken"]
    assert (len(winners), len(losers)) == (1, len(sources) - 1), results
    winner = results[winners[0]]
    assert isinstance(winner, PublishResult)
    assert winner.created
    assert store.manifest(f"adapters/{version}") == winner.manifest
    store.fetch(f"adapters/{version}", out)
    assert read_files(out) == read_files(sources[winners[0]])


def test_publishers_of_the_same_content_all_succeed(store: Store, store_uri: str, source: Path, out: Path) -> None:
    for version in ("1", "2"):
        stores = [Store(store_uri, LIMITS) for _ in range(4)]
        results = run_concurrently(partial(each.publish, source, "adapters", version) for each in stores)
        published = [result for result in results if isinstance(result, PublishResult)]
        assert len(published) == 4, results
        assert sorted(each.created for each in published) == [False, False, False, True]
        assert {each.manifest.publication for each in published} == {store.manifest(f"adapters/{version}").publication}
        store.fetch(f"adapters/{version}", out / version)
        assert read_files(out / version) == SMALL


# Any files


_SEGMENT = (
    st.text(st.characters(exclude_characters="/\\\0", exclude_categories=["Cs"]), min_size=1, max_size=40)
    .filter(lambda name: name not in {".", ".."})
    .filter(lambda name: len(name.encode()) <= 200)
)
_ODD = st.sampled_from(
    [
        ".x.partial",
        "..x",
        " ",
        "a ",
        "\n",
        "\u202e",
        "-rf",
        "latest.json",
        "sha256-0",
        "%2e%2e",
        "[/]",
        "~",
        "*",
        "é",
        "é",
    ]
)
_PATH = st.lists(_SEGMENT | _ODD, min_size=1, max_size=3).map("/".join)


def _can_coexist(paths: list[str]) -> bool:
    """Return True if one directory can contain all paths: none is a folder of another, or the artifact's manifest."""
    inner = {path[:at] for path in paths for at, character in enumerate(path) if character == "/"}
    return not inner & set(paths) and not any(path.split("/")[0] == "manifest.json" for path in paths)


@pytest.mark.ci
@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(st.dictionaries(_PATH, st.binary(max_size=100), min_size=1, max_size=5).filter(lambda d: _can_coexist([*d])))
def test_any_files_survive_a_round_trip(files: dict[str, bytes]) -> None:
    with TemporaryDirectory() as scratch:
        store = Store(Path(scratch, "store").as_uri())
        store.publish(write_files(Path(scratch, "source"), files), "any", "1")
        store.fetch("any/1", Path(scratch, "out"))
        assert read_files(Path(scratch, "out")) == files
        assert store.verify("any/1") == {}


def test_odd_names_survive_a_round_trip(store: Store, source: Path, out: Path) -> None:
    files = {
        ".x.partial": b"1",
        "a b/ä + %2F&?#=.txt": b"2",
        "\x01": b"4",
        "[/]": b"5",
        "a/ b ": b"6",
    }
    store.publish(write_files(source, files), "any", "1")
    store.fetch("any/1", out)
    assert read_files(out) == SMALL | files


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(
    _PATH,
    st.sampled_from(["bad\\name", "\\", "caf\udce9", "manifest.json/x"]),
)
def test_one_invalid_name_prevents_the_publication(fine: str, bad: str) -> None:
    with TemporaryDirectory() as scratch:
        store = Store(Path(scratch, "store").as_uri())
        source = write_files(Path(scratch, "source"), {bad: b""} | ({fine: b""} if _can_coexist([fine]) else {}))
        with raises("artifacts.invalid-file-name", source / bad):
            store.publish(source, "any", "1")
        assert list(store.storage.entries()) == []


def test_a_store_keeps_its_uri(store: Store, store_uri: str) -> None:
    path = store_uri if store_uri.startswith("s3:") else unquote(urlsplit(store_uri).path)
    assert store.uri == path


def test_creation_times_are_in_order_of_publication(store: Store, source: Path) -> None:
    begun = datetime.now(UTC)
    first, second = (store.publish(source, "adapters", version).manifest for version in ("1", "2"))
    assert begun <= first.created < second.created <= datetime.now(UTC)
