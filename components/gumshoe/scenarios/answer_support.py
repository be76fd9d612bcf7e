"""Check that the words of an answer stand in its source."""

from collections.abc import Iterator

from gumshoe.mail.words import find_pairs, normalize_word

_YES_OR_NO = frozenset({"yes", "no", "ja", "nein", "oui", "non", "si"})
"""English, German, French and Spanish, without accents."""


def find_missing_words(answer: str, source: str) -> list[str]:
    """Return the words of an answer that are not in its source, if one has a digit or they are more than half.

    Of scripts without spaces between words, and of Korean, each two characters that follow each other are a word.

    >>> find_missing_words("On 4 May.", "The audit is on 3 May.")
    ['4']
    """
    words, known = [pair or word for word, pair in _split_words(answer)], set[str]()
    for each in _split_words(source):
        known.update(each)
    missing = [each for each in words if each not in known]
    has_value = any(character.isdigit() for each in missing for character in each)
    is_yes_or_no = bool(words) and words[0] in _YES_OR_NO
    return missing if not is_yes_or_no and (has_value or len(missing) > len(words) / 2) else []


def _split_words(text: str) -> Iterator[tuple[str, str]]:
    """Yield words in lower case, without accents and separators of thousands; a character also with the one before."""
    for match, pair in find_pairs(text):
        yield normalize_word(match[0]), normalize_word(pair) if pair else ""
