"""Erase records from files: lines of JSON, JSON documents, tables, logs and pages."""

import csv
import gzip
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gumshoe.artifacts.storage import write_atomically
from gumshoe.erasure.question_links import Links
from gumshoe.erasure.target import ERASED, EraseTarget

_BYTE_ORDER_MARK = "\ufeff"  # may be at the start of a file, e.g. of tables for spreadsheets
_LINES, _DOCUMENTS, _TABLES, _LOGS = {".jsonl", ".ndjson"}, {".json"}, {".csv"}, {".log", ".txt"}


def is_structured(path: Path) -> bool:
    """Return True if records can be erased from a file."""
    return _suffix(path) in _LINES | _DOCUMENTS | _TABLES | _LOGS


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def read_text(path: Path) -> str:
    """Return the text of a file, which may be compressed. Bytes that are not UTF-8 become lone surrogates.

    Raises:
        OSError, EOFError, zlib.error (`GZIP_ERRORS`): if the file cannot be read, or its compressed content is damaged.
    """
    data = path.read_bytes()
    if path.suffix.lower() == ".gz":
        data = gzip.decompress(data)
    return data.decode("utf-8", "surrogateescape")


def collect_links(path: Path, links: Links) -> None:
    """Add the questions of the records in a file.

    Raises:
        OSError, EOFError, zlib.error: as in `read_text`.
    """
    if _suffix(path) in _LINES:
        for record in _parse_lines(read_text(path)):
            links.add(record)


def redact_file(path: Path, target: EraseTarget, links: Links) -> tuple[str, int]:
    """Return the text of a file without what concerns the target, and the number of erased records and values.

    Raises:
        OSError, EOFError, zlib.error: as in `read_text`.
    """
    text, kind = read_text(path), _suffix(path)

    def is_erased(record: Any) -> bool:
        return (target.concerns(record) and not links.is_of_others(record)) or links.has(record)

    if kind in _LINES:
        return _filter_lines(text, lambda line: is_erased(_parse(line)) if line.strip() else False)
    if kind in _LOGS:
        return _filter_lines(text, lambda line: is_erased(_parse(line)) or _is_mentioned(line, target))
    if kind in _TABLES:
        return _filter_rows(text, is_erased)
    value = _parse(text)
    redacted, count = redact_value(value, is_erased, target)
    if redacted == ERASED != value:
        return "", count
    return (_format_json(redacted), count) if count else (text, 0)


def _format_json(value: Any) -> str:
    """Return the text of a JSON document. Lone surrogates, which cannot be written as UTF-8, stay escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2)
    return f"{text}\n"


def write_redacted(path: Path, text: str) -> None:
    """Replace the content of a file in one step. A file without any content left is deleted."""
    if not text.strip():
        path.unlink()
        return
    data = text.encode("utf-8", "surrogateescape")
    content = gzip.compress(data, mtime=0) if path.suffix.lower() == ".gz" else data
    write_atomically(path, io.BytesIO(content), mode=path.stat().st_mode & 0o777)


def redact_value(value: Any, is_erased: Callable[[Any], bool], target: EraseTarget, key: str = "") -> tuple[Any, int]:
    """Return a JSON value without the erased items of lists, and the number of erased values.

    Erased texts and records that are not in a list become `ERASED`, so that the document keeps its form. `key` is the
    name of the value in its object.
    """
    if isinstance(value, list):
        kept: list[Any] = []
        count = 0
        for each in value:
            found, erased = redact_value(each, is_erased, target, key)
            gone = is_erased(each) if isinstance(each, dict) else found == ERASED != each
            kept += [] if gone else [found]
            count += 1 if gone else erased
        return kept, count
    if isinstance(value, dict):
        if _is_record(value) and is_erased(_select_texts(value)):
            return ERASED, 1
        pairs = {name: redact_value(each, is_erased, target, name) for name, each in value.items()}
        named = {name: pair for name, pair in pairs.items() if not target.concerns({name: None})}
        count = sum(erased for _, erased in named.values()) + len(pairs) - len(named)
        return {name: each for name, (each, _) in named.items()}, count
    if isinstance(value, str) and target.concerns({key: value} if key else [value]):
        return ERASED, 1
    return value, 0


def _is_record(value: dict[str, Any]) -> bool:
    """Return True if an object is a record of a question or an episode."""
    return not value.keys().isdisjoint(("question", "scenario"))


def _select_texts(record: dict[str, Any]) -> dict[str, Any]:
    """Return the texts of a record, and lists of texts, without the objects in it."""
    return {name: each for name, each in record.items() if not isinstance(each, dict) and not _has_objects(each)}


def _has_objects(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict | list) for each in value)


def _is_mentioned(line: str, target: EraseTarget) -> bool:
    return target.is_mentioned(line) and not target.is_of_others(_parse(line))


def _filter_lines(text: str, is_erased: Callable[[str], bool]) -> tuple[str, int]:
    lines = text.split("\n")  # other line ends may be part of a text in JSON
    kept = [line for line in lines if not is_erased(line)]
    return "\n".join(kept), len(lines) - len(kept)


def _filter_rows(text: str, is_erased: Callable[[Any], bool]) -> tuple[str, int]:
    csv.field_size_limit(sys.maxsize)  # answers may be longer than Python's limit
    rows = list(csv.reader(io.StringIO(text, newline="")))
    if not rows:
        return text, 0
    head, *body = rows
    names = [head[0].removeprefix(_BYTE_ORDER_MARK), *head[1:]] if head else []
    kept = [row for row in body if not is_erased(dict(zip(names, row, strict=False)))]
    written = io.StringIO(newline="")
    csv.writer(written).writerows([head, *kept])
    return written.getvalue(), len(body) - len(kept)


def _parse(text: str) -> Any:
    """Return a JSON value, or a list with the text if it is not JSON."""
    try:
        return json.loads(text.removeprefix(_BYTE_ORDER_MARK))
    except (ValueError, RecursionError):
        return [text]


def _parse_lines(text: str) -> Iterator[Any]:
    return (_parse(line) for line in text.split("\n") if line.strip())
