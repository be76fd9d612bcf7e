"""What pruning removes, what it keeps, and that nothing half removed is seen."""

import os
import re
import time
from datetime import timedelta
from pathlib import Path
from threading import Event

from gumshoe.artifacts.pruning import prune
from gumshoe.artifacts.store import Store
from tests.artifacts.fault_proxy import FaultProxy, answer, edit
from tests.artifacts.files import at_once, overwrite, read_files, write_files
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


def test_the_newest_of_each_kind_stay(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1", "b/1", "a/2", "a/3", "b/2")
    pruned = prune(store, keep=2, older_than=NOW)
    assert [manifest.reference for manifest in pruned.removed] == ["a/1"]
    assert set(pruned.kept) == {"a/2", "a/3", "b/1", "b/2"}
    assert _listed(store) == ["b/1", "a/2", "a/3", "b/2"]


def test_nothing_of_what_was_removed_is_left(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1", "a/2")
    prune(store, keep=1, older_than=NOW)
    assert [entry.key for entry in store.storage.entries("a/1")] == ["a/1/pruned.json"]
    assert store.verify("a/2") == {}


def test_a_version_that_was_removed_is_not_used_again(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1", "a/2")
    prune(store, keep=1, older_than=NOW)
    with raises("artifacts.version-pruned", store.uri, "a/1"):
        _publish(store, tmp_path, "a/1")
    assert _listed(store) == ["a/2"]


def test_what_other_programs_keep_in_the_store_is_left_alone(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1")
    foreign = {"other/x/sha256-abc.sig": b"{}", "runs/r1/checkpoint/manifest.json": b'{"layers": []}'}
    for key, data in foreign.items():
        overwrite(store, key, data, tmp_path)
    pruned = prune(store, keep=1, older_than=timedelta(days=-3650))
    assert pruned.leftovers == 0
    assert _listed(store) == ["a/1"]
    assert foreign.keys() <= {entry.key for entry in store.storage.entries()}


def test_a_kind_within_another_is_not_removed_with_it(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/b", "a/b/1", "a/c")
    prune(store, keep=1, older_than=NOW)
    assert _listed(store) == ["a/b/1", "a/c"]
    assert store.verify("a/b/1") == {}


def test_what_is_young_stays(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1", "a/2")
    pruned = prune(store, keep=1, older_than=timedelta(hours=1))
    assert pruned.removed == []
    assert pruned.kept["a/1"] == "recent"
    assert _listed(store) == ["a/1", "a/2"]


def test_the_latest_stays_though_others_are_newer(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1")
    _publish(store, tmp_path, "a/2", "a/3", latest=False)
    pruned = prune(store, keep=1, older_than=NOW)
    assert pruned.kept["a/1"] == "the latest"
    assert _listed(store) == ["a/1", "a/3"]
    assert store.manifest("a/latest").version == "1"


def test_what_something_kept_was_made_from_stays(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "mail/m1", "mail/m2", "mail/m3")
    _publish(store, tmp_path, "data/d1", made_from="mail/m1")
    _publish(store, tmp_path, "data/d2")
    _publish(store, tmp_path, "a/1", made_from="mail/m2")
    _publish(store, tmp_path, "a/2", made_from="data/d1")
    pruned = prune(store, keep=1, older_than=NOW)
    assert _listed(store) == ["mail/m1", "mail/m3", "data/d1", "data/d2", "a/2"]
    assert "a/2" in pruned.kept["data/d1"]
    assert "data/d1" in pruned.kept["mail/m1"]


def test_other_kinds_stay_where_one_is_named(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1", "b/1", "a/2", "b/2")
    pruned = prune(store, keep=1, older_than=NOW, kind="a")
    assert pruned.kept["b/1"] == "of another kind"
    assert _listed(store) == ["b/1", "a/2", "b/2"]


def test_a_dry_run_says_what_would_go_and_removes_nothing(store: Store, tmp_path: Path) -> None:
    _publish(store, tmp_path, "a/1", "a/2")
    before = list(store.storage.entries())
    pruned = prune(store, keep=1, older_than=NOW, dry_run=True)
    assert [manifest.reference for manifest in pruned.removed] == ["a/1"]
    assert list(store.storage.entries()) == before
    assert prune(store, keep=1, older_than=NOW).removed == pruned.removed


def test_an_empty_store_has_nothing_to_prune(store: Store) -> None:
    pruned = prune(store, keep=1, older_than=NOW)
    assert (pruned.removed, pruned.kept, pruned.leftovers) == ([], {}, 0)


def test_what_may_be_under_way_stays(store: Store, tmp_path: Path) -> None:
    overwrite(store, LEFTOVER, b"half", tmp_path)
    assert prune(store, keep=1, older_than=NOW).leftovers == 0
    assert [entry.key for entry in store.storage.entries()] == [LEFTOVER]


def test_old_leftovers_go_from_a_disk(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    _publish(store, tmp_path, "adapters/1")
    for key in (LEFTOVER, LEFTOVER.replace("weights.bin", ".gumshoe-0.partial"), "other/file.txt"):
        write_files(tmp_path / "store", {key: b"half"})
    old = time.time() - 2 * DAY.total_seconds()
    for path in (tmp_path / "store").rglob("*"):
        os.utime(path, (old, old))
    assert prune(store, keep=1, older_than=timedelta(days=3)).leftovers == 0
    assert prune(store, keep=1, older_than=DAY).leftovers == 1
    assert {path.split("/")[0] for path in read_files(tmp_path / "store")} == {
        "adapters",
        "other",
        ".conditional-writes",
    }
    assert not (tmp_path / "store" / "adapters" / "9").exists()
    assert store.verify("adapters/1") == {}


def _made_in_2020(listing: bytes) -> bytes:
    return re.sub(rb"<LastModified>\d{4}", b"<LastModified>2020", listing)


def test_old_leftovers_go_from_a_bucket(behind: Store, proxy: FaultProxy, tmp_path: Path, s3_bucket: str) -> None:
    import boto3

    _publish(behind, tmp_path, "adapters/1")
    overwrite(behind, LEFTOVER, b"half", tmp_path)
    s3 = boto3.client("s3")
    s3.create_multipart_upload(Bucket=s3_bucket, Key=f"project/artifacts/{LEFTOVER}")  # from 2010, says moto
    s3.create_multipart_upload(Bucket=s3_bucket, Key="elsewhere")
    proxy.inject(edit(_made_in_2020), "GET", query="list-type=2", times=None)
    assert prune(behind, keep=1, older_than=DAY).leftovers == 1
    assert [entry.key for entry in behind.storage.entries("adapters/9")] == []
    uploads = s3.list_multipart_uploads(Bucket=s3_bucket)["Uploads"]
    assert [upload.get("Key") for upload in uploads] == ["elsewhere"]
    assert behind.verify("adapters/1") == {}


def test_a_store_that_lies_in_another_is_part_of_it(behind: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    run = Store(f"{behind.uri}/runs/r1")
    _publish(behind, tmp_path, "adapters/r1")
    _publish(run, tmp_path, "checkpoints/1", "checkpoints/2")
    _publish(run, tmp_path, "results/1", made_from="checkpoints/1", latest=False)
    inner = [f"runs/r1/{each}" for each in ("checkpoints/1", "checkpoints/2", "results/1")]
    assert _listed(behind) == ["adapters/r1", *inner]
    assert [each.reference for each in behind.list("runs/r1/checkpoints")] == inner[:2]
    behind.fetch(inner[0], tmp_path / "out")
    assert read_files(tmp_path / "out")["config/name"] == b"checkpoints/1"
    assert behind.lineage(inner[2]).made_from[0].reference == inner[0]

    proxy.inject(edit(_made_in_2020), "GET", query="list-type=2", times=None)
    pruned = prune(behind, keep=1, older_than=NOW)
    assert (pruned.removed, pruned.leftovers) == ([], 0), "a result is kept, and what it was made from"
    _publish(run, tmp_path, "results/2", latest=False)
    assert [each.reference for each in prune(behind, keep=1, older_than=NOW).removed] == [inner[0], inner[2]]
    assert [each.reference for each in run.list()] == ["checkpoints/2", "results/2"]
    assert all(run.verify(each.reference) == {} for each in run.list())


def test_a_dry_run_abandons_no_upload(behind: Store, s3_bucket: str) -> None:
    import boto3

    s3 = boto3.client("s3")
    s3.create_multipart_upload(Bucket=s3_bucket, Key=f"project/artifacts/{LEFTOVER}")
    prune(behind, keep=1, older_than=NOW, dry_run=True)
    assert len(s3.list_multipart_uploads(Bucket=s3_bucket)["Uploads"]) == 1


def test_what_is_half_removed_is_not_seen(behind: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    """The manifest of a/1 goes, and then the server forbids to remove its files."""
    _publish(behind, tmp_path, "a/1", "a/2")
    proxy.inject(answer(403, "AccessDenied"), "POST", query="delete", after=1, times=None)
    with raises("store.access-denied", "a/1/sha256-"):
        prune(behind, keep=1, older_than=NOW)
    assert _listed(behind) == ["a/2"]
    assert len(list(behind.storage.entries("a/1/sha256-"))) == 1
    proxy.heal()
    proxy.inject(edit(_made_in_2020), "GET", query="list-type=2", times=None)
    assert prune(behind, keep=1, older_than=NOW).leftovers == 1
    assert [entry.key for entry in behind.storage.entries("a/1")] == ["a/1/pruned.json"]


def test_a_store_beside_this_one_is_out_of_reach(tmp_path: Path) -> None:
    ours, theirs = (Store(str(tmp_path / name)) for name in ("ours", "theirs"))
    _publish(ours, tmp_path, "a/1")
    _publish(theirs, tmp_path, "a/1")
    old = time.time() - 9 * DAY.total_seconds()
    for path in (tmp_path / "theirs").rglob("*"):
        os.utime(path, (old, old))
    before = read_files(tmp_path / "theirs")
    for kind, part in {"../theirs/a": "..", "../theirs": "..", "..": "..", "": ""}.items():
        with raises("artifacts.invalid-name", repr(part)):
            prune(ours, keep=1, older_than=NOW, kind=kind)
    assert read_files(tmp_path / "theirs") == before


def test_others_may_list_a_directory_meanwhile(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    done = Event()

    def publish_and_prune() -> None:
        try:
            for number in range(15):
                _publish(store, tmp_path, f"a/{number}")
                prune(store, keep=1, older_than=NOW)
        finally:
            done.set()

    def look() -> None:
        other = Store(store.uri)
        while not done.is_set():
            other.list()

    assert at_once([publish_and_prune, look, look]) == [None, None, None]
    assert _listed(store) == ["a/14"]
