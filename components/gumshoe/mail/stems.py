"""Stems of words, by the Snowball algorithms (https://snowballstem.org/algorithms/)."""

import threading
import unicodedata

import snowballstemmer

# By ISO 639 code. English uses the original Porter stemmer.
_ALGORITHMS = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek", "en": "porter",
    "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian", "fi": "finnish", "fr": "french", "ga": "irish",
    "hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian", "it": "italian", "lt": "lithuanian",
    "ne": "nepali", "nl": "dutch", "no": "norwegian", "pl": "polish", "pt": "portuguese", "ro": "romanian",
    "ru": "russian", "sr": "serbian", "sv": "swedish", "ta": "tamil", "tr": "turkish", "yi": "yiddish",
}  # fmt: skip
STEMMED_LANGUAGES = frozenset(_ALGORITHMS)
"""ISO 639 codes of the languages with an algorithm."""


def remove_accents(text: str) -> str:
    """Return a text in compatibility form without accents, e.g. `Zurich` for `Zürich`."""
    if text.isascii():
        return text
    return "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))


class Stemmer:
    """Reduce words of a language to their stems. Thread-safe.

    Args:
        language: ISO 639 code. Words of a language without an algorithm stay as they are.
    """

    def __init__(self, language: str) -> None:
        algorithm = _ALGORITHMS.get(language)
        self._stemmer = snowballstemmer.stemmer(algorithm) if algorithm else None
        self._lock = threading.Lock()  # a stemmer is stateful

    def stem(self, word: str) -> str:
        """Return the stem of a word in lower case."""
        if self._stemmer is None:
            return word
        with self._lock:
            return str(self._stemmer.stemWord(word))
