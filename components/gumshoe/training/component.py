"""The pipeline's step that trains an adapter."""

from kfp import dsl


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
    """
    import shutil
    from pathlib import Path

    from gumshoe.training.steps import trained

    found = trained(Path(mail.path), Path(scenarios.path), base_model, config, settings, checkpoints)
    shutil.copytree(found.adapter, adapter.path, dirs_exist_ok=True)
    shutil.copyfile(found.plots, plots.path)
    adapter.metadata.update(found.facts)
    for name, value in found.numbers.items():
        metrics.log_metric(name, value)
