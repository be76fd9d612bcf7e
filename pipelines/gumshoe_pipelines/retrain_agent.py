"""Train again on what mail there is by now, and publish what is better than the adapter in service.

Meant to be run again and again: `gumshoe pipeline submit retrain-agent --cron ...`.
"""

from typing import Any

from kfp import dsl

from gumshoe.artifacts.component import fetch_adapter
from gumshoe.cluster.component import notify
from gumshoe.evaluation.component import evaluate_policy, gate
from gumshoe_pipelines.common_steps import EMBEDDING, ingest_and_split, publish_if_gate_passes
from gumshoe_pipelines.grpo_step import grpo_step
from gumshoe_pipelines.placement import TRAINER, WORKER, Placement


@dsl.pipeline(name="retrain-agent", description="Train again, and publish what beats the adapter in service.")
def retrain_agent(
    sources: list,
    scenarios: str,
    store: str,
    environment: str = "email",
    embedding: str = EMBEDDING,
    base_model: str = "Qwen/Qwen2.5-7B-Instruct",
    config: str = "",
    settings: dict = {},  # noqa: B006 - a default of Kubeflow's
    limits: dict = {},  # noqa: B006
    choice: dict = {},  # noqa: B006
    judge: str = "heuristic",
    thresholds: dict = {},  # noqa: B006
    seed: int = 1,
    deploy: str = "none",
    deployment: dict = {},  # noqa: B006
    gpus: int = 1,
    nodes: int = 1,
    job: dict = {},  # noqa: B006
    node_selector: dict = {},  # noqa: B006
    tolerations: list = [],  # noqa: B006
    worker_image: str = WORKER,
    trainer_image: str = TRAINER,
    code: str = "",
) -> None:
    """Train an agent again.

    Args:
        sources: Of mail, as `gumshoe mail index` takes them; of documents, as `gumshoe documents index` does.
        scenarios: Questions with known answers, as `gumshoe scenarios load` takes them.
        store: The URI of the project's artifacts, such as s3://bucket/project.
        environment: What the agent works in: `email`, or `documents`.
        embedding: Of documents: the embedding model, or `none` for an index of words alone.
        base_model: `tiny`, a model's directory, or its name on the hub.
        config: Settings of training: a name of those that come with Gumshoe, or a URI; empty for the defaults.
        settings: More of them, by dotted name.
        limits: Of an episode in evaluations: max_turns, max_tokens, max_context.
        choice: In evaluations, how one of several samples is the answer: samples, choose, choose_by, temperature.
        judge: Says in evaluations which answers are right.
        thresholds: Of the gate; those that are not named are its defaults.
        seed: Decides which scenarios go into which split, where they do not say.
        deploy: What is published is put into service: `none`, `canary` (beside the adapter there), `full`.
        deployment: Where: name (gumshoe), namespace, percent (of a canary, 10), values (of the chart charts/agent).
        gpus: Of the steps that learn, and of each node of the training; those that measure have one of them.
        nodes: That train. More than one are a TrainJob of the cluster, and vLLM servers beside it.
        job: Of such a training: rollout_servers (1), rollout_gpus (1), queue, priority, cpus, memory, cache, runtime.
        node_selector: Labels of the nodes that have them.
        tolerations: Of the same steps.
        worker_image: Of the steps without a GPU. Documents are embedded there, for which the trainer's image is made.
        trainer_image: Of those with one.
        code: A hash of the code; cached steps of other code are run again.
    """
    run = dsl.PIPELINE_JOB_ID_PLACEHOLDER  # each run has its own
    where: Any = Placement(worker_image, trainer_image, gpus, node_selector, tolerations)
    told = where.on_cpu(notify(store=store, run=run), hours=0.25)
    with dsl.ExitHandler(told, name="run"):
        current = where.on_cpu(fetch_adapter(store=store, version="latest")).outputs["adapter"]
        divided = ingest_and_split(where, sources, environment, embedding, scenarios, seed, code, current)
        there, own = where.divided(nodes)
        asked = {**divided, "base_model": base_model}
        trained = grpo_step(
            where, own, nodes, job, **asked, config=config, settings=settings, checkpoints=f"{store}/runs/{run}"
        )
        adapter = trained.outputs["adapter"]
        measured = evaluate_policy(
            **asked,
            gpus=there.gpus,
            judge=judge,
            limits=limits,
            choice=choice,
            code=code,
            adapter=adapter,
            current=current,
        )
        there.on_gpu(measured, hours=12)
        decided = where.on_cpu(
            gate(evaluation=measured.outputs["evaluation"], thresholds=thresholds, store=store, run=run), hours=0.5
        )
        publish_if_gate_passes(where, decided, adapter, store, run, deploy, deployment)
