"""The pipeline's step that learns from what is right; the one that learns from rewards is in `gumshoe_pipelines`."""

from kfp import dsl


@dsl.component(base_image="gumshoe-trainer", install_kfp_package=False)
def warm_start(
    index: dsl.Input[dsl.Dataset],
    scenarios: dsl.Input[dsl.Dataset],
    base_model: str,
    config: str,
    settings: dict,
    demonstrations: str,
    judge: str,
    gpus: int,  # noqa: ARG001 - of the pod
    code: str,  # noqa: ARG001 - so that what other code made is not taken from the cache
    adapter: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Train an adapter on episodes that are right, for training to begin at; an empty one where there are none.

    Args:
        index: Of mail, or of documents.
        scenarios: A directory with `scenarios.jsonl`.
        base_model: `tiny`, a model's directory, or its name on the hub.
        config: Settings: a name of those that come with Gumshoe, a path, or a URI; empty for the defaults.
        settings: More of them, by dotted name.
        demonstrations: The URI of episodes as `gumshoe rollout` writes them; empty for no warm start.
        judge: Says which episodes are right, as `gumshoe evaluate --judge`.
        gpus: How many the step has.
        code: A hash of the code, so that what other code made is not taken from the cache.
        adapter: What was learned.
        metrics: How much of it.
    """
    import json
    from pathlib import Path

    from gumshoe.training.training_step import run_sft

    place = Path(adapter.path)
    place.mkdir(parents=True, exist_ok=True)
    facts = run_sft(Path(index.path), Path(scenarios.path), base_model, config, settings, demonstrations, judge, place)
    adapter.metadata.update({"base_model": base_model, "demonstrations": demonstrations})
    for name, value in facts.items():
        metrics.log_metric(name, value)
    Path(metrics.path).write_text(json.dumps(facts), encoding="utf-8")  # without a file there is nothing to cache
