"""Pipeline step that builds the index that an agent searches."""

from kfp import dsl


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def ingest(
    sources: list,
    environment: str,
    embedding: str,
    options: dict,
    state: str,  # noqa: ARG001
    code: str,
    index: dsl.Output[dsl.Dataset],
) -> int:
    """Build the index that an environment searches, and return the number of its items.

    Args:
        sources: Where to read mail or documents from, e.g. ["maildir:s3://bucket/mail"]. An entry for mail may be a
            mapping with source, owner and aliases, and one for documents a mapping with source and collection.
        environment: Name of a built-in environment, e.g. `email`.
        embedding: Embedding model, or `none`. Not used for mail.
        options: Options of the index, e.g. {"max_body": 0}.
        state: Digest of the sources' current state. If it changes, the step is not taken from the cache.
        code: Hash of the code. If it changes, the step is not taken from the cache.
        index: The index.
    """
    from pathlib import Path

    from gumshoe.environments.ingest import ingest_sources

    result = ingest_sources(sources, environment, embedding, Path(index.path), options)
    index.metadata.update(result.facts, environment=environment, code=code)
    print(result.summary)
    return result.count
