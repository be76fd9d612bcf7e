"""Names of collections of documents, and patterns of the collections that a caller may read."""

import re
from collections.abc import Iterable

from gumshoe.errors import UsageError

DEFAULT_COLLECTION = "default"
"""Collection of the documents that name none, in an index with collections."""
ALL_COLLECTIONS = ("*",)
"""Patterns that match every collection."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_PATTERN = re.compile(r"[a-z0-9*][a-z0-9._*-]{0,63}")


def is_collection_name(name: object) -> bool:
    """Return True if a value is the name of a collection."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_collection_name(name: str) -> str:
    """Return the name of a collection.

    Raises:
        UsageError: if it does not have the allowed form.
    """
    if not is_collection_name(name):
        raise UsageError(
            "documents.invalid-collection",
            f"not the name of a collection: {name!r}; use 1 to 64 lower-case letters, digits, '.', '_' and '-', e.g. "
            "hr or eng-docs",
        )
    return name


def check_collection_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return names of collections and patterns, such as `hr` and `eng-*`. `*` stands for any characters.

    Raises:
        UsageError: if one does not have the allowed form.
    """
    found = tuple(dict.fromkeys(patterns))
    for each in found:
        if not isinstance(each, str) or not _PATTERN.fullmatch(each):
            raise UsageError(
                "documents.invalid-collection-pattern",
                f"not a collection or pattern: {each!r}; write e.g. hr, eng-* or * (all collections)",
            )
    return found


def matches_collection(patterns: Iterable[str], name: str) -> bool:
    """Return True if one of the patterns matches the name of a collection."""
    return any(_matches(each, name) for each in patterns)


def _matches(pattern: str, name: str) -> bool:
    """Compare part by part: a regular expression with many `*` could take for ever."""
    first, *others = pattern.split("*")
    if not others:
        return name == pattern
    *inner, last = others
    if not (name.startswith(first) and name.endswith(last) and len(name) >= len(first) + len(last)):
        return False
    place, end = len(first), len(name) - len(last)
    for part in inner:
        place = name.find(part, place, end)
        if place < 0:
            return False
        place += len(part)
    return True
