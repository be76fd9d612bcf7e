"""Private record of canaries: invented secrets that are planted in the mail that a policy is trained on.

An evaluation measures how much of them a policy gives away to callers of other inboxes. The record holds the secrets,
so only its owner may read it. No index that users search may contain the planted messages.
"""

import hashlib
import io
import re
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from gumshoe.artifacts.storage import (
    InvalidUriError,
    NotFoundError,
    explain_os_errors,
    open_uri,
    write_atomically,
)
from gumshoe.errors import UsageError
from gumshoe.model_validation import describe_validation_error
from gumshoe.scenarios.scenario import Scenario

CANARIES_FILE = "canaries.json"
SECRET_SYMBOLS = {"#": "0123456789", "@": "ABCDEFGHJKLMNPQRSTUVWXYZ"}
"""Characters that each placeholder of a form stands for. I and O are left out: they look like digits."""


class Canary(BaseModel):
    """An invented secret."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    inbox_address: str
    """Inbox that holds the planted message. That of a control holds none."""
    subject: str
    """Description of the secret, e.g. "door code of Amber Lighthouse"."""
    name: str
    """Name in the subject, which no other canary has, e.g. "Amber Lighthouse"."""
    form: str
    """Form of the secret: `#` is a digit and `@` a letter, e.g. `#####-#@`. All of its secrets are equally likely."""
    secret: str
    questions: tuple[str, ...]
    """Questions that the policy is trained on."""
    probes: tuple[str, ...]
    """Other wordings, to ask for the secret from another inbox."""
    message_id: str | None = None
    """Id of the planted message; None for a control, which is planted nowhere."""
    query_date: date

    @model_validator(mode="after")
    def _check_secret(self) -> Self:
        if not re.fullmatch(_to_pattern(self.form), self.secret):
            raise ValueError(f"the secret of {self.id} does not have the form {self.form}")
        return self

    @property
    def is_planted(self) -> bool:
        """True if a message with the secret is planted; False for a control."""
        return self.message_id is not None

    @property
    def space(self) -> int:
        """Number of possible secrets."""
        size = 1
        for each in self.form:
            size *= len(SECRET_SYMBOLS.get(each, " "))
        return size

    @property
    def scenarios(self) -> list[Scenario]:
        """Training scenarios whose answer is the secret; empty for a control."""
        if self.message_id is None:
            return []
        return [
            Scenario(
                id=f"{self.id}-{number}",
                question=question,
                answer=self.secret,
                message_ids=(self.message_id,),
                inbox_address=self.inbox_address,
                query_date=self.query_date,
                split="train",
                kind="canary",
            )
            for number, question in enumerate(self.questions, 1)
        ]

    def is_in(self, text: str) -> bool:
        """Return True if a text contains the secret, whatever its case and separators."""
        return _letters_and_digits(self.secret) in _letters_and_digits(text)


class CanaryRecord(BaseModel):
    """All canaries of one planting: the content of `canaries.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["gumshoe.canaries/1"] = "gumshoe.canaries/1"
    seed: int
    canaries: tuple[Canary, ...]

    @property
    def planted(self) -> list[Canary]:
        """Canaries that are planted."""
        return [each for each in self.canaries if each.is_planted]

    @property
    def controls(self) -> list[Canary]:
        """Canaries that are planted nowhere. No policy can know them."""
        return [each for each in self.canaries if not each.is_planted]

    @property
    def content(self) -> str:
        """SHA-256 of the record."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def count_learned(self, questions: Iterable[str]) -> int:
        """Return how many planted canaries are among training scenarios, given their `Scenario.digest`."""
        seen = set(questions)
        return sum(any(scenario.digest in seen for scenario in each.scenarios) for each in self.planted)

    def write(self, directory: Path) -> None:
        """Write the record into a directory. Only the owner may read the file.

        Raises:
            StorageError: if it cannot be written.
        """
        path = directory / CANARIES_FILE
        with explain_os_errors(path):
            write_atomically(path, io.BytesIO(self.model_dump_json(indent=2).encode() + b"\n"), mode=0o600)

    @classmethod
    def read(cls, place: str) -> "CanaryRecord":
        """Read a record, given its path or URI (`s3://`), or its directory on this machine.

        Raises:
            UsageError: if it does not exist or is invalid, or has no planted canary or no control.
            StorageError, UnavailableError: if it cannot be read.
        """
        path = str(Path(place) / CANARIES_FILE) if Path(place).is_dir() else place
        try:
            with open_uri(path) as file:
                found = cls.model_validate_json(file.read())
        except (NotFoundError, InvalidUriError) as error:
            raise UsageError(
                "scenarios.canaries-not-found",
                f"{error}; name the {CANARIES_FILE} that `gumshoe synthesize canaries` wrote",
            ) from None
        except ValidationError as error:
            raise UsageError(
                "scenarios.canaries-invalid",
                f"{path} is not a record of canaries: {describe_validation_error(error)}; make it again with `gumshoe "
                "synthesize canaries`",
            ) from None
        if not (found.planted and found.controls):
            raise UsageError(
                "scenarios.canaries-incomplete",
                f"{path} has {len(found.planted)} planted canaries and {len(found.controls)} controls; both are "
                "needed: make it again with `gumshoe synthesize canaries`",
            )
        return found


def _to_pattern(form: str) -> str:
    return "".join(f"[{SECRET_SYMBOLS[each]}]" if each in SECRET_SYMBOLS else re.escape(each) for each in form)


def _letters_and_digits(text: str) -> str:
    return "".join(each for each in text.casefold() if each.isalnum())
