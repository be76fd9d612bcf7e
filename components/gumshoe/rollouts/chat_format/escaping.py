"""Break up control tokens in text from outside, so that data cannot end a message or start another."""

import re
from collections.abc import Callable, Iterable
from typing import Any


def compile_any(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of the texts, and the longest one where several begin."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def escape_matches(text: str, control: re.Pattern[str]) -> str:
    """Return a text with a space after the first character of each match, until there is none."""
    while (broken := control.sub(_split_token, text)) != text:
        text = broken
    return text


def escape_strings(value: Any, escape: Callable[[str], str]) -> Any:
    """Return a JSON value with all strings and names in it escaped."""
    match value:
        case str():
            return escape(value)
        case dict():
            return {escape(name): escape_strings(each, escape) for name, each in value.items()}
        case list() | tuple():
            return [escape_strings(each, escape) for each in value]
    return value


def _split_token(found: re.Match[str]) -> str:
    return f"{found[0][:1]} {found[0][1:]}"
