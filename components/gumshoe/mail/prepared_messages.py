"""Messages in the form in which an index stores them, with their terms: what processes that prepare messages return.

These are plain values, since they go through a pipe.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.authentication_results import ServerStatement, Verdict

TermRange = tuple[int, int]
"""First and last + 1 of consecutive occurrences in the arrays of a batch."""


class TextTerms(NamedTuple):
    """The words of a message, of subject, body and attachments, and the term of its subject's thread."""

    occurrences: TermRange
    subject: int
    """Number of words of the subject, which come first."""
    words: int
    """Number of words."""


class EnvelopeTerms(NamedTuple):
    """The people, ids and threads of one copy of a message."""

    visible: TermRange
    """Terms for everybody who has the copy."""
    blind: dict[int, TermRange]
    """By number of the recipient, the terms of each recipient of a blind copy."""
    all_blind: TermRange
    """Terms of all recipients of blind copies, for those who see all. Their names do not overlap."""

    def select(self, hidden: list[int]) -> list[TermRange]:
        """Return the ranges for somebody who may not see some recipients."""
        if not self.blind:
            return [self.visible]
        if not hidden:
            return [self.visible, self.all_blind]
        return [self.visible, *(terms for number, terms in self.blind.items() if number not in hidden)]


class PreparedMessage(NamedTuple):
    """A message as an index stores it. See `ParsedMessage`."""

    message_id: str
    has_generated_id: bool
    sent: int | None
    utc_offset: int | None
    sender: str
    sender_name: str
    sender_is_doubtful: bool
    recipients: list[list[str]]
    """[role, address, name] of each."""
    is_sent: bool
    """See `ParsedMessage.is_sent`."""
    statements: list[ServerStatement]
    """Verdicts of mail servers on the sender, the topmost first."""
    verdict: Verdict
    """Verdict on the sender, see `check_sender`. `judge_sender` sets it, since the source names the trusted servers."""
    people: list[str]
    """Addresses that are beyond doubt: of the recipients and the delivery headers."""
    references: list[str]
    subject: str
    body: str
    attachments: list[list[str]]
    """[name, text, problem] of each."""
    digest: bytes
    """Of subject, body, sender and attachments, 16 bytes."""
    terms: TextTerms | None
    """None if the message is skipped or only compared."""
    envelope: EnvelopeTerms | None
    skipped: str
    """Reason for skipping it."""


PreparedItem = PreparedMessage | UnreadableItem


@dataclass(frozen=True, slots=True)
class BatchTerms:
    """The terms of the messages of a batch."""

    terms: NDArray[np.uint64]
    """[terms]: all different ones."""
    places: NDArray[np.uint32]
    """[occurrences]: place of each in `terms`."""
    positions: NDArray[np.uint16]
    """[occurrences]"""


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """The items of a batch, in order."""

    items: list[PreparedItem]
    terms: BatchTerms
