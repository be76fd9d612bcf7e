"""Measure the base model and a published adapter on somebody's mail, and no more."""

from typing import Any

from kfp import dsl

from gumshoe.artifacts.component import fetch_adapter
from gumshoe.cluster.component import notify
from gumshoe.evaluation.component import evaluate_policy
from gumshoe_pipelines.common_steps import EMBEDDING, ingest_and_split
from gumshoe_pipelines.placement import TRAINER, WORKER, Placement


@dsl.pipeline(name="evaluate-agent", description="Measure a published adapter beside its base model.")
def evaluate_agent(
    sources: list,
    scenarios: str,
    store: str,
    run: str,
    environment: str = "email",
    embedding: str = EMBEDDING,
    base_model: str = "Qwen/Qwen2.5-7B-Instruct",
    adapter: str = "latest",
    limits: dict = {},  # noqa: B006 - a default of Kubeflow's
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
    """Measure an agent.

    Args:
        sources: Of mail, as `gumshoe mail index` takes them; of documents, as `gumshoe documents index` does.
        scenarios: Questions with known answers, as `gumshoe scenarios load` takes them.
        store: The URI of the project's artifacts, such as s3://bucket/project.
        run: The run's id. Submitted again with the same one, a run takes up where it stopped.
        environment: What the agent works in: `email`, or `documents`.
        embedding: Of documents: the embedding model, or `none` for an index of words alone.
        base_model: `tiny`, a model's directory, or its name on the hub.
        adapter: The version of a published adapter, or `latest`.
        limits: Of an episode: max_turns, max_tokens, max_context.
        choice: In evaluations, how one of several samples is the answer: samples, choose, choose_by, temperature.
        judge: Says which answers are right.
        seed: Decides which scenarios go into which split, where they do not say.
        gpus: Of the step that measures, which uses one; 0 where there are none.
        node_selector: Labels of the nodes that have them.
        tolerations: Of the same steps.
        worker_image: Of the steps without a GPU. Documents are embedded there, for which the trainer's image is made.
        trainer_image: Of those with one.
        code: A hash of the code; cached steps of other code are run again.
    """
    where: Any = Placement(worker_image, trainer_image, gpus, node_selector, tolerations)
    told = where.on_cpu(notify(store=store, run=run), hours=0.25)
    with dsl.ExitHandler(told, name="run"):
        asked = {
            **ingest_and_split(where, sources, environment, embedding, scenarios, seed, code),
            "base_model": base_model,
            "gpus": gpus,
        }
        fetched = where.on_cpu(fetch_adapter(store=store, version=adapter))
        measured = evaluate_policy(
            **asked, judge=judge, limits=limits, choice=choice, code=code, adapter=fetched.outputs["adapter"]
        )
        where.on_gpu(measured, hours=6)
