"""Languages that documents can be indexed in."""

from gumshoe.errors import UsageError
from gumshoe.mail.stems import STEMMED_LANGUAGES

UNDETERMINED = "und"
"""Code of ISO 639 for a language that is not known, or that no other code stands for: words are not stemmed."""
CHARACTER_LANGUAGES = frozenset(["ja", "km", "ko", "lo", "my", "th", "zh"])
"""Languages that are searched by characters: they have no spaces between words, or add particles to them."""


def check_language(code: str) -> str:
    """Return the code of a language whose words can be searched.

    Raises:
        UsageError: if its words can be neither stemmed nor divided into characters.
    """
    known = sorted(STEMMED_LANGUAGES | CHARACTER_LANGUAGES)
    if code not in known and code != UNDETERMINED:
        raise UsageError(
            "documents.invalid-language",
            f"language must be one of {', '.join(known)}, got {code!r}; for any other, use {UNDETERMINED}, which does "
            "not stem words",
        )
    return code
