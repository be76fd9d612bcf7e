"""Measure the base model and a published adapter on somebody's mail, and no more."""

from typing import Any

from kfp import dsl

from gumshoe.artifacts.component import fetch_adapter
from gumshoe.evaluation.component import evaluate_policy
from gumshoe.operations.component import notify
from gumshoe_pipelines.placement import TRAINER, WORKER, Placement
from gumshoe_pipelines.prepared import prepared


@dsl.pipeline(name="evaluate-agent", description="Measure a published adapter beside its base model.")
def evaluate_agent(
    mail: list,
    scenarios: str,
    store: str,
    run: str,
    base_model: str = "Qwen/Qwen2.5-7B-Instruct",
    adapter: str = "latest",
    limits: dict = {},  # noqa: B006 - a default of Kubeflow's
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
        mail: Sources of mail, as `gumshoe mail index` takes them.
        scenarios: Questions with known answers, as `gumshoe scenarios load` takes them.
        store: The URI of the project's artifacts, such as s3://bucket/project.
        run: The run's id. Submitted again with the same one, a run takes up where it stopped.
        base_model: `tiny`, a model's directory, or its name on the hub.
        adapter: The version of a published adapter, or `latest`.
        limits: Of an episode: max_turns, max_tokens, max_context.
        judge: Says which answers are right.
        seed: Decides which scenarios go into which split, where they do not say.
        gpus: Of a step that needs them.
        node_selector: Labels of the nodes that have them.
        tolerations: Of the same steps.
        worker_image: Of the steps without a GPU.
        trainer_image: Of those with one.
        code: A hash of the code; cached steps of other code are run again.
    """
    where: Any = Placement(worker_image, trainer_image, gpus, node_selector, tolerations)
    told = where.on_cpu(notify(store=store, run=run), hours=0.25)
    with dsl.ExitHandler(told, name="run"):
        asked = {**prepared(where, mail, scenarios, seed, code), "base_model": base_model, "gpus": gpus}
        fetched = where.on_cpu(fetch_adapter(store=store, version=adapter))
        measured = evaluate_policy(**asked, judge=judge, limits=limits, code=code, adapter=fetched.outputs["adapter"])
        where.on_gpu(measured, hours=6)
