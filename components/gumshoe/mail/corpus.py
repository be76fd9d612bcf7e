"""Mail as a kind of corpus."""

from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gumshoe.corpus import Corpus, FoundSource, IngestResult, OpenedSource, SourceEntry, is_built_from
from gumshoe.embeddings.search_options import NO_EMBEDDING

if TYPE_CHECKING:
    from gumshoe.mail.index import MailIndex


class MailSearch:
    """Search one inbox and read its messages (a `SourceSearch`)."""

    def __init__(self, index: "MailIndex", inbox: str) -> None:
        self._index, self._inbox = index, inbox

    def search(self, words: Sequence[str]) -> list[FoundSource]:
        """See `SourceSearch.search`. All words must appear; several words in one text are a phrase."""
        return [
            FoundSource(
                hit.message_id,
                hit.subject or "(no subject)",
                f"{hit.sent:%Y-%m-%d %H:%M}  {hit.sender}" if hit.sent else hit.sender,
                hit.snippet,
            )
            for hit in self._index.search(self._inbox, list(words))
        ]

    def read(self, source_id: str) -> OpenedSource:
        """See `SourceSearch.read`."""
        from gumshoe.mail.message import join_texts
        from gumshoe.mail.search_results import UNVERIFIED

        message = self._index.read(self._inbox, source_id)
        sent = message.sent
        head = {
            "From": f"{message.sender} ({UNVERIFIED})" if message.is_unverified else message.sender,
            "To": ", ".join(each.address for each in message.recipients),
            "Date": f"{sent:%Y-%m-%d %H:%M %z}" if sent else "unknown",
            "Subject": message.subject,
        }
        lines = [f"{name}: {value}" for name, value in head.items()]
        text = "\n".join([*lines, "", join_texts(message.body, message.attachments)])
        return OpenedSource(text, sent.astimezone(UTC).date() if sent else None)


class MailCorpus(Corpus):
    """Mail, searched by keywords and by meaning, one inbox at a time."""

    environment = "gumshoe.environments.email:EmailEnvironment"
    audit = "gumshoe.mail.audit:MailAudit"
    content = "mail"
    has_inboxes = True
    example_source = "maildir:s3://bucket/mail"
    index_command = "gumshoe mail index"

    def is_index(self, directory: Path) -> bool:
        """See `Corpus.is_index`."""
        from gumshoe.mail.schema import index_path

        return index_path(directory).exists()

    def split_source(self, source: SourceEntry) -> tuple[str, str]:
        """See `Corpus.split_source`."""
        from gumshoe.mail.imap_account import parse_imap_uri
        from gumshoe.mail.source_list import parse_source
        from gumshoe.mail.sources import split_source

        uri = parse_source(source, "invalid source").uri
        form, place = split_source(uri)
        if form in ("imap", "imaps"):
            parse_imap_uri(uri)  # refuses a password, before it is stored with the parameters of a run
        return form, place

    def check_source(self, source: SourceEntry) -> None:
        """See `Corpus.check_source`."""
        from gumshoe.mail.source_list import parse_source
        from gumshoe.mail.sources import open_source

        open_source(parse_source(source, "invalid source").uri)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """See `Corpus.check_options`."""
        from gumshoe.mail.index_options import parse_options

        parse_options(options)

    def choose_embedding(self, embedding: str, options: Mapping[str, Any]) -> str:  # noqa: ARG002 - for documents
        """See `Corpus.choose_embedding`."""
        return str(options.get("embedding", NO_EMBEDDING))

    def open_search(
        self,
        directory: Path,
        inbox: str | None,
        collections: Sequence[str] | None = None,  # noqa: ARG002 - of documents
    ) -> MailSearch:
        """See `Corpus.open_search`."""
        from gumshoe.mail.index import MailIndex

        return MailSearch(MailIndex(directory), inbox or "")

    def ingest(
        self,
        sources: Sequence[SourceEntry],
        directory: Path,
        embedding: str,  # noqa: ARG002 - that of documents, which has another default
        options: Mapping[str, Any],
    ) -> IngestResult:
        """See `Corpus.ingest`."""
        from gumshoe.mail.build import build_mail_index
        from gumshoe.mail.index import MailIndex
        from gumshoe.mail.index_options import parse_options
        from gumshoe.mail.source_list import parse_source

        owned, chosen = [parse_source(each, "invalid source") for each in sources], parse_options(options)
        recorded = [each.to_fact() for each in owned]
        if not (self.is_index(directory) and is_built_from(MailIndex(directory).stats(), recorded, chosen)):
            build_mail_index(owned, directory, chosen)
        facts = MailIndex(directory).stats()
        return IngestResult(facts["messages"], f"{facts['messages']:,} messages indexed", facts)
