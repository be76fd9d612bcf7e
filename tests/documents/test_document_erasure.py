"""Erasing documents: nothing of them is left in any file, and the rest is found as before."""

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.sqlite import open_read_only
from gumshoe.documents.build import DocumentBuildOptions
from gumshoe.documents.document_erasure import erase_documents, find_documents
from gumshoe.documents.index import DocumentIndex, DocumentNotFoundError
from gumshoe.documents.schema import DATABASE, is_document_index, read_facts
from tests.artifacts.files import find_bytes
from tests.documents.collection import DISEASES, LEXICAL, make_index
from tests.embeddings.word_vectors import WordVectors

DENSE = DocumentBuildOptions("word-vectors")
SECRET = {"id": "secret-7", "title": "Quartz", "text": "The zircon needle is kept in Leeds.", "category": "hidden"}


@pytest.mark.parametrize("options", [LEXICAL, DENSE])
@pytest.mark.parametrize("collection", ["", "hr"])
def test_the_rest_is_found_as_if_the_document_had_never_been_there(
    tmp_path: Path, options: DocumentBuildOptions, collection: str
) -> None:
    named: dict[str, Any] = {"collection": collection} if collection else {}
    others = [each | named for each in DISEASES]
    before = make_index(tmp_path / "with", [others[0], SECRET | named, *others[1:]], options, WordVectors()).stats()
    expected = make_index(tmp_path / "without", others, options, WordVectors())
    place = tmp_path / "with" / "index"
    erase_documents(place, find_documents(place, ["secret-7"]))
    left = DocumentIndex(place, WordVectors())
    for query in ("virus fever", "zircon quartz", "toe of uric acid", "hidden", "gums"):
        assert left.view(["*"]).search(query, limit=9) == expected.view(["*"]).search(query, limit=9)
    for each in others:
        assert left.view(["*"]).read(each["id"]) == expected.view(["*"]).read(each["id"])
    with pytest.raises(DocumentNotFoundError):
        left.view(["*"]).read("secret-7")
    facts, wanted = left.stats(), expected.stats()
    for name in ("documents", "chunks", "tokens", "read", "metadata", "collections"):
        assert facts[name] == wanted[name]
    assert facts["content"] != before["content"]


PARTS = [
    f"{name} stands at the entrance of the old hall, and the keys to {name} are in the blue box of the porter."
    for name in ("Quartz", "Beryl", "Opal", "Jade", "Zircon")
]
"""Sentences that each fill a chunk of 32 tokens."""


def list_chunks(index: Path) -> list[tuple[Any, ...]]:
    """Return document id, position, start, stop and tokens of each chunk."""
    query = (
        "SELECT document_id, position, start, stop, tokens FROM chunks JOIN documents USING (document) ORDER BY chunk"
    )
    with closing(open_read_only(index / read_facts(index).folder / DATABASE)) as database:
        return list(database.execute(query))


@pytest.mark.parametrize("embedding", ["none", "word-vectors"])
@pytest.mark.parametrize("collection", ["", "hr"])
def test_passages_that_other_documents_repeat_stay_in_the_index(
    tmp_path: Path, embedding: str, collection: str
) -> None:
    """Their chunks were dropped as duplicates of the erased document's."""
    options = DocumentBuildOptions(embedding, tokens=32)
    texts = {
        "first": [PARTS[0], PARTS[1], PARTS[4]],
        "second": [PARTS[3], PARTS[1].replace(", and", "; and"), PARTS[0], PARTS[2]],
        "third": [PARTS[1], PARTS[2], PARTS[0]],
    }
    named: dict[str, Any] = {"collection": collection} if collection else {}
    records = [{"id": name, "title": "Hall", "text": " ".join(each), **named} for name, each in texts.items()]
    records = [DISEASES[0] | named, *records, DISEASES[1] | named]
    others = [each for each in records if each["id"] != "first"]
    make_index(tmp_path / "with", records, options, WordVectors())
    expected = make_index(tmp_path / "without", others, options, WordVectors())
    place = tmp_path / "with" / "index"
    assert erase_documents(place, find_documents(place, ["first"])) == 0
    left = DocumentIndex(place, WordVectors())
    assert list_chunks(place) == list_chunks(tmp_path / "without" / "index")
    for query in ("quartz", "opal box", "beryl and jade", "virus fever", "porter"):
        found, wanted = (each.view(["*"]).search(query, limit=9) for each in (left, expected))
        assert [(hit.chunk_id, hit.snippet) for hit in found] == [(hit.chunk_id, hit.snippet) for hit in wanted]
        assert [hit.score for hit in found] == pytest.approx([hit.score for hit in wanted])
    assert find_bytes(place, "zircon") == set()
    facts, wanted_facts = left.stats(), expected.stats()
    for name in ("documents", "chunks", "tokens", "collections"):
        assert facts[name] == wanted_facts[name]
    # The third document needs what the second one has taken over.
    assert erase_documents(place, find_documents(place, ["second"])) == 0
    assert [each[:2] for each in list_chunks(place) if each[0] == "third"] == [("third", number) for number in range(3)]


def test_passages_that_resemble_erased_ones_are_counted_as_lost(tmp_path: Path) -> None:
    words = " ".join(f"w{number}" for number in range(60))
    texts = {"first": f"{PARTS[0]} {words}.", "second": f"{PARTS[1]} {words}.".replace("w30", "changed")}
    records = [{"id": name, "title": "Hall", "text": each} for name, each in texts.items()]
    for name, lost in (("second", 0), ("first", 1)):
        index = make_index(tmp_path / name, records, DocumentBuildOptions("none", tokens=80))
        assert (index.stats()["chunks"], index.stats()["duplicates"]) == (3, {"near chunks": 1})
        place = tmp_path / name / "index"
        assert erase_documents(place, find_documents(place, [name])) == lost
    assert DocumentIndex(place).search("changed")[0].document_id == "second"


def test_nothing_of_an_erased_document_is_left_in_a_file(tmp_path: Path) -> None:
    twin = {**SECRET, "id": "twin-of-it"}
    make_index(tmp_path, [*DISEASES, SECRET, twin, {"id": "secret-7/x", "text": ""}], DENSE, WordVectors())
    place = tmp_path / "index"
    needles = ["secret-7", "twin-of-it", "zircon", "Leeds", "quartz", "needl", "hidden"]
    assert find_bytes(place, *needles) == set(needles)
    (place / ".partial").mkdir()
    (place / ".partial" / "documents.sqlite").write_text("zircon")  # of a build that was killed
    erase_documents(place, find_documents(place, ["twin-of-it"]))
    assert find_bytes(place, *needles) == set()
    assert len(list(place.glob("data-*"))) == 1


def test_only_the_document_of_a_collection_is_erased(tmp_path: Path) -> None:
    make_index(tmp_path, [{"id": "1", "text": f"gas {name}", "collection": name} for name in ("eng", "hr", "legal")])
    place = tmp_path / "index"
    assert len(find_documents(place, ["1"])) == 3
    erase_documents(place, find_documents(place, ["1"], "hr"))
    index = DocumentIndex(place)
    assert index.collections == ("eng", "legal")
    for name in ("eng", "legal"):
        (hit,) = index.view([name]).search("gas")
        assert index.view([name]).read(hit.document_id).text == f"gas {name}"
    assert find_bytes(place, "gas hr") == set()


def test_an_index_without_documents_is_deleted(tmp_path: Path) -> None:
    make_index(tmp_path, [SECRET])
    place = tmp_path / "index"
    (folder,) = place.glob("data-*")
    shutil.copytree(folder, place / "data-0123456789abcdef")  # of a build that was killed
    erase_documents(place, find_documents(place, ["secret-7"]))
    assert not is_document_index(place)
    assert find_bytes(place, "zircon", "secret-7") == set()
