"""Where documents come from: `jsonl:`, `dir:` and `hf:`, on disk or on S3.

Records of MedQuAD, each a question with its answer, are gathered by the page they were taken from: a document is a
page, all its answers together.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from gumshoe.artifacts import source_files
from gumshoe.artifacts.hub import dataset_errors_explained, open_dataset
from gumshoe.artifacts.lines import file_size
from gumshoe.artifacts.source_files import Unreadable, files_below, read_files, read_json_lines
from gumshoe.artifacts.storage import Entry, Storage
from gumshoe.documents.document import Document, make_document, one_form, page_id
from gumshoe.documents.scraping.extraction import Extractor, Kind, extractor
from gumshoe.documents.scraping.failure import PageFailure
from gumshoe.errors import UsageError
from gumshoe.mail.message import clean, clean_line
from gumshoe.mail.text import decode

FORMS = "jsonl:FILE[.gz] or dir:DIR (each a path, file:// or s3://), or hf:DATASET[@SPLIT], such as hf:lavita/MedQuAD"
NO_ANSWER = "no answer in the record"
"""Why a record of MedQuAD is left out whose answer its publisher took back."""
_KINDS = ("jsonl", "dir", "hf")
_OWN_FIELDS = ("id", "_id", "document_id", "title", "text", "url", "metadata")
# The fields of `hf:lavita/MedQuAD`, and of MedQuAD as JSON lines, by what they are here.
_PAGE = ("document_url", "url")
_TITLE = ("question_focus", "focus")
_ASKED_FOR = ("question_type", "qtype")
_OF_PAGE = {
    "source": ("document_source", "source"),
    "category": ("category",),
    "synonyms": ("synonyms",),
    "semantic_group": ("umls_semantic_group",),
    "semantic_types": ("umls_semantic_types",),
}
_SEVERAL = "|"  # between the values of one field of MedQuAD
_MARKDOWN = {".md", ".markdown"}
_PAGES: dict[str, Kind] = {".html": "html", ".htm": "html", ".xhtml": "html", ".pdf": "pdf"}
_READ = {".txt", ".text", ".rst"} | _MARKDOWN | _PAGES.keys()
_SECONDS = 60  # for one page of HTML or PDF
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.M)
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)\n---[ \t]*(?:\n|\Z)", re.S)
_NOTHING = {"", "~", "null", "Null", "NULL"}  # how YAML says so
_LONGEST_TITLE = 200
_READABLE = re.compile(r"[_-]+")


Source = source_files.Source[Document]


def open_source(uri: str) -> Source:
    """The source that a URI names.

    Raises:
        UsageError: the URI is of no known form, or nothing of that kind lies there.
        StorageError, UnavailableError: the place could not be looked into.
    """
    openers: dict[str, Callable[[str, str], Source]] = {
        "jsonl": _JsonlDocuments.at,
        "dir": _DirectoryDocuments.at,
        "hf": _DatasetDocuments.named,
    }
    return source_files.open_source(uri, openers, "documents", FORMS)


def split_source(uri: str) -> tuple[str, str]:
    """The kind of a source and its place.

    Raises:
        UsageError: the URI is of no known form.
    """
    return source_files.split_source(uri, _KINDS, "documents", FORMS)


@dataclass(frozen=True, slots=True)
class _JsonlDocuments:
    """One JSON object a line: id, title, text, url, and metadata; or records of MedQuAD."""

    uri: str
    total: int | None
    place: str

    @classmethod
    def at(cls, uri: str, place: str) -> "_JsonlDocuments":
        return cls(uri, file_size(place), place)

    def read(self, advance: Callable[[int], object]) -> Iterator[Document | Unreadable]:
        return parse_records(read_json_lines(self.place, advance))


@dataclass(frozen=True, slots=True)
class _DatasetDocuments:
    """A dataset of the Hugging Face hub, or a local directory of one, streamed. Fields as in `_JsonlDocuments`."""

    uri: str
    total: int | None
    records: Iterable[Any]

    @classmethod
    def named(cls, uri: str, _: str) -> "_DatasetDocuments":
        return cls(uri, None, open_dataset(uri))

    def read(self, advance: Callable[[int], object]) -> Iterator[Document | Unreadable]:  # noqa: ARG002 - no bytes
        with dataset_errors_explained(self.uri):
            yield from parse_records((f"{self.uri}#{number}", record) for number, record in enumerate(self.records, 1))


def parse_records(records: Iterable[tuple[str, Any] | Unreadable]) -> Iterator[Document | Unreadable]:
    """The documents of records, each given with where it is. Records of MedQuAD come last, gathered by page."""
    pages: dict[str, _MedQuadPage] = {}
    for found in records:
        if isinstance(found, Unreadable):
            yield found
            continue
        where, record = found
        if not isinstance(record, dict):
            yield Unreadable(where, "not a document record", f"must be an object, got {type(record).__name__}")
            continue
        try:
            if is_of_medquad(record):
                if not _add_answer(pages, record):
                    yield Unreadable(where, NO_ANSWER, clean_line(str(record.get("question") or "")))
            else:
                yield _generic(record, where)
        except TypeError as error:
            yield Unreadable(where, "wrong type of field", str(error))
        except NoPageError as error:
            yield Unreadable(where, "no page", str(error))
    yield from (page.document(key) for key, page in pages.items())


def _generic(record: dict[str, Any], where: str) -> Document | Unreadable:
    given = next((record[name] for name in ("id", "_id", "document_id") if record.get(name) is not None), None)
    nested = record.get("metadata")
    if nested is not None and not isinstance(nested, dict):
        raise TypeError(f"metadata must be an object, got {type(nested).__name__}")
    others = {name: value for name, value in record.items() if name not in _OWN_FIELDS}
    document = make_document(
        given, record.get("title"), record.get("text"), record.get("url"), {**(nested or {}), **others}
    )
    return document if document.text else Unreadable(where, "no text", document.title)


@dataclass(slots=True)
class _MedQuadPage:
    """What MedQuAD took from one page."""

    url: str
    titles: dict[str, None] = field(default_factory=dict)
    answers: dict[str, None] = field(default_factory=dict)
    metadata: dict[str, dict[str, None]] = field(default_factory=dict)

    def document(self, key: str) -> Document:
        metadata: dict[str, Any] = {
            name: next(iter(values)) if len(values) == 1 and name != "synonyms" else list(values)
            for name, values in self.metadata.items()
        }
        # A few pages of MedQuAD do not say what they are about; their addresses do.
        title = " / ".join(self.titles) or _READABLE.sub(" ", PurePosixPath(self.url).stem).strip()
        return make_document(page_id(key), title, "\n\n".join(self.answers), self.url, metadata)


class NoPageError(ValueError):
    """A record of MedQuAD does not say which page it was taken from."""


def is_of_medquad(record: Mapping[str, Any]) -> bool:
    """Whether it is a record of MedQuAD, of the set itself or of its copy on the hub; one with a text is a document."""
    return {"question", "answer"} <= set(record) and not record.keys().isdisjoint(_TITLE) and "text" not in record


def page_of(record: Mapping[str, Any]) -> str:
    """The id of the document that a record of MedQuAD becomes a part of.

    Raises:
        TypeError: a field is of the wrong type; the message names it.
        NoPageError: neither an address nor what it is about tells its page.
    """
    return page_id(_page_key(record))


def _page_key(record: Mapping[str, Any]) -> str:
    """The address of a record's page. Without one, what tells a page from others is what it is about."""
    url, title = _first(record, _PAGE), _first(record, _TITLE)
    if not url and not title:
        raise NoPageError(f"none of {', '.join((*_PAGE, *_TITLE))} is set")
    return one_form(url) or f"{_first(record, _OF_PAGE['source'])} {title}"


def _first(record: Mapping[str, Any], names: Iterable[str]) -> str:
    value = next((record[name] for name in names if record.get(name)), "")
    if not isinstance(value, str):
        raise TypeError(f"{'/'.join(names)} must be a string, got {type(value).__name__}")
    return clean(value).strip()


def _add_answer(pages: dict[str, _MedQuadPage], record: dict[str, Any]) -> bool:
    """Add a record of MedQuAD to its page, all of it or, where a field is wrong, nothing: whether it has an answer."""
    answer, title, kind = (_first(record, names) for names in (("answer",), _TITLE, _ASKED_FOR))
    if not answer:
        return False
    key, url = _page_key(record), _first(record, _PAGE)
    told = {name: _several(record, names) for name, names in _OF_PAGE.items()}
    page = pages.setdefault(key, _MedQuadPage(url))
    if title:
        page.titles.setdefault(clean_line(title))
    # What was asked for stands above the answer, and not the question itself: it would be found by its own words.
    page.answers.setdefault(f"{kind[:1].upper()}{kind[1:]}\n{answer}" if kind else answer)
    for name, values in told.items():
        for value in values:
            page.metadata.setdefault(name, {}).setdefault(value)
    return True


def _several(record: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The values of a field that has several: as the set writes them, or a list."""
    given = next((record[name] for name in names if record.get(name)), "")
    listed = given if isinstance(given, list) else [given]
    if not all(isinstance(each, str) for each in listed):
        raise TypeError(f"{'/'.join(names)} must be a string or a list of strings")
    return [value for each in listed for part in each.split(_SEVERAL) if (value := clean_line(part))]


@dataclass(frozen=True, slots=True)
class _DirectoryDocuments:
    """A directory of documents, one a file: text, Markdown, HTML or PDF, by the ending of its name."""

    uri: str
    total: int | None
    storage: Storage
    files: list[Entry]

    @classmethod
    def at(cls, uri: str, place: str) -> "_DirectoryDocuments":
        storage, entries = files_below(uri, place)
        files = [each for each in entries if not any(part.startswith(".") for part in each.key.split("/"))]
        if not files:
            raise UsageError("documents.empty-directory", f"{uri} contains no files; check the directory")
        return cls(uri, sum(each.size for each in files), storage, files)

    def read(self, advance: Callable[[int], object]) -> Iterator[Document | Unreadable]:
        kinds = {each.key: PurePosixPath(each.key).suffix.lower() for each in self.files}
        for each in self.files:
            if kinds[each.key] not in _READ:
                advance(each.size)
                yield Unreadable(
                    f"{self.storage.uri}/{each.key}", "another kind of file", kinds[each.key] or "no ending"
                )
        with ExitStack() as held:
            pages: Extractor | None = None
            for entry, raw in read_files(self.storage, [each for each in self.files if kinds[each.key] in _READ]):
                where = f"{self.storage.uri}/{entry.key}"
                advance(entry.size)
                if not isinstance(raw, bytes):
                    yield Unreadable(where, "cannot be opened", raw.message_with_code)
                elif kind := _PAGES.get(kinds[entry.key]):
                    pages = pages or held.enter_context(extractor(1, _SECONDS))
                    yield _read_page(pages, raw, kind, entry.key, where)
                else:
                    yield parse_text(raw, entry.key, where)


def _read_page(pages: Extractor, raw: bytes, kind: Kind, key: str, where: str) -> Document | Unreadable:
    try:
        found = pages.read(raw, kind)
    except PageFailure as failure:
        return Unreadable(where, failure.reason, failure.detail)
    return _file_document(key, found.title, found.text, {})


def parse_text(raw: bytes, key: str, where: str) -> Document | Unreadable:
    """The document in a file of text or Markdown. Its id is `key`, its path below the source."""
    text, title = clean(decode(raw)), ""
    metadata: dict[str, Any] = {}
    if PurePosixPath(key).suffix.lower() in _MARKDOWN:
        metadata, text = _front_matter(text)
        named, heading = metadata.pop("title", ""), _HEADING.search(text)
        title = named if isinstance(named, str) and named else heading[1].rstrip("# \t") if heading else ""
    if not text.strip():
        return Unreadable(where, "no text", f"{len(raw)} bytes")
    return _file_document(key, title, text, metadata)


def _file_document(key: str, title: str, text: str, metadata: dict[str, Any]) -> Document:
    path = PurePosixPath(key)
    shown = clean_line(title)[:_LONGEST_TITLE] or _READABLE.sub(" ", path.stem).strip()
    folder = str(path.parent)
    return make_document(key, shown, text, None, {**metadata, "kind": path.suffix.lower()[1:], "folder": folder})


def _front_matter(text: str) -> tuple[dict[str, Any], str]:
    """What stands between two lines of `---` at the head of a Markdown file, values as written, and the rest."""
    import yaml

    found = _FRONT_MATTER.match(text)
    if found is None:
        return {}, text
    try:
        told = yaml.load(found[1], yaml.BaseLoader)  # noqa: S506 - it makes texts, lists and mappings alone
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        return {}, text
    if not isinstance(told, dict):
        return {}, text
    said = {key: value for key, value in told.items() if not isinstance(value, str) or value not in _NOTHING}
    return said, text[found.end() :]
