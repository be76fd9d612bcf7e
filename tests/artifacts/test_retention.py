"""Retention: a setting of the store, which pruning enforces, and outputs on this machine."""

import gzip
import json
import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts import pruning
from gumshoe.artifacts.pruning import prune_store
from gumshoe.artifacts.retention import find_expired_outputs, read_retention, write_retention
from gumshoe.artifacts.store import Store
from tests.artifacts.files import overwrite, run_concurrently, write_files
from tests.conftest import CommandResult
from tests.errors import raises

Run = Callable[..., CommandResult]
DAY = timedelta(days=1)


def publish(store: Store, scratch: Path, *references: str) -> None:
    for reference in references:
        store.publish(write_files(scratch / "source", {"name": reference.encode()}), *reference.rsplit("/", 1))


def test_the_setting_of_a_store_is_changed_and_shown(store: Store, store_uri: str, run: Run) -> None:
    words = ["artifacts", "retention", "--store", store_uri]
    assert json.loads(run(*words, "--json").out) == {}
    assert json.loads(run(*words, "reports=90", "feedback=0.5", "--json").out) == {"feedback": 0.5, "reports": 90}
    assert json.loads(run(*words, "reports=none", "runs=7", "--json").out) == {"feedback": 0.5, "runs": 7}
    assert "feedback: 0.5 days" in run(*words).out
    for wrong in ("reports", "reports=x", "reports=-1", "reports=nan", "=3", "runs/a=3"):
        assert run(*words, wrong).code == "artifacts.invalid-retention"
    assert read_retention(store.storage) == {"feedback": DAY / 2, "runs": 7 * DAY}


def test_concurrent_changes_are_all_kept(store: Store) -> None:
    run_concurrently([partial(write_retention, store.storage, {f"k{number}": DAY}) for number in range(4)])
    assert read_retention(store.storage) == {f"k{number}": DAY for number in range(4)}


@pytest.mark.parametrize("text", [b"[]", b"{", b'{"reports": "soon"}', b'{"reports": null}'])
def test_a_damaged_setting_is_refused(store: Store, tmp_path: Path, text: bytes) -> None:
    """Deleting by a wrong setting, or keeping everything by mistake, would both go unnoticed."""
    overwrite(store, "retention.json", text, tmp_path)
    code = "artifacts.invalid-retention" if b"reports" in text else "artifacts.damaged-retention"
    with raises(code):
        read_retention(store.storage)


def test_pruning_enforces_the_setting(store: Store, store_uri: str, run: Run, tmp_path: Path) -> None:
    publish(store, tmp_path, "runs/a/reports/1", "feedback/1", "adapters/1")
    write_retention(store.storage, {"reports": timedelta(0), "feedback": DAY})
    words = ["artifacts", "prune", "--store", store_uri, "--json"]
    assert json.loads(run(*words).out)["removed"] == ["runs/a/reports/1"]
    assert len(store.list()) == 3
    assert json.loads(run(*words, "--retention", "reports=2", "--retention", "feedback=0").out)["removed"] == [
        "feedback/1"
    ]
    assert json.loads(run(*words, "--yes").out)["removed"] == ["runs/a/reports/1"]
    assert [each.reference for each in store.list()] == ["feedback/1", "adapters/1"]
    assert store.latest("runs/a/reports") is None
    assert json.loads(run(*words, "--retention", "feedback=999999999").out)["removed"] == []


def test_only_what_has_expired_is_removed_on_request(store: Store, tmp_path: Path) -> None:
    publish(store, tmp_path, "a/1", "a/2", "b/1", "b/2")
    pruned = prune_store(store, keep=1, older_than=timedelta(0), retention={"b": timedelta(0)}, expired_only=True)
    assert {each.reference for each in pruned.removed} == {"b/1", "b/2"}
    assert pruned.kept["a/1"] == "not expired"


def test_only_the_expired_of_the_named_kind_are_removed(store: Store, tmp_path: Path) -> None:
    publish(store, tmp_path, "a/1", "b/1")
    limits = {"a": timedelta(0), "b": timedelta(0)}
    pruned = prune_store(store, keep=5, older_than=DAY, kind="a", retention=limits)
    assert [each.reference for each in pruned.removed] == ["a/1"]
    assert list(pruned.kept) == ["b/1"]


def test_the_latest_is_the_newest_that_is_left(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(store, tmp_path, "a/1", "a/2")
    store.publish(write_files(tmp_path / "third", {"name": b"3"}), "a", "3", latest=False)
    newest = store.manifest("a/3").created
    monkeypatch.setattr(pruning, "now", lambda: newest)
    prune_store(store, keep=5, older_than=DAY, retention={"a": timedelta(0)})
    assert [each.version for each in store.list("a")] == ["3"]
    assert store.latest("a") == "3"


# Outputs


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Return a directory with outputs that were written ten days ago, and others."""
    place = tmp_path / "outputs"
    trajectory: dict[str, Any] = {"scenario": "1", "spans": [], "record": {}}
    line = {"event": "read", "principal": "ann", "principal_kind": "key", "inbox": "ann@example.com"}
    files = {
        "run/run.json": b"{}",
        "run/metrics.jsonl": b"{}\n",
        "run/step-1/trajectories.jsonl": json.dumps(trajectory).encode(),
        "e/one/metrics.json": b"{}",
        "e/one/predictions.jsonl": b"{}\n",
        "e/two/metrics.json": b"{}",
        "e/two/predictions.jsonl": b"{}\n",
        "rollouts.jsonl": json.dumps(trajectory).encode() + b"\n",
        "logs/audit.log.1": json.dumps(line).encode() + b"\n",
        "logs/audit.log.2.gz": gzip.compress(json.dumps(line).encode() + b"\n"),
        "logs/audit.log.3.gz": gzip.compress(json.dumps(line).encode() * 99)[:40],
        "logs/other.gz": b"{not compressed}",
        "rollouts.jsonl.gz": gzip.compress(json.dumps(trajectory).encode() + b"\n"),
        "logs/audit.log": json.dumps(line).encode() + b"\n",
        "index/mail-index.json": b"{}",
        "index/private.json": b'{"inboxes": null}',
        "notes.txt": b"mine",
        "store/reports/1/manifest.json": b"{}",
        "store/reports/1/sha256-0/predictions.jsonl": b"{}\n",
        "store/reports/1/sha256-0/metrics.json": b"{}",
    }
    write_files(place, files)
    for path in place.rglob("*"):
        age = 10 * 86400 if "two" not in path.parts and path.name != "audit.log" else 0
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age))
    (place / "link").symlink_to(place / "run")
    return place


def test_expired_outputs_are_found_by_kind(outputs: Path) -> None:
    limits = dict.fromkeys(("runs", "evaluations", "trajectories", "audit-logs"), 5 * DAY)
    found = {str(each.path.relative_to(outputs)): each.kind for each in find_expired_outputs(outputs, limits)}
    assert found == {
        "run": "runs",
        "e/one": "evaluations",
        "rollouts.jsonl": "trajectories",
        "rollouts.jsonl.gz": "trajectories",
        "logs/audit.log.1": "audit-logs",
        "logs/audit.log.2.gz": "audit-logs",
    }
    assert find_expired_outputs(outputs, dict.fromkeys(limits, 20 * DAY)) == []
    assert find_expired_outputs(outputs, dict.fromkeys(limits, timedelta.max)) == []
    assert find_expired_outputs(outputs, {"reports": timedelta(0)}) == []
    with raises("artifacts.no-such-directory", "absent"):
        find_expired_outputs(outputs / "absent", limits)


def test_expired_outputs_are_removed_with_yes(outputs: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GUMSHOE_STORE", raising=False)
    words = ["artifacts", "prune", "--outputs", outputs, "--retention", "runs=5", "--retention", "audit-logs=5"]
    before = sorted(outputs.rglob("*"))
    listed = json.loads(run(*words, "--json").out)
    assert {Path(each["path"]).name for each in listed["outputs"]} == {"run", "audit.log.1", "audit.log.2.gz"}
    runs = json.loads(run(*words, "--json", "--kind", "runs").out)
    assert [Path(each["path"]).name for each in runs["outputs"]] == ["run"]
    assert sorted(outputs.rglob("*")) == before
    assert run(*words, "--yes").status == 0
    assert not (outputs / "run").exists()
    assert not (outputs / "logs" / "audit.log.1").exists()
    assert (outputs / "e" / "one" / "metrics.json").exists()
    assert run("artifacts", "prune").code == "artifacts.unclear-target"
