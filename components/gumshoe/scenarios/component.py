"""Pipeline steps that look at sources, and that load scenarios."""

from typing import NamedTuple

from kfp import dsl


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def look_at_sources(  # as Kubeflow has several outputs
    sources: list, scenarios: str, store: str, feedback: dict, run: str = ""
) -> NamedTuple("States", [("sources", str), ("scenarios", str), ("feedback", str)]):  # type: ignore[valid-type]
    """Return the sources' current state, so that cached results are used only if nothing has changed.

    The states of sources and scenarios are digests. That of feedback is JSON: which publications are taken, and how.

    Args:
        sources: Sources of mail or documents: URIs, or mappings with the URI as `source`.
        scenarios: Source of scenarios, as for `gumshoe scenarios load`.
        store: URI of the project's artifacts, with the feedback.
        feedback: Options for scenarios from feedback; empty for none.
        run: ID of the run. If it is submitted again, it takes the same feedback.
    """
    import hashlib
    from datetime import UTC, datetime

    from gumshoe.artifacts.run_inputs import record_input
    from gumshoe.artifacts.source_files import digest_of_uris
    from gumshoe.artifacts.store import Store
    from gumshoe.scenarios.feedback_options import FeedbackOptions
    from gumshoe.scenarios.feedback_records import FeedbackSelection

    uris = [each if isinstance(each, str) else each["source"] for each in sources]
    selection = ""
    if feedback:
        options, opened = FeedbackOptions.from_mapping(feedback), Store(store)
        found = FeedbackSelection.of(opened, options, datetime.now(UTC)).model_dump_json()
        asked = hashlib.sha256(options.model_dump_json().encode()).hexdigest()[:16]  # other options are another input
        selection = record_input(opened, run, f"feedback-{asked}", found)
        if selection != found:
            selection = FeedbackSelection.model_validate_json(selection).without_erased(opened).model_dump_json()
    return digest_of_uris(uris), digest_of_uris([scenarios]), selection


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
    feedback: str = "",
) -> int:
    """Check scenarios against an index, drop those with problems, split the rest, and return how many there are.

    Scenarios from the feedback of users are added to the splits.

    Args:
        source: Source of the scenarios, as for `gumshoe scenarios load`.
        index: Index of mail or documents.
        seed: Seed of the split, if the source has no splits.
        state: Digest of the source's state, so that the cache is not used after a change.
        store: URI of the project's artifacts.
        current: Version of a published adapter that will be evaluated; empty for none. It is never tested on scenarios
            that it has seen.
        code: Hash of the code, so that results of other code are not taken from the cache.
        scenarios: Directory with `scenarios.jsonl`.
        feedback: The feedback to add, as `look_at_sources` returns it; empty for none.
    """
    from contextlib import nullcontext
    from pathlib import Path

    from gumshoe.artifacts.store import Store, fetch_directory
    from gumshoe.scenarios.feedback_records import FeedbackSelection
    from gumshoe.scenarios.prepare import FeedbackSource, prepare_scenarios

    places = Path(index.path), Path(scenarios.path)
    given = None
    if feedback:
        selection = FeedbackSelection.model_validate_json(feedback)
        given = FeedbackSource(selection.read(Store(store)), selection.options)
    with fetch_directory(f"adapters/{current}", store) if current else nullcontext() as adapter:
        prepared = prepare_scenarios(
            source, *places, validation=0.1, test=0.15, seed=seed, current=adapter, feedback=given
        )
    dropped = {str(problem): count for problem, count in prepared.report.counts.items()}
    scenarios.metadata.update(prepared.splits, content=prepared.scenarios.content, problems=dropped, code=code)
    if prepared.feedback is not None:
        scenarios.metadata["feedback"] = prepared.feedback.summary
        print(f"feedback: {prepared.feedback.text}")
    splits = ", ".join(f"{count:,} {split}" for split, count in prepared.splits.items())
    problems = ", ".join(f"{count:,} {problem}" for problem, count in dropped.items())
    print(f"{len(prepared.scenarios):,} scenarios: {splits}; problems: {problems or 'none'}")
    return len(prepared.scenarios)
