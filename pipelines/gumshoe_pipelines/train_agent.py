"""Train an agent and publish it: ingest, split, evaluate, train, evaluate again, decide, publish.

With demonstrations, a warm start precedes the training; without them, its step ends immediately.
"""

from typing import Any

from kfp import dsl

from gumshoe.cluster.component import notify
from gumshoe.evaluation.component import evaluate_policy, gate
from gumshoe.training.component import warm_start
from gumshoe_pipelines.common_steps import EMBEDDING, ingest_and_split, publish_if_gate_passes
from gumshoe_pipelines.grpo_step import grpo_step
from gumshoe_pipelines.placement import TRAINER, WORKER, Placement


@dsl.pipeline(name="train-agent", description="Train a search agent, and publish it if it beats its base model.")
def train_agent(
    sources: list,
    scenarios: str,
    store: str,
    run: str,
    environment: str = "email",
    embedding: str = EMBEDDING,
    base_model: str = "Qwen/Qwen2.5-7B-Instruct",
    config: str = "",
    settings: dict = {},  # noqa: B006 - Kubeflow reads the default
    demonstrations: str = "",
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
    """Train an agent, evaluate it against its base model, and publish it if it passes the gate.

    Args:
        sources: Where to read mail or documents from, e.g. [maildir:s3://bucket/mail] or [dir:s3://bucket/documents].
        scenarios: Questions with known answers: a JSON Lines file, e.g. s3://bucket/questions.jsonl, or hf:DATASET.
        store: URI of the project's artifact store, e.g. s3://bucket/project.
        run: ID of this run, e.g. mail-1. With the ID of a stopped run, it continues where that run stopped.
        environment: What the agent searches: `email` or `documents`.
        embedding: Embedding model for documents, or `none` for keyword search only. Not used for mail.
        base_model: Base model: a name on the Hugging Face Hub, a directory, or `tiny`.
        config: Training settings: name of a preset, or URI of a YAML file. Empty for the defaults.
        settings: Training settings that override `config`, e.g. {optimizer.max_steps: 200}.
        demonstrations: URI of episodes from `gumshoe rollout` for a supervised warm start, or empty for none.
        limits: Limits per episode in evaluations, e.g. {max_turns: 10, max_tokens: 512, max_context: 8192}.
        choice: How evaluations choose among several samples per question, e.g. {samples: 4, choose: majority}.
        judge: Judge that decides in evaluations which answers are correct, e.g. heuristic or openai:MODEL@URL.
        thresholds: Thresholds an adapter must meet to be published. Missing ones have their defaults.
        seed: Random seed for splitting the scenarios, if they do not name a split.
        deploy: How to deploy the published adapter: `none`, `canary` (beside the adapter in service) or `full`.
        deployment: Where to deploy: name, namespace, percent (traffic of a canary), values (of the Helm chart).
        gpus: Number of GPUs per training node, and for the warm start. Evaluations use one GPU. 0 for CPU only.
        nodes: Number of training nodes. With more than 1, a Kubeflow TrainJob and separate vLLM servers are used.
        job: Options of the TrainJob: rollout_servers, rollout_gpus, queue, priority, cpus, memory, cache, runtime.
        node_selector: Node labels for GPU steps, e.g. {pool: gpus}.
        tolerations: Tolerations for GPU steps, e.g. [{key: nvidia.com/gpu, operator: Exists}].
        worker_image: Container image for CPU steps. To embed documents, use the trainer image.
        trainer_image: Container image for GPU steps.
        code: Hash of Gumshoe's code, set by `gumshoe pipeline`. Cached steps are repeated if it changes.
    """
    where: Any = Placement(worker_image, trainer_image, gpus, node_selector, tolerations)
    notification = where.on_cpu(notify(store=store, run=run), hours=0.25)
    with dsl.ExitHandler(notification, name="run"):
        evaluation, training = where.split_placement(nodes)
        inputs = {
            **ingest_and_split(where, sources, environment, embedding, scenarios, seed, code),
            "base_model": base_model,
        }
        measuring = {
            **inputs,
            "gpus": evaluation.gpus,
            "judge": judge,
            "limits": limits,
            "choice": choice,
            "code": code,
        }
        before = evaluation.on_gpu(evaluate_policy(**measuring), hours=6, cached=True).set_display_name("baseline")
        learning = {**inputs, "config": config, "settings": settings}
        warm = warm_start(**learning, gpus=gpus, demonstrations=demonstrations, judge=judge, code=code)
        where.on_gpu(warm, hours=12, cached=True).after(before)
        trained = grpo_step(
            where, training, nodes, job, **learning, checkpoints=f"{store}/runs/{run}", start=warm.outputs["adapter"]
        )
        adapter = trained.outputs["adapter"]
        after = evaluation.on_gpu(
            evaluate_policy(**measuring, adapter=adapter, baseline=before.outputs["evaluation"]), hours=6
        )
        decided = where.on_cpu(
            gate(evaluation=after.outputs["evaluation"], thresholds=thresholds, store=store, run=run), hours=0.5
        )
        publish_if_gate_passes(where, decided, adapter, store, run, deploy, deployment)
