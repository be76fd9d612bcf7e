"""Read the URLs of wanted pages from records, or from a file with one URL per line."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from gumshoe.artifacts.hub import explain_dataset_errors, open_dataset
from gumshoe.artifacts.lines import GZIP_ERRORS, read_lines
from gumshoe.documents.document import list_page_ids
from gumshoe.documents.scraping.failure import PageFailure
from gumshoe.documents.scraping.guard import normalize_url
from gumshoe.errors import UsageError

URL_FIELDS = ("url", "document_url", "page_url", "link")
"""Fields in which a record's URL is looked for by default."""


@dataclass(slots=True)
class WantedPage:
    """A page to fetch, with the id and metadata of its document."""

    url: str
    document_id: str
    metadata: dict[str, str | list[str]] = field(default_factory=dict)
    fault: PageFailure | None = None
    """Failure if the URL is invalid."""


@dataclass(frozen=True, slots=True)
class RecordFields:
    """Names of the fields to use in records."""

    address: str | None = None
    """Field with the URL. The default is the first of URL_FIELDS."""
    document_id: str | None = None
    """Field with the document's id. By default the id is made from the URL."""
    keep: tuple[str, ...] = ()
    """Fields to copy to the document's metadata: all different values in the records of one page."""


def list_wanted_pages(source: str, fields: RecordFields) -> list[WantedPage]:
    """Return the pages that a source lists, each once, in order of first occurrence.

    Ids that the source does not give are made from URLs. If an earlier page has the id of a page, it gets a longer one.

    Raises:
        UsageError: if the source contains no URL, has another format, or gives two pages one id.
        NotFoundError, StorageError, UnavailableError: if the source cannot be read.
    """
    is_records = source.startswith(("jsonl:", "hf:"))
    if not is_records and (fields.address or fields.document_id or fields.keep):
        raise UsageError(
            "scraping.no-fields",
            f"{source} is read as a list of addresses, which has no fields; for records, use jsonl:{source}",
        )
    records = _read_records(source) if is_records else ({URL_FIELDS[0]: line} for line in _read_addresses(source))
    pages: dict[str, WantedPage] = {}
    owners: dict[str, str] = {}
    existing_names: dict[str, None] = {}
    for record in records:
        existing_names.update(dict.fromkeys(record))
        address = _find_address(record, fields, source)
        if not address:
            continue
        try:
            url, fault = str(normalize_url(address)), None
        except PageFailure as failure:
            url, fault = address, failure
        page = pages.get(url)
        if page is None:
            named = _text(record.get(fields.document_id)) if fields.document_id else ""
            page = pages[url] = WantedPage(url, named, fault=fault)
            other = owners.setdefault(named, url) if named else url
            if other != url:
                raise UsageError(
                    "scraping.duplicate-id",
                    f"{source}: {other} and {url} have the same id {page.document_id!r}; use another --id-field",
                )
        _add_metadata(page.metadata, {name: record.get(name) for name in fields.keep})
    for option, name in [("--id-field", fields.document_id), *(("--keep", name) for name in fields.keep)]:
        if name is not None and name not in existing_names and pages:
            raise UsageError(
                "scraping.missing-field",
                f"{source}: no record has the field {name!r} of {option}; use one of {', '.join(existing_names)}",
            )
    if not pages:
        raise UsageError(
            "scraping.no-addresses",
            f"{source} holds no page addresses; check it, or name the field that holds them with --field",
        )
    _add_ids(pages.values(), owners)
    return list(pages.values())


def _add_ids(pages: Iterable[WantedPage], used: Iterable[str]) -> None:
    """Give each page without an id one that no earlier page has, and that is not in `used`."""
    known = set(used)
    for page in pages:
        if not page.document_id:
            page.document_id = next(each for each in list_page_ids(page.url) if each not in known)
            known.add(page.document_id)


def _read_records(source: str) -> Iterator[dict[str, Any]]:
    if source.startswith("hf:"):
        with explain_dataset_errors(source):
            for record in open_dataset(source):
                yield dict(record)
        return
    place = source.partition(":")[2]
    for number, line in _read_numbered_lines(place):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise UsageError(
                "scraping.malformed-record", f"{place}:{number} is not JSON ({error}); write one object per line"
            ) from None
        if not isinstance(record, dict):
            raise UsageError(
                "scraping.malformed-record",
                f"{place}:{number} must be a JSON object, got {type(record).__name__}; write one object per line",
            )
        yield record


def _read_addresses(place: str) -> Iterator[str]:
    for number, line in _read_numbered_lines(place):
        try:
            text = line.decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise UsageError(
                "scraping.not-utf8", f"{place}:{number} is not UTF-8; write one address per line, in UTF-8"
            ) from None
        if text and not text.startswith("#"):
            yield text


def _read_numbered_lines(place: str) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each non-empty line of a file."""
    try:
        for number, line in enumerate(read_lines(place), 1):
            if line.strip():
                yield number, line
    except GZIP_ERRORS as error:
        raise UsageError("scraping.damaged-file", f"{place} cannot be unpacked ({error}); fetch it again") from None


def _find_address(record: dict[str, Any], fields: RecordFields, source: str) -> str:
    names = (fields.address,) if fields.address else URL_FIELDS
    found = [name for name in names if name in record]
    if fields.address and not found:
        raise UsageError(
            "scraping.missing-field",
            f"{source}: a record has no field {fields.address!r} of --field; use one of {', '.join(record)}",
        )
    return next(filter(None, (_text(record[name]) for name in found)), "")


def _text(value: Any) -> str:
    return str(value).strip() if isinstance(value, str | int | float) else ""


def _add_metadata(metadata: dict[str, str | list[str]], values: dict[str, Any]) -> None:
    """Add a record's values to a page's metadata."""
    for name, value in values.items():
        given: Iterable[Any] = value if isinstance(value, list | tuple) else [value]
        existing_names = metadata.get(name, [])
        known = [existing_names] if isinstance(existing_names, str) else existing_names
        every = list(dict.fromkeys(itertools.chain(known, filter(None, map(_text, given)))))
        if every:
            metadata[name] = every[0] if len(every) == 1 else every
