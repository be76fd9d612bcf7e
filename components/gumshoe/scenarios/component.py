"""The pipeline's step that loads scenarios."""

from kfp import dsl


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def load_scenarios(
    source: str,
    index: dsl.Input[dsl.Dataset],
    seed: int,
    state: str,  # noqa: ARG001
    code: str,
    scenarios: dsl.Output[dsl.Dataset],
    current: dsl.Input[dsl.Model] = None,
) -> int:
    """Check scenarios against what they ask about, drop those that are wrong, and divide the rest; how many there are.

    Args:
        source: As `gumshoe scenarios load` takes it.
        index: Of mail, or of documents.
        seed: Decides which go where, where the source does not say.
        state: What lies there, so that other scenarios are not taken from the cache.
        code: A hash of the code, so that what other code made is not taken from the cache.
        scenarios: A directory with `scenarios.jsonl`.
        current: The adapter in service: it is tested on nothing that it has seen.
    """
    from pathlib import Path

    from gumshoe.scenarios.prepare import prepare

    known = None if current is None else Path(current.path)
    found = prepare(source, Path(index.path), Path(scenarios.path), validation=0.1, test=0.15, seed=seed, current=known)
    dropped = {str(problem): count for problem, count in found.report.counts.items()}
    scenarios.metadata.update(found.splits, content=found.scenarios.content, problems=dropped, code=code)
    print(f"{len(found.scenarios):,} scenarios: {found.splits}; problems: {dropped or 'none'}")
    return len(found.scenarios)
