"""The receipt of an erasure: a record of the erased places, without the personal data."""

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
    """An index, file or artifact from which content was erased."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    place: str
    """Path or artifact, without the erased name."""
    kind: str
    count: int
    """Number of messages, documents, records or files that were erased."""
    successor: str | None = None
    """Artifact that replaces it."""
    lost: int = 0
    """Chunks of other documents that are missing, because they were left out as near duplicates of erased ones."""


class Receipt(BaseModel):
    """A record of an erasure that can be kept as evidence, without the erased name."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    kind: TargetKind
    salt: str
    hash: str
    """SHA-256 of the salt and the target. Anyone who knows the address or the ID can check it."""
    started: datetime
    finished: datetime | None = None
    """Null as long as the erasure is not complete."""
    erased: list[ErasedPlace] = Field(default_factory=list)
    adapters: dict[str, str] = Field(default_factory=dict)
    """Reason why each adapter may have learned erased content, by path or reference."""
    remaining: list[str] = Field(default_factory=list)
    """Places that still name the target."""
    pending: PendingLinks | None = None
    """Hashes of the questions to look for; null if the erasure is complete."""

    @classmethod
    def open(cls, path: Path, target: EraseTarget) -> "Receipt":
        """Return a new receipt, or continue that of an earlier erasure of the same target.

        Raises:
            UsageError: if the file is not a receipt, or is the receipt of another target.
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
