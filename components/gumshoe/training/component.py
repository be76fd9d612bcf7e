"""Pipeline step that starts a training warm; the other steps of a training are in `gumshoe_pipelines`."""

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
    state: str,  # noqa: ARG001 - part of the cache key
    code: str,
    store: str,
    adapter: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Train an adapter on correct episodes, for GRPO to start from; without episodes, the output has no adapter.

    Continues from the last checkpoint in the store of a warm start with the same inputs.

    Args:
        index: Index of mail or documents.
        scenarios: Directory with `scenarios.jsonl`.
        base_model: Base model: `tiny`, a directory, or a name on the hub.
        config: Training settings: a name that comes with Gumshoe, a path, or a URI; empty for the defaults.
        settings: Training settings that override `config`, by dotted name.
        demonstrations: URI of episodes recorded by `gumshoe rollout`; `gold` to make them from the scenarios and their
            sources; empty for no warm start.
        judge: Judge that decides which episodes are correct, as in `gumshoe evaluate --judge`.
        state: Digest of base model, settings and demonstrations, so that results of other ones are not taken from the
            cache.
        code: Hash of the code, so that results of other code are not taken from the cache.
        store: Store of artifacts, which keeps the last checkpoint.
        adapter: The trained adapter.
        metrics: The numbers of the report.
    """
    import json
    from pathlib import Path

    from gumshoe.training.training_step import run_sft

    place = Path(adapter.path)
    place.mkdir(parents=True, exist_ok=True)
    inputs = Path(index.path), Path(scenarios.path), base_model, config, settings, demonstrations, judge
    facts = run_sft(*inputs, place, store, code)
    adapter.metadata.update({"base_model": base_model, "demonstrations": demonstrations})
    for name, value in facts.items():
        metrics.log_metric(name, value)
    Path(metrics.path).write_text(json.dumps(facts), encoding="utf-8")  # Kubeflow caches only outputs with a file
