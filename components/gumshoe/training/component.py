"""The pipeline's steps that train an adapter."""

from kfp import dsl


@dsl.component(base_image="gumshoe-trainer", install_kfp_package=False)
def warm_start(
    mail: dsl.Input[dsl.Dataset],
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
        mail: An index.
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

    from gumshoe.training.steps import warmed_up

    place = Path(adapter.path)
    place.mkdir(parents=True, exist_ok=True)
    facts = warmed_up(Path(mail.path), Path(scenarios.path), base_model, config, settings, demonstrations, judge, place)
    adapter.metadata.update({"base_model": base_model, "demonstrations": demonstrations})
    for name, value in facts.items():
        metrics.log_metric(name, value)
    Path(metrics.path).write_text(json.dumps(facts), encoding="utf-8")  # without a file there is nothing to cache


@dsl.component(base_image="gumshoe-trainer", install_kfp_package=False)
def train_grpo(
    mail: dsl.Input[dsl.Dataset],
    scenarios: dsl.Input[dsl.Dataset],
    base_model: str,
    config: str,
    settings: dict,
    checkpoints: str,
    gpus: int,  # noqa: ARG001 - of the pod
    adapter: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    plots: dsl.Output[dsl.HTML],
    start: dsl.Input[dsl.Model] = None,
) -> None:
    """Train an adapter with GRPO, and take up what an earlier try of the same run left in the store.

    Args:
        mail: An index.
        scenarios: A directory with `scenarios.jsonl`.
        base_model: `tiny`, a model's directory, or its name on the hub.
        config: Settings: a name of those that come with Gumshoe, a path, or a URI; empty for the defaults.
        settings: More of them, by dotted name.
        checkpoints: The URI that checkpoints go to, of this run alone.
        gpus: How many the step has.
        adapter: The one that was best on the validation split.
        metrics: Of the last step and the last evaluation.
        plots: The run as it went.
        start: An adapter to begin at; an empty one is none.
    """
    import shutil
    from pathlib import Path

    from gumshoe.training.steps import trained

    begun_at = None if start is None else Path(start.path)
    found = trained(Path(mail.path), Path(scenarios.path), base_model, config, settings, checkpoints, begun_at)
    shutil.copytree(found.adapter, adapter.path, dirs_exist_ok=True)
    shutil.copyfile(found.plots, plots.path)
    shutil.rmtree(found.directory)
    adapter.metadata.update(found.facts)
    for name, value in found.numbers.items():
        metrics.log_metric(name, value)
