"""Sources of documents: `jsonl:`, `dir:` and `hf:`, on disk or on S3.

Records of MedQuAD, each a question with its answer, are grouped by web page: a document is a page with all its answers.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from gumshoe.artifacts import source_files
from gumshoe.artifacts.hub import explain_dataset_errors, open_dataset
from gumshoe.artifacts.lines import file_size
from gumshoe.artifacts.source_files import UnreadableItem, list_files, read_files, read_json_lines
from gumshoe.artifacts.storage import Entry, Storage
from gumshoe.documents.document import Document, canonicalize_url, make_document, page_id
from gumshoe.documents.file_kinds import SUFFIXES, PageKind, find_page_kind
from gumshoe.documents.file_text import check_length, choose_charset
from gumshoe.documents.markdown_titles import find_markdown_title, find_underlined_title, split_front_matter
from gumshoe.documents.scraping.extraction import Extractor, open_extractor
from gumshoe.documents.scraping.failure import PageFailure
from gumshoe.errors import UsageError
from gumshoe.extraction.ocr import TextRecognition
from gumshoe.mail.message import clean, clean_line
from gumshoe.mail.text import decode, remove_invisible

FORMS = "jsonl:FILE[.gz] or dir:DIR (each a path, file:// or s3://), or hf:DATASET[@SPLIT], such as hf:lavita/MedQuAD"
NO_ANSWER = "no answer in the record"
"""Reason for skipping a MedQuAD record whose answer was withdrawn by its publisher."""
_KINDS = ("jsonl", "dir", "hf")
_OWN_FIELDS = ("id", "_id", "document_id", "title", "text", "url", "metadata", "collection")
# Field names in `hf:lavita/MedQuAD` and in MedQuAD as JSON lines.
_PAGE = ("document_url", "url")
_TITLE = ("question_focus", "focus")
_QUESTION_TYPE = ("question_type", "qtype")
_PAGE_METADATA = {
    "source": ("document_source", "source"),
    "category": ("category",),
    "synonyms": ("synonyms",),
    "semantic_group": ("umls_semantic_group",),
    "semantic_types": ("umls_semantic_types",),
}
_VALUE_SEPARATOR = "|"  # between several values of a MedQuAD field
_EXTRACTION_SECONDS = 60  # per file, without its scanned pages
_MAX_PROCESSES = 8  # which recognize scanned pages at once
_MAX_TITLE = 200
_SEPARATORS = re.compile(r"[_-]+")


Source = source_files.Source[Document]


def open_source(uri: str, recognition: TextRecognition | None = None) -> Source:
    """Open the source that a URI names. `recognition` reads the scanned pages of its files.

    Raises:
        UsageError: if the URI has no known form, or nothing of that kind exists there.
        StorageError, UnavailableError: if the source cannot be listed.
    """
    openers: dict[str, Callable[[str, str], Source]] = {
        "jsonl": _JsonlDocuments.open,
        "dir": partial(_DirectoryDocuments.open, recognition=recognition),
        "hf": _DatasetDocuments.open,
    }
    return source_files.open_source(uri, openers, "documents", FORMS)


def split_source(uri: str) -> tuple[str, str]:
    """Return the kind of a source and its place.

    Raises:
        UsageError: if the URI has no known form.
    """
    return source_files.split_source(uri, _KINDS, "documents", FORMS)


@dataclass(frozen=True, slots=True)
class _JsonlDocuments:
    """A file of JSON objects, one per line: id, title, text, url, metadata and collection, or records of MedQuAD."""

    uri: str
    total: int | None
    place: str

    @classmethod
    def open(cls, uri: str, place: str) -> "_JsonlDocuments":
        return cls(uri, file_size(place), place)

    def read(self, advance: Callable[[int], object]) -> Iterator[Document | UnreadableItem]:
        return parse_records(read_json_lines(self.place, advance))


@dataclass(frozen=True, slots=True)
class _DatasetDocuments:
    """A dataset of the Hugging Face hub, or a local directory of one, streamed.

    Fields are those of `_JsonlDocuments`.
    """

    uri: str
    total: int | None
    records: Iterable[Any]

    @classmethod
    def open(cls, uri: str, _: str) -> "_DatasetDocuments":
        return cls(uri, None, open_dataset(uri))

    def read(self, advance: Callable[[int], object]) -> Iterator[Document | UnreadableItem]:  # noqa: ARG002 - no bytes
        with explain_dataset_errors(self.uri):
            yield from parse_records((f"{self.uri}#{number}", record) for number, record in enumerate(self.records, 1))


def parse_records(records: Iterable[tuple[str, Any] | UnreadableItem]) -> Iterator[Document | UnreadableItem]:
    """Yield the documents of records, which are given with their location. Pages of MedQuAD records come last."""
    pages: dict[str, _MedQuadPage] = {}
    for found in records:
        if isinstance(found, UnreadableItem):
            yield found
            continue
        where, record = found
        if not isinstance(record, dict):
            yield UnreadableItem(where, "not a document record", f"must be an object, got {type(record).__name__}")
            continue
        try:
            if is_medquad_record(record):
                if not _add_answer(pages, record):
                    yield UnreadableItem(where, NO_ANSWER, clean_line(str(record.get("question") or "")))
            else:
                yield _parse_generic(record, where)
        except TypeError as error:
            yield UnreadableItem(where, "wrong type of field", str(error))
        except NoPageError as error:
            yield UnreadableItem(where, "no page", str(error))
        except UsageError as error:
            yield UnreadableItem(where, "invalid collection", error.message)
    yield from (page.to_document(key) for key, page in pages.items())


def _parse_generic(record: dict[str, Any], where: str) -> Document | UnreadableItem:
    given = next((record[name] for name in ("id", "_id", "document_id") if record.get(name) is not None), None)
    nested = record.get("metadata")
    if nested is not None and not isinstance(nested, dict):
        raise TypeError(f"metadata must be an object, got {type(nested).__name__}")
    others = {name: value for name, value in record.items() if name not in _OWN_FIELDS}
    document = make_document(
        given,
        record.get("title"),
        record.get("text"),
        record.get("url"),
        {**(nested or {}), **others},
        record.get("collection"),
    )
    return document if document.text else UnreadableItem(where, "no text", document.title)


@dataclass(slots=True)
class _MedQuadPage:
    """The MedQuAD records of one page."""

    url: str
    titles: dict[str, None] = field(default_factory=dict)
    answers: dict[str, None] = field(default_factory=dict)
    metadata: dict[str, dict[str, None]] = field(default_factory=dict)

    def to_document(self, key: str) -> Document:
        metadata: dict[str, Any] = {
            name: next(iter(values)) if len(values) == 1 and name != "synonyms" else list(values)
            for name, values in self.metadata.items()
        }
        # A few MedQuAD pages have no title; their URLs contain one.
        title = " / ".join(self.titles) or _SEPARATORS.sub(" ", PurePosixPath(self.url).stem).strip()
        return make_document(page_id(key), title, "\n\n".join(self.answers), self.url, metadata)


class NoPageError(ValueError):
    """A MedQuAD record does not say which page it was taken from."""


def is_medquad_record(record: Mapping[str, Any]) -> bool:
    """Return True for a record of MedQuAD or of its copy on the hub. A record with a text is a document."""
    return {"question", "answer"} <= set(record) and not record.keys().isdisjoint(_TITLE) and "text" not in record


def find_page_id(record: Mapping[str, Any]) -> str:
    """Return the id of the document that contains a MedQuAD record.

    Raises:
        TypeError: if a field has a wrong type; the message names it.
        NoPageError: if the record has neither a URL nor a subject.
    """
    return page_id(_page_key(record))


def _page_key(record: Mapping[str, Any]) -> str:
    """Return the URL of a record's page, or source and subject if it has no URL."""
    url, title = _first_value(record, _PAGE), _first_value(record, _TITLE)
    if not url and not title:
        raise NoPageError(f"none of {', '.join((*_PAGE, *_TITLE))} is set")
    return canonicalize_url(url) or f"{_first_value(record, _PAGE_METADATA['source'])} {title}"


def _first_value(record: Mapping[str, Any], names: Iterable[str]) -> str:
    value = next((record[name] for name in names if record.get(name)), "")
    if not isinstance(value, str):
        raise TypeError(f"{'/'.join(names)} must be a string, got {type(value).__name__}")
    return clean(value).strip()


def _add_answer(pages: dict[str, _MedQuadPage], record: dict[str, Any]) -> bool:
    """Add a MedQuAD record to its page, completely or not at all. Return False if it has no answer."""
    answer, title, kind = (_first_value(record, names) for names in (("answer",), _TITLE, _QUESTION_TYPE))
    if not answer:
        return False
    key, url = _page_key(record), _first_value(record, _PAGE)
    metadata = {name: _list_values(record, names) for name, names in _PAGE_METADATA.items()}
    page = pages.setdefault(key, _MedQuadPage(url))
    if title:
        page.titles.setdefault(clean_line(title))
    # The type of question is written above the answer. The question itself is not, because it would match itself.
    page.answers.setdefault(f"{kind[:1].upper()}{kind[1:]}\n{answer}" if kind else answer)
    for name, values in metadata.items():
        for value in values:
            page.metadata.setdefault(name, {}).setdefault(value)
    return True


def _list_values(record: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return the values of a field: separated as in MedQuAD, or a list."""
    given = next((record[name] for name in names if record.get(name)), "")
    listed = given if isinstance(given, list) else [given]
    if not all(isinstance(each, str) for each in listed):
        raise TypeError(f"{'/'.join(names)} must be a string or a list of strings")
    return [value for each in listed for part in each.split(_VALUE_SEPARATOR) if (value := clean_line(part))]


@dataclass(frozen=True, slots=True)
class _DirectoryDocuments:
    """A directory of documents, one per file, of the kinds in `SUFFIXES`."""

    uri: str
    total: int | None
    storage: Storage
    files: list[Entry]
    unread: list[UnreadableItem]
    """Folders that are not read."""
    recognition: TextRecognition | None = None

    @classmethod
    def open(cls, uri: str, place: str, recognition: TextRecognition | None = None) -> "_DirectoryDocuments":
        storage, entries, folders = list_files(uri, place)
        files = [each for each in entries if not _is_hidden(each.key)]
        unread = [each for each in folders if not _is_hidden(each.where.removeprefix(f"{storage.uri}/"))]
        if not files:
            hint = "; ".join(f"{each.where}: {each.reason}, {each.detail}" for each in unread[:1])
            raise UsageError("documents.empty-directory", f"{uri} contains no files; {hint or 'check the directory'}")
        return cls(uri, sum(each.size for each in files), storage, files, unread, recognition)

    def read(self, advance: Callable[[int], object]) -> Iterator[Document | UnreadableItem]:
        yield from self.unread
        suffixes = {each.key: PurePosixPath(each.key).suffix.lower() for each in self.files}
        for each in self.files:
            if suffixes[each.key] not in SUFFIXES:
                advance(each.size)
                detail = suffixes[each.key] or "no ending"
                yield UnreadableItem(f"{self.storage.uri}/{each.key}", "another kind of file", detail)
        with ExitStack() as stack:
            pages: Extractor | None = None
            for entry, raw in read_files(self.storage, [each for each in self.files if suffixes[each.key] in SUFFIXES]):
                where = f"{self.storage.uri}/{entry.key}"
                advance(entry.size)
                if not isinstance(raw, bytes):
                    yield UnreadableItem(where, "cannot be opened", raw.message_with_code)
                    continue
                kind = find_page_kind(raw, name=entry.key)
                if kind in {"text", "markdown"}:
                    yield parse_text(raw, entry.key, where)
                elif kind:
                    if pages is None:
                        processes = min(os.cpu_count() or 1, _MAX_PROCESSES)
                        opened = open_extractor(processes, _EXTRACTION_SECONDS, "page", self.recognition)
                        pages = stack.enter_context(opened)
                    yield from _read_page(pages, raw, kind, entry.key, where)


def _is_hidden(key: str) -> bool:
    return any(part.startswith(".") for part in key.split("/"))


def _read_page(
    pages: Extractor, raw: bytes, kind: PageKind, key: str, where: str
) -> Iterator[Document | UnreadableItem]:
    """Yield the document in a file, and the pages of it that cannot be read."""
    try:
        found = pages.extract(raw, kind)
    except PageFailure as failure:
        yield UnreadableItem(where, failure.reason, failure.detail)
        return
    if found.refresh:
        yield UnreadableItem(where, "redirects", f"the page only leads to {found.refresh}"[:300])
        return
    for each in found.problems:
        reason = "scanned page" if each.kind == "scanned" else "unreadable page"
        yield UnreadableItem(f"{where}#page={each.number}", reason, each.detail)
    yield _make_file_document(key, found.title, found.text, {})


def parse_text(raw: bytes, key: str, where: str) -> Document | UnreadableItem:
    """Return the document in a text or Markdown file. Its id is `key`, its path below the source."""
    text = clean(decode(raw, choose_charset(raw, None)))
    if problem := check_length(text):
        return UnreadableItem(where, problem.reason, problem.detail)
    text = remove_invisible(text).lstrip("\ufeff")
    metadata: dict[str, Any] = {}
    if SUFFIXES.get(PurePosixPath(key).suffix.lower()) == "markdown":
        metadata, text = split_front_matter(text)
        named = metadata.pop("title", "")
        title = named if isinstance(named, str) and named else find_markdown_title(text)
    else:
        title = find_underlined_title(text)
    if not text.strip():
        return UnreadableItem(where, "no text", f"{len(raw)} bytes")
    return _make_file_document(key, title, text, metadata)


def _make_file_document(key: str, title: str, text: str, metadata: dict[str, Any]) -> Document:
    path = PurePosixPath(key)
    shown = clean_line(title)[:_MAX_TITLE] or _SEPARATORS.sub(" ", path.stem).strip()
    folder = str(path.parent)
    return make_document(key, shown, text, None, {**metadata, "kind": path.suffix.lower()[1:], "folder": folder})
