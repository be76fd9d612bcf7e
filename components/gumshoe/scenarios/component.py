"""Pipeline step that loads scenarios."""

from kfp import dsl


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def load_scenarios(
    source: str,
    index: dsl.Input[dsl.Dataset],
    seed: int,
    state: str,  # noqa: ARG001
    store: str,
    current: str,
    code: str,
    scenarios: dsl.Output[dsl.Dataset],
) -> int:
    """Check scenarios against an index, drop those with problems, split the rest, and return how many there are.

    Args:
        source: Source of the scenarios, as for `gumshoe scenarios load`.
        index: Index of mail or documents.
        seed: Seed of the split, if the source has no splits.
        state: Digest of the source's state, so that the cache is not used after a change.
        store: URI of the project's artifacts.
        current: Version of the adapter that a new one must beat; empty for none. It is never tested on scenarios that
            it has seen.
        code: Hash of the code, so that results of other code are not taken from the cache.
        scenarios: Directory with `scenarios.jsonl`.
    """
    from contextlib import nullcontext
    from pathlib import Path

    from gumshoe.artifacts.store import fetch_directory
    from gumshoe.scenarios.prepare import prepare_scenarios

    places = Path(index.path), Path(scenarios.path)
    with fetch_directory(f"adapters/{current}", store) if current else nullcontext() as adapter:
        prepared = prepare_scenarios(source, *places, validation=0.1, test=0.15, seed=seed, current=adapter)
    dropped = {str(problem): count for problem, count in prepared.report.counts.items()}
    scenarios.metadata.update(prepared.splits, content=prepared.scenarios.content, problems=dropped, code=code)
    print(f"{len(prepared.scenarios):,} scenarios: {prepared.splits}; problems: {dropped or 'none'}")
    return len(prepared.scenarios)
