"""The pipeline's step that trains with rewards: in its own pod, or on several nodes, which it has the cluster start.

It is here since it needs both `gumshoe.training` and `gumshoe.cluster`, of which neither may import the other. It is
one step, whose pod has what another (`place_steps`) says: two steps under a condition would need `dsl.OneOf`, and
Kubeflow 2.16 loses artifacts in it (https://github.com/kubeflow/pipelines/issues/13436).
"""

from typing import Any

from kfp import dsl

from gumshoe_pipelines.placement import Placement

HOURS = 48
"""That a training may take."""


@dsl.component(base_image="gumshoe-trainer", install_kfp_package=False)
def train_grpo(
    index: dsl.Input[dsl.Dataset],
    scenarios: dsl.Input[dsl.Dataset],
    base_model: str,
    config: str,
    settings: dict,
    checkpoints: str,
    nodes: int,
    job: dict,
    gpus: int,
    node_selector: dict,
    tolerations: list,
    image: str,
    held: int,  # noqa: ARG001 - of the pod
    adapter: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    plots: dsl.Output[dsl.HTML],
    start: dsl.Input[dsl.Model] = None,
) -> None:
    """Train an adapter with GRPO, and take up what an earlier try of the same run left in the store.

    Args:
        index: Of mail, or of documents.
        scenarios: A directory with `scenarios.jsonl`.
        base_model: `tiny`, a model's directory, or its name on the hub.
        config: Settings: a name of those that come with Gumshoe, a path, or a URI; empty for the defaults.
        settings: More of them, by dotted name.
        checkpoints: The URI that checkpoints go to, of this run alone.
        nodes: That train; one is this step's own pod.
        job: Of a training on several, how the cluster carries it out.
        gpus: Of each node.
        node_selector: Labels of the nodes that have them.
        tolerations: Of those.
        image: Of their pods.
        held: How many GPUs this step's own pod has.
        adapter: The one that was best on the validation split.
        metrics: Of the last step and the last evaluation.
        plots: The run as it went.
        start: An adapter to begin at; an empty one is none.
    """
    import shutil
    from pathlib import Path

    from gumshoe.training.training_step import TrainRequest, train_adapter

    begun_at = None if start is None else Path(start.path)
    asked = TrainRequest(Path(index.path), Path(scenarios.path), base_model, config, settings, checkpoints, begun_at)
    if nodes == 1:
        found = train_adapter(asked)
    else:
        from gumshoe_pipelines.trainjob_step import TrainJobOptions, train_on_cluster

        found = train_on_cluster(asked, TrainJobOptions.of(nodes, gpus, job, image, node_selector, tolerations))
    shutil.copytree(found.adapter, adapter.path, dirs_exist_ok=True)
    shutil.copyfile(found.plots, plots.path)
    shutil.rmtree(found.directory)
    adapter.metadata.update(found.facts)
    for name, value in found.numbers.items():
        metrics.log_metric(name, value)


def grpo_step(where: Placement, own: Placement, nodes: Any, job: Any, **asked: Any) -> Any:
    """The step that trains, in a pod of its `own`; `asked` are its other inputs."""
    task = train_grpo(
        **asked,
        nodes=nodes,
        job=job,
        gpus=where.gpus,
        node_selector=where.node_selector,
        tolerations=where.tolerations,
        image=where.trainer_image,
        held=own.gpus,
    )
    return own.on_gpu(task, hours=HOURS)
