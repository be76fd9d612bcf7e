"""Limit how long artifacts and outputs with personal data are kept: the setting of a store, and expired outputs."""

import gzip
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from gumshoe.artifacts.lines import GZIP_ERRORS
from gumshoe.artifacts.manifest import DATA_PREFIX, now
from gumshoe.artifacts.storage import NotFoundError, Storage, StorageError, explain_os_errors
from gumshoe.errors import UsageError
from gumshoe.json_text import load_json

RETENTION_FILE = "retention.json"
"""File in a store with the days that each kind may be kept."""
OutputKind = Literal["runs", "evaluations", "trajectories", "audit-logs"]
OUTPUT_KINDS: tuple[OutputKind, ...] = get_args(OutputKind)
# Files that a directory of each kind contains.
_DIRECTORIES: dict[OutputKind, tuple[str, ...]] = {
    "runs": ("run.json", "metrics.jsonl"),
    "evaluations": ("metrics.json", "predictions.jsonl"),
}
# Fields of the first line of a file of JSON lines.
_FILES: dict[OutputKind, set[str]] = {
    "trajectories": {"scenario", "spans", "record"},
    "audit-logs": {"principal", "principal_kind", "event"},
}
_ATTEMPTS = 20  # to write the setting while others write it
_LARGEST_LINE = 64 << 20  # bytes


def parse_days(kind: str, days: object) -> timedelta:
    """Return a number of days.

    Raises:
        UsageError: if it is not a number >= 0.
    """
    with suppress(ValueError, TypeError, OverflowError):
        number = float(str(days))
        if number >= 0:
            return timedelta(days=number)
    raise UsageError(
        "artifacts.invalid-retention",
        f"retention must be KIND=DAYS with a number of days >= 0, e.g. reports=30, got {f'{kind}={days}'!r}",
    )


def read_retention(storage: Storage) -> dict[str, timedelta]:
    """Return how long artifacts of a store may be kept, by the last segment of their kind. Others are kept.

    Raises:
        UsageError: if the setting is damaged.
        StorageError, UnavailableError: if it cannot be read.
    """
    return {kind: parse_days(kind, days) for kind, days in _read(storage)[0].items()}


def _read(storage: Storage) -> tuple[dict[str, Any], str | None]:
    """Return the setting, and its tag if it exists."""
    try:
        text, tag = storage.read(RETENTION_FILE)
    except NotFoundError:
        return {}, None
    with suppress(ValueError):
        found = load_json(text)
        if isinstance(found, dict):
            return found, tag
    raise UsageError(
        "artifacts.damaged-retention",
        f"{storage.uri}/{RETENTION_FILE} is not a mapping of kinds to days; set it again, or delete it",
    )


def write_retention(storage: Storage, changes: Mapping[str, timedelta | None]) -> dict[str, timedelta]:
    """Change how long artifacts of a store may be kept, and return the whole setting. None keeps a kind.

    Raises:
        UsageError: if the setting is damaged.
        StorageError, UnavailableError: if it cannot be written.
    """
    for _ in range(_ATTEMPTS):
        days, tag = _read(storage)
        days |= {kind: None if time is None else time / timedelta(days=1) for kind, time in changes.items()}
        kept = {kind: each for kind, each in sorted(days.items()) if each is not None}
        text = f"{json.dumps(kept, indent=2)}\n".encode()
        if storage.create(RETENTION_FILE, text) if tag is None else storage.swap(RETENTION_FILE, text, tag):
            return {kind: parse_days(kind, each) for kind, each in kept.items()}
    raise StorageError("artifacts.retention-busy", f"others change {storage.uri}/{RETENTION_FILE}; try again later")


@dataclass(frozen=True, slots=True)
class ExpiredOutput:
    """An output on this machine that is older than its kind may be kept."""

    path: Path
    kind: OutputKind
    modified: datetime
    """Time when one of its files was last written."""


def find_expired_outputs(root: Path, retention: Mapping[str, timedelta]) -> list[ExpiredOutput]:
    """Find runs, evaluations, trajectories and audit logs below a directory that are older than they may be kept.

    Symbolic links and published artifacts are left alone.

    Raises:
        UsageError: if the directory does not exist.
        StorageError: if a file cannot be read.
    """
    if not root.is_dir():
        raise UsageError("artifacts.no-such-directory", f"{root} is not a directory; check the path")
    with explain_os_errors(root):
        return [
            each
            for each in _find_outputs(root)
            if each.kind in retention and now() - each.modified > retention[each.kind]
        ]


def remove_output(output: ExpiredOutput) -> None:
    """Delete an output.

    Raises:
        StorageError: if it cannot be deleted.
    """
    with explain_os_errors(output.path):
        if output.path.is_dir():
            shutil.rmtree(output.path)
        else:
            output.path.unlink(missing_ok=True)


def _find_outputs(directory: Path) -> Iterator[ExpiredOutput]:
    entries = sorted(each for each in directory.iterdir() if not each.is_symlink())
    names = {each.name for each in entries if each.is_file()}
    kind = next((kind for kind, files in _DIRECTORIES.items() if names >= set(files)), None)
    if kind is not None:
        yield ExpiredOutput(directory, kind, _find_time(directory))
        return
    for each in entries:
        if each.is_dir() and not each.name.startswith((DATA_PREFIX, ".")):
            yield from _find_outputs(each)
        elif each.is_file() and (found := _find_file_kind(each)) is not None:
            yield ExpiredOutput(each, found, _find_time(each))


def _find_file_kind(path: Path) -> OutputKind | None:
    """Return the kind of a file of JSON lines, according to its first line. Rotated logs may have any suffix.

    Files that end in .gz are decompressed; a damaged one has no kind.
    """
    suffix = path.suffix.lower()
    if suffix in (".safetensors", ".sqlite", ".bin"):
        return None
    with (
        suppress(ValueError, gzip.BadGzipFile, *GZIP_ERRORS),
        gzip.open(path) if suffix == ".gz" else path.open("rb") as file,
    ):
        if file.read(1) != b"{":
            return None
        file.seek(0)
        record = load_json(file.readline(_LARGEST_LINE))
        return next((kind for kind, fields in _FILES.items() if record.keys() >= fields), None)
    return None


def _find_time(path: Path) -> datetime:
    files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    return datetime.fromtimestamp(max((each.stat().st_mtime for each in files), default=0), UTC)
