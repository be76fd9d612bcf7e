"""`gumshoe erase`: nothing of a person, a message or a document is left in a directory, and the rest is intact."""

import gzip
import json
import os
import socket
import sqlite3
from pathlib import Path

import pytest

from gumshoe.artifacts.private_data import mark_private
from gumshoe.artifacts.response_cache import Cache
from gumshoe.artifacts.store import Store
from gumshoe.documents.build import DocumentBuildOptions
from gumshoe.erasure.receipt import Receipt
from gumshoe.erasure.target import EraseTarget
from gumshoe.evaluation.predictions import write_table
from gumshoe.mail.build import extend_mail_index
from gumshoe.mail.index import MailIndex
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from tests.artifacts.files import find_bytes, read_files
from tests.documents.collection import DISEASES
from tests.documents.collection import make_index as make_documents
from tests.erasure.people import ABOUT_ANN, ABOUT_BOB, ANN, BOB, Run, episode, lineage_of, write_lines
from tests.errors import raises
from tests.mail.mailbox import make_index, record, write_jsonl


def test_without_yes_nothing_is_changed(run: Run, place: Path, tmp_path: Path, cache: Path) -> None:
    before = read_files(place, manifest=True)
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
        "pages": ("cache", 1),
    }
    assert [Path(each).name for each in found["adapters"]] == ["of-ann"]
    assert read_files(place, manifest=True) == before
    assert (cache / "judge.sqlite").exists()
    assert list(cache.glob("pages/*/*.page"))
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
    assert not [*cache.glob("judge.sqlite*"), *cache.glob("pages")]
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


@pytest.mark.parametrize(
    "target",
    [("--inbox", ANN), ("--inbox", ANN, "--everywhere"), ("--message", "1@example.com")],
    ids=["inbox", "person", "message"],
)
@pytest.mark.parametrize("how", ["sync", "remove"])
def test_mail_that_was_removed_from_an_index_is_erased_from_its_files(
    run: Run, tmp_path: Path, how: str, target: tuple[str, ...]
) -> None:
    """A removal by itself leaves the text in the files until segments are merged."""
    kept = record(2, sender=BOB, to=[BOB], body="quartz")
    mail = make_index(tmp_path, [record(1, to=[ANN], body="zircon"), kept]).directory
    if how == "sync":
        extend_mail_index([write_jsonl(tmp_path / "mail.jsonl", [kept])], mail, sync=True)
    else:
        extend_mail_index([], mail, remove=["<1@example.com>"])
    assert find_bytes(mail, "zircon") == {"zircon"}
    planned = json.loads(run("erase", mail, *target, "--keep-caches", "--json").out)["erased"]
    assert [(each["kind"], each["count"]) for each in planned] == [("mail index", 1)]
    ran = run("erase", mail, *target, "--keep-caches", "--yes")
    assert ran.status == 0, ran.err
    assert find_bytes(mail, "zircon", ANN, "1@example.com") == set()
    assert [hit.message_id for hit in MailIndex(mail).search(BOB, ["quartz"])] == ["<2@example.com>"]


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


def test_a_person_whose_inbox_was_named_is_erased_everywhere(run: Run, place: Path, tmp_path: Path) -> None:
    """The index was built from one mailbox a person, and its description names them."""
    mailboxes = [
        {
            "source": write_jsonl(tmp_path / f"{owner}.jsonl", [record(number, to=[owner], sender=owner)]),
            "owner": owner,
        }
        for number, owner in ((21, ANN), (22, BOB))
    ]
    (tmp_path / "sources.yaml").write_text(json.dumps(mailboxes))
    index = place / "boxes"
    made = run("mail", "index", "--sources", tmp_path / "sources.yaml", "--inbox", ANN, "--inbox", BOB, "--out", index)
    assert made.status == 0, made.err
    assert ANN in (index / "mail-index.json").read_text()
    options = ["--inbox", ANN, "--everywhere", "--receipt", tmp_path / "receipt.json", "--yes"]
    ran = run("erase", index, *options)
    assert ran.status == 0, ran.err
    assert find_bytes(index, ANN) == set()
    assert MailIndex(index).stats()["inboxes"] == 1


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
        assert {each["kind"] for each in found["erased"]} == {"cache"}
        assert "of-bob" in {Path(each).name for each in found["adapters"]}
    assert json.loads(run("erase", place / "run", "--message", "1@example.com", "--json").out)["adapters"] == {}


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
    before = read_files(place / "store", manifest=True) | {"outside": outside.read_bytes()}
    ran = run("erase", place, "--inbox", ANN, "--everywhere", "--receipt", tmp_path / "receipt.json", "--yes")
    assert (ran.status, ran.code) == (3, "erasure.incomplete")
    assert "own.sqlite" in ran.err
    assert read_files(place / "store", manifest=True) | {"outside": outside.read_bytes()} == before


def test_directories_beside_an_index_are_searched(run: Run, place: Path, tmp_path: Path) -> None:
    """An index may be in the directory of other outputs."""
    write_lines(place / "mail" / "outputs" / "q.jsonl", ABOUT_ANN, ABOUT_BOB)
    make_documents(tmp_path / "built-2", DISEASES).path.parents[1].rename(place / "documents")
    write_lines(place / "documents" / "outputs" / "q.jsonl", ABOUT_ANN, ABOUT_BOB)
    assert run("erase", place, "--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--yes").status == 0
    for each in ("mail", "documents"):
        assert json.loads((place / each / "outputs" / "q.jsonl").read_text()) == ABOUT_BOB


def test_a_damaged_compressed_file_is_listed(run: Run, place: Path, tmp_path: Path) -> None:
    content = gzip.compress(json.dumps(ABOUT_ANN).encode() * 100)
    (place / "cut.jsonl.gz").write_bytes(content[:-9])
    (place / "damaged.jsonl.gz").write_bytes(content[:12] + b"\xff" * 9 + content[21:])
    ran = run("erase", place, "--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--yes")
    assert (ran.status, ran.code) == (3, "erasure.incomplete")
    assert "cut.jsonl.gz" in ran.err
    assert "damaged.jsonl.gz" in ran.err
    assert find_bytes(place, "zircon") == set()


def test_what_is_not_a_file_is_not_read(run: Run, place: Path, tmp_path: Path) -> None:
    """Links to nothing, to themselves and to others' files, a pipe, which would never end, and a socket."""
    (tmp_path / "others.jsonl").write_text(ANN)
    (place / "others.jsonl").symlink_to(tmp_path / "others.jsonl")
    (place / "gone.txt").symlink_to(tmp_path / "gone")
    (place / "loop.jsonl").symlink_to(place / "loop.jsonl")
    os.mkfifo(place / "pipe")
    os.mkfifo(place / "pipe.jsonl")
    options = ["--inbox", ANN, "--everywhere", "--receipt", tmp_path / "receipt.json", "--yes"]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(place / "socket"))  # the whole path may be too long
        ran = run("erase", place, *options)
    assert (ran.status, ran.code) == (0, None), ran.err


def test_a_file_that_cannot_be_read_is_listed(run: Run, place: Path, tmp_path: Path) -> None:
    options = ["--inbox", ANN, "--everywhere", "--receipt", tmp_path / "receipt.json", "--yes"]
    ran = run("erase", place, "/proc/self/mem", *options)  # which nobody can read from its start
    assert (ran.status, ran.code) == (3, "erasure.incomplete")
    receipt = Receipt.model_validate_json((tmp_path / "receipt.json").read_text())
    assert receipt.remaining == ["/proc/self/mem"]
    assert find_bytes(place / "questions.jsonl", ANN) == set()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_places_without_permission_are_listed(run: Run, place: Path, tmp_path: Path) -> None:
    hidden, listed, file = place / "hidden", place / "listed", place / "evaluation" / "private.json"
    for directory, mode in ((hidden, 0), (listed, 0o600)):
        write_lines(directory / "q.jsonl", ABOUT_ANN)
        directory.chmod(mode)
    file.chmod(0)
    (place / "hidden.jsonl").symlink_to(hidden / "q.jsonl")  # links are not read
    options = ["--inbox", ANN, "--everywhere", "--receipt", tmp_path / "receipt.json", "--yes"]
    assert run("erase", place, *options).code == "erasure.incomplete"
    receipt = Receipt.model_validate_json((tmp_path / "receipt.json").read_text())
    assert [Path(each).name for each in receipt.remaining] == ["private.json", "hidden", "listed"]
    for each in (hidden, listed, file):
        each.chmod(0o700)
    assert run("erase", place, *options).status == 0


def test_the_receipt_does_not_name_the_target_in_paths(run: Run, place: Path, tmp_path: Path) -> None:
    (place / "run" / "of-ann").rename(place / "run" / f"adapter-{ANN}")
    (place / "questions.jsonl").rename(place / f"questions-{ANN.upper()}.jsonl")
    assert run("erase", place, "--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--yes").status == 0
    receipt = (tmp_path / "receipt.json").read_text()
    assert ANN not in receipt.lower()
    assert "adapter-[erased]" in receipt
    assert "questions-[erased].jsonl" in receipt


def test_a_cache_that_names_a_person_is_deleted(run: Run, place: Path, tmp_path: Path) -> None:
    cache = Cache(place / "own.sqlite")
    cache.put({"key": f"call {ANN}".encode()})
    cache.close()
    (place / "own.sqlite-wal").write_bytes(ANN.encode())  # of a process that was killed
    options = ["--inbox", ANN, "--everywhere", "--receipt", tmp_path / "receipt.json"]
    assert run("erase", place, *options, "--yes").status == 0
    assert not list(place.glob("own.sqlite*"))


def test_files_that_still_name_a_person_are_listed(run: Run, place: Path, tmp_path: Path) -> None:
    """An index of documents, whose texts only their ids erase, and a compressed page. Adapters are named apart."""
    make_documents(tmp_path / "built-2", [{"id": "1", "text": f"Ask {ANN}"}]).path.parents[1].rename(place / "manuals")
    (place / "notes.md.gz").write_bytes(gzip.compress(f"Ask {ANN}".encode()))
    (place / "run" / "of-ann" / "README.md").write_text(f"Ask {ANN}")
    options = ["--inbox", ANN, "--everywhere", "--receipt", tmp_path / "receipt.json", "--yes", "--json"]
    ran = run("erase", place, *options)
    assert ran.code == "erasure.incomplete"
    receipt = Receipt.model_validate_json((tmp_path / "receipt.json").read_text())
    assert {Path(each).name for each in receipt.remaining} == {"documents.sqlite", "notes.md.gz"}


def test_files_of_a_deleted_copy_are_not_listed(run: Run, place: Path, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    (place / "evaluation" / "notes.md").write_text(f"Ask {ANN}")
    store.publish(place / "evaluation", "reports", "1")
    copy = store.fetch("reports/1", tmp_path / "copy").directory
    options = ["--inbox", ANN, "--everywhere", "--receipt", tmp_path / "receipt.json", "--yes"]
    assert run("erase", copy, *options).status == 0
    assert not copy.exists()


def test_passages_that_resembled_erased_ones_are_named(run: Run, tmp_path: Path) -> None:
    words = " ".join(f"w{number}" for number in range(60))
    records = [
        {"id": name, "title": "Hall", "text": f"{name} {part} {words}."}
        for name, part in (("first", "has"), ("second", "got"))
    ]
    records[1]["text"] = f"Beryl is kept in the blue box of the porter, which is a long sentence. {records[1]['text']}"
    make_documents(tmp_path, records, DocumentBuildOptions("none", tokens=72))
    ran = run("erase", tmp_path / "index", "--document", "first", "--keep-caches", "--yes")
    assert ran.status == 0, ran.err
    assert "1 passages of other documents" in ran.err
    (erased,) = Receipt.model_validate_json(Path("erasure-receipt.json").read_text()).erased
    assert (erased.kind, erased.lost) == ("document index", 1)
