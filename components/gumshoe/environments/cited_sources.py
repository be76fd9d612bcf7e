"""What an answer stands in, as people and callers are shown it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class MessageSource:
    """A message that an answer stands in."""

    message_id: str
    sent: datetime | None
    sender: str
    subject: str

    @property
    def id(self) -> str:
        return self.message_id

    @property
    def shown(self) -> str:
        """In a line."""
        sent = f"{self.sent:%Y-%m-%d} " if self.sent else ""
        return f"{sent}{self.sender}: {self.subject} {self.message_id}"


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """A document that an answer stands in."""

    document_id: str
    title: str
    url: str = ""
    """Empty where it has none."""

    @property
    def id(self) -> str:
        return self.document_id

    @property
    def shown(self) -> str:
        """In a line."""
        return " ".join(filter(None, [self.title, self.document_id, self.url]))


Source = MessageSource | DocumentSource
