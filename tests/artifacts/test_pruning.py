"""Pruning: what it removes, what it keeps, and that nothing half-removed is visible."""

import os
import re
import time
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest

from gumshoe.artifacts.deployments import record_deployment
from gumshoe.artifacts.pruning import prune_store, remove_named
from gumshoe.artifacts.store import Store
from tests.artifacts.fault_proxy import FaultProxy, answer, edit
from tests.artifacts.files import overwrite, read_files, run_concurrently, write_files
from tests.errors import raises

NOW = timedelta(0)
DAY = timedelta(days=1)
LEFTOVER = "adapters/9/sha256-00000000000000000000000000000000/weights.bin"


def _publish(store: Store, scratch: Path, *references: str, latest: bool = True, made_from: str | None = None) -> None:
    for reference in references:
        kind, _, version = reference.rpartition("/")
        source = write_files(scratch / "source", {"config/name": reference.encode()})
        store.publish(source, kind, version, made_from=[made_from] if made_from else [], latest=latest)


def _listed(store: Store) -> list[str]:
    return [manifest.reference for manifest in store.list()]


def test_the_newest_of_each_kind_are_kept(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1", "b/1", "a/2", "a/3", "b/2")
    pruned = prune_store(store, keep=2, older_than=NOW)
    assert [manifest.reference for manifest in pruned.removed] == ["a/1"]
    assert set(pruned.kept) == {"a/2", "a/3", "b/1", "b/2"}
    assert _listed(store) == ["b/1", "a/2", "a/3", "b/2"]


def test_removal_deletes_every_file(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1", "a/2")
    prune_store(store, keep=1, older_than=NOW)
    assert [entry.key for entry in store.storage.entries("a/1")] == ["a/1/pruned.json"]
    assert store.verify("a/2") == {}


def test_an_interrupted_removal_is_continued(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest is gone, but not the files."""
    _publish(store, tmp_path, "a/1", "a/2", "a/3")
    delete = store.storage.delete

    def fail_on_files(keys: list[str]) -> None:
        if any("sha256-" in key for key in keys):
            raise OSError("no answer")
        delete(keys)

    with monkeypatch.context() as patched:
        patched.setattr(store.storage, "delete", fail_on_files)
        with pytest.raises(OSError, match="no answer"):
            remove_named(store, ["a/3", "a/1"])
    assert len([*store.storage.entries("a/3/sha256-")]) > 0
    assert remove_named(store, ["a/3", "a/1"]).removed == ["a/3", "a/1"]
    assert [*store.storage.entries("a/3/sha256-")] == []
    assert (_listed(store), store.latest("a")) == (["a/2"], "2")


def test_a_pruned_version_cannot_be_published_again(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1", "a/2")
    prune_store(store, keep=1, older_than=NOW)
    with raises("artifacts.version-pruned", store.uri, "a/1"):
        _publish(store, tmp_path, "a/1")
    assert _listed(store) == ["a/2"]


def test_files_of_other_programs_are_kept(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1")
    foreign = {"other/x/sha256-abc.sig": b"{}", "runs/r1/checkpoint/manifest.json": b'{"layers": []}'}
    for key, data in foreign.items():
        overwrite(store, key, data, tmp_path)
    pruned = prune_store(store, keep=1, older_than=timedelta(days=-3650))
    assert pruned.leftovers == 0
    assert _listed(store) == ["a/1"]
    assert foreign.keys() <= {entry.key for entry in store.storage.entries()}


def test_a_nested_kind_is_not_removed(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/b", "a/b/1", "a/c")
    prune_store(store, keep=1, older_than=NOW)
    assert _listed(store) == ["a/b/1", "a/c"]
    assert store.verify("a/b/1") == {}


def test_recent_artifacts_are_kept(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1", "a/2")
    pruned = prune_store(store, keep=1, older_than=timedelta(hours=1))
    assert pruned.removed == []
    assert pruned.kept["a/1"] == "recent"
    assert _listed(store) == ["a/1", "a/2"]


def test_the_latest_is_kept_even_if_others_are_newer(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1")
    _publish(store, tmp_path, "a/2", "a/3", latest=False)
    pruned = prune_store(store, keep=1, older_than=NOW)
    assert pruned.kept["a/1"] == "the latest"
    assert _listed(store) == ["a/1", "a/3"]
    assert store.manifest("a/latest").version == "1"


def test_parents_of_kept_artifacts_are_kept(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "mail/m1", "mail/m2", "mail/m3")
    _publish(store, tmp_path, "data/d1", made_from="mail/m1")
    _publish(store, tmp_path, "data/d2")
    _publish(store, tmp_path, "a/1", made_from="mail/m2")
    _publish(store, tmp_path, "a/2", made_from="data/d1")
    pruned = prune_store(store, keep=1, older_than=NOW)
    assert _listed(store) == ["mail/m1", "mail/m3", "data/d1", "data/d2", "a/2"]
    assert "a/2" in pruned.kept["data/d1"]
    assert "data/d1" in pruned.kept["mail/m1"]


def test_deployed_adapters_and_what_they_were_made_from_are_kept(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "indexes/1", "indexes/2")
    _publish(store, tmp_path, "adapters/1", made_from="indexes/1")
    _publish(store, tmp_path, "adapters/2", "adapters/3", "adapters/4")
    record_deployment(store.storage, "agents.mail.one", ["1", "2", "gone"])
    record_deployment(store.storage, "agents.mail.two", ["3"])
    record_deployment(store.storage, "agents.mail.one", ["1"])
    pruned = prune_store(store, keep=1, older_than=NOW)
    assert [manifest.reference for manifest in pruned.removed] == ["adapters/2"]
    assert pruned.kept["adapters/1"] == "deployed as agents.mail.one"
    assert pruned.kept["indexes/1"] == "adapters/1 was made from it"
    record_deployment(store.storage, "agents.mail.one", [])
    assert "adapters/1" in [each.reference for each in prune_store(store, keep=1, older_than=NOW).removed]


@pytest.mark.parametrize(("kind", "kept"), [(None, {"feedback/1", "feedback/2", "feedback/3"}), ("feedback", None)])
def test_feedback_is_old_only_if_its_kind_is_named(
    store: Store, tmp_path: Path, kind: str | None, kept: set[str] | None
) -> None:
    _publish(store, tmp_path, "feedback/1", "feedback/2", "feedback/3", "a/1", "a/2")
    prune_store(store, keep=1, older_than=NOW, kind=kind)
    assert {each for each in _listed(store) if each.startswith("feedback/")} == (kept or {"feedback/3"})


def test_other_kinds_are_kept_if_a_kind_is_given(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1", "b/1", "a/2", "b/2")
    pruned = prune_store(store, keep=1, older_than=NOW, kind="a")
    assert pruned.kept["b/1"] == "of another kind"
    assert _listed(store) == ["b/1", "a/2", "b/2"]


def test_a_dry_run_removes_nothing(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1", "a/2")
    before = list(store.storage.entries())
    pruned = prune_store(store, keep=1, older_than=NOW, dry_run=True)
    assert [manifest.reference for manifest in pruned.removed] == ["a/1"]
    assert list(store.storage.entries()) == before
    assert prune_store(store, keep=1, older_than=NOW).removed == pruned.removed


def test_an_empty_store_has_nothing_to_prune(store: Store) -> None:
    pruned = prune_store(store, keep=1, older_than=NOW)
    assert (pruned.removed, pruned.kept, pruned.leftovers) == ([], {}, 0)


def test_a_recent_unfinished_publication_is_kept(store: Store, tmp_path: Path) -> None:
    overwrite(store, LEFTOVER, b"half", tmp_path)
    assert prune_store(store, keep=1, older_than=NOW).leftovers == 0
    assert [entry.key for entry in store.storage.entries()] == [LEFTOVER]


def test_old_leftovers_are_removed_from_a_disk(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    _publish(store, tmp_path, "adapters/1")
    for key in (LEFTOVER, LEFTOVER.replace("weights.bin", ".gumshoe-0.partial"), "other/file.txt"):
        write_files(tmp_path / "store", {key: b"half"})
    old = time.time() - 2 * DAY.total_seconds()
    for path in (tmp_path / "store").rglob("*"):
        os.utime(path, (old, old))
    assert prune_store(store, keep=1, older_than=timedelta(days=3)).leftovers == 0
    assert prune_store(store, keep=1, older_than=DAY, expired_only=True).leftovers == 0
    assert (tmp_path / "store" / LEFTOVER).exists()
    assert prune_store(store, keep=1, older_than=DAY).leftovers == 1
    assert {path.split("/")[0] for path in read_files(tmp_path / "store")} == {
        "adapters",
        "other",
        ".conditional-writes",
    }
    assert not (tmp_path / "store" / "adapters" / "9").exists()
    assert store.verify("adapters/1") == {}


def _dated_2020(listing: bytes) -> bytes:
    return re.sub(rb"<LastModified>\d{4}", b"<LastModified>2020", listing)


def test_old_leftovers_are_removed_from_a_bucket(
    proxied: Store, proxy: FaultProxy, tmp_path: Path, s3_bucket: str
) -> None:
    import boto3

    _publish(proxied, tmp_path, "adapters/1")
    overwrite(proxied, LEFTOVER, b"half", tmp_path)
    s3 = boto3.client("s3")
    s3.create_multipart_upload(Bucket=s3_bucket, Key=f"project/artifacts/{LEFTOVER}")  # from 2010, says moto
    s3.create_multipart_upload(Bucket=s3_bucket, Key="elsewhere")
    proxy.inject(edit(_dated_2020), "GET", query="list-type=2", times=None)
    assert prune_store(proxied, keep=1, older_than=DAY, expired_only=True).leftovers == 0
    assert [entry.key for entry in proxied.storage.entries("adapters/9")] == [LEFTOVER]
    assert len(s3.list_multipart_uploads(Bucket=s3_bucket)["Uploads"]) == 2
    assert prune_store(proxied, keep=1, older_than=DAY).leftovers == 1
    assert [entry.key for entry in proxied.storage.entries("adapters/9")] == []
    uploads = s3.list_multipart_uploads(Bucket=s3_bucket)["Uploads"]
    assert [upload.get("Key") for upload in uploads] == ["elsewhere"]
    assert proxied.verify("adapters/1") == {}


@pytest.mark.ci
def test_a_nested_store_is_part_of_the_outer_one(proxied: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    run = Store(f"{proxied.uri}/runs/r1")
    _publish(proxied, tmp_path, "adapters/r1")
    _publish(run, tmp_path, "checkpoints/1", "checkpoints/2")
    _publish(run, tmp_path, "results/1", made_from="checkpoints/1", latest=False)
    inner = [f"runs/r1/{each}" for each in ("checkpoints/1", "checkpoints/2", "results/1")]
    assert _listed(proxied) == ["adapters/r1", *inner]
    assert [each.reference for each in proxied.list("runs/r1/checkpoints")] == inner[:2]
    proxied.fetch(inner[0], tmp_path / "out")
    assert read_files(tmp_path / "out")["config/name"] == b"checkpoints/1"
    assert proxied.lineage(inner[2]).made_from[0].reference == inner[0]

    proxy.inject(edit(_dated_2020), "GET", query="list-type=2", times=None)
    pruned = prune_store(proxied, keep=1, older_than=NOW)
    assert (pruned.removed, pruned.leftovers) == ([], 0), "a kept result keeps its parents"
    _publish(run, tmp_path, "results/2", latest=False)
    assert [each.reference for each in prune_store(proxied, keep=1, older_than=NOW).removed] == [inner[0], inner[2]]
    assert [each.reference for each in run.list()] == ["checkpoints/2", "results/2"]
    assert all(run.verify(each.reference) == {} for each in run.list())


def test_a_dry_run_aborts_no_upload(proxied: Store, s3_bucket: str) -> None:
    import boto3

    s3 = boto3.client("s3")
    s3.create_multipart_upload(Bucket=s3_bucket, Key=f"project/artifacts/{LEFTOVER}")
    prune_store(proxied, keep=1, older_than=NOW, dry_run=True)
    assert len(s3.list_multipart_uploads(Bucket=s3_bucket)["Uploads"]) == 1


def test_a_half_removed_artifact_is_not_visible(proxied: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    """Deny deletes after the manifest of a/1 is gone, so that its files remain."""
    _publish(proxied, tmp_path, "a/1", "a/2")
    proxy.inject(answer(403, "AccessDenied"), "POST", query="delete", after=1, times=None)
    with raises("store.access-denied", "a/1/sha256-"):
        prune_store(proxied, keep=1, older_than=NOW)
    assert _listed(proxied) == ["a/2"]
    assert len(list(proxied.storage.entries("a/1/sha256-"))) == 1
    proxy.heal()
    proxy.inject(edit(_dated_2020), "GET", query="list-type=2", times=None)
    assert prune_store(proxied, keep=1, older_than=NOW).leftovers == 1
    assert [entry.key for entry in proxied.storage.entries("a/1")] == ["a/1/pruned.json"]


def test_a_kind_cannot_reach_a_neighbouring_store(tmp_path: Path) -> None:
    ours, theirs = (Store(str(tmp_path / name)) for name in ("ours", "theirs"))
    _publish(ours, tmp_path, "a/1")
    _publish(theirs, tmp_path, "a/1")
    old = time.time() - 9 * DAY.total_seconds()
    for path in (tmp_path / "theirs").rglob("*"):
        os.utime(path, (old, old))
    before = read_files(tmp_path / "theirs")
    for kind, part in {"../theirs/a": "..", "../theirs": "..", "..": "..", "": ""}.items():
        with raises("artifacts.invalid-name", repr(part)):
            prune_store(ours, keep=1, older_than=NOW, kind=kind)
    assert read_files(tmp_path / "theirs") == before


def test_a_store_can_be_listed_during_pruning(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    done = Event()

    def publish_and_prune() -> None:
        try:
            for number in range(15):
                _publish(store, tmp_path, f"a/{number}")
                prune_store(store, keep=1, older_than=NOW)
        finally:
            done.set()

    def list_repeatedly() -> None:
        other = Store(store.uri)
        while not done.is_set():
            other.list()

    assert run_concurrently([publish_and_prune, list_repeatedly, list_repeatedly]) == [None, None, None]
    assert _listed(store) == ["a/14"]
