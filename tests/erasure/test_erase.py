"""`gumshoe erase`: nothing of a person, a message or a document is left in any place, and the rest is intact."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.private_data import mark_private
from gumshoe.artifacts.response_cache import Cache
from gumshoe.artifacts.storage import Deadline
from gumshoe.artifacts.store import Store
from gumshoe.erasure.erase import Erasure
from gumshoe.erasure.places import apply_change
from gumshoe.erasure.receipt import Receipt
from gumshoe.erasure.target import EraseTarget
from gumshoe.evaluation.predictions import write_table
from gumshoe.mail.index import MailIndex
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from tests.conftest import CommandResult
from tests.documents.collection import DISEASES
from tests.documents.collection import make_index as make_documents
from tests.errors import raises
from tests.mail.mailbox import make_index, record
from tests.scenarios.questions import question

ANN, BOB = "ann@example.com", "bob@example.com"
Run = Callable[..., CommandResult]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache of judges' verdicts that quotes Ann."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("GUMSHOE_CACHE", str(directory))
    monkeypatch.chdir(tmp_path)  # for receipts
    cache = Cache(directory / "judge.sqlite")
    cache.put({"key": b"zircon, says ann@example.com"})
    cache.close()
    return directory


def write_lines(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records))
    return path


class StoppedError(Exception):
    """End an erasure between two of its steps."""


def episode(scenario: str, inbox: str, text: str) -> dict[str, Any]:
    """Return the parts of a trajectory that erasing looks at."""
    prompt = {"origin": "prompt", "text": f"Search.\nI am {inbox}. Today is Monday.\n\nWhat?", "ids": [1, 2]}
    return {"scenario": scenario, "spans": [prompt, {"origin": "injected", "text": text}], "record": {"found": []}}


def lineage_of(*scenarios: Scenario) -> Lineage:
    return Lineage.of(ScenarioSet.of(scenarios))


ABOUT_ANN = question(1, id="a", question="Where is Ann's zircon?", answer="zircon in Leeds", inbox_address=ANN)
ABOUT_BOB = question(2, id="b", question="Where is Bob's quartz?", answer="quartz in York", inbox_address=BOB)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with an index, questions, an evaluation, an adapter of Ann's questions and one of Bob's."""
    place = tmp_path / "place"
    place.mkdir()
    records = [record(1, body="zircon in Leeds", to=[ANN]), record(2, body="quartz in York", to=[BOB])]
    records[0]["from"] = records[0]["sender"] = ANN
    records[1]["from"] = records[1]["sender"] = BOB
    make_index(tmp_path / "built", records).directory.rename(place / "mail")
    write_lines(place / "questions.jsonl", ABOUT_ANN, ABOUT_BOB)
    evaluation = place / "evaluation"
    episodes = [episode("a", ANN, "zircon in Leeds"), episode("b", BOB, "quartz in York")]
    write_lines(evaluation / "trajectories" / "base.jsonl", *episodes)
    predictions = [
        {"scenario": each["id"], "question": each["question"], "answer": each["answer"]}
        for each in (ABOUT_ANN, ABOUT_BOB)
    ]
    write_lines(evaluation / "predictions.jsonl", *predictions)
    (evaluation / "predictions.csv").write_text(
        "scenario,question,answer\r\n"
        + "".join(f'{each["id"]},{each["question"]},"{each["answer"]}"\r\n' for each in (ABOUT_ANN, ABOUT_BOB))
    )
    (evaluation / "metrics.json").write_text(json.dumps({"accuracy": 0.5, "worst": [predictions[0], predictions[1]]}))
    (evaluation / "report.html").write_text("<p>zircon in Leeds</p>")
    mark_private(evaluation, [ANN, BOB])
    for name, about in (("of-ann", ABOUT_ANN), ("of-bob", ABOUT_BOB)):
        adapter = place / "run" / name
        adapter.mkdir(parents=True)
        (adapter / "adapter_config.json").write_text("{}")
        lineage_of(Scenario.model_validate(about)).write(adapter)
    return place


def find_bytes(directory: Path, *needles: str) -> set[str]:
    contents = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    return {each for each in needles if any(each.encode() in content for content in contents)}


def list_files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_without_yes_nothing_is_changed(run: Run, place: Path, tmp_path: Path, cache: Path) -> None:
    before = list_files(place)
    ran = run("erase", place, "--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--json")
    found = json.loads(ran.out)
    assert found["dry_run"] is True
    kinds = {Path(each["place"]).name: (each["kind"], each["count"]) for each in found["erased"]}
    assert kinds == {
        "mail": ("mail index", 1),
        "questions.jsonl": ("records", 1),
        "base.jsonl": ("records", 1),
        "predictions.jsonl": ("records", 1),
        "predictions.csv": ("records", 1),
        "metrics.json": ("records", 1),
        "private.json": ("records", 1),
        "report.html": ("page", 1),
        "judge.sqlite": ("cache", 1),
    }
    assert [Path(each).name for each in found["adapters"]] == ["of-ann"]
    assert list_files(place) == before
    assert (cache / "judge.sqlite").exists()
    assert not (tmp_path / "receipt.json").exists()


def test_an_inbox_is_erased_from_all_files(run: Run, place: Path, tmp_path: Path, cache: Path) -> None:
    ran = run("erase", place, "--inbox", "Ann@Example.com", "--receipt", tmp_path / "receipt.json", "--yes")
    assert ran.status == 0, ran.err
    assert find_bytes(place, "zircon", "Leeds", ANN, "Where is Ann") == set()
    assert find_bytes(place, "quartz in York", BOB, "Where is Bob") == {"quartz in York", BOB, "Where is Bob"}
    assert [hit.message_id for hit in MailIndex(place / "mail").search(BOB, ["quartz"])] == ["<2@example.com>"]
    left = [json.loads(line) for line in (place / "questions.jsonl").read_text().splitlines()]
    assert left == [ABOUT_BOB]
    metrics = json.loads((place / "evaluation" / "metrics.json").read_text())
    assert (metrics["accuracy"], [each["scenario"] for each in metrics["worst"]]) == (0.5, ["b"])
    assert json.loads((place / "evaluation" / "private.json").read_text())["inboxes"] == [BOB]
    assert not (place / "evaluation" / "report.html").exists()
    assert not list(cache.glob("judge.sqlite*"))
    assert "of-ann" in ran.err
    assert "of-bob" not in ran.err
    receipt = (tmp_path / "receipt.json").read_text()
    assert "ann@" not in receipt.lower()
    written = Receipt.model_validate_json(receipt)
    assert written.finished is not None
    assert written.hash == EraseTarget("inbox", ANN).hash(written.salt)
    assert [Path(each).name for each in written.adapters] == ["of-ann"]
    again = run("erase", place, "--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--yes", "--json")
    assert (again.status, json.loads(again.out)["remaining"]) == (0, [])


def test_an_interrupted_erasure_can_be_run_again(
    place: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt it after each of its steps, and run it again at the end."""

    count = 0
    while True:
        done = 0

        def apply_some(*arguments: Any) -> None:
            nonlocal done
            if done >= 1:
                raise StoppedError
            done += 1
            apply_change(*arguments)

        erasure = Erasure(EraseTarget("inbox", ANN), [place], None)
        receipt = Receipt.open(tmp_path / "receipt.json", EraseTarget("inbox", ANN))
        plan = erasure.plan(receipt)
        if plan.is_empty:
            break
        count += 1
        with monkeypatch.context() as patched, suppress(StoppedError):
            patched.setattr("gumshoe.erasure.erase.apply_change", apply_some)
            erasure.run(plan, receipt, partial(receipt.write, tmp_path / "receipt.json"))
        assert count < 20
    assert count > 5
    assert find_bytes(place, "zircon", "Leeds", ANN, "Where is Ann") == set()
    ran = run("erase", place, "--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--yes")
    assert ran.status == 0
    written = Receipt.model_validate_json((tmp_path / "receipt.json").read_text())
    assert [Path(each).name for each in written.adapters] == ["of-ann"]
    assert written.pending is None


def test_records_that_only_an_erased_question_identifies_are_found_after_an_interruption(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop after the file with the question: nothing else tells whose the predictions are, in two places."""
    first = write_lines(tmp_path / "1" / "a" / "q.jsonl", ABOUT_ANN).parent.parent
    answer = {"scenario": "a", "question": ABOUT_ANN["question"], "answer": "zircon"}
    write_lines(first / "b" / "choices.jsonl", {"scenario": "a", "choice": "zircon"})
    second = write_lines(tmp_path / "2" / "p.jsonl", answer, {**answer, "question": "Where is Bob's?"}).parent
    words = ["erase", first, second, "--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--yes"]

    def stop_after_questions(change: Any, target: EraseTarget) -> None:
        apply_change(change, target)
        raise StoppedError

    with monkeypatch.context() as patched, suppress(StoppedError):
        patched.setattr("gumshoe.erasure.erase.apply_change", stop_after_questions)
        run(*words)
    assert (find_bytes(first, "Where is Ann"), find_bytes(first, "zircon")) == (set(), {"zircon"})
    receipt = (tmp_path / "receipt.json").read_text()
    assert "zircon" not in receipt
    assert "Where is" not in receipt
    assert run(*words).status == 0
    assert find_bytes(first, "zircon") == set()
    assert (second / "p.jsonl").read_text().count("zircon") == 1
    assert Receipt.model_validate_json((tmp_path / "receipt.json").read_text()).pending is None


def test_other_people_keep_their_records_of_the_same_question(run: Run, tmp_path: Path) -> None:
    """In predictions with the same text or id, in feedback, whose episodes all have one id, and in CSV."""
    same = {**ABOUT_BOB, "question": ABOUT_ANN["question"], "id": "b"}
    place = tmp_path / "place"
    write_lines(place / "1" / "q.jsonl", ABOUT_ANN, same)
    answers = [
        {"scenario": name, "question": same["question"], "answer": text} for name, text in (("a", "beryl"), ("b", "q"))
    ]
    write_lines(place / "1" / "predictions.jsonl", *answers)
    write_table(place / "1" / "predictions.csv", [])
    table = (place / "1" / "predictions.csv").read_bytes()
    head = table.splitlines()[0].decode("utf-8-sig").split(",")
    assert head[0] == "scenario"
    rows = [[each["scenario"], "", "'=1", each["answer"]] for each in answers]  # a question that looks like a formula
    (place / "1" / "predictions.csv").write_bytes(table + "".join(f"{','.join(row)}\r\n" for row in rows).encode())
    feedback = [episode("asked", ANN, "beryl"), episode("asked", BOB, "quartz"), episode("asked", BOB, "jade")]
    write_lines(place / "2" / "trajectories.jsonl", *feedback)
    options = ["--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--yes"]
    assert run("erase", place / "1", place / "2", *options).status == 0
    assert find_bytes(place, "beryl", ANN) == set()
    left = [json.loads(line)["scenario"] for line in (place / "1" / "predictions.jsonl").read_text().splitlines()]
    assert left == ["b"]
    assert (place / "1" / "predictions.csv").read_bytes() == table + f"{','.join(rows[1])}\r\n".encode()
    assert len((place / "2" / "trajectories.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("name", ["ann@bücher.example", "ANN@BÜCHER.example", "ann@xn--bcher-kva.example"])
def test_all_spellings_of_an_address_are_erased(run: Run, tmp_path: Path, name: str) -> None:
    place = tmp_path / "place"
    spellings = ("ann@bücher.example", "Ann@BÜCHER.example", "ann@xn--bcher-kva.example")
    records = [{**ABOUT_BOB, "id": f"{number}", "inbox_address": each} for number, each in enumerate(spellings)]
    episodes = [episode(f"{number}", each, "x") for number, each in enumerate(spellings)]
    write_lines(place / "q.jsonl", *records, ABOUT_BOB, {**ABOUT_BOB, "id": "k", "inbox_address": "\u212aim@b.example"})
    write_lines(place / "more" / "t.jsonl", *episodes, episode("b", BOB, "y"))
    (place / "more" / "run.log").write_text("".join(f"asked by {each}\n" for each in spellings) + "end\n")
    mark_private(place / "more", [*spellings, BOB])
    options = ["--inbox", name, "--everywhere", "--receipt", tmp_path / "receipt.json", "--yes"]
    assert run("erase", place, *options).status == 0
    assert [json.loads(line)["id"] for line in (place / "q.jsonl").read_text().splitlines()] == ["b", "k"]
    assert len((place / "more" / "t.jsonl").read_text().splitlines()) == 1
    assert (place / "more" / "run.log").read_text() == "end\n"
    assert json.loads((place / "more" / "private.json").read_text())["inboxes"] == [BOB]
    assert run("erase", place, "--inbox", "kim@b.example", "--everywhere", "--yes").status == 0
    assert len((place / "q.jsonl").read_text().splitlines()) == 2


def test_a_document_of_another_collection_stays(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "place"
    about = {"question": "What?", "answer": "A toe.", "document_ids": ["gout"]}
    questions = [{**about, "id": "h", "collections": ["hr"]}, {**about, "id": "e", "collections": ["eng-*"]}]
    found = "Gout\n  x\n  id: gout"
    episodes = [{"scenario": name, "text": found} for name in ("h", "e", "?")]
    write_lines(place / "q.jsonl", *questions, {**about, "id": "u"}, {**about, "id": "q", "document_ids": ["eng:gout"]})
    write_lines(place / "t.jsonl", *episodes, {"scenario": "q", "text": "x\n  id: eng:gout"})
    write_lines(place / "audit.log", {"collections": ["eng"], "sources": ["gout"]}, {"sources": ["gout"]})
    options = ["--document", "gout", "--collection", "hr", "--receipt", tmp_path / "receipt.json", "--yes"]
    assert run("erase", place, *options).status == 0
    assert [json.loads(line)["id"] for line in (place / "q.jsonl").read_text().splitlines()] == ["e", "q"]
    assert [json.loads(line)["scenario"] for line in (place / "t.jsonl").read_text().splitlines()] == ["e", "q"]
    assert len((place / "audit.log").read_text().splitlines()) == 1
    assert run("erase", place, *options[:2], "--collection", "HR").code == "documents.invalid-collection"


def test_a_record_inside_a_document_is_erased_as_a_whole(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "place"
    write_lines(place / "q.jsonl", ABOUT_ANN, ABOUT_BOB)
    answers = {each["id"]: {"scenario": each["id"], "answer": each["answer"]} for each in (ABOUT_ANN, ABOUT_BOB)}
    (place / "metrics.json").write_text(json.dumps({"best": answers["b"], "worst": answers["a"], "by": answers}))
    (place / "one.json").write_text(json.dumps(ABOUT_ANN))
    assert run("erase", place, "--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--yes").status == 0
    assert find_bytes(place, "zircon") == set()
    erased = {"best": answers["b"], "worst": "[erased]", "by": {"a": "[erased]", "b": answers["b"]}}
    assert json.loads((place / "metrics.json").read_text()) == erased
    assert not (place / "one.json").exists()


def test_the_page_beside_an_evaluation_is_deleted(run: Run, tmp_path: Path) -> None:
    """A step of a pipeline writes its page beside its directory, under a name without a suffix."""
    place = tmp_path / "step"
    write_lines(place / "made" / "predictions.jsonl", {**ABOUT_ANN, "scenario": "a"}, {**ABOUT_BOB, "scenario": "b"})
    mark_private(place / "made", [ANN, BOB], beside=["report", "../outside"])
    for path in (place / "report", place / "other", place / "outside", tmp_path / "outside"):
        path.write_text("<p>zircon</p>")
    assert run("erase", place, "--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--yes").status == 0
    assert {path.name for path in place.iterdir()} == {"made", "other"}
    assert (tmp_path / "outside").exists()


def test_a_person_is_erased_everywhere(run: Run, place: Path, tmp_path: Path) -> None:
    write_lines(
        place / "more.jsonl",
        {**ABOUT_BOB, "id": "c", "question": "Who?", "answer": f"ask {ANN}"},
        {**ABOUT_BOB, "id": "d"},
    )
    write_lines(place / "others.jsonl", {**ABOUT_BOB, "id": "e", "answer": "ask joann@example.com.au"})
    (place / "run.log").write_text(f"one\nread the inbox {ANN}\ntwo\n")
    options = ["--inbox", ANN, "--everywhere", "--receipt", tmp_path / "receipt.json", "--yes"]
    ran = run("erase", place, *options)
    assert ran.status == 0, ran.err
    assert [json.loads(line)["id"] for line in (place / "more.jsonl").read_text().splitlines()] == ["d"]
    assert len((place / "others.jsonl").read_text().splitlines()) == 1
    assert (place / "run.log").read_text() == "one\ntwo\n"
    (place / "other.bin").write_bytes(b"\0\1" + ANN.encode())
    ran = run("erase", place, *options)
    assert (ran.status, ran.code) == (3, "erasure.incomplete")
    assert "other.bin" in ran.err


def test_a_message_is_erased(run: Run, place: Path, tmp_path: Path) -> None:
    found = episode("b", BOB, "  id: <1@example.com>\n zircon in Leeds")
    write_lines(place / "evaluation" / "trajectories" / "new.jsonl", found, episode("b", BOB, "11@example.com"))
    ran = run("erase", place, "--message", "<1@example.com>", "--receipt", tmp_path / "receipt.json", "--yes")
    assert ran.status == 0, ran.err
    assert find_bytes(place, "zircon", "Where is Ann") == set()
    assert find_bytes(place, "11@example.com", "quartz in York") == {"11@example.com", "quartz in York"}
    with raises("mail.message-not-found", "1@example.com"):
        MailIndex(place / "mail").read(ANN, "<1@example.com>")


def test_a_document_is_erased(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    make_documents(tmp_path / "built", DISEASES).path.parents[1].rename(place / "documents")
    names = {"1": "gout", "2": "gouty"}
    questions = [
        {"id": number, "question": f"What is {number}?", "answer": "A toe.", "document_ids": [name]}
        for number, name in names.items()
    ]
    write_lines(place / "q.jsonl", *questions)
    episodes = [{"scenario": "7", "text": "Gout\n  x\n  id: gout"}, {"scenario": "8", "text": "no gout"}]
    write_lines(place / "t.jsonl", *episodes)
    ran = run("erase", place, "--document", "gout", "--receipt", tmp_path / "receipt.json", "--yes")
    assert ran.status == 0, ran.err
    assert find_bytes(place, "uric", "crystals", "podagra") == set()
    assert find_bytes(place, "Influenza", "gouty", '"8"') == {"Influenza", "gouty", '"8"'}
    assert '"7"' not in (place / "t.jsonl").read_text()


def test_adapters_of_an_inbox_are_named_even_if_its_questions_are_gone(run: Run, place: Path) -> None:
    lineage = Lineage.of(ScenarioSet.of([]), before=lineage_of(Scenario.model_validate(ABOUT_ANN)))
    lineage.write(place / "run" / "of-bob")
    for run_directory in (place / "run", place / "run" / "of-bob"):
        found = json.loads(run("erase", run_directory, "--inbox", ANN, "--json").out)
        assert found["erased"] == [
            {"place": found["erased"][0]["place"], "kind": "cache", "count": 1, "successor": None}
        ]
        assert "of-bob" in {Path(each).name for each in found["adapters"]}
    assert json.loads(run("erase", place / "run", "--message", "1@example.com", "--json").out)["adapters"] == {}


# Stores


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
    assert settings == {"owner": "[erased]", "seed": "1", "replaces": "mail-indexes/1"}
    for each in populated.list():
        assert populated.verify(each.reference) == {}
        directory = populated.fetch(each.reference, tmp_path / "fetched" / each.reference).directory
        assert find_bytes(directory, "zircon", ANN) == set()
    assert not [
        entry.key for entry in populated.storage.entries("scenarios/1/") if not entry.key.endswith("pruned.json")
    ]


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


# Targets


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], "erasure.unclear-target"),
        (["--inbox", ANN, "--message", "x"], "erasure.unclear-target"),
        (["--inbox", "ann"], "mail.invalid-address"),
        (["--message", " <> "], "erasure.empty-target"),
        (["--message", "1@x", "--everywhere"], "erasure.option-conflict"),
        (["--inbox", ANN, "--collection", "hr"], "erasure.option-conflict"),
    ],
)
def test_invalid_targets_are_refused(run: Run, place: Path, options: list[str], code: str) -> None:
    before = list_files(place)
    ran = run("erase", place, *options, "--yes")
    assert (ran.status, ran.code) == (2, code)
    assert list_files(place) == before


def test_invalid_places_and_receipts_are_refused(run: Run, place: Path, tmp_path: Path) -> None:
    assert run("erase", "--inbox", ANN).code == "erasure.no-places"
    assert run("erase", tmp_path / "absent", "--inbox", ANN).code == "erasure.no-such-place"
    receipt = tmp_path / "receipt.json"
    assert run("erase", place, "--inbox", ANN, "--receipt", receipt, "--yes").status == 0
    before = list_files(place)
    assert run("erase", place, "--inbox", BOB, "--receipt", receipt, "--yes").code == "erasure.other-receipt"
    assert list_files(place) == before


def test_files_of_other_programs_are_not_changed(run: Run, place: Path, tmp_path: Path) -> None:
    """A database that is not a cache, a symbolic link, and a published artifact on the same disk."""
    database = sqlite3.connect(place / "own.sqlite")
    database.execute("CREATE TABLE notes (text TEXT)")
    database.execute("INSERT INTO notes VALUES (?)", (f"call {ANN}",))
    database.commit()
    database.close()
    outside = write_lines(tmp_path / "outside.jsonl", ABOUT_ANN)
    (place / "link.jsonl").symlink_to(outside)
    Store(str(place / "store")).publish(outside.parent / "place" / "evaluation", "reports", "1")
    before = list_files(place / "store") | {"outside": outside.read_bytes()}
    ran = run("erase", place, "--inbox", ANN, "--everywhere", "--receipt", tmp_path / "receipt.json", "--yes")
    assert (ran.status, ran.code) == (3, "erasure.incomplete")
    assert "own.sqlite" in ran.err
    assert list_files(place / "store") | {"outside": outside.read_bytes()} == before


def test_a_fetched_copy_of_an_artifact_is_deleted_as_a_whole(run: Run, place: Path, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.publish(place / "evaluation", "reports", "1")
    copy = store.fetch("reports/1", place / "copy").directory
    assert (copy / "manifest.json").exists()
    assert run("erase", copy, "--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--yes").status == 0
    assert not copy.exists()


def test_targets_match_whole_names() -> None:
    person = EraseTarget("inbox", ANN, everywhere=True)
    for text in (ANN, f"<{ANN}>", f"to {ANN.upper()}, and", f'"{ANN}"', f"mailto:{ANN}."):
        assert person.concerns([text]), text
    for text in ("joann@example.com", "x.ann@example.com", "ann@example.com.au", "ann@example.community", "ann"):
        assert not person.concerns([text]), text
    inbox = EraseTarget("inbox", ANN)
    assert inbox.concerns({"inbox_address": ANN.upper()})
    assert not inbox.concerns({"answer": ANN})
    document = EraseTarget("document", "a.b")
    for text in ("a.b", " a.b ", "hr:a.b", "a.b#3", "Title\n  text\n  id: a.b"):
        assert document.concerns([text]), text
    for text in ("a-b", "a.b.c", "see a.b here", "a.b#x", "id: a.bc"):
        assert not document.concerns([text]), text
    with raises("erasure.empty-target"):
        EraseTarget("document", " ")
