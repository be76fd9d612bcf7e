"""Check that the words of an answer stand in its source."""

import re
import unicodedata


def find_missing_words(answer: str, source: str) -> list[str]:
    """Return the words of an answer that are not in its source, if one has a digit or they are more than half.

    >>> find_missing_words("On 4 May.", "The audit is on 3 May.")
    ['4']
    """
    words, known = _split_words(answer), set(_split_words(source))
    missing = [each for each in words if each not in known]
    has_value = any(character.isdigit() for each in missing for character in each)
    is_yes_or_no = bool(words) and words[0] in ("yes", "no")
    return missing if not is_yes_or_no and (has_value or len(missing) > len(words) / 2) else []


def _split_words(text: str) -> list[str]:
    """Return words in lower case, without accents, and numbers without separators of thousands."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(each for each in decomposed if not unicodedata.combining(each))
    return re.findall(r"\w+", re.sub(r"(?<=\d),(?=\d{3})", "", plain))
