"""The pipeline's step that makes what an agent searches."""

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
    """Index mail or documents from their sources; how many there are.

    Args:
        sources: As `gumshoe mail index`, or `gumshoe documents index`, takes them.
        environment: `email` or `documents`.
        embedding: Of documents: the embedding model, or `none`.
        state: What lies there, so that an index of something else is not taken from the cache.
        code: A hash of the code, so that what other code made is not taken from the cache.
        index: The index.
    """
    from pathlib import Path

    from gumshoe.environments.ingest import ingest_sources

    made = ingest_sources(sources, environment, embedding, Path(index.path))
    index.metadata.update(made.facts, environment=environment, code=code)
    print(made.said)
    return made.count
