"""Read the text of attached files, within limits on size, number and time."""

import re
from codecs import getincrementaldecoder
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import PurePosixPath
from time import monotonic
from types import TracebackType
from typing import Literal, Self

from gumshoe.extraction.office import (
    UnknownOfficeTypeError,
    extract_office,
    find_old_office_format,
    is_encrypted_office_file,
)
from gumshoe.extraction.pdf import extract_pdf
from gumshoe.extraction.processes import BoundedProcesses, ExtractionFailure, open_processes
from gumshoe.extraction.rtf import extract_rtf
from gumshoe.mail.calendar_text import calendar_to_text, decode_calendar
from gumshoe.mail.message import AttachedFile, Attachment, clean, clean_line
from gumshoe.mail.parts import CALENDAR_TYPES
from gumshoe.mail.text import decode, decode_html, remove_invisible

Kind = Literal["pdf", "office", "rtf", "html", "calendar", "text", ""]

_MISSING = "extractor missing"
_TEXT_SUFFIXES = {
    *(".asc", ".cfg", ".conf", ".csv", ".diff", ".ini", ".json", ".jsonl", ".log", ".markdown", ".md", ".patch"),
    *(".rst", ".srt", ".tex", ".toml", ".tsv", ".txt", ".vcf", ".vtt", ".xml", ".yaml", ".yml"),
}
_TEXT_TYPES = {
    *("application/json", "application/xml", "application/x-yaml", "application/yaml", "application/csv"),
    *("application/text", "plain/text"),
}
# Programs write HTML and tables as text into files that they name .doc and .xls.
_UNCERTAIN_TYPES = {"application/octet-stream", "application/msword", "application/vnd.ms-excel"}
_HTML_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:html|!doctype html|table)\b", re.I)
_HTML_TYPES = {"text/html", "application/xhtml+xml"}
_BOMS = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")
_PDF_MAGIC_BYTES = 1024  # a PDF may begin behind some junk
_SAMPLE = 4096  # bytes
_CONTROL = re.compile(r"[\0-\x08\x0e-\x1a\x1c-\x1f]")
_MAX_WORD = 20  # characters, on average
_BYTES_PER_CHARACTER = 4  # at most, of text
_CALENDAR_START = re.compile(rb"\s*BEGIN:VCALENDAR", re.I)
_PGP_START = re.compile(rb"\s*-----BEGIN PGP MESSAGE-----")
_LIBRARIES: dict[Kind, tuple[str, ...]] = {
    "pdf": ("pebble", "pypdf", "pypdfium2"),
    "office": ("pebble", "lxml", "openpyxl"),
}


@dataclass(frozen=True, slots=True)
class AttachmentLimits:
    """Limits on what is read of attached files."""

    max_bytes: int = 20 << 20
    """Size of one file. Larger ones are not read."""
    max_characters: int = 200_000
    """Length of the text of one file. The rest is cut off."""
    max_per_message: int = 50
    """Number of files of one message. Further ones are not read."""
    seconds: float = 30.0
    """Time to extract the text of one file."""
    seconds_per_message: float = 120.0
    """Time after which no further file of a message is read."""


class AttachmentReader:
    """Read the text of attached files. PDF and Office files are read in a process that lives as long as the reader.

    >>> with AttachmentReader(AttachmentLimits()) as reader:
    ...     message.attachments = reader.read_all(message.files)
    """

    def __init__(self, limits: AttachmentLimits) -> None:
        self._limits = limits
        self._stack = ExitStack()
        self._processes: BoundedProcesses | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes = None
        self._stack.close()

    def read_all(self, files: Iterable[AttachedFile]) -> list[Attachment]:
        """Read the files of one message.

        The problem of those beyond the limit on their number is `too many`, and beyond the limit on time `timeout`.
        """
        end = monotonic() + self._limits.seconds_per_message
        found: list[Attachment] = []
        for number, file in enumerate(files):
            if number >= self._limits.max_per_message:
                found.append(Attachment(clean_line(file.name), problem="too many"))
            elif monotonic() >= end:
                found.append(Attachment(clean_line(file.name), problem=file.problem or "timeout"))
            else:
                found.append(self.read(file))
        return found

    def read(self, file: AttachedFile) -> Attachment:
        """Return a file's text, or why it was not read.

        The problem is `too large`, `no text`, `encrypted`, `unknown type`, `cannot be read`, `timeout`, an old format
        like `Word before 2007`, or `extractor missing: ` with the names of the packages to install.
        """
        text, problem = self._read_text(file)
        name = clean_line(file.name)  # it may be the media type, or of another program's file
        shown = remove_invisible(clean(text)).strip()[: self._limits.max_characters]
        if problem or shown:
            return Attachment(name, shown, problem)
        return Attachment(name, problem="no text")

    def _read_text(self, file: AttachedFile) -> tuple[str, str]:
        """Return a file's text and the problem. Either is ""."""
        if file.problem:
            return "", file.problem
        if len(file.data) > self._limits.max_bytes:
            return "", "too large"
        if not file.data.strip(b"\0\t\n\r "):
            return "", "no text"
        if _PGP_START.match(file.data) or is_encrypted_office_file(file.data):
            return "", "encrypted"
        if old_format := find_old_office_format(file.data):
            return "", old_format
        kind = find_kind(file)
        if not kind:
            return "", "unknown type"
        if kind in {"pdf", "office", "rtf"}:
            return self._read_in_process(file.data, kind)
        return self._read_here(file, kind)

    def _read_here(self, file: AttachedFile, kind: Kind) -> tuple[str, str]:
        """Read a kind of file that is read in time that grows linearly with its size."""
        if kind == "html":
            return decode_html(file.data, file.charset), ""
        if kind == "text":
            return decode(file.data[: self._limits.max_characters * _BYTES_PER_CHARACTER], file.charset), ""
        text = decode_calendar(file.data, file.charset)
        try:
            return calendar_to_text(text) or text, ""
        except ImportError:
            return "", f"{_MISSING}: icalendar"
        except ValueError:
            return text, ""

    def _read_in_process(self, data: bytes, kind: Kind) -> tuple[str, str]:
        missing = [name for name in _LIBRARIES.get(kind, ("pebble",)) if find_spec(name) is None]
        if missing:
            return "", f"{_MISSING}: {', '.join(missing)}"
        if self._processes is None:
            self._processes = self._stack.enter_context(open_processes(1, self._limits.seconds, preload=(__name__,)))
        try:
            return self._processes.run(extract_file, data, kind, self._limits.max_characters)
        except ExtractionFailure as failure:
            return "", "timeout" if failure.kind == "timeout" else "cannot be read"


def find_kind(file: AttachedFile) -> Kind:
    """Return the kind of a file by its first bytes, otherwise by its media type and the ending of its name."""
    data, suffix = file.data, PurePosixPath(file.name.lower()).suffix
    if b"%PDF-" in data[:_PDF_MAGIC_BYTES]:
        return "pdf"
    if data.startswith(b"PK\3\4"):
        return "office"
    if data.startswith(b"{\\rtf"):
        return "rtf"
    if b"\0" in data[:4096] and not data.startswith(_BOMS):
        return ""
    if file.media_type in CALENDAR_TYPES or suffix == ".ics" or _CALENDAR_START.match(data):
        return "calendar"
    is_uncertain = file.media_type in _UNCERTAIN_TYPES
    is_html = file.media_type in _HTML_TYPES or (is_uncertain and _HTML_START.match(data) is not None)
    if is_html or suffix in {".htm", ".html", ".xhtml"}:
        return "html"
    is_text = file.media_type.startswith(("text/", "message/")) or file.media_type in _TEXT_TYPES
    return "text" if is_text or suffix in _TEXT_SUFFIXES or (is_uncertain and _has_words(data[:_SAMPLE])) else ""


def _has_words(data: bytes) -> bool:
    """Return True for the beginning of a text in UTF-8, and not of numbers, keys or other codes."""
    try:
        text = getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False
    words = text.split()
    return _CONTROL.search(text) is None and len(text) < _MAX_WORD * len(words) and any(map(str.isalpha, words))


def extract_file(data: bytes, kind: Kind, max_characters: int) -> tuple[str, str]:
    """Return the text of a PDF, Office or RTF file and why it was not read. Either is ""."""
    try:
        if kind == "pdf":
            found = extract_pdf(data, max_characters)
            text = "\n\n".join(filter(None, [found.title, *found.pages]))[:max_characters]
            damaged = any(each.kind == "damaged" for each in found.problems)
            return ("", "cannot be read") if damaged and not any(found.pages) else (text, "")
        if kind == "office":
            return extract_office(data, max_characters), ""
        return extract_rtf(data)[:max_characters], ""
    except UnknownOfficeTypeError:
        return "", "unknown type"
    except Exception as error:  # noqa: BLE001 - top level of the process: any parser error belongs to the file
        is_encrypted = type(error).__name__ == "FileNotDecryptedError" or "encrypted" in str(error)
        return "", "encrypted" if is_encrypted else "cannot be read"
