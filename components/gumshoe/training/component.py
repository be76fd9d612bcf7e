"""Pipeline steps that check a training and start it warm; the step for GRPO is in `gumshoe_pipelines`."""

from typing import NamedTuple

from kfp import dsl


@dsl.component(base_image="gumshoe-trainer", install_kfp_package=False)
def check_training(  # as Kubeflow has several outputs
    index: dsl.Input[dsl.Dataset],
    base_model: str,
    config: str,
    limits: dict,
    settings: dict = {},  # noqa: B006 - Kubeflow requires a literal
    sweep: list = [],  # noqa: B006
    demonstrations: str = "",
    current: dsl.Input[dsl.Model] = None,
) -> NamedTuple("Digests", [("baseline", str), ("training", str)]):  # type: ignore[valid-type]
    """Check that evaluations can compare the policies of a run, and digest the inputs of its cached steps.

    The first digest is that of what the baseline depends on, and the second that of what a warm start depends on.

    Args:
        index: Index of mail or documents.
        base_model: Base model: `tiny`, a directory, or a name on the hub.
        config: Training settings: a name that comes with Gumshoe, a path, or a URI; empty for the defaults.
        limits: Limits, chat settings and environment of evaluations.
        settings: Training settings that override `config`, by dotted name.
        sweep: Entries of a sweep, whose settings override `config`.
        demonstrations: Demonstrations of the warm start; empty for none.
        current: Adapter in service, which the new one must beat; an empty directory for none.
    """
    from pathlib import Path

    from gumshoe.training.run_check import check_comparable, digest_inputs, resolve_entries

    trained = resolve_entries(base_model, config, [each["settings"] for each in sweep] or [settings])
    for each in trained:
        check_comparable(Path(index.path), base_model, each, limits, current and Path(current.path))
    return digest_inputs(base_model, limits, trained, demonstrations)


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
    code: str,  # noqa: ARG001
    adapter: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Train an adapter on correct episodes, for GRPO to start from; without episodes, the output has no adapter.

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
        adapter: The trained adapter.
        metrics: The numbers of the report.
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
    Path(metrics.path).write_text(json.dumps(facts), encoding="utf-8")  # Kubeflow caches only outputs with a file
