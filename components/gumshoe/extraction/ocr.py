"""Recognize the text of scanned pages with tesseract (https://tesseract-ocr.github.io), if it is installed."""

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from functools import lru_cache

from gumshoe.errors import UsageError
from gumshoe.extraction.pdf import RENDER_DPI, render_page

PROGRAM = "tesseract"
_MAX_REASON = 200  # characters
_MAX_OUTPUT = 1_000_000  # characters
# Names of tesseract's models by ISO 639 code.
_MODELS = {
    "af": "afr", "ar": "ara", "az": "aze", "be": "bel", "bg": "bul", "bn": "ben", "bs": "bos", "ca": "cat",
    "cs": "ces", "cy": "cym", "da": "dan", "de": "deu", "el": "ell", "en": "eng", "eo": "epo", "es": "spa",
    "et": "est", "eu": "eus", "fa": "fas", "fi": "fin", "fr": "fra", "ga": "gle", "gl": "glg", "gu": "guj",
    "he": "heb", "hi": "hin", "hr": "hrv", "hu": "hun", "hy": "hye", "id": "ind", "is": "isl", "it": "ita",
    "ja": "jpn", "ka": "kat", "kk": "kaz", "km": "khm", "kn": "kan", "ko": "kor", "la": "lat", "lo": "lao",
    "lt": "lit", "lv": "lav", "mk": "mkd", "ml": "mal", "mr": "mar", "ms": "msa", "mt": "mlt", "my": "mya",
    "ne": "nep", "nl": "nld", "no": "nor", "pa": "pan", "pl": "pol", "pt": "por", "ro": "ron", "ru": "rus",
    "si": "sin", "sk": "slk", "sl": "slv", "sq": "sqi", "sr": "srp", "sv": "swe", "sw": "swa", "ta": "tam",
    "te": "tel", "th": "tha", "tr": "tur", "uk": "ukr", "ur": "urd", "vi": "vie", "yi": "yid", "zh": "chi_sim",
}  # fmt: skip


_ENGLISH, _ORIENTATION = "eng", "osd"
_LISTING_SECONDS = 20


def check_scan_language(code: str) -> str:
    """Return the code of a language that scanned pages can have.

    Raises:
        UsageError: if no model for it is known.
    """
    if code not in _MODELS:
        known = ", ".join(sorted(_MODELS))
        raise UsageError(
            "extraction.unknown-scan-language", f"language of scanned pages must be one of {known}, got {code!r}"
        )
    return code


@dataclass(frozen=True, slots=True)
class RecognizedPage:
    """Text of a scanned page."""

    text: str
    problem: str = ""
    """The reason why there is no text, and what to do about it. Empty if there is some."""


@dataclass(frozen=True, slots=True)
class TextRecognition:
    """Recognize text in a language, given by its ISO 639 code. English is the fallback."""

    language: str = "en"
    program: str | None = field(default_factory=lambda: shutil.which(PROGRAM))
    """Path of tesseract, or None if it is not installed."""
    seconds: float = 120
    """Maximum duration of the recognition of one page."""

    @property
    def is_installed(self) -> bool:
        """True if scanned pages can be read."""
        return self.program is not None

    def recognize(self, data: bytes, number: int) -> RecognizedPage:
        """Return the text of a page of a PDF, from 1. Sideways pages are turned if tesseract has its model for that."""
        if self.program is None:
            return RecognizedPage("", "install tesseract to read it")
        models, problem = _list_models(self.program)
        model = _MODELS.get(self.language, _ENGLISH)
        if problem or model not in models:
            return RecognizedPage("", problem or f"tesseract has no model for {model}; install it")
        layout = ["--psm", "1"] if _ORIENTATION in models else []
        command = [self.program, "stdin", "stdout", "-l", model, "--dpi", str(RENDER_DPI), *layout]
        try:
            found = _run(command, render_page(data, number), self.seconds)
        except ValueError as error:
            return RecognizedPage("", str(error))
        lines = (line.strip() for line in found[:_MAX_OUTPUT].replace("\f", "").splitlines())
        text = "\n".join(lines).strip()
        return RecognizedPage(text, "" if text else "tesseract recognized no text")


@lru_cache(8)
def _list_models(program: str) -> tuple[frozenset[str], str]:
    """Return the names of the installed models, and the reason if tesseract cannot be run."""
    try:
        return frozenset(_run([program, "--list-langs"], b"", _LISTING_SECONDS).split()), ""
    except ValueError as error:
        return frozenset(), str(error)


def _run(command: list[str], data: bytes, seconds: float) -> str:
    """Return what tesseract prints.

    Raises:
        ValueError: if it fails or takes too long.
    """
    # On few cores, several threads for one page are no faster, and use more than twice the processor time.
    environment = {"OMP_THREAD_LIMIT": "1", **os.environ}
    try:
        ended = subprocess.run(  # noqa: S603 - no shell, and no argument comes from a file
            command, input=data, capture_output=True, timeout=seconds, check=False, env=environment
        )
    except OSError as error:
        raise ValueError(f"tesseract cannot be run ({error.strerror or error}); install it again") from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"tesseract took more than {seconds:g} seconds") from None
    if ended.returncode:
        said = " ".join(ended.stderr.decode("utf-8", "replace").split())[-_MAX_REASON:]
        raise ValueError(f"tesseract failed with status {ended.returncode}{f' ({said})' if said else ''}")
    return ended.stdout.decode("utf-8", "replace")
