"""Recognition of scanned pages: with tesseract, if it is installed, and with programs that fail in its place."""

import io
import shutil
import stat
from pathlib import Path

import pytest

from gumshoe.documents.languages import CHARACTER_LANGUAGES
from gumshoe.extraction.ocr import PROGRAM, TextRecognition, check_scan_language
from gumshoe.extraction.pdf import extract_pdf, render_page
from gumshoe.mail.stems import STEMMED_LANGUAGES
from tests.conftest import skip_missing
from tests.documents.file_samples import SCAN, placed_pdf
from tests.errors import raises

PAGE = placed_pdf([SCAN])
LINES = ["The lease of the pumping station", "ends on 30 June 2027."]


def scan(turned: int = 0) -> bytes:
    """Return a PDF whose only page is an image of `LINES`, turned by some degrees."""
    from PIL import Image

    text = placed_pdf([[(72, 700 - 30 * row, line) for row, line in enumerate(LINES)]])
    image = Image.open(io.BytesIO(render_page(text, 1))).rotate(turned, expand=True)
    written = io.BytesIO()
    image.save(written, "PDF", resolution=300)
    return written.getvalue()


def program(directory: Path, script: str) -> str:
    path = directory / PROGRAM
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.ci
@pytest.mark.parametrize("turned", [0, 90])
def test_tesseract_reads_a_scanned_page(turned: int) -> None:
    if shutil.which(PROGRAM) is None:
        skip_missing("tesseract")
    data = scan(turned)
    assert [each.kind for each in extract_pdf(data).problems] == ["scanned"]
    found = TextRecognition().recognize(data, 1)
    assert [line for line in found.text.splitlines() if line] == LINES
    assert not found.problem


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 127", "status 127"),
        ('[ "$1" = --list-langs ] && { echo eng; exit; }; echo "no memory" >&2; exit 3', "status 3 (no memory)"),
        ('[ "$1" = --list-langs ] && { echo eng; exit; }; exec sleep 600', "0.2 seconds"),
        ('[ "$1" = --list-langs ] && { echo eng; exit; }; cat >/dev/null', "no text"),
        ("echo deu", "eng"),
    ],
)
def test_the_reason_for_a_page_without_text_is_named(tmp_path: Path, script: str, reason: str) -> None:
    found = TextRecognition("en", program(tmp_path, script), 0.2 if "sleep" in script else 60).recognize(PAGE, 1)
    assert found.text == ""
    assert reason in found.problem


def test_a_program_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    broken = tmp_path / PROGRAM
    broken.write_bytes(b"\0\0\0\0")
    broken.chmod(stat.S_IRWXU)
    assert "format" in TextRecognition("en", str(broken)).recognize(PAGE, 1).problem


def test_an_unknown_language_of_scans_is_refused() -> None:
    for code in STEMMED_LANGUAGES | CHARACTER_LANGUAGES | {"uk", "vi"}:
        assert check_scan_language(code) == code
    for wrong in ("", "EN", "english", "xx", "und"):
        with raises("extraction.unknown-scan-language", repr(wrong), "uk"):
            check_scan_language(wrong)


@pytest.mark.parametrize("models", ["eng", "eng osd"])
def test_pages_are_turned_if_the_model_for_it_is_installed(tmp_path: Path, models: str) -> None:
    path = program(tmp_path, f'[ "$1" = --list-langs ] && {{ echo {models}; exit; }}; cat >/dev/null; echo "$*"')
    turns = " --psm 1" if "osd" in models else ""
    assert TextRecognition("en", path).recognize(PAGE, 1).text == f"stdin stdout -l eng --dpi 300{turns}"
