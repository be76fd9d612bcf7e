"""Which pages are wanted: addresses out of records, or one a line."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from gumshoe.artifacts.hub import dataset_errors_explained, open_dataset
from gumshoe.artifacts.lines import DAMAGED, read_lines
from gumshoe.documents.document import page_id
from gumshoe.documents.scraping.failure import PageFailure
from gumshoe.documents.scraping.guard import normal_address
from gumshoe.errors import UsageError

FIELDS = ("url", "document_url", "page_url", "link")
"""Where a record's address is looked for unless its field is named."""


@dataclass(slots=True)
class WantedPage:
    """A page to take, and what its document is to hold beside the text."""

    url: str
    document_id: str
    metadata: dict[str, str | list[str]] = field(default_factory=dict)
    fault: PageFailure | None = None
    """Why it cannot even be asked for."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Which fields of a record count."""

    address: str | None = None
    """Of the address; one of FIELDS unless named."""
    document_id: str | None = None
    """Of the document's id; the address, unless named."""
    keep: tuple[str, ...] = ()
    """Those that the document's metadata takes over: what the records of one page have, each value once."""


def wanted_pages(source: str, fields: Fields) -> list[WantedPage]:
    """The pages that a source names, each once, in the order in which they come first.

    Raises:
        UsageError: the source holds no address, has another format, or gives two pages one id.
        NotFoundError, StorageError, UnavailableError: the source cannot be read.
    """
    is_records = source.startswith(("jsonl:", "hf:"))
    if not is_records and (fields.address or fields.document_id or fields.keep):
        raise UsageError(
            "scraping.no-fields",
            f"{source} is read as a list of addresses, which has no fields; for records, use jsonl:{source}",
        )
    records = _records(source) if is_records else ({FIELDS[0]: line} for line in _lines(source))
    pages: dict[str, WantedPage] = {}
    owners: dict[str, str] = {}
    there: dict[str, None] = {}
    for record in records:
        there.update(dict.fromkeys(record))
        address = _address(record, fields, source)
        if not address:
            continue
        try:
            url, fault = str(normal_address(address)), None
        except PageFailure as failure:
            url, fault = address, failure
        page = pages.get(url)
        if page is None:
            named = fields.document_id and _text(record.get(fields.document_id))
            page = pages[url] = WantedPage(url, named or page_id(url), fault=fault)
            other = owners.setdefault(page.document_id, url)
            if other != url:
                raise UsageError(
                    "scraping.duplicate-id",
                    f"{source}: {other} and {url} have the same id {page.document_id!r}; use another --id-field",
                )
        _take(page.metadata, {name: record.get(name) for name in fields.keep})
    for option, name in [("--id-field", fields.document_id), *(("--keep", name) for name in fields.keep)]:
        if name is not None and name not in there and pages:
            raise UsageError(
                "scraping.missing-field",
                f"{source}: no record has the field {name!r} of {option}; use one of {', '.join(there)}",
            )
    if not pages:
        raise UsageError(
            "scraping.no-addresses",
            f"{source} holds no page addresses; check it, or name the field that holds them with --field",
        )
    return list(pages.values())


def _records(source: str) -> Iterator[dict[str, Any]]:
    if source.startswith("hf:"):
        with dataset_errors_explained(source):
            for record in open_dataset(source):
                yield dict(record)
        return
    place = source.partition(":")[2]
    for number, line in _numbered(place):
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


def _lines(place: str) -> Iterator[str]:
    for number, line in _numbered(place):
        try:
            text = line.decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise UsageError(
                "scraping.not-utf8", f"{place}:{number} is not UTF-8; write one address per line, in UTF-8"
            ) from None
        if text and not text.startswith("#"):
            yield text


def _numbered(place: str) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not empty, with their numbers."""
    try:
        for number, line in enumerate(read_lines(place), 1):
            if line.strip():
                yield number, line
    except DAMAGED as error:
        raise UsageError("scraping.damaged-file", f"{place} cannot be unpacked ({error}); fetch it again") from None


def _address(record: dict[str, Any], fields: Fields, source: str) -> str:
    names = (fields.address,) if fields.address else FIELDS
    found = [name for name in names if name in record]
    if fields.address and not found:
        raise UsageError(
            "scraping.missing-field",
            f"{source}: a record has no field {fields.address!r} of --field; use one of {', '.join(record)}",
        )
    return next(filter(None, (_text(record[name]) for name in found)), "")


def _text(value: Any) -> str:
    return str(value).strip() if isinstance(value, str | int | float) else ""


def _take(metadata: dict[str, str | list[str]], values: dict[str, Any]) -> None:
    """Add a record's values to a page's metadata."""
    for name, value in values.items():
        given: Iterable[Any] = value if isinstance(value, list | tuple) else [value]
        there = metadata.get(name, [])
        known = [there] if isinstance(there, str) else there
        every = list(dict.fromkeys(itertools.chain(known, filter(None, map(_text, given)))))
        if every:
            metadata[name] = every[0] if len(every) == 1 else every
