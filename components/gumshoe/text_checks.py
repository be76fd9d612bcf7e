"""Check text from outside, such as requests, calls of models and files, before it reaches SQLite, logs or files.

Text may contain every character except NUL (U+0000), at which C libraries cut it, and lone surrogates (U+D800 to
U+DFFF), which cannot be written as UTF-8. JSON can express both: `"\\u0000"`, `"\\ud800"`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gumshoe.errors import UsageError

_BAD = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "\ufffd"
_MOST_SHOWN = 60  # characters of a field's name in a message


class InvalidTextError(UsageError):
    """Report text with a character that cannot be stored or sent."""


def is_encodable(text: str) -> bool:
    """Return True if text contains neither NUL nor lone surrogates.

    >>> is_encodable("grüß dich"), is_encodable("a\\ud800"), is_encodable("a\\0")
    (True, False, False)
    """
    return _BAD.search(text) is None


def describe_bad_character(text: str) -> str:
    """Return the first character that is not allowed in text, and its place from 1, or an empty string.

    >>> describe_bad_character("a\\ud800")
    'U+D800 at character 2 is not allowed'
    """
    found = _BAD.search(text)
    return f"U+{ord(found[0]):04X} at character {found.start() + 1} is not allowed" if found else ""


def check_text(text: str, what: str) -> str:
    """Return text unchanged. `what` names it in the message, e.g. `the question`.

    Raises:
        InvalidTextError: if it contains NUL or a lone surrogate.
    """
    if fault := describe_bad_character(text):
        raise InvalidTextError("text.invalid-character", f"{what} is not valid text: {fault}; remove the character")
    return text


def replace_bad_characters(text: str) -> str:
    """Return text with a replacement character (U+FFFD) for each NUL and lone surrogate."""
    return _BAD.sub(_REPLACEMENT, text)


def replace_bad_texts(value: Any) -> Any:
    """Return a JSON value with a replacement character for each NUL and lone surrogate in its texts and names.

    Raises:
        RecursionError: if it is nested too deeply.
    """
    if isinstance(value, str):
        return replace_bad_characters(value)
    if isinstance(value, list):
        return [replace_bad_texts(each) for each in value]
    if isinstance(value, dict):
        return {replace_bad_characters(name): replace_bad_texts(each) for name, each in value.items()}
    return value


def find_bad_texts(value: object) -> Iterator[tuple[str, str]]:
    """Yield the path and the fault of each text in a JSON value that is not allowed, including names of fields.

    The paths are such as `arguments.keywords.0`, and themselves allowed.

    >>> list(find_bad_texts({"keywords": ["a", "b\\ud800"]}))
    [('keywords.1', 'U+D800 at character 2 is not allowed')]
    """
    waiting: list[tuple[str, Any]] = [("", value)]  # no recursion: JSON may be nested deeply
    while waiting:
        path, each = waiting.pop()
        if isinstance(each, str):
            if fault := describe_bad_character(each):
                yield path, fault
        elif isinstance(each, Mapping):
            for name, inner in each.items():
                shown = replace_bad_characters(str(name))[:_MOST_SHOWN]
                place = f"{path}.{shown}".lstrip(".")
                if fault := describe_bad_character(str(name)):
                    yield place, f"name of the field: {fault}"
                waiting.append((place, inner))
        elif isinstance(each, (list, tuple)):
            waiting += ((f"{path}.{at}".lstrip("."), inner) for at, inner in enumerate(each))
