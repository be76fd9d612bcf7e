"""Sources of documents: every kind, on disk, under file:// and on S3, intact and damaged."""

import gzip
import io
import json
import time
from datetime import date
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.artifacts import source_files
from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.artifacts.storage import FileStorage, StorageError
from gumshoe.documents.document import Document, make_document, page_id
from gumshoe.documents.sources import NO_ANSWER, open_source, parse_records, parse_text
from tests.cpu_time import limit_cpu
from tests.documents.collection import write_jsonl
from tests.documents.pages import pdf
from tests.errors import check_error, raises

QUICK = settings(derandomize=True, deadline=None, database=None)


def read(uri: str) -> list[Document | UnreadableItem]:
    """Read a source twice, and check that items are equal and that `advance` gets every byte."""
    told: list[int] = []
    source = open_source(uri)
    items = list(source.read(told.append))
    assert source.total is None or sum(told) == source.total
    assert list(open_source(uri).read(lambda _: None)) == items
    return items


def documents(uri: str) -> dict[str, Document]:
    return {item.document_id: item for item in read(uri) if isinstance(item, Document)}


def list_unreadable(items: list[Document | UnreadableItem]) -> list[tuple[str, str]]:
    """Return the end of the location, and the reason, of each unreadable item."""
    return [(item.where.rpartition("/")[2], item.reason) for item in items if isinstance(item, UnreadableItem)]


def answer(page: str, number: int, **fields: Any) -> dict[str, Any]:
    """Return a record of MedQuAD, as in `medquad.jsonl.gz`."""
    return {
        "id": f"1-{number}",
        "qtype": "symptoms",
        "question": f"What are the symptoms, {number}?",
        "answer": f"Answer {number}.",
        "focus": "Gout",
        "source": "NIH",
        "url": f"https://health.example/{page}",
        **fields,
    }


# URIs


@pytest.mark.parametrize(
    "uri", ["", "jsonl", "jsonl:", "mbox:x", "/a/path", "s3://bucket/key", "Dir:x", ":x", "file:///x"]
)
def test_an_unknown_uri_form_is_rejected(uri: str) -> None:
    with raises("sources.unknown-form", repr(uri), "jsonl:FILE", "dir:DIR", "hf:DATASET"):
        open_source(uri)


@pytest.mark.parametrize(
    ("form", "code"),
    [
        ("jsonl:{}", "store.not-found"),
        ("jsonl:file://{}", "store.not-found"),
        ("dir:{}", "sources.no-such-directory"),
        ("dir:file://{}", "documents.empty-directory"),
    ],
)
def test_a_missing_source_is_reported(form: str, code: str, tmp_path: Path) -> None:
    uri = form.format(tmp_path / "missing")
    with raises(code, uri):
        open_source(uri)


def test_an_empty_directory_is_rejected(tmp_path: Path) -> None:
    with raises("documents.empty-directory", f"dir:{tmp_path}"):
        open_source(f"dir:{tmp_path}")
    (tmp_path / ".hidden").write_text("x")
    with raises("documents.empty-directory", f"dir:{tmp_path}"):
        open_source(f"dir:{tmp_path}")
    with raises("store.is-a-directory", f"jsonl:{tmp_path}"):
        open_source(f"jsonl:{tmp_path}")


# jsonl, the generic form


def test_other_fields_of_a_record_are_metadata(tmp_path: Path) -> None:
    record = {
        "id": 7,
        "title": " A\n title ",
        "text": "One\r\ntwo\x00",
        "url": "https://a.example",
        "metadata": {"author": "Ann", "deep": {"x": 1}},
        "tags": ["a", "b", "a", None],
        "year": 2001,
        "checked": True,
        "none": None,
    }
    (found,) = read(write_jsonl(tmp_path / "d.jsonl", [record]))
    assert found == Document(
        "7",
        "A title",
        "One\ntwo\ufffd",
        "https://a.example",
        {"author": "Ann", "tags": ["a", "b"], "year": "2001", "checked": "true"},
    )


def test_an_id_is_given_or_generated(tmp_path: Path) -> None:
    records = [
        {"_id": "beir", "text": "x"},
        {"document_id": "d", "text": "x"},
        {"url": "https://www.cancer.gov/types/leukemia/patient/adult-all-treatment-pdq", "text": "x"},
        {"title": "Ein Titel", "text": "x"},
        {"title": "Ein Titel", "text": "y"},
        {"text": "x"},
    ]
    source = write_jsonl(tmp_path / "d.jsonl", records)
    ids = list(documents(source))
    assert ids[:2] == ["beir", "d"]
    assert ids[2].startswith("patient-adult-all-treatment-pdq-")
    assert all(each.startswith("ein-titel-") for each in ids[3:5])
    assert ids[5].startswith("document-")
    assert len(set(ids)) == len(ids)
    assert list(documents(source)) == ids


@pytest.mark.parametrize(
    ("url", "readable"),
    [
        ("http://nihseniorhealth.gov/leukemia/toc.html", "leukemia"),
        ("https://www.niddk.nih.gov/diabetes/diagnosis/Pages/index.aspx?x=1#y", "diabetes-diagnosis"),
        ("https://health.example", "health-example"),
        ("https://health.example/gout/gout.htm", "gout"),
        ("https://health.example/Größe/a%20b", "gr-e-a-b"),
    ],
)
def test_the_id_of_a_page_is_readable(url: str, readable: str) -> None:
    found, _, digest = page_id(url).rpartition("-")
    assert found == readable
    assert len(digest) == 8


def test_unreadable_records_are_reported_with_their_line(tmp_path: Path) -> None:
    lines = [
        b'{"id": "1", "text": "good"}',
        b"not json",
        b"[1]",
        b'{"id": "2", "text": ""}',
        b'{"id": "3", "text": ["a"]}',
        b'{"id": "4", "text": "x", "metadata": "y"}',
        b"",
        b'{"id": "5", "text": "caf\xe9"}',
    ]
    (tmp_path / "d.jsonl").write_bytes(b"\n".join(lines))
    items = read(f"jsonl:{tmp_path / 'd.jsonl'}")
    assert [item.document_id for item in items if isinstance(item, Document)] == ["1", "5"]
    assert list_unreadable(items) == [
        ("d.jsonl:2", "not JSON"),
        ("d.jsonl:3", "not a document record"),
        ("d.jsonl:4", "no text"),
        ("d.jsonl:5", "wrong type of field"),
        ("d.jsonl:6", "wrong type of field"),
    ]


def test_documents_before_damage_in_a_gzip_file_are_kept(tmp_path: Path) -> None:
    data = b"".join(json.dumps({"id": str(number), "text": f"text {number}"}).encode() + b"\n" for number in range(3))
    packed = gzip.compress(data)
    (tmp_path / "whole.jsonl.gz").write_bytes(packed)
    assert list(documents(f"jsonl:{tmp_path / 'whole.jsonl.gz'}")) == ["0", "1", "2"]
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[:-12])
    items = list(open_source(f"jsonl:{tmp_path / 'cut.jsonl.gz'}").read(lambda _: None))
    assert list_unreadable(items)[-1] == ("cut.jsonl.gz", "damaged file")


@pytest.mark.ci
@settings(QUICK, max_examples=40)
@given(
    st.lists(
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(),
            lambda inner: (
                st.lists(inner)
                | st.dictionaries(st.sampled_from(["id", "title", "text", "url", "answer", "metadata", "x"]), inner)
            ),
        )
    )
)
def test_any_record_is_a_document_or_reported(records: list[Any]) -> None:
    for item in parse_records((str(number), record) for number, record in enumerate(records)):
        assert isinstance(item, Document | UnreadableItem)
        if isinstance(item, Document):
            assert item.document_id
            assert item.text


# MedQuAD: pages of questions and answers


def test_a_document_is_a_page_with_all_its_answers(tmp_path: Path) -> None:
    records = [
        answer("gout", 1),
        answer("flu", 2, focus="Flu"),
        answer("gout", 3, qtype="treatment", focus="Gout in adults"),
        answer("gout", 1, id="again"),
        answer("gout", 4, qtype="", source="CDC"),
    ]
    pages = documents(write_jsonl(tmp_path / "d.jsonl", records))
    assert list(pages) == [page_id("https://health.example/gout"), page_id("https://health.example/flu")]
    gout = pages[page_id("https://health.example/gout")]
    assert gout.title == "Gout / Gout in adults"
    assert gout.text == "Symptoms\nAnswer 1.\n\nTreatment\nAnswer 3.\n\nAnswer 4."
    assert gout.url == "https://health.example/gout"
    assert gout.metadata == {"source": ["NIH", "CDC"]}


def test_questions_are_not_part_of_the_document(tmp_path: Path) -> None:
    (page,) = read(write_jsonl(tmp_path / "d.jsonl", [answer("gout", 1, question="Where does it hurt?")]))
    assert isinstance(page, Document)
    assert "Where" not in page.text


def test_the_columns_of_the_hub_dataset_are_read(tmp_path: Path) -> None:
    import pyarrow.parquet  # type: ignore[import-untyped]

    columns = {
        "document_id": "0000559",
        "document_source": "GHR",
        "document_url": "https://ghr.example/gout",
        "category": "Disease",
        "umls_cui": "C0018099",
        "umls_semantic_types": "T047|T033",
        "umls_semantic_group": "Disorders",
        "synonyms": "podagra|gouty arthritis",
        "question_id": "0000559-1",
        "question_focus": "Gout",
        "question_type": "information",
        "question": "What is (are) Gout ?",
        "answer": "A disease of the joints.",
    }
    rows = [
        columns,
        {**columns, "question_type": "treatment", "answer": "Rest."},
        {**columns, "document_url": "https://ghr.example/drug", "answer": None},
    ]
    (tmp_path / "set").mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "set" / "train.parquet")
    items = read(f"hf:{tmp_path / 'set'}")
    (page,) = [item for item in items if isinstance(item, Document)]
    assert page == Document(
        page_id("https://ghr.example/gout"),
        "Gout",
        "Information\nA disease of the joints.\n\nTreatment\nRest.",
        "https://ghr.example/gout",
        {
            "source": "GHR",
            "category": "Disease",
            "synonyms": ["podagra", "gouty arthritis"],
            "semantic_group": "Disorders",
            "semantic_types": ["T047", "T033"],
        },
    )
    assert [item.reason for item in items if isinstance(item, UnreadableItem)] == [NO_ANSWER]


def test_a_medquad_record_without_a_page_is_reported() -> None:
    records = [
        answer("gout", 1, url="", focus=""),
        answer("gout", 2, url=None, focus=" "),
        answer("", 3, url="", focus="Flu", source=None),
        {"question": "What is it?", "answer": "One.", "url": "https://a.example"},
        {"question": "What is it?", "answer": "Two.", "focus": "Gout", "text": "A document."},
    ]
    items = list(parse_records((str(number), record) for number, record in enumerate(records)))
    assert list_unreadable(items) == [("0", "no page"), ("1", "no page"), ("3", "no text")]
    assert [(each.title, each.text) for each in items if isinstance(each, Document)] == [
        ("", "A document."),
        ("Flu", "Symptoms\nAnswer 3."),
    ]


def test_an_invalid_medquad_record_adds_nothing() -> None:
    lists = answer("gout", 1, synonyms=["podagra", "gouty arthritis|arthritis, gouty"], category=["Disease"])
    wrong = [answer("gout", 2, category={"a": 1}), answer("gout", 3, synonyms=[1]), answer("gout", 4, qtype=["a"])]
    records = [*wrong, lists, answer("flu", 5, url=["https://health.example/flu"])]
    *told, page = parse_records((str(number), record) for number, record in enumerate(records))
    assert list_unreadable(told) == [(place, "wrong type of field") for place in "0124"]
    assert isinstance(page, Document)
    assert page.text == "Symptoms\nAnswer 1."
    assert page.metadata["synonyms"] == ["podagra", "gouty arthritis", "arthritis, gouty"]
    assert page.metadata["category"] == "Disease"


@pytest.mark.ci
def test_the_real_pages_of_medquad(shared_data: Path) -> None:
    pages = documents(f"jsonl:{shared_data / 'medquad' / 'medquad.jsonl.gz'}")
    assert len(pages) == len({page.url for page in pages.values()}) == 722
    assert all(page.title and page.text for page in pages.values())


# Directories


def encrypted_pdf() -> bytes:
    from pypdf import PdfWriter

    writer = PdfWriter(io.BytesIO(pdf("secret")))
    writer.encrypt("password")
    held = io.BytesIO()
    writer.write(held)
    return held.getvalue()


@cache
def files() -> dict[str, bytes]:
    """Return the files of a directory, by name."""
    return {
        "notes/plain-text_file.txt": "Grüße aus Köln".encode("cp1252"),
        "guide.md": b"---\ntitle: The Guide\ntags: [a, b]\n---\n# Other heading\n\nText of the *guide*.",
        "headed.MD": b"Before\n\n## A heading ##\n\nAfter",
        "odd.markdown": b"---\n: [\n---\nText",
        "page.html": b"<title>A &amp; B</title><script>x()</script><body><p>Caf\xc3\xa9</p><ul><li>one</ul>",
        "named.pdf": pdf("Words of a PDF", "Its title"),
        "locked.pdf": encrypted_pdf(),
        "broken.pdf": b"%PDF-1.4\nrubbish",
        "scan.pdf": pdf(""),
        "empty.txt": b" \n",
        "picture.png": b"\x89PNG",
        "README": b"no ending",
        ".git/config": b"hidden",
        "notes/.draft.md": b"hidden",
    }


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, data in files().items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(data)
    return tmp_path / "tree"


@pytest.mark.ci
@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_each_file_of_a_directory_is_a_document(form: str, tree: Path) -> None:
    items = read(f"dir:{form.format(tree)}")
    found = {item.document_id: item for item in items if isinstance(item, Document)}
    assert {key: (each.title, each.text) for key, each in found.items()} == {
        "guide.md": ("The Guide", "# Other heading\n\nText of the *guide*."),
        "headed.MD": ("A heading", "Before\n\n## A heading ##\n\nAfter"),
        "named.pdf": ("Its title", "Words of a PDF"),
        "notes/plain-text_file.txt": ("plain text file", "Grüße aus Köln"),
        "odd.markdown": ("odd", "---\n: [\n---\nText"),
        "page.html": ("A & B", "Café\n\n- one"),
    }
    assert found["guide.md"].metadata == {"tags": ["a", "b"], "kind": "md", "folder": "."}
    assert found["notes/plain-text_file.txt"].metadata == {"kind": "txt", "folder": "notes"}
    assert sorted(list_unreadable(items)) == [
        ("README", "another kind of file"),
        ("broken.pdf", "unreadable"),
        ("empty.txt", "no text"),
        ("locked.pdf", "unreadable"),
        ("picture.png", "another kind of file"),
        ("scan.pdf", "no text"),
    ]


def test_a_file_that_disappears_is_reported(tree: Path) -> None:
    source = open_source(f"dir:{tree}")
    (tree / "guide.md").unlink()
    assert ("guide.md", "cannot be opened") in list_unreadable(list(source.read(lambda _: None)))


def test_links_to_directories_are_reported(tmp_path: Path) -> None:
    for folder in ("source", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(f"Text of {folder}.")
    for name in ("linked", ".hidden"):
        (tmp_path / "source" / name).symlink_to(tmp_path / "other", target_is_directory=True)
    (tmp_path / "source" / "b.txt").symlink_to(tmp_path / "other" / "a.txt")
    items = read(f"dir:{tmp_path / 'source'}")
    assert {item.text for item in items if isinstance(item, Document)} == {"Text of source.", "Text of other."}
    assert list_unreadable(items) == [("linked", "link to a directory")]
    for name in ("a.txt", "b.txt"):
        (tmp_path / "source" / name).unlink()
    with raises("documents.empty-directory", tmp_path / "source" / "linked", tmp_path / "other"):
        open_source(f"dir:{tmp_path / 'source'}")


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise("abcdefghij")
)


@pytest.mark.parametrize(
    ("front", "title", "metadata"),
    [
        ("date: 2024-02-30\nyear: 2024", "A heading", {"date": "2024-02-30", "year": "2024"}),
        ("date: 2024-02-29\nat: 2024-01-02 03:04:05", "A heading", {"date": "2024-02-29", "at": "2024-01-02 03:04:05"}),
        ("title:\nby: ~\nfor: null", "A heading", {}),
        ("title: 1984", "1984", {}),
        ("title: [a, b]", "A heading", {}),
        (f"{BOMB}title: *j", "A heading", {"a": ["x"]}),
        ('title: "\\UFFFFFFFF"', "A heading", {}),
        (f"x: {'[' * 1500}", "A heading", {}),
        (f"x: {'[' * 100_000}", "A heading", {}),
        ("year: 2024\n" + "x: y\n" * 100_000, "A heading", {}),
        (f"year: 0x{'f' * 9000}\n\"\\uD800\": 1\n'': 2", "A heading", {"year": f"0x{'f' * 9000}", "\ufffd": "1"}),
    ],
)
def test_front_matter_values_are_kept_as_written(front: str, title: str, metadata: dict[str, Any]) -> None:
    found = parse_text(f"---\n{front}\n---\n## A heading ##\n\nText.".encode(), "a.md", "a")
    assert isinstance(found, Document)
    assert (found.title, found.metadata) == (title, {**metadata, "kind": "md", "folder": "."})
    assert found.text.endswith("Text.")


def test_finding_a_heading_is_fast() -> None:
    with limit_cpu(20):
        found = parse_text(f"# a{'#' * 5000}{' #' * 200_000}…x".encode(), "a.md", "a")
    assert isinstance(found, Document)
    assert found.title.startswith("a###")


def test_metadata_names_are_cleaned_and_dates_kept() -> None:
    named = {"a\ud800b": "1", "two\n words": "2", " ": "3", "": "4", "day": date(2024, 2, 29)}
    document = make_document("d", "", "Text.", None, named)
    assert document.metadata == {"a\ufffdb": "1", "two words": "2", "day": "2024-02-29"}


@QUICK
@given(
    st.sampled_from([".txt", ".md"]), st.binary(max_size=300), st.sampled_from([b"", b"---\n", b"---\ntitle: [\n---\n"])
)
def test_any_bytes_are_a_document_or_reported(ending: str, data: bytes, begun: bytes) -> None:
    assert isinstance(parse_text(begun + data, f"a{ending}", "a"), Document | UnreadableItem)


# S3


def test_read_ahead_is_limited_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "_AHEAD_BYTES", 100)
    monkeypatch.setattr(source_files, "_MAX_FILE_SIZE", 1000)
    storage = Counting(tmp_path)
    for number, size in enumerate([60, 60, 300, 1001, 20, 20, 20, 20, 20]):
        (tmp_path / f"{number}.txt").write_bytes(b"x" * size)
    found: list[int | StorageError] = []
    for entry, raw in source_files.read_files(storage, list(FileStorage(tmp_path).entries())):
        found.append(len(raw) if isinstance(raw, bytes) else raw)
        time.sleep(0.01)
        storage.taken += entry.size if isinstance(raw, bytes) else 0
    (refused,) = [each for each in found if isinstance(each, StorageError)]
    check_error(refused, "sources.file-too-large", "3.txt", "1,001", "1,000")
    assert found == [60, 60, 300, refused, 20, 20, 20, 20, 20]
    assert storage.most <= 300


class Counting(FileStorage):
    """Record the maximum number of bytes that were requested and not yet taken, for files that look remote."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.uri = f"s3://{root}"
        self.opened = self.taken = self.most = 0

    def open(self, key: str, offset: int = 0) -> io.BufferedReader:
        self.opened += (self._root / key).stat().st_size
        self.most = max(self.most, self.opened - self.taken)
        return super().open(key, offset)


@pytest.mark.ci
def test_every_file_source_works_on_s3(s3_bucket: str, tree: Path, tmp_path: Path) -> None:
    import boto3

    write_jsonl(tmp_path / "d.jsonl", [answer("gout", 1), {"id": "x", "text": "y"}])
    s3 = boto3.client("s3")
    for name, data in files().items():
        s3.put_object(Bucket=s3_bucket, Key=f"tree/{name}", Body=data)
    s3.put_object(Bucket=s3_bucket, Key="d.jsonl", Body=(tmp_path / "d.jsonl").read_bytes())
    there, here = read(f"dir:s3://{s3_bucket}/tree"), read(f"dir:{tree}")
    assert [each for each in there if isinstance(each, Document)] == [
        each for each in here if isinstance(each, Document)
    ]
    assert list_unreadable(there) == list_unreadable(here)
    assert documents(f"jsonl:s3://{s3_bucket}/d.jsonl") == documents(f"jsonl:{tmp_path / 'd.jsonl'}")
    with raises("store.not-found", f"s3://{s3_bucket}/missing.jsonl"):
        open_source(f"jsonl:s3://{s3_bucket}/missing.jsonl")


def test_every_spelling_of_a_url_has_the_same_id() -> None:
    forms = ["https://Example.com/gout", "https://example.com:443/gout#symptoms", " https://example.com/gout "]
    assert len({page_id(form) for form in forms}) == 1
    assert page_id("https://example.com/gout?page=2") != page_id(forms[0])
