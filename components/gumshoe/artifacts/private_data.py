"""Marks what quotes somebody's mail, and finds and removes it when it is to be forgotten.

A mark is a file beside what it is about: in an artifact, whose manifest lists it, and in the directory that a step of
a pipeline leaves.
"""

import io
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gumshoe.artifacts.manifest import DATA_PREFIX, MANIFEST
from gumshoe.artifacts.storage import Storage, explain_os_errors, write_atomically

MARK = "private.json"
_ARTIFACT = re.compile(rf"(?P<place>.+)/{DATA_PREFIX}[0-9a-f]{{32}}/{re.escape(MARK)}", re.S)


def mark(directory: Path, inboxes: Iterable[str] | None, beside: Iterable[str] = ()) -> None:
    """Note in a directory whose mail its files quote; None where that may be anybody's.

    `beside` names files beside the directory that quote the same.
    """
    named = None if inboxes is None else sorted(set(inboxes))
    text = json.dumps({"inboxes": named, "beside": sorted(beside)})
    with explain_os_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / MARK, io.BytesIO(text.encode() + b"\n"))


@dataclass(frozen=True, slots=True)
class Quoting:
    """What quotes an inbox, or may."""

    place: str
    """The artifact, or the directory that a step left, below the storage's root; "." is all that lies there."""
    is_named: bool
    """The mark names the inbox; otherwise it may be anybody's mail."""
    keys: tuple[str, ...]
    """All of its files; an artifact's manifest first, since what is half removed must not be seen."""
    size: int
    """Bytes."""


def find_quoting(storage: Storage, inbox: str) -> list[Quoting]:
    """What bears a mark that names an inbox, in whatever case, or that names none.

    Raises:
        StorageError, UnavailableError: it could not be read.
    """
    found: dict[str, Quoting] = {}
    for entry in list(storage.entries()):
        if entry.key.rpartition("/")[2] != MARK:
            continue
        text, _ = storage.read(entry.key)
        inboxes, beside = _read(text)
        if inboxes is not None and inbox.casefold() not in inboxes:
            continue
        artifact = _ARTIFACT.fullmatch(entry.key)
        folder = entry.key.rpartition("/")[0]
        place = artifact["place"] if artifact else folder
        below = list(storage.entries(f"{place}/" if place else ""))
        parent = folder.rpartition("/")[0]
        for name in beside if folder and not artifact else ():
            key = f"{parent}/{name}" if parent else name
            below += [each for each in storage.entries(key) if each.key == key]
        keys = sorted((each.key for each in below), key=lambda key: (not key.endswith(f"/{MANIFEST}"), key))
        found[place] = Quoting(place or ".", inboxes is not None, tuple(keys), sum(each.size for each in below))
    return list(found.values())


def forget(storage: Storage, found: Iterable[Quoting]) -> None:
    """Remove what was found."""
    for each in found:
        storage.delete(each.keys)


def _read(text: bytes) -> tuple[frozenset[str] | None, list[str]]:
    """Whose mail it is, None where that is not said, or cannot be read; and what beside the directory quotes it."""
    try:
        said = json.loads(text)
        named, beside = said["inboxes"], [str(each) for each in said.get("beside", ())]
        return None if named is None else frozenset(str(each).casefold() for each in named), beside
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, []
