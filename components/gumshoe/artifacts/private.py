"""Marks what quotes somebody's mail, so that it can be found and removed when it is to be forgotten."""

import io
import json
from collections.abc import Iterable
from pathlib import Path

from gumshoe.artifacts.storage import explained, write_atomically

MARK = "private.json"


def mark(directory: Path, inboxes: Iterable[str] | None) -> None:
    """Note in a directory whose mail its files quote; None where that may be anybody's."""
    named = None if inboxes is None else sorted(set(inboxes))
    with explained(directory):
        write_atomically(directory / MARK, io.BytesIO(json.dumps({"inboxes": named}).encode() + b"\n"))


def quotes(mark: bytes, inbox: str) -> bool:
    """Whether what bears such a mark may quote an inbox; one that cannot be read may."""
    try:
        named = json.loads(mark)["inboxes"]
    except (ValueError, KeyError, TypeError):
        return True
    return named is None or inbox in named
