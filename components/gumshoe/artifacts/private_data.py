"""Mark directories and artifacts that quote somebody's mail, find them, and delete them on request.

A mark is a file: in an artifact, where the manifest lists it, or in the output directory of a pipeline step.
"""

import io
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gumshoe.artifacts.manifest import DATA_PREFIX, MANIFEST
from gumshoe.artifacts.storage import Storage, explain_os_errors, write_atomically
from gumshoe.json_text import load_json

MARK = "private.json"
_ARTIFACT = re.compile(rf"(?P<place>.+)/{DATA_PREFIX}[0-9a-f]{{32}}/{re.escape(MARK)}", re.S)


def mark_private(directory: Path, inboxes: Iterable[str] | None, beside: Iterable[str] = ()) -> None:
    """Write a file into a directory that says whose mail its files quote. None means anybody's.

    `beside` names files next to the directory that quote the same mail.
    """
    named = None if inboxes is None else sorted(set(inboxes))
    text = json.dumps({"inboxes": named, "beside": sorted(beside)})
    with explain_os_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / MARK, io.BytesIO(text.encode() + b"\n"))


@dataclass(frozen=True, slots=True)
class PrivateCopy:
    """An artifact or a directory that quotes mail of an inbox, or may quote it."""

    place: str
    """The artifact, or the output directory of a step, relative to the storage's root. "." means everything there."""
    is_named: bool
    """True if the mark names the inbox. Otherwise the mail may be anybody's."""
    keys: tuple[str, ...]
    """Keys of all its files. An artifact's manifest comes first, so that nobody sees a half-deleted artifact."""
    size: int
    """Total size in bytes."""


def find_private_copies(storage: Storage, is_inbox: Callable[[str], bool] | None) -> list[PrivateCopy]:
    """Find everything whose mark names an inbox, or says that the mail may be anybody's.

    `is_inbox` decides if an address in a mark is the inbox. Without it, find all marks.

    Raises:
        StorageError, UnavailableError: if the storage cannot be read.
    """
    found: dict[str, PrivateCopy] = {}
    for entry in list(storage.entries()):
        if entry.key.rpartition("/")[2] != MARK:
            continue
        text, _ = storage.read(entry.key)
        inboxes, beside = read_mark(text)
        if is_inbox is not None and inboxes is not None and not any(map(is_inbox, inboxes)):
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
        found[place] = PrivateCopy(place or ".", inboxes is not None, tuple(keys), sum(each.size for each in below))
    return list(found.values())


def remove_private_copies(storage: Storage, found: Iterable[PrivateCopy]) -> None:
    """Delete the files of what was found."""
    for each in found:
        storage.delete(each.keys)


def read_mark(text: bytes) -> tuple[frozenset[str] | None, list[str]]:
    """Return the inboxes of a mark (None if unknown or unreadable), and the names of files beside its directory."""
    try:
        content = load_json(text)
        named, beside = content["inboxes"], [str(each) for each in content.get("beside", ())]
        return None if named is None else frozenset(map(str, named)), beside
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, []
