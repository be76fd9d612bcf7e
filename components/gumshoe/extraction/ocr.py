"""Recognize the text of scanned pages with tesseract (https://tesseract-ocr.github.io), if it is installed."""

import shutil
import subprocess
from dataclasses import dataclass, field

from gumshoe.extraction.pdf import RENDER_DPI, render_page

PROGRAM = "tesseract"
_SECONDS = 45  # per page
_MAX_OUTPUT = 1_000_000  # characters
# Names of tesseract's models by ISO 639 code.
_MODELS = {
    "ar": "ara", "bg": "bul", "ca": "cat", "cs": "ces", "da": "dan", "de": "deu", "el": "ell", "en": "eng", "es": "spa",
    "et": "est", "eu": "eus", "fa": "fas", "fi": "fin", "fr": "fra", "ga": "gle", "he": "heb", "hi": "hin", "hr": "hrv",
    "hu": "hun", "hy": "hye", "id": "ind", "it": "ita", "ja": "jpn", "km": "khm", "ko": "kor", "lo": "lao", "lt": "lit",
    "my": "mya", "ne": "nep", "nl": "nld", "no": "nor", "pl": "pol", "pt": "por", "ro": "ron", "ru": "rus",
    "sr": "srp", "sv": "swe", "ta": "tam", "th": "tha", "tr": "tur", "yi": "yid", "zh": "chi_sim",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TextRecognition:
    """Recognize text in a language, given by its ISO 639 code. English is the fallback."""

    language: str = "en"
    program: str | None = field(default_factory=lambda: shutil.which(PROGRAM))
    """Path of tesseract, or None if it is not installed."""

    @property
    def is_installed(self) -> bool:
        """True if scanned pages can be read."""
        return self.program is not None

    @property
    def advice(self) -> str:
        """What to do about a scanned page that was not read."""
        if not self.is_installed:
            return "install tesseract to read it"
        return f"tesseract has no model for {self._model}; install it" if not self._has_model() else "it has no text"

    @property
    def _model(self) -> str:
        return _MODELS.get(self.language, "eng")

    def _has_model(self) -> bool:
        listed = self._run(["--list-langs"], b"")
        return listed is not None and self._model in listed.split()

    def recognize(self, data: bytes, number: int) -> str:
        """Return the text of a page of a PDF, from 1, or "" if none is recognized."""
        try:
            image = render_page(data, number)
        except ValueError:
            return ""
        found = self._run(["stdin", "stdout", "-l", self._model, "--dpi", str(RENDER_DPI)], image)
        return "\n".join(line.strip() for line in (found or "")[:_MAX_OUTPUT].replace("\f", "").splitlines()).strip()

    def _run(self, arguments: list[str], data: bytes) -> str | None:
        """Return what tesseract prints, or None if it fails or takes too long."""
        if self.program is None:
            return None
        try:
            ended = subprocess.run(  # noqa: S603 - no shell, and no argument comes from a file
                [self.program, *arguments], input=data, capture_output=True, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return ended.stdout.decode("utf-8", "replace") if ended.returncode == 0 else None
