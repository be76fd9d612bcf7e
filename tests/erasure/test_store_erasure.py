"""Erasing from a store: artifacts are replaced, outputs of steps and fetched copies are deleted."""

import json
import shutil
from pathlib import Path

import pytest

from gumshoe.artifacts.private_data import mark_private
from gumshoe.artifacts.storage import Deadline
from gumshoe.artifacts.store import Store
from gumshoe.erasure.erase import Erasure
from gumshoe.erasure.receipt import Receipt
from gumshoe.erasure.target import EraseTarget
from gumshoe.scenarios.lineage import LINEAGE_FILE
from tests.artifacts.files import find_bytes
from tests.documents.collection import make_index as make_documents
from tests.erasure.people import ABOUT_ANN, ABOUT_BOB, ANN, BOB, Run, write_lines


@pytest.fixture(params=["file", "s3"])
def store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return f"s3://{request.getfixturevalue('s3_bucket')}/store"
    return str(tmp_path / "store")


@pytest.fixture
def store(store_uri: str) -> Store:
    return Store(store_uri)


@pytest.fixture
def populated(store: Store, place: Path) -> Store:
    """Return a store with the parts of `place` as artifacts, and an adapter that was made from the questions."""
    questions = place / "published"
    write_lines(questions / "scenarios.jsonl", ABOUT_ANN, ABOUT_BOB)
    only_ann = write_lines(place / "only" / "scenarios.jsonl", ABOUT_ANN).parent
    bob = write_lines(place / "bob" / "scenarios.jsonl", ABOUT_BOB).parent
    store.publish(place / "mail", "mail-indexes", "1", settings={"owner": ANN, "seed": "1"})
    store.publish(questions, "scenarios", "1", made_from=["mail-indexes/1"])
    store.publish(bob, "scenarios", "0", latest=False)
    store.publish(place / "evaluation", "reports", "1", made_from=["scenarios/1"])
    store.publish(bob, "feedback", "1")
    store.publish(only_ann, "feedback", "2")
    store.publish(place / "run" / "of-ann", "adapters", "ann")
    store.publish(place / "run" / "of-bob", "adapters", "bob", made_from=["scenarios/1"])
    store.publish(place / "run" / "of-bob", "adapters", "other", made_from=["scenarios/0"])
    return store


@pytest.mark.ci
def test_artifacts_are_replaced_by_redacted_successors(
    populated: Store, store_uri: str, run: Run, tmp_path: Path
) -> None:
    words = ["erase", "--store", store_uri, "--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--json"]
    before = {each.reference for each in populated.list()}
    dry = json.loads(run(*words).out)
    changed = {"mail-indexes/1", "scenarios/1", "reports/1", "feedback/2"}
    assert {each["place"] for each in dry["erased"] if each["kind"] == "artifact"} == changed
    assert {each.reference for each in populated.list()} == before
    assert set(dry["adapters"]) == {"adapters/ann", "adapters/bob"}
    ran = run(*words, "--yes")
    assert ran.status == 0, ran.err
    successors = {
        each["place"]: each["successor"] for each in json.loads(ran.out)["erased"] if each["kind"] == "artifact"
    }
    assert successors == {name: f"{name}-erased-1" for name in changed - {"feedback/2"}} | {"feedback/2": None}
    assert {each.reference for each in populated.list()} == (before - changed) | set(filter(None, successors.values()))
    assert [populated.latest(kind) for kind in ("scenarios", "feedback")] == ["1-erased-1", "1"]
    settings = populated.manifest("mail-indexes/latest").settings
    assert settings == {"owner": "[erased]", "seed": "1", "replaces": ["mail-indexes/1"]}
    for each in populated.list():
        assert populated.verify(each.reference) == {}
        directory = populated.fetch(each.reference, tmp_path / "fetched" / each.reference).directory
        assert find_bytes(directory, "zircon", ANN) == set()
    assert not [
        entry.key for entry in populated.storage.entries("scenarios/1/") if not entry.key.endswith("pruned.json")
    ]


@pytest.mark.ci
def test_a_successor_of_an_interrupted_erasure_is_used(populated: Store, tmp_path: Path) -> None:
    target = EraseTarget("inbox", ANN)
    erasure = Erasure(target, [], populated, scratch=tmp_path)
    plan = erasure.plan()
    published = populated.publish(
        write_lines(tmp_path / "redacted" / "scenarios.jsonl", ABOUT_BOB).parent,
        "scenarios",
        "1-erased-1",
        settings={"replaces": "scenarios/1"},
    )
    assert published.created
    erasure.run(plan, Receipt.open(tmp_path / "r.json", target), lambda: None)
    versions = sorted(each.version for each in populated.list("scenarios"))
    assert versions == ["0", "1-erased-1"]
    assert erasure.verify() == []


def test_outputs_that_are_not_artifacts_are_deleted_if_they_quote_it(
    store: Store, store_uri: str, tmp_path: Path, run: Run
) -> None:
    contents = {"of-ann": [ANN], "of-bob": [BOB], "of-both": [ANN, BOB]}
    for name, inboxes in contents.items():
        directory = write_lines(
            tmp_path / name / "q.jsonl", *(ABOUT_ANN if each == ANN else ABOUT_BOB for each in inboxes)
        ).parent
        mark_private(directory, inboxes)
        keys = {f"steps/{name}/{path.name}": path for path in directory.iterdir()}
        store.storage.upload(keys, Deadline(60), lambda _: None)
    words = ["erase", "--store", store_uri, "--keep-caches", "--json", "--receipt", tmp_path / "receipt.json"]
    for target, expected in (
        (["--message", "2@example.com"], {"steps/of-bob", "steps/of-both"}),
        (["--inbox", ANN], {"steps/of-ann", "steps/of-both"}),
        (["--document", "d9"], set()),
    ):
        found = json.loads(run(*words, *target).out)["erased"]
        assert {each["place"] for each in found} == expected
    assert run(*words, "--inbox", ANN, "--yes").status == 0
    assert {entry.key.split("/")[1] for entry in store.storage.entries("steps/")} == {"of-bob"}


def test_a_fetched_copy_of_an_artifact_is_deleted_as_a_whole(run: Run, place: Path, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.publish(place / "evaluation", "reports", "1")
    copy = store.fetch("reports/1", place / "copy").directory
    assert (copy / "manifest.json").exists()
    assert run("erase", copy, "--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--yes").status == 0
    assert not copy.exists()


def test_artifacts_that_cannot_be_changed_are_listed(place: Path, tmp_path: Path, run: Run) -> None:
    store = Store(str(tmp_path / "store"))
    documents = make_documents(tmp_path / "built-2", [{"id": "1", "text": f"Ask {ANN}"}]).path.parents[1]
    store.publish(documents, "document-indexes", "1")
    store.publish(place / "run" / "of-bob", "adapters", "1", settings={"inbox": ANN})
    (place / "run" / "of-bob" / LINEAGE_FILE).write_text("{")
    store.publish(place / "run" / "of-bob", "adapters", "2")
    words = ["erase", "--store", tmp_path / "store", "--inbox", ANN, "--everywhere", "--yes", "--json"]
    assert run(*words).code == "erasure.incomplete"
    receipt = Receipt.model_validate_json((tmp_path / "erasure-receipt.json").read_text())
    assert receipt.remaining == ["adapters/1", "document-indexes/1"]
    assert list(receipt.adapters) == ["adapters/2"]


def make_outdated(path: Path, field: str) -> Path:
    """Give the description of an index an earlier schema, and return the directory of the index."""
    path.write_text(json.dumps({**json.loads(path.read_text()), field: 2}))
    return path.parent


@pytest.mark.parametrize("kind", ["document-indexes", "mail-indexes"])
def test_an_index_of_another_version_is_listed_and_the_rest_is_erased(
    kind: str, place: Path, tmp_path: Path, run: Run
) -> None:
    """It is found in a store and on this machine. Without it, the erasure is complete."""
    if kind == "mail-indexes":
        target = ("--inbox", ANN)
        old = make_outdated(place / "mail" / "mail-index.json", "schema")
        content = ABOUT_ANN
    else:
        target = ("--document", "gout")
        index = make_documents(tmp_path / "built-2", [{"id": "gout", "text": "Gout."}]).path.parents[1]
        old = make_outdated(index / "index.json", "schema_version")
        content = {"source_ids": ["gout"]}
    store_uri = str(tmp_path / "store")
    store = Store(store_uri)
    store.publish(old, kind, "1")
    store.publish(write_lines(tmp_path / "published" / "q.jsonl", content).parent, "scenarios", "1")
    questions = write_lines(tmp_path / "q.jsonl", content)
    words = ["--store", store_uri, *target, "--receipt", tmp_path / "receipt.json"]
    dry = run("erase", old, questions, *words)
    for ran in (dry, run("erase", old, questions, *words, "--yes")):
        assert all(f"{name} has an index that another version" in ran.err for name in (old, f"{kind}/1"))
        assert "files/" not in ran.err  # a temporary copy
    assert (dry.status, ran.code, ran.status) == (0, "erasure.incomplete", 3)
    receipt = Receipt.model_validate_json((tmp_path / "receipt.json").read_text())
    assert receipt.remaining == sorted([str(old), f"{kind}/1"])
    assert [each.reference for each in store.list()] == [f"{kind}/1"]
    assert not questions.exists()
    assert run("artifacts", "remove", f"{kind}/1", "--store", store_uri, "--yes").status == 0
    shutil.rmtree(old)
    assert run("erase", *words, "--yes").status == 0
