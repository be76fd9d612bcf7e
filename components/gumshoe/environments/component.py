"""Pipeline step that builds the index that an agent searches."""

from kfp import dsl


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def ingest(
    sources: list,
    environment: str,
    embedding: str,
    state: str,  # noqa: ARG001
    code: str,
    index: dsl.Output[dsl.Dataset],
) -> int:
    """Build an index of mail or documents, and return the number of messages or documents.

    Args:
        sources: Where to read mail or documents from, e.g. ["maildir:s3://bucket/mail"].
        environment: `email` or `documents`.
        embedding: Embedding model for documents, or `none`.
        state: Digest of the sources' current state. If it changes, the step is not taken from the cache.
        code: Hash of the code. If it changes, the step is not taken from the cache.
        index: The index.
    """
    from pathlib import Path

    from gumshoe.environments.ingest import ingest_sources

    result = ingest_sources(sources, environment, embedding, Path(index.path))
    index.metadata.update(result.facts, environment=environment, code=code)
    print(result.summary)
    return result.count
