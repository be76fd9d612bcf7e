"""The pipeline's step that indexes mail."""

from kfp import dsl


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def ingest_mail(sources: list, state: str, code: str, mail: dsl.Output[dsl.Dataset]) -> int:  # noqa: ARG001
    """Index mail from its sources; how many messages there are.

    Args:
        sources: As `gumshoe mail index` takes them.
        state: What lies there, so that an index of other mail is not taken from the cache.
        code: A hash of the code, so that what other code made is not taken from the cache.
        mail: The index.
    """
    from pathlib import Path

    from gumshoe.mail.build import build_index
    from gumshoe.mail.index import MailIndex

    report = build_index(sources, Path(mail.path))
    mail.metadata.update(MailIndex(Path(mail.path)).stats(), code=code)
    print(f"{report.messages:,} messages indexed")
    return report.messages
