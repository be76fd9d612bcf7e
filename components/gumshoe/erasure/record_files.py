"""Erase records from files: lines of JSON, JSON documents, tables, logs and pages."""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gumshoe.artifacts.storage import write_atomically
from gumshoe.erasure.target import EraseTarget
from gumshoe.errors import GumshoeError
from gumshoe.scenarios.scenario import Scenario

ERASED = "[erased]"
"""Text in place of an erased value that is not in a list."""
_LINES, _DOCUMENTS, _TABLES, _LOGS = {".jsonl", ".ndjson"}, {".json"}, {".csv"}, {".log", ".txt"}


@dataclass(slots=True)
class Links:
    """Questions that concern the target. Records of their episodes may name only the question."""

    ids: set[str] = field(default_factory=set)
    """Ids of scenarios, within one directory."""
    questions: set[str] = field(default_factory=set)
    """Texts of questions, in lower case, everywhere."""
    digests: set[str] = field(default_factory=set)
    """`Scenario.digest` of each question, by which adapters name what they were trained on."""

    def within(self) -> "Links":
        """Return links of another directory, with the same questions."""
        return Links(set(), self.questions, self.digests)

    def add(self, record: Any, target: EraseTarget) -> None:
        """Remember the question of a record that concerns the target.

        That is a scenario, or an episode whose question is about the inbox. An episode about something else that only
        came across the target does not make its question one about it.
        """
        is_scenario = isinstance(record, dict) and not record.keys().isdisjoint(("message_ids", "document_ids"))
        if not isinstance(record, dict) or not (is_scenario or target.is_inbox_of(record)):
            return
        question, name = record.get("question"), record.get("scenario")
        if isinstance(question, str) and question.strip():
            self.questions.add(question.strip().lower())
            inbox = target.name if target.kind == "inbox" else record.get("inbox_address")
            for each in {inbox, record.get("inbox_address")}:
                if isinstance(each, str | None):
                    self._add_digest(question, each)
        name = name if isinstance(name, str) else record.get("id") if question else None
        if isinstance(name, str):
            self.ids.add(name)

    def _add_digest(self, question: str, inbox: str | None) -> None:
        try:
            self.digests.add(Scenario.from_question(question, inbox, None).digest)
        except GumshoeError:
            return

    def has(self, record: Any, target: EraseTarget) -> bool:
        """Return True if a record is about a question that concerns the target."""
        if not isinstance(record, dict):
            return False
        inbox = record.get("inbox_address")
        if target.kind == "inbox" and isinstance(inbox, str) and inbox.lower() != target.name:
            return False
        question = record.get("question")
        if isinstance(question, str) and question.strip().lower() in self.questions:
            return True
        return isinstance(record.get("scenario"), str) and record["scenario"] in self.ids


def is_structured(path: Path) -> bool:
    """Return True if records can be erased from a file."""
    return _suffix(path) in _LINES | _DOCUMENTS | _TABLES | _LOGS


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def read_text(path: Path) -> str:
    """Return the text of a file, which may be compressed. Bytes that are not UTF-8 are kept in a form of their own."""
    data = path.read_bytes()
    if path.suffix.lower() == ".gz":
        data = gzip.decompress(data)
    return data.decode("utf-8", "surrogateescape")


def collect_links(path: Path, target: EraseTarget, links: Links) -> None:
    """Add the questions of records in a file that concern the target.

    Raises:
        OSError, EOFError: if the file cannot be read.
    """
    if _suffix(path) in _LINES:
        for record in _parse_lines(read_text(path)):
            if target.concerns(record):
                links.add(record, target)


def redact_file(path: Path, target: EraseTarget, links: Links) -> tuple[str, int]:
    """Return the text of a file without what concerns the target, and how many records or values are missing.

    Raises:
        OSError, EOFError: if the file cannot be read.
    """
    text, kind = read_text(path), _suffix(path)

    def is_erased(record: Any) -> bool:
        return target.concerns(record) or links.has(record, target)

    if kind in _LINES:
        return _filter_lines(text, lambda line: is_erased(_parse(line)) if line.strip() else False)
    if kind in _LOGS:
        return _filter_lines(text, lambda line: target.is_mentioned(line) or is_erased(_parse(line)))
    if kind in _TABLES:
        return _filter_rows(text, is_erased)
    value = _parse(text)
    redacted, count = redact_value(value, is_erased, target)
    return (json.dumps(redacted, ensure_ascii=False, indent=2) + "\n", count) if count else (text, 0)


def write_redacted(path: Path, text: str) -> None:
    """Replace the content of a file in one step. A file without any content left is deleted."""
    if not text.strip():
        path.unlink()
        return
    data = text.encode("utf-8", "surrogateescape")
    content = gzip.compress(data, mtime=0) if path.suffix.lower() == ".gz" else data
    write_atomically(path, io.BytesIO(content), mode=path.stat().st_mode & 0o777)


def redact_value(value: Any, is_erased: Callable[[Any], bool], target: EraseTarget, key: str = "") -> tuple[Any, int]:
    """Return a JSON value without the items of lists that are erased, and how many values are missing.

    Erased texts that are not in a list become `ERASED`, so that the form of the document stays.
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
        pairs = {name: redact_value(each, is_erased, target, name) for name, each in value.items()}
        named = {name: pair for name, pair in pairs.items() if not target.concerns({name: None})}
        count = sum(erased for _, erased in named.values()) + len(pairs) - len(named)
        return {name: each for name, (each, _) in named.items()}, count
    if isinstance(value, str) and target.concerns({key: value} if key else [value]):
        return ERASED, 1
    return value, 0


def _filter_lines(text: str, is_erased: Callable[[str], bool]) -> tuple[str, int]:
    lines = text.split("\n")  # other line ends may be part of a text in JSON
    kept = [line for line in lines if not is_erased(line)]
    return "\n".join(kept), len(lines) - len(kept)


def _filter_rows(text: str, is_erased: Callable[[Any], bool]) -> tuple[str, int]:
    rows = list(csv.reader(io.StringIO(text, newline="")))
    if not rows:
        return text, 0
    head, *body = rows
    kept = [row for row in body if not is_erased(dict(zip(head, row, strict=False)))]
    written = io.StringIO(newline="")
    csv.writer(written).writerows([head, *kept])
    return written.getvalue(), len(body) - len(kept)


def _parse(text: str) -> Any:
    """Return a JSON value; the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return [text]


def _parse_lines(text: str) -> Iterator[Any]:
    return (_parse(line) for line in text.split("\n") if line.strip())
