"""Train with several settings, and publish the best adapter that passes the gate.

It has no exit handler, because Kubeflow does not support loops inside one.
"""

from typing import Any

from kfp import dsl

from gumshoe.evaluation.component import choose, evaluate_policy
from gumshoe_pipelines.common_steps import EMBEDDING, ingest_and_split, publish_if_gate_passes
from gumshoe_pipelines.grpo_step import grpo_step
from gumshoe_pipelines.placement import TRAINER, WORKER, Placement

AT_ONCE = 4


@dsl.pipeline(name="sweep-agent", description="Train with several settings, and publish the best adapter that passes.")
def sweep_agent(
    sources: list,
    scenarios: str,
    store: str,
    run: str,
    sweep: list,
    environment: str = "email",
    embedding: str = EMBEDDING,
    base_model: str = "Qwen/Qwen2.5-7B-Instruct",
    config: str = "",
    limits: dict = {},  # noqa: B006 - Kubeflow reads the default
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
    """Train agents with several settings, and publish the best one that passes the gate.

    Args:
        sources: Where to read mail or documents from, e.g. [maildir:s3://bucket/mail] or [dir:s3://bucket/documents].
        scenarios: Questions with known answers: a JSON Lines file, e.g. s3://bucket/questions.jsonl, or hf:DATASET.
        store: URI of the project's artifact store, e.g. s3://bucket/project.
        run: ID of this run, e.g. mail-1. With the ID of a stopped run, it continues where that run stopped.
        sweep: Settings to compare, e.g. [{name: slow, settings: {optimizer.learning_rate: 1e-6}}].
        environment: What the agent searches: `email` or `documents`.
        embedding: Embedding model for documents, or `none` for keyword search only. Not used for mail.
        base_model: Base model: a name on the Hugging Face Hub, a directory, or `tiny`.
        config: Training settings: name of a preset, or URI of a YAML file. Empty for the defaults.
        limits: Limits per episode in evaluations, e.g. {max_turns: 10, max_tokens: 512, max_context: 8192}.
        choice: How evaluations choose among several samples per question, e.g. {samples: 4, choose: majority}.
        judge: Judge that decides in evaluations which answers are correct, e.g. heuristic or openai:MODEL@URL.
        thresholds: Thresholds an adapter must meet to be published. Missing ones have their defaults.
        seed: Random seed for splitting the scenarios, if they do not name a split.
        deploy: How to deploy the published adapter: `none`, `canary` (beside the adapter in service) or `full`.
        deployment: Where to deploy: name, namespace, percent (traffic of a canary), values (of the Helm chart).
        gpus: Number of GPUs per training node. Evaluations use one GPU. 0 for CPU only.
        nodes: Number of training nodes. With more than 1, a Kubeflow TrainJob and separate vLLM servers are used.
        job: Options of the TrainJob: rollout_servers, rollout_gpus, queue, priority, cpus, memory, cache, runtime.
        node_selector: Node labels for GPU steps, e.g. {pool: gpus}.
        tolerations: Tolerations for GPU steps, e.g. [{key: nvidia.com/gpu, operator: Exists}].
        worker_image: Container image for CPU steps. To embed documents, use the trainer image.
        trainer_image: Container image for GPU steps.
        code: Hash of Gumshoe's code, set by `gumshoe pipeline`. Cached steps are repeated if it changes.
    """
    where: Any = Placement(worker_image, trainer_image, gpus, node_selector, tolerations)
    evaluation, training = where.split_placement(nodes)
    inputs = {
        **ingest_and_split(where, sources, environment, embedding, scenarios, seed, code),
        "base_model": base_model,
    }
    measuring = {**inputs, "gpus": evaluation.gpus, "judge": judge, "limits": limits, "choice": choice, "code": code}
    before = evaluation.on_gpu(evaluate_policy(**measuring), hours=6, cached=True).set_display_name("baseline")
    with dsl.ParallelFor(sweep, parallelism=AT_ONCE, name="each") as each:
        place = f"{store}/runs/{run}/{each.name}"
        trained = grpo_step(
            where, training, nodes, job, **inputs, config=config, settings=each.settings, checkpoints=place
        )
        after = evaluation.on_gpu(
            evaluate_policy(**measuring, adapter=trained.outputs["adapter"], baseline=before.outputs["evaluation"]),
            hours=6,
        )
    decided = where.on_cpu(
        choose(
            evaluations=dsl.Collected(after.outputs["evaluation"]),
            adapters=dsl.Collected(trained.outputs["adapter"]),
            thresholds=thresholds,
            store=store,
            run=run,
        ),
        hours=0.5,
    )
    publish_if_gate_passes(where, decided, decided.outputs["best"], store, run, deploy, deployment)
