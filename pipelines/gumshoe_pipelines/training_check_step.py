"""Define the step that checks a training before anything expensive starts.

The step is here because it needs both `gumshoe.training` and what a pipeline knows about nodes and rollout servers.
"""

from typing import NamedTuple

from kfp import dsl


@dsl.component(base_image="gumshoe-trainer", install_kfp_package=False)
def check_training(  # as Kubeflow has several outputs
    index: dsl.Input[dsl.Dataset],
    scenarios: dsl.Input[dsl.Dataset],
    base_model: str,
    config: str,
    limits: dict,
    nodes: int,
    gpus: int,
    job: dict,
    agent: str = "",
    settings: dict = {},  # noqa: B006 - Kubeflow requires a literal
    sweep: list = [],  # noqa: B006
    demonstrations: str = "",
    current: dsl.Input[dsl.Model] = None,
) -> NamedTuple("Digests", [("baseline", str), ("training", str)]):  # type: ignore[valid-type]
    """Check that the training of a run can start, and that evaluations can compare its policies.

    Return digests of the inputs of cached steps. The first digest is that of what the baseline depends on, and the
    second that of what a warm start depends on.

    Args:
        index: Index of mail or documents.
        scenarios: Directory with `scenarios.jsonl`.
        base_model: Base model: `tiny`, a directory, or a name on the hub.
        config: Training settings: a name that comes with Gumshoe, a path, or a URI; empty for the defaults.
        limits: Limits, chat settings and environment of evaluations.
        nodes: Number of training nodes.
        gpus: Number of GPUs per node; not used on one machine, which has its own.
        job: TrainJob options if nodes > 1.
        agent: Agent that runs the episodes; empty for Gumshoe's own loop.
        settings: Training settings that override `config`, by dotted name.
        sweep: Entries of a sweep, whose settings override `config`.
        demonstrations: Demonstrations of the warm start; empty for none.
        current: Adapter in service, which the new one must beat; an empty directory for none.
    """
    from pathlib import Path

    from gumshoe.training.run_check import check_comparable, digest_inputs, resolve_entries
    from gumshoe_pipelines.training_checks import check_with_inputs

    entries = [each["settings"] for each in sweep] or [settings]
    trained = resolve_entries(base_model, config, entries)
    for each in trained:
        check_comparable(Path(index.path), base_model, each, limits, current and Path(current.path))
    check_with_inputs(Path(scenarios.path), base_model, config, entries, nodes, gpus, job, agent, demonstrations)
    return digest_inputs(base_model, limits, trained, demonstrations)
