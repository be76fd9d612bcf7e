"""Results of searching and reading an inbox."""

from dataclasses import dataclass
from datetime import datetime

from gumshoe.mail.message import Attachment, Recipient

UNVERIFIED = "unverified sender"
"""Mark behind the address of a sender if a mail server found that it is forged."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result."""

    message_id: str
    sent: datetime | None
    """In the sender's time zone. None if the message has no date."""
    sender: str
    subject: str
    snippet: str
    """The part of the text that contains the keywords, on one line."""
    thread: str
    """Id of the first message of its thread, as the inbox lists it."""
    thread_size: int
    """Number of messages of its thread in the inbox."""
    dense_rank: int | None = None
    """Rank by vectors, from 1, in a search by meaning. None if they did not list it."""
    lexical_rank: int | None = None
    """Rank by words, from 1, in a search by meaning. None if they did not list it."""
    is_unverified: bool = False
    """True if a mail server found that the sender is forged."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message, as the reading inbox may see it."""

    message_id: str
    sent: datetime | None
    """In the sender's time zone. None if the message has no date."""
    sender: str
    sender_name: str
    recipients: tuple[Recipient, ...]
    """Recipients visible to the reading inbox. A blind copy is visible to the sender and to its recipient."""
    subject: str
    body: str
    attachments: tuple[Attachment, ...] = ()
    is_unverified: bool = False
    """True if a mail server found that the sender is forged."""


@dataclass(frozen=True, slots=True)
class PartialResult:
    """The best results for a search that found nothing."""

    counts: dict[str, int]
    """Number of messages that contain each keyword, within the other limits of the search."""
    hits: tuple[Hit, ...]
    """Messages that contain some of the keywords, best first."""
