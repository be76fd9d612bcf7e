"""Mail as a kind of corpus."""

from collections.abc import Sequence
from pathlib import Path

from gumshoe.corpus import Corpus, IngestResult, is_built_from


class MailCorpus(Corpus):
    """Mail, searched by keywords, one inbox at a time."""

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

    def split_source(self, uri: str) -> tuple[str, str]:
        """See `Corpus.split_source`."""
        from gumshoe.mail.sources import split_source

        return split_source(uri)

    def check_source(self, uri: str) -> None:
        """See `Corpus.check_source`."""
        from gumshoe.mail.sources import open_source

        open_source(uri)

    def ingest(self, sources: Sequence[str], directory: Path, embedding: str) -> IngestResult:  # noqa: ARG002 - keywords only
        """See `Corpus.ingest`."""
        from gumshoe.mail.build import MailBuildOptions, build_mail_index
        from gumshoe.mail.index import MailIndex

        options = MailBuildOptions()
        if not (self.is_index(directory) and is_built_from(MailIndex(directory).stats(), sources, options)):
            build_mail_index(list(sources), directory, options)
        facts = MailIndex(directory).stats()
        return IngestResult(facts["messages"], f"{facts['messages']:,} messages indexed", facts)
