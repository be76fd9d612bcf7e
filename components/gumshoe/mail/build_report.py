"""Options of the build of an index, and its report."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Self

from gumshoe.embeddings.search_options import NO_EMBEDDING
from gumshoe.mail.attachments import AttachmentLimits
from gumshoe.mail.message import State
from gumshoe.mail.message_preparer import MessageLimits


@dataclass(frozen=True, slots=True)
class MailBuildOptions:
    """Limits on messages, and the inboxes to build.

    The default limits are the published recipe for the public Enron mail (ART-E).
    """

    max_body: int | None = 5000
    """Maximum body length in characters. None means no limit."""
    max_recipients: int | None = 30
    """Maximum number of recipients (to, cc and bcc together). None means no limit."""
    drop_duplicates: bool = True
    """Keep the text of messages with equal subject, body and sender once, even if their ids differ."""
    skip: tuple[State, ...] = ("deleted",)
    """States of messages that are skipped."""
    inboxes: tuple[str, ...] = ()
    """Addresses of the only inboxes to build. Empty for all."""
    max_attachments: int = 50
    """Maximum number of attachments of a message whose text is read."""
    max_attachment_bytes: int = 20 << 20
    """Maximum size of an attachment whose text is read."""
    max_attachment_characters: int = 200_000
    """Maximum length of an attachment's text. The rest is cut off."""
    trust_from: bool = False
    """Trust the address in From in all sources without an owner. See `OwnedSource.trust_from`."""
    trust_authserv: tuple[str, ...] = ()
    """Names of mail servers whose `Authentication-Results` confirm senders, in all sources."""
    embedding: str = NO_EMBEDDING
    """Embedding model, as for `open_embedder`, for searches by meaning. "none" builds an index without vectors."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return options that were written as JSON."""
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**known)

    def to_limits(self) -> MessageLimits:
        """Return the limits on single messages."""
        attachments = AttachmentLimits(
            max_bytes=self.max_attachment_bytes,
            max_characters=self.max_attachment_characters,
            max_per_message=self.max_attachments,
        )
        return MessageLimits(self.max_body, self.max_recipients, frozenset(self.skip), attachments)


@dataclass(slots=True)
class MailBuildReport:
    """Numbers of messages that a build read, indexed and skipped."""

    messages: int = 0
    """Different messages in the index."""
    read: int = 0
    """Messages that could be read."""
    kept_out: Counter[str] = field(default_factory=Counter)
    """Skipped messages, by reason."""
    unreadable: Counter[str] = field(default_factory=Counter)
    """Items that could not be read as a message, by reason. `gumshoe mail stats --unreadable` lists each."""
    attachments: Counter[str] = field(default_factory=Counter)
    """Attachments of indexed messages: `read`, or the reason why one was not read."""
    without_date: int = 0
    without_id: int = 0
    without_inbox: int = 0
    """Messages in the index that are in nobody's inbox."""
    unproven_senders: int = 0
    """Messages that are not in their sender's inbox because nothing shows that the sender is genuine."""
    removed: int = 0
    """Copies of messages that were removed since the index was built: on request, or by a sync."""
    owners: dict[str, tuple[str, float]] = field(default_factory=dict)
    """For sources without an owner, the address that most of their messages name, and the share that names it."""
    just_removed: int = 0
    """Copies of messages that this run removed: on request or, with sync, because no source has them any more."""
    missing: int = 0
    """With sync, copies of messages that are in no source any more, and that were kept because of `doubtful` items."""
    doubtful: list[str] = field(default_factory=list)
    """With sync, some places of items that cannot be read, and that may be messages of the index."""
    content: str = ""
    """Digest of the index's content. Equal input and options give an equal digest, in one build or in several."""
    seconds: float = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as values of JSON."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}

    def to_facts(self) -> dict[str, Any]:
        """Return what an index records of a report."""
        passing = {"seconds", "owners", "just_removed", "missing", "doubtful"}
        return {name: value for name, value in self.to_dict().items() if name not in passing}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the counts of a report that was written as JSON, among other values."""
        counts: dict[str, Any] = {
            each.name: Counter(value) if isinstance(value, dict) else value
            for each in fields(cls)
            if (value := values.get(each.name)) is not None
        }
        return cls(**counts)


def count_attachments(problems: Iterable[str]) -> Counter[str]:
    """Return the number of attachments that were read, and of others by reason. A problem of "" means that it was."""
    return Counter((each or "read").partition(":")[0] for each in problems)
