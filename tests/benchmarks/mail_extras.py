"""Measure how much time and disk space attachments and vectors add to an index of mail."""

import io
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from email.message import EmailMessage
from itertools import islice
from pathlib import Path
from xml.sax.saxutils import escape

from openpyxl import Workbook

from gumshoe.embeddings.search_options import NO_EMBEDDING
from gumshoe.mail.build import build_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from tests.benchmarks.mail_corpus import real_messages
from tests.documents.pages import pdf

MESSAGES = 1_000
_CHARACTERS = 3_000  # of each attachment
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def measure_extras(directory: Path, embedding: str) -> tuple[str, list[str], list[list[str]]]:
    """Return title, header and rows of a table with the seconds and MiB of each index.

    The first index is of text alone. Each of the next ones has an attachment of one kind for each message. The last one
    has vectors, unless `embedding` is "none".
    """
    texts = [message["body"] for message in islice(real_messages(), MESSAGES)]
    options = MailBuildOptions(max_body=None)
    rows = []
    kinds: dict[str, Callable[[str], bytes] | None] = {
        "without": None, ".html": _html, ".docx": _docx, ".xlsx": _xlsx, ".pdf": _pdf
    }  # fmt: skip
    for name, write in kinds.items():
        mail = directory / f"mail{name}"
        _write_mail(mail, texts, name, write)
        rows.append(_measure(f"attachment {name}" if write else name, mail, directory / f"index{name}", options))
    if embedding != NO_EMBEDDING:
        options = replace(options, embedding=embedding)
        rows.append(_measure(f"vectors of {embedding}", directory / "mailwithout", directory / "vectors", options))
    base = float(rows[0][1])
    for row in rows[1:]:
        row.append(f"{(float(row[1]) - base) * 1000 / MESSAGES:.1f}")
    return f"Indexing {MESSAGES:,} raw messages", ["", "seconds", "MiB", "extra ms per message"], rows


def _measure(name: str, mail: Path, out: Path, options: MailBuildOptions) -> list[str]:
    started = time.perf_counter()
    build_mail_index([f"maildir:{mail}"], out, options)
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return [name, f"{seconds:.1f}", f"{size / 2**20:.1f}"]


def _write_mail(directory: Path, texts: list[str], ending: str, write: Callable[[str], bytes] | None) -> None:
    for part in ("cur", "new", "tmp"):
        (directory / part).mkdir(parents=True)
    for number, text in enumerate(texts):
        message = EmailMessage()
        message["From"], message["To"] = "ann@example.com", "bob@example.com"
        message["Message-ID"], message["Subject"] = f"<{number}@example.com>", f"Report {number}"
        message.set_content(text)
        if write:
            attached = write(texts[number - 1][:_CHARACTERS])  # the text of another message
            message.add_attachment(attached, "application", "octet-stream", filename=f"report{ending}")
        (directory / "cur" / f"{number}:2,S").write_bytes(message.as_bytes())


def _html(text: str) -> bytes:
    return f"<html><body><p>{escape(text)}</p></body></html>".encode()


def _docx(text: str) -> bytes:
    paragraphs = "".join(f"<w:p><w:r><w:t>{escape(_printable(line))}</w:t></w:r></w:p>" for line in text.splitlines())
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("word/document.xml", f'<w:document xmlns:w="{_WORD}"><w:body>{paragraphs}</w:body></w:document>')
    return packed.getvalue()


def _xlsx(text: str) -> bytes:
    workbook, packed = Workbook(), io.BytesIO()
    for line in text.splitlines():
        workbook.active.append([_printable(word) for word in line.split()])
    workbook.save(packed)
    return packed.getvalue()


def _pdf(text: str) -> bytes:
    return pdf(" ".join(_printable(text).split()))


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)
