"""Isolation of collections: nothing from another collection is found, read, or visible indirectly."""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import apsw
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.artifacts import sqlite
from gumshoe.artifacts.sqlite import open_read_only
from gumshoe.documents.build import DocumentBuildOptions, build_document_index
from gumshoe.documents.collection_names import matches_collection
from gumshoe.documents.document_writer import DocumentWriter
from gumshoe.documents.index import DocumentIndex, DocumentNotFoundError, DocumentView
from gumshoe.documents.lexical import Bm25
from gumshoe.documents.source_entries import CollectionSource, read_source_entries
from gumshoe.documents.staging import STAGING
from gumshoe.embeddings import vectors
from gumshoe.embeddings.search_options import Fusion
from gumshoe.embeddings.vectors import DenseRetriever
from gumshoe.errors import UsageError
from tests.documents.collection import LEXICAL, make_index, write_jsonl
from tests.embeddings.word_vectors import WordVectors
from tests.errors import raises

DENSE = DocumentBuildOptions("word-vectors")
COLLECTIONS = ["eng", "eng-docs", "hr", "legal"]
WORDS = ["gas", "power", "secret", "price", "lunch"]
# Text that imitates ids, names of collections, or SQL.
HOSTILE = ["hr:1", "legal", "eng-*", "* OR *", "' OR 1=1 --", "\0gas", "~2", "#0"]

text = st.lists(st.sampled_from(WORDS + HOSTILE), min_size=1, max_size=8).map(" ".join)
records = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from(["1", "2", "3", "hr:1", "1~2"]),
            "title": text,
            "text": text,
            "collection": st.sampled_from(COLLECTIONS),
            "category": st.sampled_from(WORDS),
        }
    ),
    min_size=1,
    max_size=14,
)
patterns = st.lists(st.sampled_from([*COLLECTIONS, "eng*", "*r", "absent", "*"]), min_size=1, max_size=2)


def may_read(allowed: Iterable[str], record: dict[str, Any]) -> bool:
    """Decide with Python's own matching of file names which collections may be read."""
    return any(fnmatchcase(record["collection"], each) for each in allowed)


def answer_all(view: DocumentView, options: Iterable[dict[str, Any]] = ({},)) -> list[Any]:
    """Return everything that searches and reads of a view tell."""
    queries = ["gas power", "secret", "price lunch gas", "hr:1", "* OR *"]
    found: list[Any] = [view.search(query, limit=20, **each) for query in queries for each in options]
    for wanted in ("1", "2", "3", "1~2", "1~3", "hr:1", "eng:1", "legal:1", "eng-docs:1~2", "hr:hr:1"):
        found += [ask(partial(view.read, wanted)), ask(partial(view.head, wanted))]
    found += [ask(partial(view.search, "gas", filters={"category": word})) for word in WORDS]
    found.append(ask(partial(view.search, "gas", filters={"colour": "red"})))
    return [*found, view.list_metadata()]


def ask(question: Callable[[], Any]) -> Any:
    """Return an answer, or the code and the message of an error."""
    try:
        return question()
    except (DocumentNotFoundError, UsageError) as error:
        return error.code, error.message


# Results


@pytest.mark.ci
@settings(max_examples=50, derandomize=True, deadline=None, database=None)
@given(listed=records, allowed=patterns)
def test_results_are_the_same_as_if_the_collections_were_alone(
    listed: list[dict[str, Any]], allowed: list[str]
) -> None:
    """Compare hits, scores, ranks, ids, texts, filters and errors with an index that has nothing else."""
    mine = [each for each in listed if may_read(allowed, each)]
    if not mine:
        return
    options = [{"dense_weight": weight, "fusion": fusion} for weight in (0, 0.5, 1) for fusion in get_args(Fusion)]
    with TemporaryDirectory() as directory:
        whole = make_index(Path(directory) / "whole", listed, DENSE, WordVectors())
        alone = make_index(Path(directory) / "alone", mine, DENSE, WordVectors())
        assert answer_all(whole.view(allowed), options) == answer_all(alone.view(["*"]), options)


@pytest.mark.ci
@settings(max_examples=30, derandomize=True, deadline=None, database=None)
@given(listed=records, allowed=patterns)
def test_search_and_read_return_only_allowed_documents(listed: list[dict[str, Any]], allowed: list[str]) -> None:
    mine = {each["text"].replace("\0", "\ufffd") for each in listed if may_read(allowed, each)}
    with TemporaryDirectory() as directory:
        view = make_index(Path(directory), listed).view(allowed)
        hits = [hit for word in WORDS + HOSTILE for hit in view.search(word, limit=100)]
        assert {view.read(hit.document_id).text for hit in hits} <= mine
        for hit in hits:
            assert may_read(allowed, {"collection": view.read(hit.document_id).collection})


def test_a_document_of_another_collection_looks_like_a_missing_one(tmp_path: Path) -> None:
    index = make_index(tmp_path, [{"id": "1", "text": "gas", "collection": "hr"}, {"text": "x", "collection": "eng"}])
    for look in (index.view(["eng"]).read, index.view(["eng"]).head):
        errors = []
        for wanted in ("1", "2", "hr:1", "no:1"):
            with raises("documents.document-not-found", wanted) as error:
                look(wanted)
            errors.append(error.value.message.replace(wanted, "ID"))
        assert len(set(errors)) == 1
    assert index.view(["hr"]).read("1").text == "gas"


def test_an_id_that_others_use_is_neither_renamed_nor_hidden(tmp_path: Path) -> None:
    """Let somebody publish a document under the id of one that they cannot read, and a copy of its text."""
    secret = {"id": "plan", "title": "Plan", "text": "secret gas plan", "collection": "hr"}
    attacks = [{**secret, "collection": "eng"}, {**secret, "text": "attack", "collection": "eng", "id": "plan"}]
    index = make_index(tmp_path, [*attacks, secret])
    (own,) = index.view(["hr"]).search("secret")
    assert own.document_id == "plan"
    assert index.view(["hr"]).read("plan").collection == "hr"
    assert {hit.document_id for hit in index.view(["eng"]).search("secret attack")} == {"plan", "plan~2"}
    both = index.view(["eng", "hr"])
    listed = {hit.document_id for hit in both.search("secret")}
    assert listed == {"plan", "hr:plan"}
    assert [both.read(each).collection for each in sorted(listed)] == ["hr", "eng"]
    assert [both.read(each).document_id for each in sorted(listed)] == ["hr:plan", "plan"]


def test_a_name_in_an_id_grants_nothing(tmp_path: Path) -> None:
    """Name a document as another one is listed for those who may read both collections."""
    listed = [
        {"id": "1", "text": "first", "collection": "eng"},
        {"id": "1", "text": "second", "collection": "hr"},
        {"id": "hr:1", "text": "forged", "collection": "eng"},
    ]
    index = make_index(tmp_path, listed)
    both = index.view(["eng", "hr"])
    found = {word: both.search(word)[0].document_id for word in ("first", "second", "forged")}
    assert found == {"first": "1", "second": "hr:1", "forged": "eng:hr:1"}
    assert {word: both.read(each).text for word, each in found.items()} == {word: word for word in found}
    assert index.view(["eng"]).read("hr:1").text == "forged"


# Work


def test_the_work_does_not_depend_on_what_others_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count steps of SQLite, texts that are scored, and vectors that are compared."""
    work: dict[str, int] = {}

    def count(name: str, amount: int = 1) -> bool:
        work[name] = work.get(name, 0) + amount
        return False

    def open_counted(path: Path) -> apsw.Connection:
        database = open_read_only(path)
        database.set_progress_handler(lambda: count("steps"), 1)
        return database

    monkeypatch.setattr(sqlite, "open_read_only", open_counted)
    monkeypatch.setattr(vectors, "MIN_COMPARED", 4)
    find_texts, score, measure = Bm25._find_texts, DenseRetriever.score, DenseRetriever.measure

    def find_counted(scorer: Bm25, numbers: Any) -> Any:
        for texts, times in find_texts(scorer, numbers):
            count("postings", len(texts))
            yield texts, times

    def score_counted(dense: DenseRetriever, query: Any, chunks: Any) -> Any:
        count("vectors", len(chunks))
        return score(dense, query, chunks)

    def measure_counted(dense: DenseRetriever, query: Any, chunks: Any = None) -> Any:
        distances = measure(dense, query, chunks)
        count("signs", len(distances))
        return distances

    monkeypatch.setattr(Bm25, "_find_texts", find_counted)
    monkeypatch.setattr(DenseRetriever, "score", score_counted)
    monkeypatch.setattr(DenseRetriever, "measure", measure_counted)
    mine = [{"id": str(number), "text": f"gas {number}", "collection": "hr"} for number in range(900)]
    others = [
        {"id": each, "text": f"{word} {number}", "secret": "yes", "collection": "legal"}
        for number in range(300)
        for each, word in ((str(number), "gas"), (f"x{number}", "merger"))
    ]
    found: list[tuple[Any, dict[str, int]]] = []
    for place, listed in {"alone": mine, "beside": [*others, *mine]}.items():
        view = make_index(tmp_path / place, listed, DENSE, WordVectors()).view(["hr"])
        view.search("nothing")  # opens the database and the model
        for each in (
            partial(view.search, "gas 7"),
            partial(view.search, "merger"),
            partial(view.search, "absent"),
            partial(view.search, "gas 7"),
            partial(view.search, "gas", filters={"secret": "yes"}),
            partial(view.read, "7"),
            partial(view.read, "x7"),
            partial(view.read, "legal:x7"),
        ):
            work.clear()
            answer = ask(each)
            found.append((answer, dict(work)))
    half = len(found) // 2
    assert found[:half] == found[half:]
    assert {name for _, counts in found for name in counts} == {"steps", "postings", "vectors", "signs"}
    of_words = [counts for _, counts in found[1:3]]
    assert of_words[0] == of_words[1]  # a word of others only, and a word of nobody
    read_others, read_missing = found[6][1], found[7][1]
    assert read_others == read_missing


def test_vectors_do_not_depend_on_the_texts_of_others(tmp_path: Path) -> None:
    """Use a model whose vectors depend on the other texts of a batch, as real models do a little."""

    class BatchVectors(WordVectors):
        def embed(self, texts: Any, use: Any) -> Any:
            found = super().embed(texts, use) + 0.001 * (len("".join(texts)) % 19)
            return found / np.linalg.norm(found, axis=1, keepdims=True)

    mine = [{"id": str(number), "text": f"gas {number}", "collection": "hr"} for number in range(9)]
    others = [
        {"id": str(number), "text": f"power {number}" * 9, "collection": name} for number, name in enumerate("az")
    ]
    answers = [
        make_index(tmp_path / place, listed, DENSE, BatchVectors()).view(["hr"]).search("gas 3 power")
        for place, listed in {"alone": mine, "beside": [*others, *mine]}.items()
    ]
    assert answers[0] == answers[1]
    assert answers[0]


def test_results_of_one_view_are_not_given_to_another(tmp_path: Path) -> None:
    index = make_index(tmp_path, [{"id": each, "text": "gas", "collection": each} for each in ("eng", "hr")])
    for _ in range(2):
        for each in ("eng", "hr"):
            assert [hit.document_id for hit in index.view([each]).search("gas")] == [each]
    assert index.view([]).search("gas") == []
    assert index.view(["absent"]).search("gas") == []


# Granting


def test_an_index_with_collections_cannot_be_read_without_naming_some(tmp_path: Path) -> None:
    index = make_index(tmp_path, [{"id": "1", "text": "gas", "collection": "hr"}])
    for each in (lambda: index.search("gas"), lambda: index.read("1"), lambda: index.head("1")):
        with raises("documents.collections-required"):
            each()
    assert index.collections == ("hr",)


def test_an_index_without_collections_is_readable_by_all(tmp_path: Path) -> None:
    index = make_index(tmp_path, [{"id": "1", "text": "gas"}])
    assert index.collections == ()
    assert index.stats()["collections"] == {}
    for found in (index.search("gas"), index.view(["hr"]).search("gas"), index.view([]).search("gas")):
        assert [hit.document_id for hit in found] == ["1"]
    assert index.read("1").collection == ""


def test_documents_without_a_collection_belong_to_the_default_one(tmp_path: Path) -> None:
    listed = [
        {"id": "1", "text": "gas"},
        {"id": "2", "text": "gas", "collection": "hr"},
        {"id": "3", "text": "gas two", "collection": "default"},
    ]
    index = make_index(tmp_path, listed)
    assert index.stats()["collections"] == {"default": 2, "hr": 1}
    assert {hit.document_id for hit in index.view(["default"]).search("gas")} == {"1", "3"}
    assert {hit.document_id for hit in index.view(["hr"]).search("gas")} == {"2"}


@pytest.mark.parametrize("wrong", ["HR", "h r", "", "hr/", "é", "hr\n", "-hr", "h" * 65, "\u212a", "hr*"])
def test_names_have_one_form(tmp_path: Path, wrong: str) -> None:
    if wrong != "hr*":
        with raises("documents.invalid-collection-pattern", repr(wrong)):
            make_index(tmp_path, [{"text": "gas", "collection": "hr"}]).view([wrong])
    source = write_jsonl(tmp_path / "d.jsonl", [{"text": "gas"}])
    if wrong:
        with raises("documents.invalid-collection", repr(wrong)):
            build_document_index([CollectionSource(source, wrong)], tmp_path / "other", LEXICAL)


@given(
    pattern=st.text(alphabet="ab*-", min_size=1, max_size=10).filter(lambda text: not text.startswith("-")),
    name=st.text(alphabet="ab-", min_size=1, max_size=12).filter(lambda text: not text.startswith("-")),
)
@settings(max_examples=400, derandomize=True, deadline=None, database=None)
def test_patterns_match_like_those_of_file_names(pattern: str, name: str) -> None:
    assert matches_collection([pattern], name) == fnmatchcase(name, pattern)


def test_patterns_match_whole_names(tmp_path: Path) -> None:
    names = ["eng", "eng-docs", "legal", "hr.eng", "e"]
    index = make_index(tmp_path, [{"id": each, "text": "gas", "collection": each} for each in names])
    expected = {
        "eng": {"eng"},
        "eng*": {"eng", "eng-docs"},
        "*eng": {"eng", "hr.eng"},
        "e*g": {"eng"},
        "hr.*": {"hr.eng"},
        "hr-eng": set(),
        "*": set(names),
    }
    for pattern, found in expected.items():
        assert {hit.document_id for hit in index.view([pattern]).search("gas")} == found


# Sources


def test_a_record_with_an_invalid_collection_is_left_out(tmp_path: Path) -> None:
    listed = [{"text": "gas", "collection": "Top Secret"}, {"text": "gas", "collection": 7}, {"text": "power"}]
    index = make_index(tmp_path, listed)
    assert index.stats()["unreadable"] == {"invalid collection": 2}
    assert index.view(["*"]).search("gas") == []


def test_a_source_gives_its_documents_a_collection(tmp_path: Path) -> None:
    listed = [{"id": "1", "text": "gas"}, {"id": "2", "text": "gas two", "collection": "hr"}]
    listed.append({"id": "3", "text": "gas three", "collection": "board"})
    first = write_jsonl(tmp_path / "first.jsonl", listed)
    second = write_jsonl(tmp_path / "second.jsonl", [{"id": "4", "text": "gas four"}])
    build_document_index([CollectionSource(first, "hr"), second], tmp_path / "index", LEXICAL)
    index = DocumentIndex(tmp_path / "index")
    stats = index.stats()
    assert stats["collections"] == {"default": 1, "hr": 2}
    assert stats["unreadable"] == {"in another collection": 1}
    assert stats["sources"] == [{"source": first, "collection": "hr"}, second]
    assert {hit.document_id for hit in index.view(["hr"]).search("gas")} == {"1", "2"}
    (place, reason, detail) = index.list_unreadable()[0]
    assert (place, reason) == (first, "in another collection")
    assert "board" in detail


def test_the_order_of_sources_and_records_does_not_matter_to_other_collections(tmp_path: Path) -> None:
    listed = [{"id": str(number), "text": f"gas {number % 3}", "collection": "eh"[number % 2]} for number in range(12)]
    mixed = make_index(tmp_path / "mixed", listed, DENSE, WordVectors())
    ordered = make_index(tmp_path / "ordered", [*listed[::2], *listed[1::2]], DENSE, WordVectors())
    for each in ("e", "h", "*"):
        assert answer_all(mixed.view([each])) == answer_all(ordered.view([each]))


def test_a_list_of_sources_names_collections(tmp_path: Path) -> None:
    path = tmp_path / "sources.yaml"
    path.write_text("- {source: dir:handbook, collection: hr}\n- jsonl:open.jsonl\n")
    assert read_source_entries(path) == [CollectionSource("dir:handbook", "hr"), CollectionSource("jsonl:open.jsonl")]
    for wrong in ("- {source: dir:x, owner: a}", "- {source: dir:x, collection: H R}", "- ftp:x", "[]", "a: b", "- ["):
        path.write_text(wrong)
        with pytest.raises(UsageError) as error:
            read_source_entries(path)
        assert str(path) in error.value.message
    with raises("documents.invalid-source-list", "absent.yaml"):
        read_source_entries(tmp_path / "absent.yaml")


def test_a_failed_build_leaves_no_staged_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_jsonl(tmp_path / "d.jsonl", [{"text": "gas", "collection": "hr"}, {"text": "power"}])
    seen: list[Path] = []

    def fail(writer: DocumentWriter, item: Any) -> None:
        del writer, item
        seen.extend(tmp_path.rglob(STAGING))
        raise UsageError("documents.no-documents", "stop")

    with monkeypatch.context() as patched, raises("documents.no-documents"):
        patched.setattr(DocumentWriter, "add", fail)
        build_document_index([source], tmp_path / "index", LEXICAL)
    assert len(seen) == 1
    assert not list(tmp_path.rglob(f"{STAGING}*"))
    seen[0].write_bytes(b"of a killed build")
    build_document_index([source], tmp_path / "index", LEXICAL)
    assert not list(tmp_path.rglob(f"{STAGING}*"))


def test_a_query_is_embedded_for_each_set_of_collections_by_itself(tmp_path: Path) -> None:
    """Otherwise the time of a search would tell what callers with other collections ask."""
    asked: list[str] = []

    class Recording(WordVectors):
        def embed(self, texts: Any, use: Any) -> Any:
            asked.extend(texts if use == "query" else ())
            return super().embed(texts, use)

    data = [{"id": each, "title": each, "text": "gas", "collection": each} for each in ("eng", "hr")]
    make_index(tmp_path, data, options=DENSE, embedder=WordVectors())
    index = DocumentIndex(tmp_path / "index", Recording())
    for allowed in (["eng"], ["hr"], ["eng", "hr"], ["eng"], ["*"]):
        index.view(allowed).search("gas")
        index.view(allowed).search("gas", limit=1)
    assert asked == ["gas"] * 3
