"""Evaluate a published adapter against its base model."""

from typing import Any

from kfp import dsl

from gumshoe.artifacts.component import fetch_adapter
from gumshoe.cluster.component import notify
from gumshoe.evaluation.component import evaluate_policy
from gumshoe_pipelines.common_steps import EMBEDDING, ingest_and_split
from gumshoe_pipelines.placement import TRAINER, WORKER, Placement


@dsl.pipeline(name="evaluate-agent", description="Evaluate a published adapter against its base model.")
def evaluate_agent(
    sources: list,
    scenarios: str,
    store: str,
    run: str,
    environment: str = "email",
    embedding: str = EMBEDDING,
    base_model: str = "Qwen/Qwen2.5-7B-Instruct",
    adapter: str = "latest",
    limits: dict = {},  # noqa: B006 - Kubeflow reads the default
    choice: dict = {},  # noqa: B006
    judge: str = "heuristic",
    seed: int = 1,
    gpus: int = 1,
    node_selector: dict = {},  # noqa: B006
    tolerations: list = [],  # noqa: B006
    worker_image: str = WORKER,
    trainer_image: str = TRAINER,
    code: str = "",
) -> None:
    """Evaluate a published adapter against its base model.

    Args:
        sources: Where to read mail or documents from, e.g. [maildir:s3://bucket/mail] or [dir:s3://bucket/documents].
        scenarios: Questions with known answers: a JSON Lines file, e.g. s3://bucket/questions.jsonl, or hf:DATASET.
        store: URI of the project's artifact store, e.g. s3://bucket/project.
        run: ID of this run, e.g. mail-1. With the ID of a stopped run, it continues where that run stopped.
        environment: What the agent searches: `email` or `documents`.
        embedding: Embedding model for documents, or `none` for keyword search only. Not used for mail.
        base_model: Base model: a name on the Hugging Face Hub, a directory, or `tiny`.
        adapter: Version of a published adapter to evaluate, or `latest`.
        limits: Limits per episode, e.g. {max_turns: 10, max_tokens: 512, max_context: 8192}.
        choice: How to choose among several samples per question, e.g. {samples: 4, choose: majority}.
        judge: Judge that decides which answers are correct, e.g. heuristic or openai:MODEL@URL.
        seed: Random seed for splitting the scenarios, if they do not name a split.
        gpus: Number of GPUs for the evaluation, which uses at most one. 0 for CPU only.
        node_selector: Node labels for GPU steps, e.g. {pool: gpus}.
        tolerations: Tolerations for GPU steps, e.g. [{key: nvidia.com/gpu, operator: Exists}].
        worker_image: Container image for CPU steps. To embed documents, use the trainer image.
        trainer_image: Container image for GPU steps.
        code: Hash of Gumshoe's code, set by `gumshoe pipeline`. Cached steps are repeated if it changes.
    """
    where: Any = Placement(worker_image, trainer_image, gpus, node_selector, tolerations)
    notification = where.on_cpu(notify(store=store, run=run), hours=0.25)
    with dsl.ExitHandler(notification, name="run"):
        inputs = {
            **ingest_and_split(where, sources, environment, embedding, scenarios, seed, code),
            "base_model": base_model,
            "gpus": gpus,
        }
        fetched = where.on_cpu(fetch_adapter(store=store, version=adapter))
        measured = evaluate_policy(
            **inputs, judge=judge, limits=limits, choice=choice, code=code, adapter=fetched.outputs["adapter"]
        )
        where.on_gpu(measured, hours=6)
