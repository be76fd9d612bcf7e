"""The receipt of an erasure: what was done, without the personal data."""

import io
import json
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from gumshoe.artifacts.source_files import read_json_model
from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.erasure.question_links import PendingLinks
from gumshoe.erasure.target import EraseTarget, TargetKind
from gumshoe.errors import UsageError


class ErasedPlace(BaseModel):
    """One index, file or artifact that something was erased from."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    place: str
    """Path or artifact, without the erased name."""
    kind: str
    count: int
    """Number of messages, documents, records or files that were erased."""
    successor: str | None = None
    """Artifact that replaces it."""


class Receipt(BaseModel):
    """What was erased, for the records of whoever had to erase it."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    kind: TargetKind
    salt: str
    hash: str
    """SHA-256 of the salt and the target. It proves what was erased to somebody who knows the address or the ID."""
    started: datetime
    finished: datetime | None = None
    """Null as long as the erasure is not complete."""
    erased: list[ErasedPlace] = Field(default_factory=list)
    adapters: dict[str, str] = Field(default_factory=dict)
    """Why each adapter may have learned from what was erased. It keeps that until it is deleted."""
    remaining: list[str] = Field(default_factory=list)
    """Places that still name the target."""
    pending: PendingLinks | None = None
    """Hashes of what to look for; null if the erasure is complete."""

    @classmethod
    def open(cls, path: Path, target: EraseTarget) -> "Receipt":
        """Return a new receipt, or that of an earlier erasure of the same target, which is continued.

        Raises:
            UsageError: if the file is something else.
        """
        known = read_json_model(cls, path, "an erasure")
        if known is None:
            salt = secrets.token_hex(16)
            return cls(kind=target.kind, salt=salt, hash=target.hash(salt), started=datetime.now(UTC))
        if known.hash != target.hash(known.salt):
            raise UsageError(
                "erasure.other-receipt",
                f"{path} is the receipt of another erasure; name another file with --receipt",
            )
        return known.model_copy(update={"finished": None, "remaining": []})

    def add(self, place: ErasedPlace) -> None:
        """Add a place."""
        self.erased.append(place)

    def finish(self, remaining: Iterable[str]) -> None:
        """Complete the receipt."""
        self.remaining = sorted(remaining)
        self.pending = self.pending if self.remaining else None
        self.finished = datetime.now(UTC)

    def write(self, path: Path) -> None:
        """Write the receipt.

        Raises:
            StorageError: if the file cannot be written.
        """
        text = json.dumps(self.model_dump(mode="json"), indent=2)
        with explain_os_errors(path):
            write_atomically(path, io.BytesIO(f"{text}\n".encode()))
