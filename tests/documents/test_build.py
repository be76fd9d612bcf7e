"""Building an index: duplicates, determinism, and that the index appears only when complete."""

import json
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gumshoe.artifacts.storage import lock_directory
from gumshoe.documents import index, schema
from gumshoe.documents.build import DocumentBuildOptions, build_document_index
from gumshoe.documents.index import DocumentIndex
from gumshoe.documents.schema import VERSION, is_document_index, read_facts
from gumshoe.embeddings.embedder import EndpointEmbedder
from gumshoe.errors import GumshoeError
from tests.documents.collection import DISEASES, LEXICAL, make_index, plain_records, write_jsonl
from tests.embeddings.word_vectors import FailingVectors, ShortVectors, WordVectors
from tests.errors import check_error, raises
from tests.kills import run_program

DENSE = DocumentBuildOptions("word-vectors")
MANY = 2500  # chunks: more than two of the windows from which a killed build resumes


def digests(directory: Path) -> dict[str, str]:
    """Verify an index, and return the digest of each of its files."""
    DocumentIndex(directory)
    facts = read_facts(directory)
    return {name: each.sha256 for name, each in facts.files.items()} | {"content": facts.content}


def test_duplicates_are_dropped_and_counted(tmp_path: Path) -> None:
    text = " ".join(f"word{number}" for number in range(60))
    records = [
        {"id": "a", "title": "T", "text": text},
        {"id": "b", "title": "T", "text": text},
        {"id": "c", "title": "T", "text": text.upper()},
        {"id": "d", "title": "T", "text": f"{text} more"},
        {"id": "e", "title": "Another", "text": text},
        {"id": "a", "title": "T", "text": "Something else."},
    ]
    source = write_jsonl(tmp_path / "d.jsonl", records)
    counts = build_document_index([source], tmp_path / "index", LEXICAL).counts
    assert counts.duplicates == {"documents": 1}
    assert (counts.read, counts.documents, counts.chunks, counts.renamed) == (6, 5, 5, 1)
    index = DocumentIndex(tmp_path / "index")
    assert {hit.document_id for hit in index.search("word7")} == {"a", "c", "d", "e"}
    assert index.read("b").document_id == "a"
    assert index.read("c").text == text.upper()
    assert index.read("a~2").text == "Something else."
    kept = build_document_index([source], tmp_path / "all", DocumentBuildOptions("none", drop_duplicates=False)).counts
    assert (kept.documents, kept.chunks, kept.duplicates) == (6, 6, {})


@pytest.mark.parametrize("second", ["b", "a"], ids=["another id", "the same id"])
def test_filters_find_a_document_by_the_metadata_of_its_duplicate(tmp_path: Path, second: str) -> None:
    same = {"title": "Gout", "text": "The toe hurts."}
    first = {"id": "a", "folder": "2023", **same}
    index = make_index(tmp_path, [first, {"id": second, "folder": "2024", "kind": ["pdf", "PDF"], **same}])
    for wanted in ({"folder": "2023"}, {"folder": "2024"}, {"folder": "2024", "kind": "pdf"}):
        assert [hit.document_id for hit in index.search("toe", filters=wanted)] == ["a"]
    assert index.search("toe", filters={"folder": "2025"}) == []
    assert index.read(second).metadata == {"folder": "2023"}
    assert index.stats()["metadata"] == {"folder": 1, "kind": 1}
    other = make_index(tmp_path / "other", [first, {"id": second, "folder": "2025", **same}])
    assert other.stats()["content"] != index.stats()["content"]


def test_a_document_of_duplicate_chunks_keeps_its_first(tmp_path: Path) -> None:
    one, two = (" ".join(f"{part}{number}" for number in range(50)) for part in ("early", "late"))
    texts = [f"{one}.\n{two}.", f"{two}.\n{one}.", f"{one}.\nSomething else."]
    records = [{"id": str(number), "title": "T", "text": text} for number, text in enumerate(texts)]
    counts = build_document_index(
        [write_jsonl(tmp_path / "d.jsonl", records)], tmp_path / "i", DocumentBuildOptions("none", 120)
    ).counts
    assert (counts.chunks, counts.duplicates) == (4, {"exact chunks": 1})
    index = DocumentIndex(tmp_path / "i")
    assert {hit.chunk_id for hit in index.search("late7")} == {"0#1", "1#0"}
    assert {hit.document_id for hit in index.search("early7 something")} == {"0", "1", "2"}


def test_the_index_records_how_it_was_built(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "d.jsonl", [*DISEASES, {"text": ""}, 3])
    report = build_document_index(
        [source], tmp_path / "index", DocumentBuildOptions("word-vectors", 99), embedder=WordVectors()
    )
    index = DocumentIndex(tmp_path / "index")
    facts = index.stats()
    assert facts["sources"] == [source]
    assert facts["options"] == {
        "embedding": "word-vectors",
        "tokens": 99,
        "language": "en",
        "ocr": True,
        "drop_duplicates": True,
    }
    assert (facts["documents"], facts["chunks"], facts["read"], facts["dimensions"]) == (4, 4, 4, 96)
    assert facts["unreadable"] == report.counts.unreadable == {"no text": 1, "not a document record": 1}
    assert facts["metadata"] == {"category": 3, "synonyms": 2, "year": 1}
    assert facts["content"] == report.content
    assert facts["bytes"] == sum(path.stat().st_size for path in (tmp_path / "index").glob("data-*/*"))
    assert [(place.rpartition(":")[2], reason) for place, reason, _ in index.list_unreadable()] == [
        ("5", "no text"),
        ("6", "not a document record"),
    ]
    json.dumps(facts)


# Determinism


def test_the_content_hash_depends_on_documents_and_options(tmp_path: Path) -> None:
    def content(name: str, records: list[Any], options: DocumentBuildOptions = LEXICAL) -> str:
        return str(make_index(tmp_path / name, records, options, WordVectors()).stats()["content"])

    same = content("a", DISEASES)
    assert content("b", DISEASES) == same
    hashes = [
        same,
        content("order", DISEASES[::-1]),
        content("fewer", DISEASES[:3]),
        content("text", [{**each, "text": f"{each['text']} More."} for each in DISEASES]),
        content("title", [{**each, "title": f"{each['title']}!"} for each in DISEASES]),
        content("id", [{**each, "id": f"{each['id']}!"} for each in DISEASES]),
        content("url", [{**each, "url": "https://x.example"} for each in DISEASES]),
        content("metadata", [{**each, "year": 2020} for each in DISEASES]),
        content("twin", [*DISEASES, {**DISEASES[0], "id": "twin"}]),
        content("tokens", DISEASES, DocumentBuildOptions("none", 100)),
        content("language", DISEASES, DocumentBuildOptions("none", language="de")),
        content("embedding", DISEASES, DENSE),
    ]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.ci
def test_builds_in_other_processes_are_identical(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "d.jsonl", [*DISEASES, *plain_records(50)])
    build_document_index([source], tmp_path / "here", LEXICAL)
    for seed in ("1", "2"):
        code = (
            "import sys; from pathlib import Path; from gumshoe.documents.build import *; "
            f"build_document_index([{source!r}], Path(sys.argv[1]), DocumentBuildOptions('none'))"
        )
        there = tmp_path / seed
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path), "PATH": ""}
        subprocess.run([sys.executable, "-c", code, str(there)], env=environment, check=True)
        assert digests(there) == digests(tmp_path / "here")


# Interrupted builds

_KILLED = """
import sys
from pathlib import Path
from gumshoe.documents import build
from tests.embeddings.word_vectors import WordVectors
from tests.kills import run_program
from tests.kills import run_killed

def run():
    options = build.DocumentBuildOptions("word-vectors")
    build.build_document_index([sys.argv[1]], Path(sys.argv[2], place), options, embedder=WordVectors())

for place in sys.argv[3:]:
    point = (WordVectors, "embed", int(place) + 1) if place.isdecimal() else (build, place, 1)
    run_killed(*point, run)
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return a source of many documents, and an index of it that was built without interruption."""
    place = tmp_path_factory.mktemp("many")
    source = write_jsonl(place / "d.jsonl", plain_records(MANY))
    build_document_index([source], place / "whole", DENSE, embedder=WordVectors())
    return source, place / "whole"


@pytest.fixture(scope="module")
def killed(many: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the files of killed builds, named by the call at which they were killed."""
    place = tmp_path_factory.mktemp("killed")
    points = ["0", "1", "2", "file_digest", "write_atomically"]
    assert run_program(_KILLED, many[0], place, *points) == [-signal.SIGKILL] * len(points)
    return place


@pytest.mark.ci
@pytest.mark.parametrize(("call", "resumed"), [(0, 0), (1, 1024), (2, 2048)])
def test_a_killed_build_resumes_with_identical_results(
    many: tuple[str, Path], killed: Path, call: int, resumed: int
) -> None:
    source, whole = many
    place = killed / str(call)
    assert not is_document_index(place)
    with raises("documents.no-index", place):
        DocumentIndex(place)
    report = build_document_index([source], place, DENSE, embedder=WordVectors())
    assert report.resumed == resumed
    assert digests(place) == digests(whole)
    assert sorted(each.name.partition("-")[0] for each in place.iterdir()) == ["data", "index.json"]


@pytest.mark.ci
@pytest.mark.parametrize("last", ["file_digest", "write_atomically"])
def test_a_build_killed_after_embedding_reuses_all_vectors(many: tuple[str, Path], killed: Path, last: str) -> None:
    source, whole = many
    place = killed / last
    assert not is_document_index(place)
    assert build_document_index([source], place, DENSE, embedder=WordVectors()).resumed == MANY
    assert digests(place) == digests(whole)
    assert sorted(each.name.partition("-")[0] for each in place.iterdir()) == ["data", "index.json"]
    assert sorted(path.name for path in place.glob("data-*/*")) == sorted(FILES)


def test_vectors_of_other_documents_are_not_reused(many: tuple[str, Path], tmp_path: Path) -> None:
    source, whole = many
    partial = tmp_path / "index" / ".partial"
    partial.mkdir(parents=True)
    (partial / "vectors.plan").write_text("0123 96")
    (partial / "vectors.f2").write_bytes(b"x" * 192 * MANY)
    assert build_document_index([source], tmp_path / "index", DENSE, embedder=WordVectors()).resumed == 0
    assert digests(tmp_path / "index") == digests(whole)


@pytest.mark.ci
def test_a_failed_build_keeps_its_vectors_and_the_old_index(many: tuple[str, Path], tmp_path: Path) -> None:
    source, whole = many
    old = make_index(tmp_path, DISEASES)
    before = digests(tmp_path / "index")
    with raises("embeddings.unreachable"):
        build_document_index([source], tmp_path / "index", DENSE, replace=True, embedder=FailingVectors())
    assert digests(tmp_path / "index") == before
    assert old.search("gout")
    assert (
        build_document_index([source], tmp_path / "index", DENSE, replace=True, embedder=WordVectors()).resumed == 1024
    )
    assert digests(tmp_path / "index") == digests(whole)


@pytest.mark.ci
def test_an_incomplete_window_is_embedded_again(many: tuple[str, Path], tmp_path: Path) -> None:
    source, whole = many
    place = tmp_path / "index"
    with raises("embeddings.unreachable"):
        build_document_index([source], place, DENSE, embedder=FailingVectors())
    with (place / ".partial" / "vectors.f2").open("ab") as vectors:
        vectors.write(b"x" * (192 * 7 + 5))
    assert build_document_index([source], place, DENSE, embedder=WordVectors()).resumed == 1024
    assert digests(place) == digests(whole)


def test_an_existing_index_is_replaced_only_on_request(tmp_path: Path) -> None:
    old = make_index(tmp_path, DISEASES)
    source = write_jsonl(tmp_path / "new.jsonl", plain_records(3))
    with raises("documents.index-exists", tmp_path / "index", "--replace"):
        build_document_index([source], tmp_path / "index", LEXICAL)
    assert [hit.document_id for hit in old.search("gout")] == ["gout"]
    build_document_index([source], tmp_path / "index", LEXICAL, replace=True)
    assert [hit.document_id for hit in DocumentIndex(tmp_path / "index").search("part 2")][:1] == ["2"]
    assert len(list((tmp_path / "index").glob("data-*"))) == 1
    build_document_index([source], tmp_path / "index", LEXICAL, replace=True)  # the same again
    assert len(list((tmp_path / "index").iterdir())) == 2
    assert DocumentIndex(tmp_path / "index").search("part 2")
    errors: list[GumshoeError] = []

    def ask() -> None:
        try:
            old.search("uric")
        except GumshoeError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    check_error(errors[0], "documents.index-replaced", old.path)


def test_other_files_beside_an_index_are_kept(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "index" / "data-raw" / "d.jsonl", DISEASES)
    others = [tmp_path / "index" / name for name in ("data-0123456789abcdef/notes.txt", "data-notes.txt")]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    build_document_index([source], tmp_path / "index", LEXICAL)
    build_document_index([source], tmp_path / "index", DocumentBuildOptions("none", 99), replace=True)
    assert [path.read_text() for path in others] == ["mine", "mine"]
    assert (tmp_path / "index" / "data-raw" / "d.jsonl").exists()
    assert len(list((tmp_path / "index").glob("data-*/documents.sqlite"))) == 1


def test_concurrent_builds_in_one_directory_are_rejected(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "d.jsonl", DISEASES)
    with lock_directory(tmp_path / "index", wait=None), raises("documents.index-busy", tmp_path / "index"):
        build_document_index([source], tmp_path / "index", LEXICAL)
    build_document_index([source], tmp_path / "index", LEXICAL)


@pytest.mark.parametrize(
    ("sources", "options", "code", "values"),
    [
        ([], LEXICAL, "documents.no-sources", []),
        (["jsonl:missing.jsonl"], LEXICAL, "store.not-found", ["missing.jsonl"]),
        (["{good}"], DocumentBuildOptions("none", 10), "documents.invalid-chunk-size", [10, 32]),
        (["{good}"], DocumentBuildOptions("none", language="English"), "documents.invalid-language", ["English"]),
        (["{good}"], DocumentBuildOptions("./no-such-model"), "sources.no-such-model-directory", ["./no-such-model"]),
    ],
)
def test_invalid_arguments_are_rejected_before_reading(
    tmp_path: Path, sources: list[str], options: DocumentBuildOptions, code: str, values: list[object]
) -> None:
    good = write_jsonl(tmp_path / "d.jsonl", DISEASES)
    with raises(code, *values):
        build_document_index([each.format(good=good) for each in sources], tmp_path / "index", options)
    assert not list(tmp_path.glob("index/*"))


def test_chunks_that_the_model_cannot_read_are_rejected(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "d.jsonl", DISEASES)
    with raises("documents.invalid-chunk-size", 40, 12):
        build_document_index([source], tmp_path / "index", DocumentBuildOptions("short", 40), embedder=ShortVectors())
    assert not list(tmp_path.glob("index/*"))


def test_chunks_that_would_be_cut_for_an_endpoint_are_rejected(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "d.jsonl", DISEASES)
    embedder = EndpointEmbedder("base", "http://127.0.0.1:9/v1")
    with raises("documents.invalid-chunk-size", 2001, 2000):
        build_document_index([source], tmp_path / "index", DocumentBuildOptions("base", 2001), embedder=embedder)


def test_a_source_without_documents_is_rejected(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "d.jsonl", [{"text": ""}, {"text": " "}])
    with raises("documents.no-documents", source, "2 no text"):
        build_document_index([source], tmp_path / "index", LEXICAL)
    assert not is_document_index(tmp_path / "index")


# Damage


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sound")
    make_index(place, DISEASES, DENSE, WordVectors())
    return place / "index"


FILES = [
    *(
        "documents.sqlite",
        "owners.i4",
        "document-starts.i8",
        "document-texts.i4",
        "document-counts.u2",
        "document-lengths.i4",
    ),
    *(
        "chunk-starts.i8",
        "chunk-texts.i4",
        "chunk-counts.u2",
        "chunk-lengths.i4",
        "vectors.f2",
        "signs.u8",
        "center.f4",
    ),
]


def test_the_list_of_files_is_complete(intact: Path) -> None:
    assert sorted(path.name for path in intact.glob("data-*/*")) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "cut", "longer", "a bit"])
def test_a_damaged_file_is_rejected(intact: Path, tmp_path: Path, name: str, damage: str) -> None:
    shutil.copytree(intact, tmp_path / "index")
    (path,) = (tmp_path / "index").glob(f"data-*/{name}")
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "a bit":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[:-1] if damage == "cut" else data + b"\0")
    with raises("store.index-damaged", path):
        DocumentIndex(tmp_path / "index")


@pytest.mark.parametrize(
    ("change", "code", "value"),
    [
        (lambda facts: facts[:-20], "store.index-damaged", ""),
        (lambda _: b"", "store.index-damaged", ""),
        (lambda _: b"[]", "store.index-damaged", ""),
        (lambda _: b"\x80\x04}", "store.index-damaged", ""),
        (
            lambda facts: facts.replace(b'"schema_version": %d' % VERSION, b'"schema_version": 2'),
            "documents.index-version",
            VERSION,
        ),
        (lambda facts: facts.replace(b'"folder": "data-', b'"folder": "../data-'), "store.index-damaged", "folder"),
        (lambda facts: facts.replace(b"<f2", b"|O"), "store.index-damaged", "dtype"),
        (lambda facts: facts.replace(b'"content"', b'"contents"'), "store.index-damaged", "content"),
    ],
)
def test_a_damaged_index_json_is_rejected(intact: Path, tmp_path: Path, change: Any, code: str, value: object) -> None:
    shutil.copytree(intact, tmp_path / "index")
    path = tmp_path / "index" / "index.json"
    path.write_bytes(change(path.read_bytes()))
    with raises(code, path, value):
        DocumentIndex(tmp_path / "index")


def test_a_full_disk_is_reported_and_leaves_no_index(small_disk: Path, tmp_path: Path) -> None:
    records = [{"text": f"Text {number}.", "notes": "x" * 2_000_000} for number in range(3)]
    source = write_jsonl(tmp_path / "d.jsonl", records)
    with raises("documents.index-not-written", small_disk):
        build_document_index([source], small_disk / "index", LEXICAL)
    assert not is_document_index(small_disk / "index")


def test_an_index_that_is_replaced_while_it_is_opened_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "index"

    def build(text: str) -> None:
        source = write_jsonl(tmp_path / f"{text}.jsonl", [{"id": "1", "text": f"Some {text} text."}])
        build_document_index([source], directory, LEXICAL, replace=True)

    def replace_before(module: ModuleType, name: str, text: str) -> None:
        """Replace the index once, before a function is called."""
        original, waiting = getattr(module, name), [text]

        def call(*arguments: Any) -> Any:
            if waiting:
                build(waiting.pop())
            return original(*arguments)

        monkeypatch.setattr(module, name, call)

    build("old")
    replace_before(schema, "file_digest", "new")
    assert DocumentIndex(directory).read("1").text == "Some new text."
    replace_before(index, "ReadOnlyDatabase", "newer")
    assert DocumentIndex(directory).read("1").text == "Some newer text."
    replace_before(index, "IndexArrays", "newest")
    assert DocumentIndex(directory).read("1").text == "Some newest text."


def test_the_model_of_a_replaced_index_is_not_compared(tmp_path: Path) -> None:
    opened = make_index(tmp_path, plain_records(3), DENSE, WordVectors())
    shutil.rmtree(opened.path.parent)
    with raises("documents.index-replaced", opened.path):
        opened.search("thing")
