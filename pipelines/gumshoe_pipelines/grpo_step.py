"""Define the GRPO training step: it trains in its own pod, or starts a training on several nodes.

The step is here because it needs both `gumshoe.training` and `gumshoe.cluster`, which may not import each other. It is
a single step, whose pod gets its resources from `plan_run`: two steps under a condition would need `dsl.OneOf`, in
which Kubeflow 2.16 loses artifacts (https://github.com/kubeflow/pipelines/issues/13436).
"""

from typing import Any

from kfp import dsl

from gumshoe_pipelines.parameters import TrainingParameters
from gumshoe_pipelines.placement import Placement, add_agent_keys
from gumshoe_pipelines.step_resources import TRAINING_HOURS


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
    gpu_resource: str,
    cpus_per_gpu: int,
    memory_per_gpu: str,
    node_selector: dict,
    tolerations: list,
    image: str,
    pods: dict,
    adapter: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    plots: dsl.Output[dsl.HTML],
    start: dsl.Input[dsl.Model] = None,
    entry: str = "",
    agent: str = "",
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
        gpu_resource: Name of the resource that nodes count GPUs by.
        cpus_per_gpu: CPUs per GPU of the training nodes and rollout servers.
        memory_per_gpu: Memory per GPU of the training nodes and rollout servers.
        node_selector: Node labels for the training nodes.
        tolerations: Tolerations for the training nodes.
        image: Container image for the training nodes.
        pods: Options that are compiled into the pods of this pipeline: queue, priority, cache, image_pull_secret.
        adapter: The adapter that was best on the validation split.
        metrics: Metrics of the last step and the last evaluation.
        plots: Plots of the training.
        start: Adapter to start from. An empty one is ignored.
        entry: Name of an entry of a sweep, whose checkpoints are in a directory of their own.
        agent: Agent that runs the episodes; empty for Gumshoe's own loop.
    """
    import shutil
    from pathlib import Path

    from gumshoe.training.train_request import TrainRequest
    from gumshoe.training.training_step import train_adapter
    from gumshoe_pipelines.step_resources import check_job

    first = None if start is None else Path(start.path)
    inputs = Path(index.path), Path(scenarios.path)
    place = f"{checkpoints}/{entry}" if entry else checkpoints
    given = {**settings, "agent": agent} if agent else settings
    request = TrainRequest.of_step(*inputs, base_model, config, given, place, first)
    check_job(nodes, job)
    if nodes == 1:
        found = train_adapter(request)
    else:
        from gumshoe_pipelines.trainjob_step import TrainJobOptions, train_on_cluster

        resources = {"gpu_resource": gpu_resource, "cpus_per_gpu": cpus_per_gpu, "memory_per_gpu": memory_per_gpu}
        where = TrainJobOptions.of(nodes, gpus, job, image, node_selector, tolerations, pods, **resources)
        found = train_on_cluster(request, where)
    shutil.copytree(found.adapter, adapter.path, dirs_exist_ok=True)
    shutil.copyfile(found.plots, plots.path)
    shutil.rmtree(found.directory)
    adapter.metadata.update(found.facts)
    for name, value in found.numbers.items():
        metrics.log_metric(name, value)


def train_with_grpo(given: TrainingParameters, training: Placement, **inputs: Any) -> Any:
    """Add the training step and return it. Its pod is placed as `training` says; `inputs` are its other inputs."""
    task = train_grpo(
        **inputs,
        nodes=given.nodes,
        job=given.job,
        gpus=given.gpus,
        gpu_resource=given.gpu_resource,
        cpus_per_gpu=given.cpus_per_gpu,
        memory_per_gpu=given.memory_per_gpu,
        node_selector=given.node_selector,
        tolerations=given.tolerations,
        image=given.trainer_image,
        pods=given.placement.pods.to_input(),
        agent=given.agent,
    )
    return training.on_gpu(add_agent_keys(task), hours=TRAINING_HOURS)
