"""Erasing documents: nothing of them is left in any file, and the rest is found as before."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from gumshoe.documents.build import DocumentBuildOptions
from gumshoe.documents.document_erasure import erase_documents, find_documents
from gumshoe.documents.index import DocumentIndex, DocumentNotFoundError
from gumshoe.documents.schema import is_document_index
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
