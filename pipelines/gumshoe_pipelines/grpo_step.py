"""Define the GRPO training step: it trains in its own pod, or starts a training on several nodes.

The step is here because it needs both `gumshoe.training` and `gumshoe.cluster`, which may not import each other. It is
a single step, whose pod gets its resources from `plan_run`: two steps under a condition would need `dsl.OneOf`, in
which Kubeflow 2.16 loses artifacts (https://github.com/kubeflow/pipelines/issues/13436).
"""

from typing import Any

from kfp import dsl

from gumshoe_pipelines.parameters import TrainingParameters
from gumshoe_pipelines.placement import Placement

HOURS = 48
"""Time limit of a training."""


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
    held: int,  # noqa: ARG001 - requested for the pod
    adapter: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    plots: dsl.Output[dsl.HTML],
    start: dsl.Input[dsl.Model] = None,
    entry: str = "",
) -> None:
    """Train an adapter with GRPO. Continues from checkpoints that an earlier attempt of the run left in the store.

    Args:
        index: Index of mail or documents.
        scenarios: Directory with `scenarios.jsonl`.
        base_model: Base model: a name on the Hugging Face Hub, a directory, `tiny`, or `smollm2-135m`.
        config: Training settings: name of a preset, a path, or a URI. Empty for the defaults.
        settings: Training settings that override `config`, by dotted name.
        checkpoints: URI for the checkpoints of this run.
        nodes: Number of training nodes. With 1, this step's own pod trains.
        job: TrainJob options if nodes > 1.
        gpus: Number of GPUs per node.
        node_selector: Node labels for the training nodes.
        tolerations: Tolerations for the training nodes.
        image: Container image for the training nodes.
        held: Number of GPUs of this step's own pod.
        adapter: The adapter that was best on the validation split.
        metrics: Metrics of the last step and the last evaluation.
        plots: Plots of the training.
        start: Adapter to start from. An empty one is ignored.
        entry: Name of an entry of a sweep, whose checkpoints are in a directory of their own.
    """
    import shutil
    from pathlib import Path

    from gumshoe.training.train_request import TrainRequest
    from gumshoe.training.training_step import train_adapter

    first = None if start is None else Path(start.path)
    inputs = Path(index.path), Path(scenarios.path)
    place = f"{checkpoints}/{entry}" if entry else checkpoints
    request = TrainRequest.of_step(*inputs, base_model, config, settings, place, first)
    if nodes == 1:
        found = train_adapter(request)
    else:
        from gumshoe_pipelines.trainjob_step import TrainJobOptions, train_on_cluster

        found = train_on_cluster(request, TrainJobOptions.of(nodes, gpus, job, image, node_selector, tolerations))
    shutil.copytree(found.adapter, adapter.path, dirs_exist_ok=True)
    shutil.copyfile(found.plots, plots.path)
    shutil.rmtree(found.directory)
    adapter.metadata.update(found.facts)
    for name, value in found.numbers.items():
        metrics.log_metric(name, value)


def train_with_grpo(given: TrainingParameters, training: Placement, **inputs: Any) -> Any:
    """Add the training step and return it. Its pod is placed as `training` says; `inputs` are its other inputs."""
    where = given.placement
    task = train_grpo(
        **inputs,
        nodes=given.nodes,
        job=given.job,
        gpus=where.gpus,
        node_selector=where.node_selector,
        tolerations=where.tolerations,
        image=where.trainer_image,
        held=training.gpus,
    )
    return training.on_gpu(task, hours=HOURS)
