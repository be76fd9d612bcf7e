"""Read lists of mail sources, each with its owner."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from gumshoe.errors import UsageError
from gumshoe.mail.inboxes import OwnedSource
from gumshoe.mail.sources import split_source
from gumshoe.model_validation import validate_model
from gumshoe.yaml_text import load_yaml


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    source: str
    owner: str = ""
    aliases: tuple[str, ...] = ()
    trust_from: bool = False
    trust_authserv: tuple[str, ...] = ()


def read_source_list(path: Path) -> list[OwnedSource]:
    """Read a YAML list of sources. Each entry is a URI, or a mapping with the fields of `OwnedSource`.

    Raises:
        UsageError: if the file cannot be read, or an entry is invalid. The message names the file and the entry.
    """
    try:
        listed = load_yaml(path.read_text(encoding="utf-8"), only_text=True)
    except OSError as error:
        raise UsageError("mail.invalid-source-list", f"cannot read {path}: {error.strerror}; check the path") from None
    except ValueError as error:
        raise UsageError("mail.invalid-source-list", f"{path} is not valid YAML: {error}") from None
    if not isinstance(listed, list) or not listed:
        raise UsageError(
            "mail.invalid-source-list", f"{path} is not a list of sources; write one per line, e.g. `- maildir:DIR`"
        )
    return [parse_source(entry, f"{path}, entry {number}") for number, entry in enumerate(listed, 1)]


def parse_source(entry: object, place: str) -> OwnedSource:
    """Return an entry of a list of sources: a URI, or a mapping with `source` and the other fields of `OwnedSource`.

    Raises:
        UsageError: if it is invalid. The message begins with `place`.
    """
    if isinstance(entry, str):
        entry = {"source": entry}
    found = validate_model(_Entry, entry, "mail.invalid-source-list", place)
    try:
        split_source(found.source)
        return OwnedSource(found.source, found.owner, found.aliases, found.trust_from, found.trust_authserv)
    except UsageError as error:
        raise UsageError(error.code, f"{place}: {error.message}") from None
